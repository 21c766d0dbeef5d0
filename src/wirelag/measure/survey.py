"""What a capture holds, and what can be measured from it. Memory: at most 64 MB, whatever arrives.

Conversations are kept by flow key, up to 2^20. Whenever there are more, only keys with one more leading zero bit stay.
A flow key is a hash, so the rest is an even sample, and counts are scaled up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag
from wirelag.packets.roles import by_client

if TYPE_CHECKING:
    from wirelag.measure.copies import Copies
    from wirelag.measure.trial import Trial

MOST_CONVERSATIONS: Final = 1 << 20
MOST_IDS: Final = 1 << 12
_PENDING_ROWS: Final = 1 << 18

# One bit for each fact about a conversation. TIMED: its messages show which request a response belongs to.
FORWARD, BACKWARD, TO_SERVER, TO_CLIENT, SYN, SYN_ACK, TCP, TIMED = (1 << i for i in range(8))
TIMED_KINDS: Final = (Kind.DNS, Kind.NTP, Kind.ICMP, Kind.QUIC)


class Conversations:
    """The conversations seen, each a row of bits."""

    def __init__(self) -> None:
        self.keys: npt.NDArray[np.uint64] = np.empty(0, np.uint64)
        self.bits: npt.NDArray[np.uint8] = np.empty(0, np.uint8)
        self.scale = 1  # conversations that each kept one represents
        self._pending: list[tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]] = []
        self._pending_rows = 0

    def add(self, keys: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint8]) -> None:
        """Add packets: their flow keys, and what each shows about its conversation."""
        self._pending.append(_joined(keys, bits))
        self._pending_rows += len(self._pending[-1][0])
        if self._pending_rows > _PENDING_ROWS:
            self.settle()

    def settle(self) -> None:
        """Merge pending rows into the kept ones."""
        tables = [(self.keys, self.bits), *self._pending]
        self.keys, self.bits = _joined(np.concatenate([k for k, _ in tables]), np.concatenate([b for _, b in tables]))
        self._pending, self._pending_rows = [], 0
        self._thin()

    def merge(self, other: Conversations) -> None:
        """Add the conversations of another capture."""
        other.settle()
        self._pending.append((other.keys, other.bits))
        self.scale = max(self.scale, other.scale)
        self.settle()

    def _thin(self) -> None:
        while True:
            kept = self.keys < np.uint64(2**64 // self.scale - 1) if self.scale > 1 else slice(None)
            self.keys, self.bits = self.keys[kept], self.bits[kept]
            if len(self.keys) <= MOST_CONVERSATIONS:
                return
            self.scale *= 2

    def count(self, mask: npt.NDArray[np.bool_] | None = None) -> int:
        """How many conversations there are, or how many in the mask."""
        return (len(self.keys) if mask is None else int(np.count_nonzero(mask))) * self.scale

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


def _joined(
    keys: npt.NDArray[np.uint64], bits: npt.NDArray[np.uint8]
) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint8]]:
    """Merge rows of equal keys."""
    if not len(keys):
        return keys, bits
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))
    return keys[starts], np.bitwise_or.reduceat(bits[order], starts)


def _conversation_bits(packets: PacketBatch) -> npt.NDArray[np.uint8]:
    """What each packet shows about its conversation."""
    tcp = packets.of_kind(Kind.TCP)
    opening = packets.message & np.uint8(TcpFlag.SYN | TcpFlag.ACK)
    differ = packets.src_port != packets.dst_port
    bits = np.where(packets.has(Flag.REVERSE), np.uint8(BACKWARD), np.uint8(FORWARD))
    for bit, rows in (
        (TO_SERVER, by_client(packets.src_port, packets.dst_port) & differ),
        (TO_CLIENT, by_client(packets.dst_port, packets.src_port) & differ),
        (SYN, tcp & (opening == TcpFlag.SYN)),
        (SYN_ACK, tcp & (opening == TcpFlag.SYN | TcpFlag.ACK)),
        (TCP, tcp),
        (TIMED, np.isin(packets.kind, TIMED_KINDS)),
    ):
        bits |= rows.astype(np.uint8) * np.uint8(bit)
    return bits


class Survey:
    """What a capture holds, by packet and by conversation; the smallest packet ids on request."""

    def __init__(self, with_ids: bool = False) -> None:
        self.conversations = Conversations()
        self.kinds = dict.fromkeys(Kind, 0)
        self.flags = dict.fromkeys(Flag, 0)
        self.with_ids = with_ids
        self.ids: npt.NDArray[np.uint64] = np.empty(0, np.uint64)

    def observe(self, packets: PacketBatch) -> None:
        """Add packets."""
        counts = np.bincount(packets.kind, minlength=len(Kind))
        for kind in Kind:
            self.kinds[kind] += int(counts[kind])
        for flag in Flag:
            self.flags[flag] += int(np.count_nonzero(packets.has(flag)))
        whole = packets[~packets.has(Flag.LATER)]  # a later fragment has no ports, so no conversation
        self.conversations.add(whole.flow_key, _conversation_bits(whole))
        if self.with_ids:
            self.ids = np.union1d(self.ids, packets.packet_id)[:MOST_IDS]

    def merge(self, other: Survey) -> None:
        """Add the survey of another capture."""
        self.conversations.merge(other.conversations)
        for kind in Kind:
            self.kinds[kind] += other.kinds[kind]
        for flag in Flag:
            self.flags[flag] += other.flags[flag]


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
    survey.conversations.settle()
    between = _oneway(common, apart, copies)
    found = [_rtt(survey, trial), _response(survey, trial)]
    if copies:
        found = [_one_at_a_time(one, copies) if one.applies else one for one in found]
    return [*found, between, _flows(survey, between)]


def _one_at_a_time(found: Applicability, copies: Copies) -> Applicability:
    return Applicability(found.command, False, f"{copies}: measure one of them", found.sure)


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
