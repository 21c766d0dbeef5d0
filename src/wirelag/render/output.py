"""Results as a table, JSON, JSON lines, CSV, Parquet and formats of other programs, on standard output or in a file."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import IO, TYPE_CHECKING, Any, Final

from wirelag.errors import WirelagError, need_polars, visible
from wirelag.render.tables import BLOCKS, fit

if TYPE_CHECKING:
    import polars as pl

    from wirelag.measure.result import Result


ROW_GROUP: Final = 1 << 16  # rows that a group of Parquet has


def _table(result: Result, out: IO[str]) -> None:
    write_lines([*result.table(), *([PARTIAL_LINE] if result.partial else [])], out)


def write_lines(lines: Sequence[str], out: IO[str]) -> None:
    """Write lines for a person: as wide as the terminal, in characters that it can show."""
    width = _width(out)
    text = "".join(
        visible(line).replace("\n", "\\n") + "\n" for line in (lines if width is None else fit(lines, width))
    )
    out.write(legible(text, getattr(out, "encoding", None) or "utf-8"))
    out.flush()


def legible(text: str, encoding: str) -> str:
    """The text; where it is not UTF-8, in characters that it has: pictures are all in ASCII, or none of them is."""
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(_ASCII).encode(encoding, "replace").decode(encoding)
    return text


def write_what_fits(stream: IO[str]) -> None:
    """Let a stream that is not UTF-8 write something in place of a character that it has not."""
    import codecs
    import io

    def stand_in(error: UnicodeError) -> tuple[str, int]:
        if not isinstance(error, UnicodeEncodeError):
            raise error
        return legible(error.object[error.start : error.end], "ascii"), error.end

    if isinstance(stream, io.TextIOWrapper):
        codecs.register_error("wirelag", stand_in)
        stream.reconfigure(errors="wirelag")


def _width(out: IO[str]) -> int | None:
    """The columns of the terminal, or as many as COLUMNS says; None: no limit, as in files and pipes."""
    said = os.environ.get("COLUMNS", "")
    if said.isdecimal() and int(said):
        return max(NARROWEST, int(said))
    try:
        return max(NARROWEST, os.get_terminal_size(out.fileno()).columns) if out.isatty() else None
    except (OSError, ValueError):  # no descriptor
        return None


_ASCII: Final = str.maketrans(dict(zip(BLOCKS, ".:-=+*%#", strict=True)) | {"…": "~"})


def _json(result: Result, out: IO[str]) -> None:
    out.writelines(result.to_json_text())


def _json_lines(result: Result, out: IO[str]) -> None:
    import json

    out.writelines(json.dumps({"command": result.command} | part) + "\n" for part in result.parts())


def _csv(result: Result, out: IO[str]) -> None:
    for i, table in enumerate(result.tables()):
        out.write(table.csv(head=i == 0))


def _parquet(result: Result, out: IO[bytes]) -> None:
    need_polars("Parquet")
    import polars as pl

    parts: list[IO[bytes]] = []  # packed as they come: there may be a million rows
    some: list[pl.DataFrame] = []

    def pack() -> None:
        parts.append(io.BytesIO())
        pl.concat(some).write_parquet(parts[-1])
        some.clear()

    for table in result.tables():
        some.append(table.to_polars())
        if sum(len(frame) for frame in some) >= ROW_GROUP:
            pack()
    if some:
        pack()
    for part in parts:
        part.seek(0)
    if len(parts) == 1:
        out.write(parts[0].read())
    else:
        pl.scan_parquet(parts).sink_parquet(out, row_group_size=ROW_GROUP, maintain_order=True)


def _openmetrics(result: Result, out: IO[str]) -> None:
    from wirelag.render.openmetrics import text

    out.writelines(text(result))


def _ipfix(result: Result, out: IO[bytes]) -> None:
    from wirelag.render.ipfix import Exporter

    out.writelines(Exporter().messages(result))


def _zeek(result: Result, out: IO[str]) -> None:
    from wirelag.render.zeek import lines

    out.writelines(lines(result.flow_records()))


WRITERS: Final[dict[str, Callable[[Result, IO[Any]], None]]] = {
    "table": _table,
    "json": _json,
    "jsonl": _json_lines,
    "csv": _csv,
    "parquet": _parquet,
    "openmetrics": _openmetrics,
    "ipfix": _ipfix,
    "zeek": _zeek,
}
"""Each format, and what writes a result in it: a new one is a function and a line here."""
BINARY: Final = {"parquet": "Parquet", "ipfix": "IPFIX"}
OF_FLOWS: Final = ("ipfix", "zeek")  # formats that need flows
OF_DELAYS: Final = ("openmetrics", *OF_FLOWS)  # formats that need delays
TABLES: Final = ("txt", "log")  # extensions of tables


def form_of(path: str, forms: Sequence[str]) -> str:
    """The format that a file's extension says, a table without one; a ValueError if it says one that is not written.

    >>> form_of("out.json", ("table", "json")), form_of("out", ("table",)), form_of("out.2026-11-17", ("table",))
    ('json', 'table', 'table')
    """
    suffix = os.path.splitext(path)[1][1:].lower()
    if suffix in ("html", "htm"):
        raise ValueError(f"a page is written with --html {path}")
    if suffix in ("gz", "zst", "xz", "bz2"):
        raise ValueError(f"{path}: nothing is written compressed; leave .{suffix} out")
    if suffix in forms or suffix in TABLES or not suffix[:1].isalpha():  # a date is no format
        return suffix if suffix in forms else "table"
    known = ", ".join(f".{name}" for name in (*(name for name in forms if name != "table"), *TABLES))
    raise ValueError(f"{path}: .{suffix} is not a known format; name the file {known}, or choose with --format")


PARTIAL_LINE: Final = "partial: stopped before the end of the input"
NARROWEST: Final = 60  # columns that a table needs


def write_result(result: Result, form: str, path: str | None) -> None:
    """Print or write a result in one of the formats."""
    if form in BINARY and path is None:
        raise WirelagError(f"cannot print {BINARY[form]} on a terminal: name a file with -o")
    with opened(path, binary=form in BINARY) as out:
        WRITERS[form](result, out)


@contextmanager
def opened(path: str | None, binary: bool = False, option: str = "-o") -> Iterator[IO[Any]]:
    """A file to write to, or standard output; an error names the file."""
    if path is None or path == "-":
        with _gathered(sys.stdout.buffer) if binary else nullcontext(sys.stdout) as out:
            yield out
        return
    from wirelag.capture.whole_file import whole_file

    with (
        whole_file(path, "wb" if binary else "w", option) as file,
        _gathered(file) if binary else nullcontext(file) as out,
    ):
        yield out


def write_parquet(path: str, frame: pl.DataFrame, option: str) -> None:
    """Write a data frame to a file."""
    with opened(path, binary=True, option=option) as out:
        frame.write_parquet(out)


@contextmanager
def _gathered(out: IO[bytes]) -> Iterator[IO[bytes]]:
    """Write all bytes at once: on a full disk, polars itself would report a wrong table."""
    gathered = io.BytesIO()
    yield gathered
    out.write(gathered.getbuffer())


def write_html(path: str, page: str) -> None:
    """Write a page, or say why that is not possible."""
    from wirelag.capture.whole_file import whole_file

    with whole_file(path, "wb", "--html") as file:
        file.write(page.encode("utf-8", "backslashreplace"))
