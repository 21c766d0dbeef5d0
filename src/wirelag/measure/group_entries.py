"""The groups of a result: each is made when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, overload

from wirelag.measure.result import Entry

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    _Many = Callable[[npt.NDArray[np.uint32]], Iterator[Entry]]

KEPT: Final = 1000  # entries that are made once


class GroupEntries(Sequence[Entry]):
    """Groups in order, each made when it is asked for: there may be a million, and a table shows twenty.

    Memory: 4 bytes a group, and the first `KEPT` that were made.
    """

    def __init__(
        self, places: npt.NDArray[np.uint32], make: Callable[[int], Entry], make_many: _Many | None = None
    ) -> None:
        self._places = places
        self._make = make
        self._make_many = make_many
        self._made: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._places)

    def each(self) -> Iterator[Entry]:
        """All of them in order, to write their figures: no more are kept, and no picture of these is drawn."""
        if self._make_many is None:
            yield from self
            return
        made: list[Entry] = []  # those shown, which come first
        for place in self._places[: len(self._made)].tolist():
            if place not in self._made:
                break
            made.append(self._made[place])
        yield from made
        yield from self._make_many(self._places[len(made) :])

    @overload
    def __getitem__(self, index: int) -> Entry: ...
    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...
    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        place = int(self._places[index])
        found = self._made.get(place)
        if found is None:
            found = self._make(place)
            if len(self._made) < KEPT:
                self._made[place] = found
        return found
