"""Pairs of messages through a whole collector: an attacker's and an honest one, and the replies to its questions.

Run as a program: `python -m tests.support.hostile_pairs SEED COUNT`. It may take MOST_MEMORY more than at its start,
and each pair MOST_CPU_S of processor time; it ends with an error if a pair takes more, or causes an internal error.
"""

import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path as File
from typing import Any

import numpy as np

from tests.support.agent_messages import EPOCH_NS, SECOND_NS, Agent, Path, pair
from wirelag.collector.loop import Collector
from wirelag.collector.sqlite import SqliteStore
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.intervals import Delimiters
from wirelag.protocol.messages import MOST_BYTES, MOST_PARAMETERS, Message, Record, decode, encode
from wirelag.protocol.results import Ends
from wirelag.protocol.session import LINGER_NS, Rounds
from wirelag.protocol.terms import Terms

MOST_MEMORY = 640 << 20
MOST_WAITING = 64 << 20
MOST_CPU_S = 20.0
ESTIMATORS = (
    Rda(short=True, rows=32, tail=512, memory=64 << 20),
    Rda(buckets=600, tail=200),
    Lda(64, (0, 4), tail=64),
    Finecomb(64, stash=32, tail=64),
)
NUMBERS = (0, 1, 2, 7, 29, 30, 31, 63, 64, 65, 1000, 1 << 16, 1 << 20, (1 << 31) - 1, 1 << 32, (1 << 48) - 1, 1 << 62)
LENGTHS = (0, 1, 2, 15, 16, 17, 63, 64, 65, 600, 601, 1 << 12, 1 << 16, 1 << 19)


def values(rng: random.Random, dtype: Any, length: int) -> np.ndarray[Any, Any]:
    """An array of a kind that a program does not expect."""
    made = np.random.default_rng(rng.getrandbits(32))
    match rng.randrange(5):
        case 0:
            found = np.zeros(length, np.uint64)
        case 1:
            found = np.full(length, rng.choice((1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)), np.uint64)
        case 2:
            found = np.arange(length, dtype=np.uint64)
        case 3:
            found = made.integers(0, 4, length, dtype=np.uint64)
        case _:
            found = made.integers(0, 1 << 64, length, dtype=np.uint64, endpoint=False)
    return found.astype(dtype)


def spoiled(record: Record, rng: random.Random, times: int) -> Record:
    """The record with some of its values changed, or left out."""
    found = dict(record)
    for name in rng.sample([*found], min(times, len(found))):
        value = found[name]
        if isinstance(value, np.ndarray):
            length = len(value) if rng.random() < 0.5 else rng.choice(LENGTHS)
            found[name] = values(rng, value.dtype, length)
        elif isinstance(value, int) and name not in ("start_ns", "end_ns"):
            found[name] = rng.choice(NUMBERS)
        elif rng.random() < 0.1 and name not in ("start_ns", "end_ns", "name", "class"):
            del found[name]
    return found


