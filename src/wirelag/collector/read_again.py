"""Messages that are read from the store once more, for one that has come: no more than `MOST_BYTES` for each point.

Law: a message is stored until nothing needs it. So the other half of an interval is found, however late the first one
comes; and after a restart, the interval before a late one, which waits for it to know its loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from wirelag.collector.store import Store, next_of
from wirelag.packets.intervals import Interval
from wirelag.protocol.messages import Message
from wirelag.protocol.results import Rank
from wirelag.protocol.session import Rounds

MOST: Final = 256  # messages
MOST_BYTES: Final = 16 << 20
NEAR: Final = 4  # intervals on both sides that may contain the other halves of those cut by packets


def other_halves(store: Store, rounds: Rounds, message: Message) -> Iterator[bytes]:
    """What the store has of the other ends and, if packets cut, of this one."""
    delimiters = message.terms.delimiters
    around_ns = 0 if delimiters is None else NEAR * delimiters.length_ns
    yield from _about(store, rounds, message, rounds.partners(message), around_ns)
    if delimiters is not None and rounds.has_partner(message):
        yield from _about(store, rounds, message, {message.point}, around_ns)


def before(store: Store, rounds: Rounds, message: Message) -> Iterator[bytes]:
    """Both halves of the interval before, if it is known and not settled."""
    start_ns, length_ns = message.interval.start_ns, message.interval.length_ns
    earlier = replace(message, interval=Interval(start_ns - length_ns, start_ns))
    if any(store.rank_of(name, earlier.interval) == Rank.FIRST for name in rounds.about(message)):
        yield from _about(store, rounds, earlier, {message.point, *rounds.partners(message)}, 0)


def is_settled(store: Store, rounds: Rounds, message: Message) -> bool:
    """Whether all that a message is about is known."""
    return all((store.rank_of(name, message.interval) or 0) >= Rank.ALONE for name in rounds.about(message))


def _about(store: Store, rounds: Rounds, message: Message, points: Iterable[str], around_ns: int) -> Iterator[bytes]:
    stored = store.messages_about(message.interval.start_ns, sorted(points), around_ns, rounds.has)
    yield from next_of(stored, MOST, MOST_BYTES)
