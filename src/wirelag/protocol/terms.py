"""Cuts as they travel between points, with everything needed to tell whether two of them can be compared. No I/O.

A message begins with its terms: the estimator and its parameters, the parts of packet ids, how intervals are cut. Its
records are one interval each. Every record carries a checksum (codec.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, TypeGuard

import numpy as np

from wirelag import _kernels
from wirelag.errors import WirelagError
from wirelag.estimators.catalogue import between_points, estimator_class
from wirelag.estimators.protocol import Additive, Sent, TwoPoint
from wirelag.estimators.rda import Rda, copies_of
from wirelag.estimators.rli import Rli
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import Delimiters
from wirelag.packets.packet_id import PacketId
from wirelag.synopses.cache import Cached
from wirelag.twopoint.spans import ALL, Cut, Pair, Synopses

VERSION: Final = 2
Kind = Literal["synopses", "ask", "times"]


def crosses(estimator: Sent) -> TypeGuard[TwoPoint]:
    """Whether both points keep synopses."""
    return not estimator.can.one_sided


def one_sided(estimator: Sent) -> TypeGuard[Rli]:
    """Whether the downstream point measures alone: then by references, as rli does."""
    return estimator.can.one_sided


def second_round(estimator: Sent) -> TypeGuard[Rda]:
    """Whether the collector may ask for more: then by symbols or buckets, as rda does."""
    return estimator.can.second_round


def delimited(estimator: Sent) -> TypeGuard[Additive]:
    """Whether packets may cut its intervals."""
    return estimator.can.delimited


@dataclass(frozen=True, slots=True)
class Terms:
    """The settings that two points must share for their synopses to be comparable."""

    estimator: Sent
    packet_id: PacketId = field(default_factory=PacketId)
    interval_ns: int | None = None
    delimiters: Delimiters | None = None
    by: str | None = None
    direction: str | None = None
    filter: str | None = None

    @property
    def two_point(self) -> TwoPoint:
        """The estimator, where both points keep synopses; else a ValueError."""
        if not crosses(self.estimator):
            raise ValueError(f"is of {self.estimator.name}, which one point measures alone")
        return self.estimator

    def to_fields(self) -> dict[str, Any]:
        """Plain values."""
        return dict(_plain(self))

    @classmethod
    def from_fields(cls, plain: Mapping[str, Any]) -> Terms:
        """The inverse of `to_fields`; a ValueError if something is unknown."""
        try:
            kind = _kind(plain["estimator"])
            parameters = {f.name: _tuple(plain["parameters"][f.name]) for f in fields(kind)}
            delimiters = plain["delimiters"]
            return cls(
                kind(**parameters),
                PacketId(**plain["packet_id"]),
                plain["interval_ns"],
                Delimiters(**delimiters) if delimiters else None,
                plain["by"],
                plain["direction"],
                plain["filter"],
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"has terms that this version does not know ({error})") from None

    def beside(self, other: Terms) -> Terms:
        """The same with as few rows as the other has, if its rows can be added up: agents of two versions meet."""
        mine, theirs = self.estimator, other.estimator
        if not (isinstance(mine, Rda) and isinstance(theirs, Rda) and mine.short) or mine.rows % theirs.rows:
            return self
        if mine.rows == theirs.rows:
            return self
        return replace(self, estimator=replace(mine, rows=theirs.rows))

    def differences(self, other: Terms) -> list[str]:
        """The terms that differ, in words."""
        mine, theirs = _flat(self.to_fields()), _flat(other.to_fields())
        return [
            f"{name}: {mine.get(name)} and {theirs.get(name)}"
            for name in sorted({*mine, *theirs})
            if mine.get(name) != theirs.get(name)
        ]


@lru_cache(maxsize=256)
def _plain(terms: Terms) -> dict[str, Any]:
    """Of the last terms: each message has them, and a point's are always the same."""
    return {
        "estimator": terms.estimator.name,
        "parameters": asdict(terms.estimator),
        "packet_id": asdict(terms.packet_id),
        "interval_ns": terms.interval_ns,
        "delimiters": _plain_delimiters(terms.delimiters) if terms.delimiters else None,
        "by": terms.by,
        "direction": terms.direction,
        "filter": terms.filter,
    }


