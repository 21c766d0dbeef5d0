"""What is told beside the figures of `rtt`: what was examined, and what was not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.capture.source import Packets
    from wirelag.synopses.samples import Samples

_COUNTED: Final = {
    "evicted": "forgotten before their answer, since memory was full or too much was in flight on one connection",
    "backwards": "responses timestamped before their request",
    "too_long": "responses more than 2.44 h after their request",
    "again": "responses not timed, since their request was sent again",
}


def counts_of(packets: Packets, total: Samples) -> dict[str, int]:
    """Packets and samples by what became of them."""
    statistics = packets.statistics
    counts = {"packets": statistics.packets, "examined": total.packets}
    counts |= {f"skipped: {why}": n for why, n in statistics.skipped.items()}
    return counts | {_COUNTED.get(name, name): n for name, n in total.counts.items()}


def span_of(packets: Packets) -> tuple[int, int] | None:
    """The times of the first and the last packet, where known."""
    first, last = (getattr(packets.statistics, name, None) for name in ("first_ns", "last_ns"))
    return None if first is None or last is None else (first, last)


def coverage_of(packets: Packets, total: Samples) -> str:
    """Coverage, as a sentence."""
    statistics, delays = packets.statistics, total.distribution()
    skipped = sum(statistics.skipped.values())
    parts = [many(statistics.packets, "packet"), f"{total.packets:,} examined"]
    if skipped:
        parts.append(f"{skipped:,} skipped ({', '.join(f'{n:,} {why}' for why, n in statistics.skipped.items())})")
    if total.counts.get("evicted", 0):
        parts.append(f"{total.counts['evicted']:,} {_COUNTED['evicted']} (--table-memory)")
    if delays.weight != delays.samples:
        parts.append(f"{delays.samples:,} samples represent {delays.weight:,} delays")
    parts += [
        _few(n, _COUNTED[name]) for name in ("backwards", "too_long", "again") if (n := total.counts.get(name, 0))
    ]
    return "; ".join(parts)


def _few(count: int, what: str) -> str:
    """So many responses; one of them had its request."""
    return f"{count:,} {what}" if count > 1 else f"1 {what}".replace("responses", "response").replace("their", "its")


def sent_again(method: str, retransmitted: str, counted: int) -> list[str]:
    """What became of requests that were sent again, where an agreement depends on it: so many were answered."""
    if retransmitted != "drop":
        return []
    if method == "fridge":
        return ["a fridge times requests that were sent again, too; exact matching leaves them out"]
    if counted:
        what = f"{counted:,} responses to requests that were sent again"
        if counted == 1:
            return [
                "1 response to a request that was sent again: not timed, nor judged; --retransmitted first times it"
            ]
        return [f"{what}: not timed, nor judged; --retransmitted first times them, too"]
    return []
