"""Several capture files, merged by capture time into one series of packet batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from wirelag.capture.pcap import CaptureFile
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import EARLIEST_NS, LATEST_NS


class _Head:
    """The next batch of a file in the merge, and the latest time of the file at each of its rows."""

    def __init__(self, file: CaptureFile) -> None:
        self.batches = iter(file)
        self.batch = PacketBatch.empty()
        self.times_ns: npt.NDArray[np.int64] = np.empty(0, np.int64)
        self._latest_ns = EARLIEST_NS

    def refill(self) -> bool:
        """Read on if needed; return whether there are rows."""
        while not len(self.batch):
            batch = next(self.batches, None)
            if batch is None:
                return False
            self.batch = batch
            # A time that goes back keeps its place in its file.
            self.times_ns = np.maximum(np.maximum.accumulate(batch.time_ns), self._latest_ns)
            self._latest_ns = int(self.times_ns[-1])
        return True

    def take(self, until_ns: int) -> tuple[PacketBatch, npt.NDArray[np.int64]]:
        """The rows up to this time."""
        rows = int(np.searchsorted(self.times_ns, until_ns, side="right"))
        taken = self.batch[:rows], self.times_ns[:rows]
        self.batch, self.times_ns = self.batch[rows:], self.times_ns[rows:]
        return taken


def in_order_of_time(files: Sequence[CaptureFile], first_ns: Sequence[int]) -> Iterator[PacketBatch]:
    """Merge; a file is opened when its first packet is due, so that a long rotated set has one or two files open."""
    waiting = sorted(zip(first_ns, range(len(files)), strict=True), reverse=True)
    heads: list[_Head] = []
    while waiting or heads:
        until_ns = min((int(head.times_ns[-1]) for head in heads), default=LATEST_NS)
        while waiting and (not heads or waiting[-1][0] <= until_ns):
            head = _Head(files[waiting.pop()[1]])
            if head.refill():
                heads.append(head)
                until_ns = min(until_ns, int(head.times_ns[-1]))
        parts = [part for part in (head.take(until_ns) for head in heads) if len(part[0])]
        if len(parts) == 1:
            yield parts[0][0]
        elif parts:
            order = np.argsort(np.concatenate([times for _, times in parts]), kind="stable")
            yield PacketBatch.concatenate([batch for batch, _ in parts])[order]
        heads = [head for head in heads if head.refill()]