def _plain_delimiters(delimiters: Delimiters) -> dict[str, Any]:
    """Without a colour as before there was one: collectors of the previous release know no such name."""
    return {name: value for name, value in asdict(delimiters).items() if name != "colour" or value is not None}


@dataclass(frozen=True, slots=True)
class About:
    """The opening of a message."""

    kind: Kind
    terms: Terms
    names: tuple[str, ...] = ()  # names of the captures that it was made from
    offset_ns: int = 0  # offset subtracted from its times

    def to_fields(self) -> dict[str, Any]:
        """Plain values."""
        about = {"version": VERSION, "kind": self.kind, "names": list(self.names), "offset_ns": self.offset_ns}
        return about | self.terms.to_fields()

    @classmethod
    def from_fields(cls, plain: Mapping[str, Any]) -> About:
        """The inverse of `to_fields`."""
        version = plain.get("version")
        if version != VERSION:
            raise ValueError(f"has version {version} of the format, this wirelag reads {VERSION}: cut it again")
        terms = Terms.from_fields(plain)
        if not crosses(terms.estimator):
            name = terms.estimator.name
            raise ValueError(f"is of {name}, which one point measures alone: wirelag flows does that, from captures")
        return cls(plain["kind"], terms, tuple(plain["names"]), plain["offset_ns"])


def agree(abouts: Mapping[str, About]) -> Terms:
    """The common terms; a WirelagError names those that differ."""
    (first_name, first), *others = abouts.items()
    for name, other in others:
        apart = first.terms.differences(other.terms)
        if apart:
            raise WirelagError(
                f"{first_name} and {name} were cut in different ways ({'; '.join(apart)}): "
                f"cut both with the same options"
            )
    return first.terms


# ---- records ----


def records_of(cut: Cut, keys: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """One record for everything, and one per class."""
    for tag, synopsis in cut.synopses.items():
        yield _where(cut.interval, keys.get(tag)) | synopsis.to_fields()


def cut_of(estimator: TwoPoint, records: Iterable[Mapping[str, Any]], tags: dict[str, int]) -> Cut:
    """The inverse of `records_of`; classes get their tags from `tags`, which grows."""
    synopses: Synopses = {}
    interval = Interval(0, 0)
    for record in records:
        interval = Interval(record["start_ns"], record["end_ns"], record["name"])
        key = record["class"]
        tag = ALL if key is None else tags.setdefault(key, len(tags) + 1)
        synopses[tag] = estimator.synopsis(record)
    return Cut(interval, synopses)


def _where(interval: Interval, key: str | None) -> dict[str, Any]:
    return {"start_ns": interval.start_ns, "end_ns": interval.end_ns, "name": interval.name, "class": key}


def place(terms: Terms, start_ns: int, key: str | None) -> tuple[int | None, str | None]:
    """The interval and class of a record; without intervals, everything, whenever it began."""
    return (None if terms.interval_ns is None else start_ns), key


# ---- the second round of rda: the times of packets that only one point saw ----


def asked(pair: Pair, estimator: Rda, keys: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """The question about an interval: the numbers that differ."""
    for tag in sorted({*pair.up} & {*pair.down}):
        _, decoded = estimator.cross_bound(pair.up[tag], pair.down[tag])
        if len(decoded.numbers):
            level = max(pair.up[tag].level, pair.down[tag].level)
            yield _where(pair.interval, keys.get(tag)) | {"numbers": decoded.numbers, "cache_level": level}


def answered(cached: Cached, ask: Mapping[str, Any]) -> dict[str, Any]:
    """One point's reply: times of the numbers that it has, and of ids of which the other point has more copies.

    The latter are identified by the number of the next copy, which only the other point has.
    """
    cached = cached.at_level(int(ask["cache_level"]))
    numbers, distinct = ask["numbers"].astype(np.uint64), np.unique(cached.ids)
    own = _kernels.number_copies(np.concatenate((cached.ids, distinct)))
    more_elsewhere = distinct[np.isin(own[len(cached) :], numbers)]
    entries = copies_of(cached, own[: len(cached)], numbers, more_elsewhere)
    return {name: ask[name] for name in ("start_ns", "end_ns", "name", "class")} | entries.to_fields()


def _kind(name: Any) -> Any:
    """The class of an estimator that agents run."""
    if name not in between_points(live=True):
        raise KeyError(name)
    return estimator_class(name)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _flat(plain: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
