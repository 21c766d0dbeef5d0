"""Every sample as a row of a Parquet or CSV file.

Memory: `PART_ROWS` samples, some 150 MB including buffers, and for Parquet 10 MB per million while parts are merged.
Until then, parts are in a folder beside the file; during the merge the disk holds them twice.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Final, Protocol, Self

import numpy as np

from wirelag.capture.table import Coded, Table
from wirelag.capture.whole_file import whole_file
from wirelag.errors import WirelagError, need_polars
from wirelag.packets.address import to_address
from wirelag.packets.batch import Array, PacketBatch
from wirelag.synopses.samples import LEGS, SampleBatch

if TYPE_CHECKING:
    import polars as pl

PART_ROWS: Final = 1 << 18
FORMS: Final = (".csv", ".parquet")


class SampleColumns:
    """Samples as columns in memory, 80 bytes each.

    They are named as in the truth of a simulation: `kind` (the matcher), `leg`, `client`, `server`, `client_port`,
    `server_port`, `capture` and `response_number` (the response's file, and its number there), `request_ns`,
    `response_ns`, `delay_ns`, `weight`.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._batches: list[dict[str, Array]] = []
        self._names: dict[str, int] = {}  # matchers and captures, by index

    def add(self, packets: PacketBatch, samples: SampleBatch) -> None:
        """Keep the samples of a packet batch."""
        rows = samples.rows
        from_server = samples.legs == 0  # the delay is to the side that responds
        ends = {"src": packets.src[rows], "dst": packets.dst[rows]}
        ports = {"src": packets.src_port[rows], "dst": packets.dst_port[rows]}
        captures = np.array([self._place(block.name) for block in packets.blocks] or [self._place("")], np.int64)
        kinds = np.array([self._place(name) for name in samples.kinds], np.int64)
        self._batches.append(
            {
                "kind": kinds[samples.kind],
                "leg": samples.legs.copy(),
                "client": np.where(from_server[:, np.newaxis], ends["dst"], ends["src"]),
                "server": np.where(from_server[:, np.newaxis], ends["src"], ends["dst"]),
                "client_port": np.where(from_server, ports["dst"], ports["src"]),
                "server_port": np.where(from_server, ports["src"], ports["dst"]),
                "capture": captures[packets.source[rows]],
                "response_number": packets.number[rows].astype(np.int64),
                "request_ns": packets.time_ns[rows] - samples.delays_ns,
                "response_ns": packets.time_ns[rows],
                "delay_ns": samples.delays_ns.copy(),
                "weight": np.ones(len(rows), np.int64) if samples.weights is None else samples.weights.copy(),
            }
        )
        self.rows += len(rows)

    def clear(self) -> None:
        """Forget the samples, but not the names of matchers and captures."""
        self._batches, self.rows = [], 0

    def table(self) -> Table:
        """A row for each sample."""
        nothing = {name: np.empty((0, 2) if name in ("client", "server") else 0, np.int64) for name in _ROW}
        batches = self._batches or [nothing]
        columns = {name: np.concatenate([batch[name] for batch in batches]) for name in _ROW}
        names = list(self._names)
        texts = {
            "kind": Coded(names, columns["kind"]),
            "leg": Coded(LEGS, columns["leg"].astype(np.int64)),
            "client": address_texts(columns["client"]),
            "server": address_texts(columns["server"]),
            "capture": Coded(names, columns["capture"]),
        }
        return Table(_ROW, {**columns, **texts})

    def to_polars(self) -> pl.DataFrame:
        """A row for each sample."""
        return self.table().to_polars()

    def _place(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))


class Columns(Protocol):
    """Rows in memory, which a file takes when there are enough."""

    rows: int

    def add(self, *args: Any, **kwargs: Any) -> None:
        """Keep rows."""

    def clear(self) -> None:
        """Forget the rows."""

    def table(self) -> Table:
        """The rows, of one schema."""


class RowFile:
    """A file of rows: its context keeps every row, and writes the file at the end; its name says CSV or Parquet."""

    def __init__(self, path: str, columns: Columns, option: str = "--samples") -> None:
        self.path, self.option = path, option
        self._csv = _is_csv(path)
        self._folder = Path()
        self._parts: list[Path] = []
        self._columns = columns
        self._failures: tuple[type[Exception], ...] = (OSError,)
        if not self._csv:
            need_form(path)
            import polars as pl

            self._failures = (OSError, pl.exceptions.ComputeError)  # polars raises this on a full disk

    def __enter__(self) -> Self:
        target = Path(self.path)
        if target.is_dir():
            raise WirelagError(f"{self.path}: is a folder; choose a file with {self.option}")
        try:
            self._folder = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        except OSError as error:
            raise self._unwritable(error) from None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._write_part()
                with self._checked(), whole_file(self.path, "wb", self.option) as out:
                    (_join_csv if self._csv else _join_parquet)(self._parts, out)
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, *given: Any) -> None:
        """Keep rows, as the columns take them."""
        self._columns.add(*given)
        if self._columns.rows >= PART_ROWS:
            self._write_part()

    def _write_part(self) -> None:
        if not self._columns.rows and self._parts:
            return
        part, table = self._folder / f"{len(self._parts):06d}", self._columns.table()
        with self._checked():
            if self._csv:
                part.write_text(table.csv(head=not self._parts), "utf-8")
            else:
                table.to_polars().write_parquet(part)
        self._columns.clear()
        self._parts.append(part)

    @contextmanager
    def _checked(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: Exception) -> WirelagError:
        why = getattr(error, "strerror", None) or error
        return WirelagError(f"{self.path}: cannot write ({why}); choose another file with {self.option}")


def need_form(path: str) -> None:
    """Raise unless a file of this name can be written here: Parquet needs polars."""
    if Path(path).suffix.lower() not in FORMS:
        raise WirelagError(f"{path}: its name must end in {' or '.join(FORMS)}, which is its format")
    if not _is_csv(path):
        need_polars("Parquet")


def _is_csv(path: str) -> bool:
    return Path(path).suffix.lower() == ".csv"


def _join_csv(parts: list[Path], out: IO[bytes]) -> None:
    for part in parts:
        with part.open("rb") as rows:
            shutil.copyfileobj(rows, out)


def _join_parquet(parts: list[Path], out: IO[bytes]) -> None:
    import polars as pl

    pl.scan_parquet(parts).sink_parquet(out, row_group_size=PART_ROWS, maintain_order=True)


class SampleFile(RowFile):
    """A sink for samples of round trips."""

    def __init__(self, path: str) -> None:
        super().__init__(path, SampleColumns())


_ROW: Final = {
    **dict.fromkeys(("kind", "leg", "client", "server"), "String"),
    **dict.fromkeys(("client_port", "server_port"), "UInt16"),
    "capture": "String",
    **dict.fromkeys(("response_number", "request_ns", "response_ns", "delay_ns", "weight"), "Int64"),
}


def address_texts(addresses: Array) -> Coded:
    """Addresses as text; each is written once and then copied."""
    order = np.lexsort((addresses[:, 1], addresses[:, 0]))
    ordered = addresses[order]
    fresh = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))[: len(ordered)]
    place = np.empty(len(ordered), np.int64)
    place[order] = np.cumsum(fresh) - 1
    texts = [str(to_address(high, low)) for high, low in ordered[fresh].tolist()]
    return Coded(texts, place)
