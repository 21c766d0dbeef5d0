"""LDA: in the kernel, cut at packets, beside by the clock, beside the same outside the kernel, on the same packets.

Two hosts, and a wire that delays by 2 ms with jitter, so that packets overtake each other; without loss and with 1%.
All agents of a run see the same datagrams, and tcpdump sees them beside the agents: its captures, joined, are the
truth. Errors are of every interval. An interface runs one program, so the kernel is cut at packets, at control packets
and by the clock in three runs. `bare` agents sample one packet for the tail: then nothing reveals a row with the right
count but wrong packets, as in the paper. Needs root.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from traces import arguments, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from lab.live import Done, Setting, run
from lab.wire import Direction

SECONDS, QUICK_S = 40, 8
ROWS = "rows = 256\n"
LDA = Setting("lda", ROWS, filtered=False, wire=Direction(delay_us=2000, jitter_us=200, loss=0.0), interval="500ms")
BARE = replace(LDA, options=ROWS + "tail = 1")
RUNS = {
    "at packets": {"cut": "packets"},
    "at control packets": {"controlled": True},
    "by the clock": {"cut": "clock"},
}


def row(cut: str, where: str, done: Done) -> tuple[str, ...]:
    """The errors of one pair of agents."""
    errors, share = [], []
    assert done.truth is not None
    for start_ns, end_ns, one in done.spans():
        used, sum_ns, _ = done.truth.during(start_ns, end_ns)
        if one["mean_ns"] is not None and used:
            errors.append(abs(one["mean_ns"] / (sum_ns / used) - 1))
            share.append(one["used"] / used)
    if not errors:
        return cut, where, "0", "-", "-", "-"
    return (
        cut,
        where,
        str(len(errors)),
        f"{np.median(errors):.3%}",
        f"{max(errors):.3%}",
        f"{np.median(share):.1%}",
    )


def rows(cut: str, seconds: int, loss: float) -> list[tuple[str, ...]]:
    """One run: the kernel, and outside of it with and without a sample, and by the clock."""
    given, wire = RUNS[cut], replace(LDA.wire, loss=loss)
    outside = replace(LDA, **given)  # type: ignore[arg-type]
    clock = replace(BARE, cut="clock")
    kernel = replace(outside, in_kernel=True, seconds=seconds, wire=wire, also=(outside, clock))
    with TemporaryDirectory() as folder:
        done = run(kernel, Path(folder))
    return [
        row(cut, "kernel", done.of(0)),
        row(cut, "outside", done.of(1)),
        row("by the clock", "outside, bare", done.of(2)),
    ]


if __name__ == "__main__":
    options = arguments(__doc__)
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)
    seconds = QUICK_S if options.quick else SECONDS
    header = ("cut", "where", "intervals", "median error of the mean", "worst", "packets used")
    for loss in (0.0, 0.01):
        found = [one for cut in RUNS for one in rows(cut, seconds, loss)]
        show(f"{seconds} s, {LDA.rate} packets/s, intervals of {LDA.interval}, {loss:.0%} lost", header, found)
