"""Pieces of similar size: what one meter reads of many captures, and tasks made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from wirelag.measure.looking import WARM_NS, KeySample, Look, most_warm, related, sharing

if TYPE_CHECKING:
    from wirelag.capture.parts import Part


@dataclass(frozen=True)
class Read:
    """A capture, or a part of it, that a task reads; `warm`: only to know what is open when the next one begins."""

    path: str
    name: str
    part: Part | None = None
    index: int = 0  # of the part
    warm: bool = False
    stamp: str = ""  # of the file: a changed one is read again


@dataclass(frozen=True)
class Piece:
    """Captures that one meter reads, one after the other; or, merged, at once in order of time."""

    reads: tuple[Read, ...]
    merged: bool = False
    size: int = 0

    @property
    def continues(self) -> bool:
        """Whether it begins where another one ends."""
        return self.reads[0].warm or self.reads[0].index > 0


def pieces(looks: Sequence[Look], length: int, split: bool) -> list[Piece]:
    """Pieces of similar size. Unless `split`, a piece has all captures that continue one another, in order of time."""
    found, planned = related([one for one in looks if not one.problem]), []
    planned += [all_at_once(group) for group in found.merged]
    for chain in found.chains:
        planned += _of_chain(chain, length) if split else [all_at_once(chain)]
    return planned


def all_at_once(looks: Sequence[Look]) -> Piece:
    """All captures as one piece, in order of time."""
    reads = tuple(Read(one.path, one.name, stamp=one.stamp) for one in looks)
    return Piece(reads, len(reads) > 1, sum(one.size for one in looks))


def joined(planned: Sequence[Piece], samples: Sequence[KeySample], near_ns: int) -> list[Piece]:
    """The pieces, those as one that turned out to share connections within this time; each has a sample of its keys."""
    group = list(range(len(planned)))  # the first piece that each is read with
    for one, other in sharing(enumerate(samples), dict(enumerate(group)), near_ns):
        first, later = sorted((group[one], group[other]))
        group = [first if number == later else number for number in group]
    found: dict[int, Piece] = {}
    for number, piece in zip(group, planned, strict=True):
        before = found.get(number)
        found[number] = Piece(before.reads + piece.reads, True, before.size + piece.size) if before else piece
    return list(found.values())


def one_by_one(looks: Sequence[Look]) -> list[Piece]:
    """A piece for each capture, also for those that cannot be read: whoever reads them says why."""
    return [Piece((Read(one.path, one.name, stamp=one.stamp),), size=one.size) for one in looks]


def _of_chain(chain: Sequence[Look], length: int) -> list[Piece]:
    """Pieces of captures that continue one another; each begins with what warms it up."""
    found: list[Piece] = []
    reads: list[Read] = []
    size = 0

    def end() -> None:
        nonlocal reads, size
        if reads:
            found.append(Piece(tuple(reads), size=size))
        reads, size = [], 0

    for place, one in enumerate(chain):
        for index, part in enumerate(one.parts or (None,)):
            more = one.size if part is None else part.bytes_of(one.size)
            if reads and size + more > length:
                end()
            last = reads[-1] if reads else None
            if last is not None and last.path == one.path and last.part is not None and part is not None:
                reads[-1] = replace(last, part=replace(last.part, end=part.end))
            else:
                own = 0 if part is None else part.begin.byte  # bytes of the same capture before it
                if not reads and (part is None or part.warm is None or not part.warm.byte):
                    reads += _warming_up(chain[:place], one, most_warm(length) - own)
                reads.append(Read(one.path, one.name, part, index, stamp=one.stamp))
            size += more
    end()
    return found


def _warming_up(before: Sequence[Look], one: Look, most: int) -> list[Read]:
    """The ends of the captures before this one that hold the last `WARM_NS`, or about `most` bytes if that is less."""
    found: list[Read] = []
    size = 0
    for last in reversed(before):
        size += last.size if last.tail is None else last.tail.bytes_of(last.size)
        if (found or most <= 0) and size > most:
            break
        found.append(Read(last.path, last.name, last.tail, warm=True, stamp=last.stamp))
        if last.first_ns <= one.first_ns - WARM_NS or (last.tail is not None and last.tail.begin.byte):
            break
    return found[::-1]


def bundles(planned: Sequence[Piece], length: int) -> list[tuple[Piece, ...]]:
    """Pieces put together to tasks of about this many bytes."""
    found: list[tuple[Piece, ...]] = []
    some: list[Piece] = []
    for piece in planned:
        if some and sum(one.size for one in some) + piece.size > length:
            found.append(tuple(some))
            some = []
        some.append(piece)
    return [*found, tuple(some)] if some else found
