"""The groups of a result: each is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, overload

from wirelag.measure.result import Entry

_Make = Callable[[Sequence[int]], Iterable[Entry]]

KEPT: Final = 1000  # entries that are made once
AT_ONCE: Final = 2048  # that are made in one go


class GroupEntries(Sequence[Entry]):
    """Groups in order, each made when it is asked for: there may be a million, and a table shows twenty.

    Memory: 4 bytes a group, and the first `KEPT` that were made.
    """

    def __init__(self, places: Sequence[int], make: _Make, at_first: int = 1) -> None:
        """`make` makes those at some of the places; of the first ones `at_first` together, as quickly as a few."""
        self._places, self._make, self._at_first = places, make, at_first
        self._made: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[Entry]:
        return self._parts(keep=True)

    def each(self) -> Iterator[Entry]:
        """All of them in order, to write their figures: no more are kept."""
        return self._parts(keep=False)

    def _parts(self, keep: bool) -> Iterator[Entry]:
        for start in range(0, len(self), AT_ONCE):
            yield from self._at(self._places[start : start + AT_ONCE], keep)

    def _at(self, some: Sequence[int], keep: bool = True) -> Iterable[Entry]:
        places = [int(place) for place in some]
        wanted = dict.fromkeys([*self._places[: self._at_first], *places] if keep and not self._made else places)
        missing = [place for place in wanted if place not in self._made]
        made = dict(zip(missing, self._make(missing), strict=True)) if missing else {}
        found = [self._made[place] if place in self._made else made[place] for place in places]
        if keep:
            self._made |= islice(made.items(), max(0, KEPT - len(self._made)))
        return found

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [*self._at(self._places[index])]
        (found,) = self._at([self._places[index]])
        return found
