"""Rows for files and data frames: columns of known kinds, as CSV without polars, or as a data frame of polars."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from wirelag.errors import need_polars

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import polars as pl

_QUOTED: Final = re.compile('[,"\r\n]')


@dataclass(frozen=True)
class Coded:
    """A column of texts, few of them distinct: row i has `texts[code[i]]`; None is no value."""

    texts: Sequence[str | None]
    code: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Table:
    """Rows as columns. `kinds` names each one's type as polars does: String, Int64, UInt16, Float64, Boolean."""

    kinds: Mapping[str, str]
    columns: Mapping[str, Sequence[Any] | npt.NDArray[Any] | Coded]

    def rows(self) -> Iterator[dict[str, Any]]:
        """Each row by its columns' names, as Python's own values."""
        values = [_values(self.columns[name]) for name in self.kinds]
        return (dict(zip(self.kinds, row, strict=True)) for row in zip(*values, strict=True))

    def csv(self, head: bool = True) -> str:
        """The rows as CSV: no value is nothing, an empty text is in quotes."""
        cells = [_cells(self.columns[name], kind) for name, kind in self.kinds.items()]
        lines = [",".join(map(_text, self.kinds))] if head else []
        lines += map(",".join, zip(*cells, strict=True))
        return "".join(f"{line}\n" for line in lines)

    def to_polars(self) -> pl.DataFrame:
        """The rows as a data frame."""
        need_polars("A data frame")
        import polars as pl

        schema = {name: getattr(pl, kind) for name, kind in self.kinds.items()}
        columns = {name: _series(self.columns[name], schema[name]) for name in self.kinds}
        return pl.DataFrame(columns, schema=schema, strict=False)


def _series(column: Any, kind: Any) -> Any:
    import polars as pl

    return pl.Series(column.texts, dtype=kind).gather(column.code) if isinstance(column, Coded) else column


def _values(column: Any) -> Iterable[Any]:
    if isinstance(column, Coded):
        return [column.texts[i] for i in column.code.tolist()]
    return column if isinstance(column, Sequence) else column.tolist()


def _cells(column: Any, kind: str) -> Iterable[str]:
    """A column as cells of CSV."""
    if isinstance(column, Coded):
        texts = [_text(text) for text in column.texts]
        return [texts[i] for i in column.code.tolist()]
    cell: Callable[[Any], str] = _CELL.get(kind, _count)
    return map(cell, _values(column))


def _text(value: str | None) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if not value or _QUOTED.search(value) else value


def _count(value: int | None) -> str:
    return "" if value is None else str(int(value))


def _truth(value: bool | None) -> str:
    return "" if value is None else "true" if value else "false"


def _number(value: float | None) -> str:
    """The shortest decimal that is this number, with an exponent below 0.00001.

    >>> [_number(x) for x in (0.25, 2, 0.0000125, 1.5e-06, 1e16)]
    ['0.25', '2.0', '0.0000125', '1.5e-6', '1e+16']
    """
    if value is None:
        return ""
    text = repr(float(value))
    if "e-" in text:
        digits, _, exponent = text.partition("e-")
        if int(exponent) == 5:
            sign, digits = ("-", digits[1:]) if digits[0] == "-" else ("", digits)
            return f"{sign}0.0000{digits.replace('.', '')}"
        return f"{digits}e-{int(exponent)}"
    return "NaN" if text == "nan" else text


_CELL: Final[dict[str, Callable[[Any], str]]] = {"String": _text, "Float64": _number, "Boolean": _truth}
