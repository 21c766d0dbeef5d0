"""Settings: one reader of TOML files and command lines, driven by a schema.

Law: the schema alone knows names, kinds, bounds, defaults and help. A setting means the same in a file and on the
command line, and the command line wins. Each problem is one line: the place, what is wrong, and the way out.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from wirelag.errors import WirelagError
from wirelag.units import parse_duration_ns, parse_rate, parse_share, parse_size, parse_speed

LONGEST: Final = "100y"
LARGEST: Final = "1000TiB"
FASTEST: Final = 1 << 40  # bytes per second
SHOWN: Final = 80  # characters of a wrong value in an error
APART_S: Final = 0.2  # between two reads that must be alike
MOST_READS: Final = 50


# ---- kinds: what a value may be ----


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of value: its description, and how to read a plain value; a ValueError says what is wrong."""

    words: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f'{_shown(value)} is not text: write it in quotes, "like this"')
    if not value.strip():
        raise ValueError("is empty: write a value, or leave the setting out")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{_shown(value)} is neither true nor false")
    return value


def _share(value: Any) -> float:
    share = parse_share(str(value))
    if not share:
        raise ValueError(f"{_shown(value)} is not above 0")
    return share


def _address(value: Any) -> str:
    try:
        return str(ipaddress.ip_address(_text(value)))
    except ValueError:
        raise ValueError(f"{_shown(value)} is not an address: write 192.0.2.1 or 2001:db8::1") from None


def _rate(value: Any) -> int:
    rate = parse_rate(_text(value)) // 8
    if not 0 < rate < FASTEST:
        raise ValueError(f"{_shown(value)} is out of range: at least 8bps, below 8Tbps")
    return rate


TEXT: Final = Kind("text", _text)
PATH: Final = Kind("path", _text)
FLAG: Final = Kind("true or false", _flag)
SHARE: Final = Kind("share", _share)
RATE: Final = Kind("rate", _rate)  # read as bytes per second
SPEED: Final = Kind("speed", lambda value: parse_speed(str(value)))
ADDRESS: Final = Kind("address", _address)


def whole(least: int, most: int) -> Kind:
    """Whole numbers within bounds."""
    return _between(f"{least} to {most}", _numeric(int, "a whole number"), least, most)


def number(least: float, most: float) -> Kind:
    """Numbers within bounds."""
    return _between(f"{least:g} to {most:g}", _numeric((int, float), "a number"), least, most)


def duration(least: str = "1ns", most: str = LONGEST) -> Kind:
    """Durations within bounds, read as ns."""
    words = f"duration, {least} to {most}" if most != LONGEST else f"duration, at least {least}"
    return _between(words, lambda value: parse_duration_ns(_text(value)), *map(parse_duration_ns, (least, most)))


def size(least: str = "1B", most: str = LARGEST) -> Kind:
    """Sizes within bounds, read as bytes."""
    words = f"size, {least} to {most}" if most != LARGEST else "size"
    return _between(words, lambda value: parse_size(_text(value)), *map(parse_size, (least, most)))


def _numeric(types: Any, what: str) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        if isinstance(value, bool) or not isinstance(value, types) or not math.isfinite(value):
            raise ValueError(f"{_shown(value)} is not {what}")
        return value

    return parse


def _between(words: str, parse: Callable[[Any], Any], least: float, most: float) -> Kind:
    def read(value: Any) -> Any:
        found = parse(value)
        if not least <= found <= most:
            raise ValueError(f"{value} is out of range: {words.rpartition(', ')[2]}")
        return found

    return Kind(words, read)


def choice(*names: str) -> Kind:
    """One of a few words."""

    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"{_shown(value)} is not one of {', '.join(names)}")
        return str(value)

    return Kind(", ".join(f"`{name}`" for name in names), read)


def named(pattern: str, rule: str) -> Kind:
    """Names that match a pattern; `rule` describes it."""

    def read(value: Any) -> str:
        if not re.fullmatch(pattern, _text(value)):
            raise ValueError(f"{_shown(value)} is not a name: use {rule}")
        return str(value)

    return Kind("name", read)


def listed(kind: Kind) -> Kind:
    """A list of values of one kind; a single one needs no brackets."""

    def read(value: Any) -> tuple[Any, ...]:
        return tuple(map(kind.read, value if isinstance(value, list | tuple) else [value]))

    return Kind(f"list: {kind.words}", read)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


# ---- schemas ----


@dataclass(frozen=True, slots=True)
class Key:
    """A setting. `default` is written as in a file; None: no default."""

    name: str
    kind: Kind
    default: Any
    help: str
    flag: str | None = None
    otherwise: str = ""  # the default in documentation, where it is not one value
    required: bool = False

    def value(self) -> Any:
        """The default, read."""
        return None if self.default is None else self.kind.read(self.default)


