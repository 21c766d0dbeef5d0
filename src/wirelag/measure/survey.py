"""What a capture holds. Memory: at most 64 MB, whatever arrives.

Conversations are kept by flow key, up to 2^20. Whenever there are more, only keys with one more leading zero bit stay.
A flow key is a hash, so the rest is an even sample, and counts are scaled up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final, cast

from wirelag import _kernels
from wirelag.packets.filters import LATEST_NS

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from wirelag.capture.pcap import CaptureFile
    from wirelag.capture.undecoded import Records, Undecoded
    from wirelag.measure.points import Progress
    from wirelag.packets.batch import Flag, Kind, PacketBatch

MOST_CONVERSATIONS: Final = 1 << 20
MOST_IDS: Final = 1 << 12

# One bit for each fact about a conversation (kernels/survey.h).
FORWARD, BACKWARD, TO_SERVER, TO_CLIENT, SYN, SYN_ACK, TCP, TIMED = (1 << i for i in range(8))


class Conversations:
    """The conversations seen, each a row of bits."""

    def __init__(self, bits: npt.NDArray[np.uint8], scale: int) -> None:
        self.bits = bits
        self.scale = scale  # conversations that each kept one represents

    def count(self, mask: npt.NDArray[np.bool_] | None = None) -> int:
        """How many conversations there are, or how many in the mask."""
        import numpy as np

        return (len(self.bits) if mask is None else int(np.count_nonzero(mask))) * self.scale

    def have(self, bits: int) -> npt.NDArray[np.bool_]:
        """Conversations with all of these bits."""
        import numpy as np

        return np.asarray((self.bits & np.uint8(bits)) == bits)

    @property
    def both_ways(self) -> npt.NDArray[np.bool_]:
        """Seen in both directions."""
        return self.have(FORWARD | BACKWARD)

    @property
    def client_only(self) -> npt.NDArray[np.bool_]:
        """Seen from client to server only. A SYN shows which side is the client; without one, ports do."""
        by_port = self.have(TO_SERVER) & ~self.have(TO_CLIENT) & ~self.have(SYN_ACK)
        return ~self.both_ways & (self.have(SYN) | by_port)


class Survey:
    """What a capture holds, by packet and by conversation; the smallest packet ids on request."""

    def __init__(self, with_ids: bool = False) -> None:
        self._kernel = _kernels.Survey(MOST_CONVERSATIONS)
        self.with_ids = with_ids
        self._ids: npt.NDArray[np.uint64] | None = None

    def __getstate__(self) -> tuple[Any, ...]:
        keys, bits = self._known()
        kernel = self._kernel
        return keys, bits, kernel.level, kernel.kinds, kernel.flags, self.with_ids, self._ids

    def __setstate__(self, saved: tuple[Any, ...]) -> None:
        *counted, self.with_ids, self._ids = saved
        self._kernel = _kernels.Survey(MOST_CONVERSATIONS)
        self._kernel.merge_saved(*counted)

    @property
    def ids(self) -> npt.NDArray[np.uint64]:
        """The smallest packet ids, in order."""
        import numpy as np

        return np.empty(0, np.uint64) if self._ids is None else self._ids

    def observe(self, packets: PacketBatch) -> None:
        """Add packets."""
        self._kernel.observe(packets)
        if self.with_ids:
            import numpy as np

            self._ids = np.union1d(self.ids, packets.packet_id)[:MOST_IDS]

    all_rows, sharded, visits, until_ns = True, False, None, LATEST_NS

    def work(self, decoder: _kernels.Decoder, packets: int) -> _kernels.Work:
        """Adding what was decoded last."""
        return self._kernel.rows(decoder)

    def turn(self, next_ns: int) -> None:
        """There is no time at which anything changes."""

    @classmethod
    def of_file(cls, file: CaptureFile, cores: int, progress: Progress) -> Survey:
        """The survey of all packets of a file, without their ids and without batches."""
        from wirelag.capture.undecoded import Undecoded, decoding
        from wirelag.estimators.records import RecordsMeter
        from wirelag.synopses.slowest import Slowest

        survey = cls()
        meter = RecordsMeter(survey, decoding(file, cores), Slowest(0))
        shown = cast("Callable[[Undecoded], Iterable[Records]]", progress)  # it passes on whatever it is given
        for _ in meter.intervals(shown(Undecoded(file, meter.finish, cores))):
            pass
        return survey

    def merge(self, other: Survey) -> None:
        """Add the survey of another capture."""
        self._kernel.merge(other._kernel)

    @property
    def kinds(self) -> dict[Kind, int]:
        """Packets of each kind."""
        from wirelag.packets.batch import Kind

        return dict(zip(Kind, self._kernel.kinds, strict=True))

    @property
    def flags(self) -> dict[Flag, int]:
        """Packets with each flag."""
        from wirelag.packets.batch import Flag

        counts = self._kernel.flags
        return {flag: counts[flag.bit_length() - 1] for flag in Flag}

    @property
    def conversations(self) -> Conversations:
        """The conversations so far."""
        return Conversations(self._known()[1], 1 << self._kernel.level)

    def _known(self) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
        import numpy as np

        keys, bits = np.empty(len(self._kernel), np.uint64), np.empty(len(self._kernel), np.uint8)
        self._kernel.conversations(keys, bits)
        return keys, bits


def common_share(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> float:
    """The share of packets that two captures have in common, of the smaller one, from their smallest packet ids.

    Ids are hashes: below the smaller of the two largest ids both lists are complete, and an even sample of all packets.
    """
    import numpy as np

    if not len(one) or not len(other):
        return 0.0
    complete = [ids[-1] for ids in (one, other) if len(ids) == MOST_IDS]
    if complete:
        one, other = (ids[ids <= min(complete)] for ids in (one, other))
    return len(np.intersect1d(one, other)) / max(1, min(len(one), len(other)))