def hostile(message: Message, rng: random.Random) -> Message:
    """The message with other numbers, more classes, or other terms."""
    if rng.random() < 0.3:
        return message
    records = [spoiled(record, rng, rng.randrange(3)) for record in message.records]
    size = sum(getattr(value, "nbytes", 0) for value in records[0].values()) if records else 0
    more = min(rng.choice((0, 0, 0, 1, 3, 40, 500)), MOST_BYTES // max(1, size))
    records += [spoiled(records[0], rng, int(more < 100)) | {"class": f"new {number:x}"} for number in range(more)]
    return replace(message, records=tuple(records))


def with_classes(message: Message, classes: int) -> Message:
    """The same with as many classes, all of which have all packets; the last is that of the rest."""
    names = [f"{number:x}" for number in range(classes - 1)] + ["other"] * (classes > 0)
    first = {name: value for name, value in message.records[0].items() if name != "before"}
    return replace(message, records=(*message.records, *(first | {"class": name} for name in names)))


def terms_of(estimator: Any, rng: random.Random) -> Any:
    """The estimator, sometimes with a parameter at its limit."""
    if rng.random() < 0.8:
        return estimator
    names = [
        one.name for one in fields(estimator) if one.name in MOST_PARAMETERS and one.name not in ("memory", "banks")
    ]
    name = rng.choice(names)
    return replace(estimator, **{name: rng.choice((1, 2, MOST_PARAMETERS[name] // 64))})


def pairs(rng: random.Random, at_ns: int) -> Iterator[tuple[Message, Message, dict[str, Agent]]]:
    """Two messages about an interval, and the agents that reply."""
    estimator = terms_of(rng.choice(ESTIMATORS), rng)
    path = Path.made(2, rng.choice((0, 3, 200, 1000)), rng.getrandbits(30), loss=rng.choice((0, 0.1)), start_ns=at_ns)
    agents = {name: replace(one, point=name) for name, one in zip("CD", pair(path, estimator), strict=True)}
    classes = rng.choice((0, 0, 1, 5, 60))
    for up, down in zip(*(one.messages(0, 2) for one in agents.values()), strict=True):
        up, down = (with_classes(one, classes) for one in (up, down))
        if isinstance(estimator, Lda) and rng.random() < 0.5:
            terms = Terms(estimator, interval_ns=SECOND_NS, delimiters=Delimiters(SECOND_NS))
            up, down = (
                replace(one, terms=terms, interval=replace(one.interval, name=1), records=named(one.records))
                for one in (up, down)
            )
        yield up, down, agents


def named(records: tuple[Record, ...]) -> tuple[Record, ...]:
    return tuple(record | {"name": 1, "closed_by": 2} for record in records)


class Attack:
    """A collector, and what was sent to it."""

    def __init__(self, folder: File, seed: int) -> None:
        self.rng, self.now_ns, self.asked = random.Random(seed), EPOCH_NS, list[Message]()
        rounds = Rounds([Ends("C>D", "C", "D"), Ends("A>B", "A", "B")], most_bytes=MOST_WAITING)
        store = SqliteStore(str(folder / "store.db"))
        self.collector = Collector(rounds, store, lambda: self.now_ns, steady=lambda: self.now_ns)
        self.collector._ask_for = self.asked.extend  # type: ignore[method-assign]
        self.valid = 0

    def turn(self) -> None:
        """One pair about each of two intervals, the replies, and time."""
        at_ns = self.now_ns // SECOND_NS * SECOND_NS
        self.now_ns = at_ns + 3 * SECOND_NS
        for up, down, agents in pairs(self.rng, at_ns):
            both = [hostile(up, self.rng), down]
            for message in both if self.rng.random() < 0.5 else both[::-1]:
                self.send(message)
            for _ in range(6):
                for ask in [self.asked.pop() for _ in range(len(self.asked))]:
                    try:
                        reply = agents[ask.point].answer(ask)
                    except (ValueError, KeyError, IndexError):  # an honest agent refuses it as well
                        continue
                    self.send(hostile(reply, self.rng) if ask.point == "C" else reply)
        self.now_ns += self.rng.choice((0, 0, 5 * SECOND_NS, 2 * LINGER_NS))
        assert self.collector._pass_time() is not None

    def send(self, message: Message) -> None:
        data = encode(message)
        with suppress(ValueError):
            self.valid += bool(decode(data).records)
        assert self.collector._take([data]) is not None
        assert self.collector.rounds.bytes <= MOST_WAITING


def run(seed: int, count: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(File(folder), seed)
        attack.turn()
        pages = int(File("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        slowest_s = 0.0
        for number in range(count):
            began_s = time.process_time()
            attack.turn()
            took_s = time.process_time() - began_s
            slowest_s = max(slowest_s, took_s)
            assert took_s < MOST_CPU_S, f"pair {number} took {took_s} s"
            counted = attack.collector.counted + attack.collector.rounds.counted
            wrong = {name: counted[name] for name in ("internal errors", "given up") if counted[name]}
            assert not wrong, f"pair {number}: {wrong}"
        attack.collector.store.close()
        print(f"{attack.valid} valid, {counted['garbage']} garbage, {counted['answers']} answers, {slowest_s:.2f} s")


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
