"""From columns to the bytes of frames; `kernels/sim_frame.h` writes them."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.sim.packets import Packets
from wirelag.sim.traffic import Bools, Connections, Ints


@dataclass(frozen=True)
class Frames:
    """Frames in one buffer: frame i is `buffer[offset[i] : offset[i] + captured[i]]`."""

    time_ns: Ints
    buffer: npt.NDArray[np.uint8]
    offset: Ints
    captured: Ints
    wire: Ints


def build_frames(
    packets: Packets, connections: Connections, rows: Ints, time_ns: Ints, crossed: Bools, snaplen: int, seed: int
) -> Frames:
    """Build the frames of these rows, captured at these times; `crossed` ones are further along the path."""
    snaplen = min(snaplen, 2**32 - 1)
    return Frames(time_ns, *_kernels.sim_frames(packets, connections, rows, crossed, snaplen, seed))
