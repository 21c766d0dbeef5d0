"""A topology as read from a file, and its clean-up: unique names, integer weights, merged links.

Harmless defects are repaired and noted; defects that make routes wrong are refused, with their place in the file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Final, Literal, NamedTuple, TypeAlias

from wirelag.errors import WirelagError
from wirelag.network.segments import ANY
from wirelag.network.topology import Link, Network, Place, Topology

Weight: TypeAlias = str | int | Decimal | None
Ways: TypeAlias = Literal["listed", "both", "mirrored"]  # mirrored: both, unless the file lists the reverse too
_LARGEST: Final = 10**15  # largest sum of weights, in units: below it floats are exact too
_FORBIDDEN: Final = str.maketrans({"[": "(", "]": ")", ">": "-"})  # they have a meaning in names of segments
_WEIGHTS: Final = ("weight", "cost", "metric", "dist", "distance", "length")


class Written(NamedTuple):
    """A link as in the file; routers by key."""

    source: str
    target: str
    weight: Weight
    place: str


@dataclass
class Draft:
    """The result of a format's reader. Keys are the file's identifiers of routers: ids, or the names themselves."""

    name: str
    ways: Ways
    routers: dict[str, str] = field(default_factory=dict)  # key to name
    links: list[Written] = field(default_factory=list)
    prefixes: dict[str, tuple[Network, ...]] = field(default_factory=dict)  # by key
    notes: list[str] = field(default_factory=list)
    addresses: dict[str, str] = field(default_factory=dict)  # by key
    places: dict[str, Place] = field(default_factory=dict)  # by key
    ports: dict[tuple[str, str], list[tuple[Weight, str, str]]] = field(default_factory=dict)  # addresses of links

    def refusal(self, place: str, what: str) -> WirelagError:
        """The error message, in one line."""
        return WirelagError(f"{self.name}: {place}: {what}" if place else f"{self.name}: {what}")

    def add_router(self, key: str, name: str, place: str) -> None:
        """Add a router that the file declares."""
        if not key:
            raise self.refusal(place, "a router without an id")
        if key in self.routers:
            raise self.refusal(place, f"router {shown(key)} is there twice")
        self.routers[key] = name

    def add_link(self, source: str, target: str, weight: Weight, place: str, declared: bool = True) -> None:
        """Add a link; if the file declares routers, the link's must have been declared."""
        for key in (source, target):
            if not key:
                raise self.refusal(place, "this link lacks one of its ends")
            if key not in self.routers:
                if declared:
                    raise self.refusal(place, f"there is no router {shown(key)}")
                self.routers[key] = key
        self.links.append(Written(source, target, weight, place))

    def put(self, key: str, x: object, y: object) -> None:
        """Note where a router is, x to the right and y up; what is not two numbers says nothing."""
        try:
            place = float(str(x)), float(str(y))
        except ValueError:
            return
        if all(map(math.isfinite, place)):
            self.places[key] = place

    def settle(self) -> Topology:
        """Turn it into a topology."""
        notes = list(self.notes)
        names = self._names(notes)
        links = [link for link in self.links if link.source != link.target]
        if loops := len(self.links) - len(links):
            notes.append(f"{count(loops, 'link')} from a router to itself: left out")
        if not links:
            raise self.refusal("", f"{count(len(self.routers), 'router')} and no link between two of them")
        whole, unit = self._whole(links, self._weights(links, notes), notes)
        cheapest = self._merged(links, whole, notes)
        notes += _gaps(self.routers, cheapest.keys())
        return Topology(
            routers=tuple(names.values()),
            links=tuple(Link(names[one], names[other], weight) for (one, other), weight in cheapest.items()),
            prefixes={names[key]: networks for key, networks in self.prefixes.items() if networks},
            notes=tuple(notes),
            name=self.name,
            unit=unit,
            addresses={names[key]: address for key, address in self.addresses.items()},
            link_addresses={
                (names[one], names[other]): min(self.ports[one, other], key=_cheapness)[1:]
                for one, other in cheapest
                if (one, other) in self.ports
            },
            places={names[key]: place for key, place in self.places.items() if key in names},
        )

    def _names(self, notes: list[str]) -> dict[str, str]:
        """A unique name for each key; names of several routers get their keys appended."""
        written = {key: " ".join(name.split()) or key for key, name in self.routers.items()}
        clean = {key: "star" if name == ANY else name.translate(_FORBIDDEN) for key, name in written.items()}
        if changed := sum(clean[key] != written[key] for key in clean):
            notes.append(
                f"{count(changed, 'name')} with > [ ] or *, which names of segments need: changed to - ( ) and star"
            )
        often = Counter(clean.values())
        names: dict[str, str] = {}
        taken = {name for name, times in often.items() if times == 1}
        for key, name in clean.items():
            if often[name] > 1:
                name = f"{name}#{key.translate(_FORBIDDEN)}"
                while name in taken:
                    name += "'"
                taken.add(name)
            names[key] = name
        if several := sum(times for times in often.values() if times > 1):
            notes.append(f"{several} routers share their names with others: # and their id added")
        return names

    def _weights(self, links: Sequence[Written], notes: list[str]) -> list[Fraction]:
        """The weight of every link; 1 if no link has one."""
        if all(link.weight is None for link in links):
            notes.append("no weights: every link counts as 1")
            return [Fraction(1)] * len(links)
        return [Fraction(self._weight(link)) for link in links]

    def _weight(self, link: Written) -> Decimal:
        if link.weight is None:
            raise self.refusal(link.place, "this link has no weight, and others have; give one to all or to none")
        try:
            value = Decimal("x" if "_" in str(link.weight) else link.weight)  # Decimal reads 1_000
        except InvalidOperation:
            raise self.refusal(link.place, f"the weight {shown(link.weight)} is not a number") from None
        if not value.is_finite() or value <= 0:
            raise self.refusal(link.place, f"the weight {shown(link.weight)} is not above 0, as routes need it")
        if abs(value.adjusted()) > 30 or len(value.as_tuple().digits) > 60:
            raise self.refusal(link.place, f"the weight {shown(link.weight)} is too large or too small")
        return value

    def _whole(
        self, links: Sequence[Written], weights: Sequence[Fraction], notes: list[str]
    ) -> tuple[list[int], Decimal]:
        """Weights as multiples of a unit (1, 0.1, 0.01 ...) that divides all of them."""
        parts = math.lcm(*{weight.denominator for weight in weights})
        decimals = next(some for some in range(100) if 10**some % parts == 0)
        most = max(weights) * len(self.routers)
        if most * 10**decimals >= _LARGEST:
            decimals = max((some for some in range(15) if most * 10**some < _LARGEST), default=0)
            notes.append(f"weights rounded to {count(decimals, 'decimal')}: sums of finer ones would not be exact")
        whole = [round(weight * 10**decimals) for weight in weights]
        if most * 10**decimals >= _LARGEST or 0 in whole:
            place = links[weights.index(max(weights))].place
            least = f"{float(min(weights)):g}"
            raise self.refusal(place, f"this weight is too large to add to the smallest, {least}, without rounding")
        return whole, Decimal(1).scaleb(-decimals)

    def _merged(self, links: Sequence[Written], weights: Sequence[int], notes: list[str]) -> dict[tuple[str, str], int]:
        """The cheapest link of each ordered pair, in file order."""
        cheapest: dict[tuple[str, str], int] = {}
        listed: set[tuple[str, str]] = set()
        for (source, target, *_), weight in zip(links, weights, strict=True):
            both = self.ways == "both"
            listed.add((min(source, target), max(source, target)) if both else (source, target))
            for way in ((source, target), (target, source)) if both else ((source, target),):
                cheapest[way] = min(weight, cheapest.get(way, weight))
        if duplicates := len(links) - len(listed):
            notes.append(f"{count(duplicates, 'duplicate link')}: the cheapest kept")
        if self.ways == "mirrored":
            for (source, target), weight in list(cheapest.items()):
                cheapest.setdefault((target, source), weight)
        return cheapest


