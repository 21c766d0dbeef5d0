"""What an agent can be told: one table of settings, read from a TOML file and from the command line.

Law: a setting has the same meaning in both places, and the command line wins. Whatever is wrong is told in one line
with the place where it stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from wirelag.errors import WirelagError
from wirelag.settings import read_toml
from wirelag.units import parse_duration_ns, parse_rate, parse_size, parse_speed

LONGEST_NS: Final = 100 * 365 * 86_400 * 10**9
LARGEST: Final = 1 << 50


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("is not a text")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple):
        value = [value]
    return tuple(map(_text, value))


def _number(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is not true or false")
    return value


def _duration(value: Any) -> int:
    ns = parse_duration_ns(_text(value))
    if not 0 < ns < LONGEST_NS:
        raise ValueError("must be longer than nothing, and shorter than a century")
    return ns


def _size(value: Any) -> int:
    size = parse_size(_text(value))
    if not 0 < size < LARGEST:
        raise ValueError("must be more than nothing, and less than a petabyte")
    return size


def _rate(value: Any) -> int:
    """Bits a second as bytes a second."""
    rate = parse_rate(_text(value)) // 8
    if not 0 < rate < 1 << 40:
        raise ValueError("must be more than nothing, and less than 8 Tbps")
    return rate


def _share(value: Any) -> float:
    text = str(value)
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 < share <= 1:
        raise ValueError(f"{text!r} is not a share: write 0.5% or 0.005")
    return share


def _speed(value: Any) -> float:
    return parse_speed(str(value))


@dataclass(frozen=True, slots=True)
class Key:
    """A setting: how it is read, what it is where nobody says, and its flag on the command line."""

    read: Callable[[Any], Any]
    default: Any = None
    flag: str | None = None


KEYS: Final[Mapping[str, Key]] = {
    "point": Key(_text, flag="--point"),
    "interface": Key(_text, flag="--interface"),
    "read": Key(_texts, flag="-r"),
    "speed": Key(_speed, 1.0, "--speed"),
    "filter": Key(_text, flag="--filter"),
    "interval": Key(_duration, 10**9, "--interval"),
    "grace": Key(_duration, 50 * 10**6, "--grace"),
    "status": Key(_duration, 10 * 10**9, "--status"),
    "by": Key(_text, flag="--by"),
    "most_groups": Key(_number, 100, "--most-groups"),
    "ipv4_prefix": Key(_number, 24, "--ipv4-prefix"),
    "ipv6_prefix": Key(_number, 48, "--ipv6-prefix"),
    "collector.url": Key(_text, flag="--collector"),
    "collector.token_file": Key(_text, flag="--token-file"),
    "collector.ca": Key(_text, flag="--ca"),
    "collector.from": Key(_text, flag="--from"),
    "collector.insecure": Key(_flag, False, "--insecure"),
    "capture.promiscuous": Key(_flag, False, "--promiscuous"),
    "capture.tunnels": Key(_flag, False, "--tunnels"),
    "capture.ring": Key(_size, 64 << 20, "--ring"),
    "capture.cores": Key(_number, 1, "--cores"),
    "capture.in_kernel": Key(_flag, False, "--in-kernel"),
    "capture.then": Key(_text, flag="--then"),
    "estimator.name": Key(_text, "rda", "--estimator"),
    "estimator.rows": Key(_number, flag="--rows"),
    "estimator.method": Key(_text, "linear"),
    "estimator.loss": Key(_text, flag="--loss"),
    "estimator.packets_per_interval": Key(_number, flag="--packets-per-interval"),
    "estimator.banks": Key(_number, 3, "--banks"),
    "estimator.buckets": Key(_number, flag="--buckets"),
    "estimator.deviation": Key(_text, "rows", "--deviation"),
    "estimator.tail": Key(_number, 512, "--tail"),
    "estimator.memory": Key(_size, 64 << 20, "--memory"),
    "estimator.past": Key(_size, 256 << 20, "--past"),
    "estimator.seed": Key(_number, 0, "--seed"),
    "packet_id.nat": Key(_flag, False, "--nat"),
    "packet_id.prefix": Key(_number, 16, "--prefix"),
    "cut.at": Key(_text, flag="--cut"),
    "cut.control_port": Key(_number, flag="--control-port"),
    "cut.control_to": Key(_text, flag="--control-to"),
    "spool.folder": Key(_text, flag="--spool"),
    "spool.most": Key(_size, 1 << 30, "--spool-most"),
    "clock.error": Key(_duration, flag="--clock-error"),
    "receive_references": Key(_flag, False, "--receive-references"),
    "m_set.by": Key(_text, flag="--m-set"),
    "m_set.every": Key(_duration, 100 * 10**6),
    "m_set.link": Key(_rate, 125_000_000),
    "m_set.share": Key(_share, 0.005),
    "m_set.dscp": Key(_number, 0),
}
# Tables of which there may be several, each with these settings.
SEGMENT: Final[Mapping[str, Key]] = {
    "name": Key(_text),
    "direction": Key(_text),
    "packets": Key(_text, "all"),
    "references": Key(_text),
}
REFERENCE: Final[Mapping[str, Key]] = {
    "to": Key(_text),
    "from": Key(_text),
    "hops": Key(_number, 0),
    "spread": Key(_number, 1),
    "source_port": Key(_number, 0),
    "every": Key(_duration, 10 * 10**6),
    "link": Key(_rate, 125_000_000),
    "share": Key(_share, 0.005),
    "dscp": Key(_number, 0),
}
TABLES: Final[Mapping[str, Mapping[str, Key]]] = {"segments": SEGMENT, "references": REFERENCE}


class Settings:
    """Values by name, those of TABLES by name and number (`segments.0.name`); and where each of them stands."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._places: dict[str, str] = {}

    @classmethod
    def load(cls, path: str) -> Settings:
        """What a TOML file says."""
        settings = cls()
        for name, value in _flat(read_toml(path), path):
            settings.put(name, value, f"{path}: {name}")
        return settings

    def put(self, name: str, value: Any, place: str) -> None:
        """Set it; a WirelagError with its place where that cannot be."""
        key = _key_of(name)
        if key is None:
            raise WirelagError(f"{place}: there is no such setting{_meant(name)}")
        try:
            self._values[name] = key.read(value)
        except ValueError as error:
            raise WirelagError(f"{place}: {error}") from None
        self._places[name] = place

    def put_flags(self, given: Mapping[str, Any]) -> None:
        """What the command line says, by flag; None: nothing."""
        for name, key in KEYS.items():
            if key.flag and (value := given.get(key.flag)) is not None:
                self.put(name, value, key.flag)

    def put_tables(self, table: str, given: Mapping[str, tuple[str, Any]]) -> None:
        """A table for each value of the flags that may be given several times; others are the same for all of them.

        They take the place of all tables of that name in the file.
        """
        given = {key: (flag, value) for key, (flag, value) in given.items() if value not in (None, [])}
        counts = {flag: len(value) for flag, value in given.values() if isinstance(value, list)}
        if not counts:
            for flag, _ in given.values():
                raise WirelagError(f"{flag}: says something about {table}, but none is named")
            return
        if len(set(counts.values())) > 1:
            raise WirelagError(f"{' and '.join(counts)} must be given the same number of times")
        for name in [name for name in self._values if name.startswith(f"{table}.")]:
            del self._values[name], self._places[name]
        for number in range(max(counts.values())):
            for key, (flag, value) in given.items():
                self.put(f"{table}.{number}.{key}", value[number] if isinstance(value, list) else value, flag)

    def __getitem__(self, name: str) -> Any:
        """The value, or what it is where nobody says."""
        key = _key_of(name)
        assert key is not None, name
        return self._values.get(name, key.default)

    def given(self, name: str) -> bool:
        """Whether somebody says."""
        return name in self._values

    def count(self, table: str) -> int:
        """How many of a table there are."""
        return len({name.split(".")[1] for name in self._values if name.startswith(f"{table}.")})

    def wrong(self, name: str, problem: str) -> WirelagError:
        """An error that names the place of a setting."""
        key = _key_of(name)
        elsewhere = f"{name} ({key.flag})" if key and key.flag else name
        return WirelagError(f"{self._places.get(name, elsewhere)}: {problem}")


def name_of(flag: str) -> str | None:
    """The setting that a flag sets."""
    return next((name for name, key in KEYS.items() if key.flag == flag), None)


def _key_of(name: str) -> Key | None:
    table, _, rest = name.partition(".")
    if table in TABLES:
        return TABLES[table].get(rest.partition(".")[2])
    return KEYS.get(name)


def _flat(document: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for name, value in document.items():
        if name in TABLES:
            if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
                raise WirelagError(f"{path}: {name}: write [[{name}]]")
            for number, part in enumerate(value):
                if not part:
                    raise WirelagError(f"{path}: {name}.{number}: is empty")
                yield from ((f"{name}.{number}.{inner}", v) for inner, v in part.items())
        elif isinstance(value, dict):
            yield from ((f"{name}.{inner}", v) for inner, v in value.items())
        else:
            yield name, value


def _meant(name: str) -> str:
    from difflib import get_close_matches

    known: Iterable[str] = KEYS
    table, _, rest = name.partition(".")
    if table in TABLES:
        known, name = TABLES[table], rest.partition(".")[2]
    close = get_close_matches(name, known, 1, 0.6)
    close = close or [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2]]
    return f"; did you mean {close[0]}?" if close else ""
