"""LDA in the kernel: the synopsis of estimators/lda.py, from buckets that bpf/lda.bpf.c fills.

Guarantee: on one CPU, the same packets give the same synopsis, bit for bit; on several, the tail's entries are ordered
by time. Memory per CPU: twice the buckets, and twice 16 times the tail.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from wirelag import _kernels
from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.hooks import Direction, Hooks, counters_of, decoding
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda, LdaSynopsis
from wirelag.packets.addresses import Direction as Course
from wirelag.packets.batch import PacketId
from wirelag.packets.filters import Filter
from wirelag.packets.intervals import Interval
from wirelag.synopses.cache import CACHE, Cached

ROOM: Final = 16  # times the tail: whenever its level rises, half of it is refilled
COUNTERS: Final = counters_of(
    [
        ("packets", "u8"),
        ("level", "u4"),
        ("live", "u4"),
        ("kept", "u4"),
        ("overflowed", "u4"),
        ("by_zeros", "u4", 128),
    ]
)


class KernelLda:
    """The meter of one point, in the kernel. Without an interface, packets are replayed to it through `hooks`."""

    def __init__(
        self,
        estimator: Lda,
        interface: str | None,
        interval_ns: int,
        *,
        packet_id: PacketId,
        tunnels: bool = False,
        course: Course | None = None,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        self._estimator = estimator
        buckets = estimator.rows * len(estimator.shifts)
        room = ROOM * estimator.tail
        source, destination = _nets(course)
        self.hooks = Hooks(
            "lda",
            interface,
            counters=COUNTERS,
            sizes={"buckets": 2 * buckets, "tails": 2 * room},
            constants={
                "options": decoding(packet_id, tunnels),
                "lda": _kernels.lda_settings(estimator.rows, estimator.shifts, estimator.seed),
                "tail_key": _kernels.coin_key(estimator.seed, CACHE),
                "bucket_count": buckets,
                "tail_most": estimator.tail,
                "tail_room": room,
                "source_net": source,
                "destination_net": destination,
            },
            interval_ns=interval_ns,
            direction=direction,
            then=then,
            replayed=replayed,
        )
        self._packets = 0

    def cut(self, interval: Interval) -> LdaSynopsis:
        """The counts of an interval that is over."""
        estimator = self._estimator
        buckets = np.zeros(2 * estimator.rows * len(estimator.shifts), np.uint64)
        tail = Cached.empty(estimator.seed)
        parts = 0
        for counted, side in self.hooks.ended(interval):
            parts += 1
            buckets += self.hooks.sides["buckets"][side]
            kept = self.hooks.sides["tails"][side][: 2 * int(counted["kept"])]
            everything = Cached(
                kept[0::2].copy(), kept[1::2].view(np.int64).copy(), 0, int(counted["packets"]), tail.seed
            )
            level = 64 if counted["overflowed"] else int(counted["level"])
            tail = tail.followed_by(everything.at_level(level), estimator.tail)
        self._packets += tail.packets
        if parts > 1:
            tail = tail.only(np.argsort(tail.times_ns, kind="stable"))  # type: ignore[arg-type]
        return LdaSynopsis(buckets, tail)

    def statistics(self) -> LiveStatistics:
        """Counts of intervals that are over."""
        known = self.hooks.seen()
        return LiveStatistics(self._packets, known.dropped, packets=self._packets, skipped=known.skipped)

    def close(self) -> None:
        """Detach."""
        self.hooks.close()


def _nets(course: Course | None) -> list[bytes]:
    """Address and mask of each end, in the program's format."""
    found = []
    for nets in (course.source, course.destination) if course else ((), ()):
        if len(nets) > 1:
            raise WirelagError("direction: the kernel supports one net on each side; omit --in-kernel")
        words = Filter(nets=nets).kernel_arguments()["nets"]
        found.append(np.array(words[0] if words else (0, 0, 0, 0), np.uint64).tobytes())
    return found