def _cheapness(port: tuple[Weight, str, str]) -> Decimal:
    """Sort key: of parallel links the cheapest is kept, with its addresses."""
    return Decimal(port[0] or 1)


def weigh(draft: Draft, links: Sequence[Mapping[str, object]]) -> str | None:
    """The weight attribute, if the format does not fix one: the first of the usual ones that all links have."""
    for attribute in _WEIGHTS:
        if links and all(link.get(attribute) not in (None, "") for link in links):
            if attribute != _WEIGHTS[0]:
                draft.notes.append(f"weights are the links' {attribute}")
            return attribute
    return None


def _gaps(routers: Iterable[str], pairs: Collection[tuple[str, str]]) -> list[str]:
    """Notes on what keeps routers from reaching each other."""
    lead = {router: router for router in routers}

    def leader(router: str) -> str:
        while lead[router] != router:
            lead[router] = router = lead[lead[router]]
        return router

    for source, target in pairs:
        lead[leader(source)] = leader(target)
    sizes = Counter(map(leader, lead)).values()
    parts = sorted((size for size in sizes if size > 1), reverse=True)
    notes = []
    if one_way := sum((target, source) not in pairs for source, target in pairs):
        notes.append(f"{count(one_way, 'link')} in one direction only")
    if alone := len(sizes) - len(parts):
        notes.append(f"{count(alone, 'router')} without a link")
    if len(parts) > 1:
        shares = ", ".join(map(str, parts[:5])) + (", ..." if len(parts) > 5 else "")
        notes.append(f"{len(parts)} parts with no link between them, of {shares} routers")
    return notes


def count(number: int, what: str) -> str:
    """A number of things in words."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def shown(text: object, most: int = 40) -> str:
    """Part of a file, shortened to one line for a message."""
    line = "".join(letter if letter.isprintable() else "?" for letter in str(text)[: most + 1])
    return line if len(line) <= most else line[: most - 3] + "..."