@dataclass(frozen=True, slots=True)
class Schema:
    """The settings of a program. Those in `tables` are written [[name]], each up to its limit."""

    keys: tuple[Key, ...]
    tables: Mapping[str, tuple[int, tuple[Key, ...]]] = field(default_factory=dict)

    def read(self, document: Mapping[str, Any], where: str) -> Settings:
        """Settings from plain values; `check` raises their problems."""
        settings = Settings(self, where)
        settings.put_document(document)
        return settings

    def load(self, path: str | None) -> Settings:
        """Settings from a TOML file; without a file, the defaults."""
        return self.read(read_toml(path) if path else {}, path or "")

    def key(self, name: str) -> Key | None:
        """The key of that name: `interval`, `estimator.rows`, `segments.0.name`."""
        table, _, rest = name.partition(".")
        if table in self.tables:
            name = rest.partition(".")[2]
            return next((key for key in self.tables[table][1] if key.name == name), None)
        return next((key for key in self.keys if key.name == name), None)

    def folders(self) -> list[str]:
        """The tables of keys, written [name]."""
        return list(dict.fromkeys(key.name.partition(".")[0] for key in self.keys if "." in key.name))

    def nearest(self, name: str) -> str:
        """A suggestion for an unknown name."""
        table, _, rest = name.partition(".")
        if table in self.tables:
            return meant(rest.partition(".")[2], [key.name for key in self.tables[table][1]])
        return meant(name, [key.name for key in self.keys] + ([] if rest else [*self.folders(), *self.tables]))

    def name_of(self, flag: str) -> str | None:
        """The setting that a flag sets."""
        return next((key.name for key in self.keys if key.flag == flag), None)


