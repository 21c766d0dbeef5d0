"""Messages that are read from the store once more, for one that has come: no more than `MOST_BYTES` for each point.

Law: a message is stored until nothing needs it. So the other half of an interval is found, however late the first one
comes, and so are its neighbours, of which one waits for it to know its loss.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wirelag.collector.store import Store, next_of
from wirelag.protocol.messages import Message
from wirelag.protocol.places import reach
from wirelag.protocol.results import Rank
from wirelag.protocol.session import Rounds

MOST: Final = 256  # messages
MOST_BYTES: Final = 16 << 20
NEAR: Final = 4  # intervals on both sides that may contain the other halves of those cut by packets


def others(store: Store, rounds: Rounds, message: Message) -> Iterator[bytes]:
    """What the store has of both ends of the interval and of its neighbours; if packets cut, of those that may be."""
    delimiters = message.terms.delimiters
    length_ns = message.interval.length_ns
    around_ns = reach(length_ns) * length_ns if delimiters is None else NEAR * delimiters.length_ns
    own = [message.point] if delimiters is None or rounds.has_partner(message) else []
    for point in [*sorted(rounds.partners(message)), *own]:
        stored = store.messages_about(message.interval.start_ns, [point], around_ns, rounds.has)
        yield from next_of(stored, MOST, MOST_BYTES)


def is_settled(store: Store, rounds: Rounds, message: Message) -> bool:
    """Whether all that a message is about is known."""
    return all((store.rank_of(name, message.interval) or 0) >= Rank.ALONE for name in rounds.about(message))
