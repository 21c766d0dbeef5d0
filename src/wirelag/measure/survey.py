"""What a capture holds, and what can be measured from it. Memory: at most 64 MB, whatever arrives.

Conversations are kept by flow key, up to 2^20. Whenever there are more, only keys with one more leading zero bit stay.
A flow key is a hash, so the rest is an even sample, and counts are scaled up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.packets.batch import Flag, Kind, PacketBatch

if TYPE_CHECKING:
    from wirelag.measure.copies import Copies
    from wirelag.measure.trial import Trial

MOST_CONVERSATIONS: Final = 1 << 20
MOST_IDS: Final = 1 << 12

# One bit for each fact about a conversation (kernels/survey.h).
FORWARD, BACKWARD, TO_SERVER, TO_CLIENT, SYN, SYN_ACK, TCP, TIMED = (1 << i for i in range(8))
TIMED_KINDS: Final = (Kind.DNS, Kind.NTP, Kind.ICMP, Kind.QUIC)


class Conversations:
    """The conversations seen, each a row of bits."""

    def __init__(self, bits: npt.NDArray[np.uint8], scale: int) -> None:
        self.bits = bits
        self.scale = scale  # conversations that each kept one represents

    def count(self, mask: npt.NDArray[np.bool_] | None = None) -> int:
        """How many conversations there are, or how many in the mask."""
        return (len(self.bits) if mask is None else int(np.count_nonzero(mask))) * self.scale

    def have(self, bits: int) -> npt.NDArray[np.bool_]:
        """Conversations with all of these bits."""
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
        self._kinds = np.zeros(len(Kind), np.uint64)
        self._flags = np.zeros(16, np.uint64)
        self.with_ids = with_ids
        self.ids: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def observe(self, packets: PacketBatch) -> None:
        """Add packets."""
        self._kernel.observe(packets, self._kinds, self._flags)
        if self.with_ids:
            self.ids = np.union1d(self.ids, packets.packet_id)[:MOST_IDS]

    def merge(self, other: Survey) -> None:
        """Add the survey of another capture."""
        self._kernel.merge(other._kernel)
        self._kinds += other._kinds
        self._flags += other._flags

    @property
    def kinds(self) -> dict[Kind, int]:
        """Packets of each kind."""
        return {kind: int(self._kinds[kind]) for kind in Kind}

    @property
    def flags(self) -> dict[Flag, int]:
        """Packets with each flag."""
        return {flag: int(self._flags[flag.bit_length() - 1]) for flag in Flag}

    @property
    def conversations(self) -> Conversations:
        """The conversations so far."""
        keys, bits = np.empty(len(self._kernel), np.uint64), np.empty(len(self._kernel), np.uint8)
        self._kernel.conversations(keys, bits)
        return Conversations(bits, 1 << self._kernel.level)


def common_share(one: npt.NDArray[np.uint64], other: npt.NDArray[np.uint64]) -> float:
    """The share of packets that two captures have in common, of the smaller one, from their smallest packet ids.

    Ids are hashes: below the smaller of the two largest ids both lists are complete, and an even sample of all packets.
    """
    if not len(one) or not len(other):
        return 0.0
    complete = [ids[-1] for ids in (one, other) if len(ids) == MOST_IDS]
    if complete:
        one, other = (ids[ids <= min(complete)] for ids in (one, other))
    return len(np.intersect1d(one, other)) / max(1, min(len(one), len(other)))


@dataclass(frozen=True, slots=True)
class Applicability:
    """Whether a command can measure what was captured, and why; `sure` if it was tried on all packets."""

    command: str
    applies: bool
    why: str
    sure: bool = True


def verdicts(
    survey: Survey,
    trial: Trial,
    common: float | None = None,
    apart: str | None = None,
    copies: Copies | None = None,
) -> list[Applicability]:
    """What can be measured.

    `common` is the largest share of packets that two of the captures have in common; `apart` says why `oneway`
    cannot compare these two; it is empty if it can, and None if that was not tried. `copies` are two captures that
    `rtt` and `response` do not read as one.
    """
    between = _oneway(common, apart, copies)
    found = [_rtt(survey, trial), _response(survey, trial)]
    if copies:
        found = [_one_at_a_time(one, copies) if one.applies else one for one in found]
    return [*found, between, _flows(survey, between)]


def _one_at_a_time(found: Applicability, copies: Copies) -> Applicability:
    way_out = copies.way_out if copies.same_times else "measure one of them"
    return Applicability(found.command, False, f"{copies}: {way_out}", found.sure)


def _rtt(survey: Survey, trial: Trial) -> Applicability:
    seen = survey.conversations
    tcp = seen.count(seen.both_ways & seen.have(TCP))
    others = seen.count(seen.both_ways & seen.have(TIMED))
    if not trial.delays:
        why = "no conversation that can be timed is seen in both directions"
        if tcp + others:
            why = f"{tcp + others:,} conversations are seen in both directions, but no request with its response"
        return Applicability("rtt", False, why, trial.whole)
    parts = []
    if tcp:
        share = survey.flags[Flag.TIMESTAMPS] / survey.kinds[Kind.TCP]
        parts.append(
            f"{tcp:,} of {seen.count(seen.have(TCP)):,} TCP conversations ({share:.0%} of packets with timestamps)"
        )
    if others:
        names = ", ".join(kind.name for kind in TIMED_KINDS if survey.kinds[kind])
        parts.append(f"{others:,} of {names}")
    told = ", and ".join(parts) or f"{trial.delays:,} requests with their responses"
    return Applicability("rtt", True, f"seen in both directions: {told}")


def _response(survey: Survey, trial: Trial) -> Applicability:
    seen = survey.conversations
    one_way, both, all_of_them = seen.count(seen.client_only), seen.count(seen.both_ways), seen.count()
    if not trial.timed:
        return Applicability("response", False, trial.why_not, trial.whole)
    told = f"seen in both directions: {both:,} of {all_of_them:,} conversations"
    if one_way > both:
        told = f"client->server only: {one_way:,} of {all_of_them:,} conversations"
    told += f"; {trial.timed:,} of {trial.servers:,} servers can be timed"
    missing = trial.servers - trial.timed
    told += f", {missing:,} cannot: {trial.why_not}" if missing else ""
    return Applicability("response", True, told, trial.whole)


def _oneway(common: float | None, apart: str | None, copies: Copies | None) -> Applicability:
    if common is None:
        return Applicability("oneway", False, "one capture: add another of the same traffic from a second point")
    if copies and copies.same_times:
        why = f"{copies.one} and {copies.other} have packets in common at the same times: one capture, not two points"
        return Applicability("oneway", False, why)
    if copies and copies.translated:
        return Applicability("oneway", True, f"{copies}: use --nat", sure=False)
    if common < 0.01:
        return Applicability("oneway", False, f"the captures have {common:.1%} of their packets in common")
    if apart:
        return Applicability("oneway", False, apart)
    why = f"two captures have {common:.0%} of their packets in common"
    return Applicability("oneway", True, why, sure=apart is not None)


def _flows(survey: Survey, between: Applicability) -> Applicability:
    references = survey.kinds[Kind.STAMP]
    if references:
        return Applicability("flows", True, f"{references:,} STAMP reference packets", sure=False)
    if between.applies:
        why = "packets common to two captures can serve as reference packets"
        return Applicability("flows", True, why, sure=False)
    return Applicability("flows", False, "no STAMP reference packets (UDP port 862)")