class Settings:
    """Values by name, those of tables by name and number (`segments.0.name`), and the place of each."""

    def __init__(self, schema: Schema, where: str = "") -> None:
        self._schema, self._where = schema, where
        self._values: dict[str, Any] = {}
        self._written: dict[str, tuple[Any, str]] = {}  # as given, with its place
        self._rows: dict[str, list[str]] = {}  # by table: the name of each row in errors
        self._tables: set[str] = set()  # tables given, even if empty
        self.problems: list[str] = []

    def put(self, name: str, value: Any, place: str) -> None:
        """Set a value, or note why it is wrong."""
        key = self._schema.key(name)
        if key is None:
            self.problems.append(f"{place}: unknown setting{self._schema.nearest(name)}")
            return
        self._written[name] = value, place
        try:
            self._values[name] = key.kind.read(value)
        except (ValueError, WirelagError) as error:
            self.problems.append(f"{place}: {error}")

    def put_inner(self, document: Mapping[str, Any], where: str) -> None:
        """Set the values of one part of a file, `where`, after those of the whole, which they replace."""
        self._where = where
        self.put_document(document)

    def put_document(self, document: Mapping[str, Any]) -> None:
        """Set the values of a TOML document."""
        folders = self._schema.folders()
        for name, value in document.items():
            if name in self._schema.tables:
                self._tables.add(name)
                self._put_rows(name, value)
            elif name in folders and not isinstance(value, dict):
                self.note(name, f"is a table: write [{name}]")
            elif name in folders:
                self._tables.add(name)
                for inner, one in value.items():
                    self.put(f"{name}.{inner}", one, self._place(f"{name}.{inner}"))
            else:
                self.put(name, value, self._place(name))

    def _put_rows(self, table: str, rows: Any) -> None:
        most, _ = self._schema.tables[table]
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            self.note(table, f"write [[{table}]] for each of them")
        elif len(rows) > most:
            self.note(table, f"{len(rows)} tables are too many: at most {most}")
        elif not all(rows):
            self.note(table, "a table is empty: fill it in, or remove it")
        else:
            for number, row in enumerate(rows):
                name = row.get("name")
                readable = isinstance(name, str) and name.isprintable() and 0 < len(name) <= SHOWN
                self._rows.setdefault(table, []).append(name if readable else str(number))
                for inner, value in row.items():
                    self.put(f"{table}.{number}.{inner}", value, self._place(f"{table}.{number}.{inner}"))

    def put_flags(self, given: Mapping[str, Any]) -> None:
        """Set the values of the command line, by flag; None is not given."""
        for key in self._schema.keys:
            if key.flag and (value := given.get(key.flag)) is not None:
                self.put(key.name, value, key.flag)

    def put_tables(self, table: str, given: Mapping[str, tuple[str, Any]]) -> None:
        """Set a row for each value of the repeatable flags; other flags apply to all rows.

        These rows replace those of the file.
        """
        given = {key: (flag, value) for key, (flag, value) in given.items() if value not in (None, [])}
        counts = {flag: len(value) for flag, value in given.values() if isinstance(value, list)}
        if given and not counts:
            flag, _ = next(iter(given.values()))
            raise WirelagError(f"{flag}: applies to {table}, but none is given")
        if len(set(counts.values())) > 1:
            raise WirelagError(f"{' and '.join(counts)} must be given the same number of times")
        if not counts:
            return
        if max(counts.values()) > self._schema.tables[table][0]:
            raise WirelagError(f"{', '.join(counts)}: given too often; at most {self._schema.tables[table][0]} times")
        for name in [name for name in self._written if name.startswith(f"{table}.")]:
            del self._written[name]
            self._values.pop(name, None)
        self._rows[table] = [str(number) for number in range(max(counts.values()))]
        for number in range(len(self._rows[table])):
            for key, (flag, value) in given.items():
                self.put(f"{table}.{number}.{key}", value[number] if isinstance(value, list) else value, flag)

    def __getitem__(self, name: str) -> Any:
        """The value, or its default."""
        if name in self._values:
            return self._values[name]
        key = self._schema.key(name)
        assert key is not None, name
        return key.value()

    def given(self, name: str) -> bool:
        """Whether a setting, or a table of settings, was given."""
        return name in self._written or name in self._tables

    def rows(self, table: str) -> list[str]:
        """The prefix of each row of a table: `segments.0.`."""
        return [f"{table}.{number}." for number in range(len(self._rows.get(table, ())))]

    def wrong(self, name: str, problem: str) -> WirelagError:
        """An error at the place of a setting."""
        key = self._schema.key(name)
        flag = f" ({key.flag})" if key and key.flag else ""
        place = self._written[name][1] if name in self._written else self._place(name) + flag
        return WirelagError(f"{place}: {problem}")

    def note(self, name: str, problem: str) -> None:
        """Keep a problem for `check`; each is reported once."""
        line = str(self.wrong(name, problem))
        if line not in self.problems:
            self.problems.append(line)

    def check(self) -> None:
        """Raise a WirelagError with a line for each problem."""
        needed = {key.name: key for key in self._schema.keys}
        for table, (_, keys) in self._schema.tables.items():
            needed |= {row + key.name: key for row in self.rows(table) for key in keys}
        for name, key in needed.items():
            if key.required and not self.given(name):
                self.note(name, f"is missing: {key.help}")
        if self.problems:
            raise WirelagError("\n".join(self.problems))

    def stated(self) -> str:
        """The settings given, as a line for `--check`; those of the command line with their flags."""
        given = {name: one for name, one in self._written.items() if name.partition(".")[0] not in self._schema.tables}
        parts = [f"{name} = {_shown(v)}" + f" ({at})" * at.startswith("-") for name, (v, at) in given.items()]
        return f"given: {', '.join(parts) or 'nothing'}; all other settings have their defaults"

    def _place(self, name: str) -> str:
        table, _, rest = name.partition(".")
        number, _, inner = rest.partition(".")
        if inner and table in self._rows:
            name = f"{table}.{self._rows[table][int(number)]}.{inner}"
        name = name if name.isprintable() else repr(name)
        return f"{self._where}: {name}" if self._where else name


def meant(name: str, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of the same table."""
    known, (folder, _, last) = list(known), name.rpartition(".")
    beside = {one.rpartition(".")[2]: one for one in known if one.rpartition(".")[0] == folder}
    close = [beside[one] for one in get_close_matches(last, beside, 1, 0.6)]
    close = close or [one for one in known if one.rpartition(".")[2] == last]
    return f"; did you mean {close[0]}?" if close else f"; known: {', '.join(beside.values() or known)}"


def read_toml(path: str) -> dict[str, Any]:
    """The plain values of a file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WirelagError(f"{path}: cannot read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WirelagError(f"{path}: is not TOML ({error})") from None


class Rereading:
    """Reads files until two reads in a row are alike: when a signal asks for it, one may be half written."""

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read, self._left = read, MOST_READS
        self._before: Any = None

    def next(self) -> Any:
        """Read once: what was read, if it is as before, else None. An error counts when it comes twice."""
        if not self._left:
            raise WirelagError(f"files change all the time; they were read {MOST_READS} times")
        self._left -= 1
        before = self._before
        try:
            now = self._read()
        except WirelagError as error:
            if str(error) == before:
                raise
            self._before = str(error)
            return None
        self._before = now
        return now if now == before else None


def steady(read: Callable[[], Any]) -> Any:
    """What `read` returns once two reads in a row, APART_S apart, are alike."""
    reading = Rereading(read)
    while (found := reading.next()) is None:
        time.sleep(APART_S)
    return found
