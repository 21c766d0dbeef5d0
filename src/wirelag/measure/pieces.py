"""Pieces of similar size: what one meter reads of many captures, and tasks made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from wirelag.capture.parts import Part
from wirelag.measure.looking import Look, related


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
    """Pieces of similar size. Unless `split`, a piece has all captures that continue one another."""
    found, planned = related([one for one in looks if not one.problem]), []
    planned += [all_at_once(group) for group in found.merged]
    for chain in found.chains:
        planned += _of_chain(chain, length) if split else [_whole(chain)]
    return planned


def all_at_once(looks: Sequence[Look]) -> Piece:
    """All captures as one piece, in order of time."""
    reads = tuple(Read(one.path, one.name, stamp=one.stamp) for one in looks)
    return Piece(reads, True, sum(one.size for one in looks))


def one_by_one(looks: Sequence[Look]) -> list[Piece]:
    """A piece for each capture, also for those that cannot be read: whoever reads them says why."""
    return [Piece((Read(one.path, one.name, stamp=one.stamp),), size=one.size) for one in looks]


def _whole(chain: Sequence[Look]) -> Piece:
    return Piece(tuple(Read(one.path, one.name, stamp=one.stamp) for one in chain), size=sum(one.size for one in chain))


def _of_chain(chain: Sequence[Look], length: int) -> list[Piece]:
    """Pieces of captures that continue one another; each begins with what warms it up."""
    found: list[Piece] = []
    reads: list[Read] = []
    size = 0
    before: Look | None = None

    def end() -> None:
        nonlocal reads, size
        if reads:
            found.append(Piece(tuple(reads), size=size))
        reads, size = [], 0

    for one in chain:
        for index, part in enumerate(one.parts or (None,)):
            more = one.size if part is None else part.bytes_of(one.size)
            if reads and size + more > length:
                end()
            last = reads[-1] if reads else None
            if last is not None and last.path == one.path and last.part is not None and part is not None:
                reads[-1] = replace(last, part=replace(last.part, end=part.end))
            else:
                if not reads and not index and before is not None:
                    reads.append(Read(before.path, before.name, before.tail, warm=True, stamp=before.stamp))
                reads.append(Read(one.path, one.name, part, index, stamp=one.stamp))
            size += more
        before = one
    end()
    return found


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
