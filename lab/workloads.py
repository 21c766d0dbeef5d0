"""What was measured in data centres, in small: sizes of flows, and how busy processors were.

The processors' series are means of 300 s over a whole data centre; traces of single jobs, which vary more, are not at
hand. Each is the part of 40 values, of a month and of a week, that varies most.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

# Alizadeh et al., "Data Center TCP (DCTCP)", 2010, figure 4, as the file DCTCP_CDF of
# github.com/datacenter/empirical-traffic-gen has it: bytes, and the share of flows with at most as many.
DCTCP_BYTES = (
    *((0, 0.0), (10_000, 0.15), (20_000, 0.2), (30_000, 0.3), (50_000, 0.4), (80_000, 0.53)),
    *((200_000, 0.6), (1_000_000, 0.7), (2_000_000, 0.8), (5_000_000, 0.9), (10_000_000, 0.97), (30_000_000, 1.0)),
)

# Google's cluster trace of May 2019 (Borg), mean over all instances of a cell: column avg_cpu, values 6789 to 6828 of
# instance_usage_grouped_300_seconds_month.csv of github.com/alejandrofdez-us/DataCenter-Traces-Datasets.
GOOGLE_2019_CPU = (
    *(0.432, 0.398, 0.386, 0.386, 0.389, 0.381, 0.379, 0.389, 0.413, 0.377, 0.377, 0.421, 0.438, 0.420, 0.390, 0.447),
    *(0.485, 0.472, 0.412, 0.450, 0.501, 0.540, 0.563, 0.558, 0.549, 0.570, 0.550, 0.572, 0.565, 0.536, 0.512, 0.521),
    *(0.535, 0.523, 0.518, 0.542, 0.563, 0.573, 0.565, 0.528),
)

# Alibaba's cluster trace of 2018, mean over all machines: cpu_util_percent / 100, values 43 to 82 of
# machine_usage_days_1_to_8_grouped_300_seconds.csv of the same.
ALIBABA_2018_CPU = (
    *(0.223, 0.320, 0.286, 0.316, 0.295, 0.295, 0.407, 0.329, 0.297, 0.265, 0.235, 0.244, 0.231, 0.249, 0.235, 0.372),
    *(0.267, 0.263, 0.295, 0.287, 0.265, 0.247, 0.375, 0.350, 0.441, 0.513, 0.466, 0.491, 0.397, 0.355, 0.547, 0.472),
    *(0.686, 0.768, 0.558, 0.566, 0.551, 0.530, 0.514, 0.535),
)


def drawn_sizes(random: np.random.Generator, count: int) -> npt.NDArray[np.int64]:
    """Sizes of flows; between two points of the table all are equally likely."""
    sizes, shares = zip(*DCTCP_BYTES, strict=True)
    return np.asarray(np.rint(np.interp(random.uniform(size=count), shares, sizes)), np.int64)


def mean_size() -> float:
    """The mean of the same."""
    sizes, shares = (np.array(column) for column in zip(*DCTCP_BYTES, strict=True))
    return float(np.sum(np.diff(shares) * (sizes[1:] + sizes[:-1]) / 2))
