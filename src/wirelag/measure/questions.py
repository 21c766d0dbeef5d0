"""The questions of `--sla` and `--above`, put to all delays and to every group alike.

A group without an estimate fails no agreement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from wirelag.errors import SettingError
from wirelag.stats.ranking import FEWEST
from wirelag.units import Duration, duration_ns, format_duration, many

if TYPE_CHECKING:
    from wirelag.stats.sla import Delays, Sla

MOST_NAMED: Final = 3  # groups in a sentence


class Questions(NamedTuple):
    """Shares of delays above limits, and service-level agreements."""

    above_ns: tuple[int, ...] = ()
    slas: tuple[Sla, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything is asked."""
        return bool(self.above_ns or self.slas)

    @classmethod
    def parse(cls, above: Sequence[Duration] | Duration | None, sla: Sequence[str] | str | None) -> Questions:
        """Questions as people write them."""
        limits = above if isinstance(above, Sequence) and not isinstance(above, str) else [above] if above else []
        texts = sla if isinstance(sla, Sequence) and not isinstance(sla, str) else [sla] if sla else []
        try:
            slas = tuple(_slas(texts))
        except TypeError:
            raise SettingError("sla", "give text: p99<50ms") from None
        except ValueError as error:
            raise SettingError("sla", str(error)) from None
        return cls(tuple(duration_ns(limit, "above") for limit in limits), slas)

    def of(self, delays: Delays) -> Verdicts:
        """The verdicts and shares of these delays."""
        return Verdicts([_share(limit, delays) for limit in self.above_ns], [sla.to_dict(delays) for sla in self.slas])

    def of_leg(self, leg: str) -> Questions:
        """The same where figures are of both legs together: agreements without a leg are about these."""
        if leg != "both":
            return self
        return self._replace(slas=tuple(replace(sla, leg=leg) if sla.leg is None else sla for sla in self.slas))

    def of_legs(self, legs: Mapping[str, Delays], shown: Delays) -> Verdicts:
        """The same for round trips: an agreement without a leg must hold on each; shares are those of `shown`."""
        above = [
            _share(limit, shown) | {"legs": {name: _share(limit, delays) for name, delays in legs.items()}}
            for limit in self.above_ns
        ]
        return Verdicts(above, [_verdict(sla, legs) for sla in self.slas])

    def sentences_of_legs(self, legs: Mapping[str, Delays]) -> list[str]:
        """The same in words."""
        shares = [
            f"{leg_text(name)}, {_share_text(limit, delays)}"
            for limit in self.above_ns
            for name, delays in legs.items()
        ]
        if not legs:
            shares = [f"above {format_duration(limit)}: cannot say" for limit in self.above_ns]
        return shares + [_sentence(sla, legs) for sla in self.slas]

    def need_no_legs(self) -> Questions:
        """Itself; a SettingError if an agreement names a leg, which only round trips have."""
        for sla in self.slas:
            if sla.leg is not None:
                raise SettingError("sla", f"{sla.text}: only rtt has legs: leave out {sla.leg}.")
        return self

    def of_both(self, delays: Delays, estimated: Delays, unasked: Sequence[str]) -> Verdicts:
        """The same where servers stand beside these delays of which a mean is known at most.

        A question about means must hold for both; any other cannot be put to the servers in `unasked`: it may fail, but
        is not known to hold.
        """
        above = [_share(limit, delays) | {"not_asked": [*unasked]} for limit in self.above_ns]
        return Verdicts(above, [_verdict_of_both(sla, delays, estimated, unasked) for sla in self.slas])

    def sentences_of_both(
        self, delays: Delays, estimated: Delays, unasked: Sequence[str], unknown: Sequence[str]
    ) -> list[str]:
        """The same in words; not even the means of the servers in `unknown` are known."""
        beyond = f"; unknown for {_servers(unasked)}, estimated by mean alone (--server names those to ask)"
        without = f"; unknown for {_servers(unknown)} without an estimate" if unknown else ""
        shares = [_share_text(limit, delays) + beyond for limit in self.above_ns]
        return shares + [
            _sentence_of_both(sla, delays, estimated) + (without if sla.name == "mean" else beyond) for sla in self.slas
        ]

    def sentences(self, delays: Delays) -> list[str]:
        """The same in words."""
        return [_share_text(limit, delays) for limit in self.above_ns] + [sla.sentence(delays) for sla in self.slas]


def _slas(texts: Iterable[str]) -> Iterator[Sla]:
    for text in texts:
        from wirelag.stats.sla import Sla

        yield Sla.parse(text)


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts and shares, as JSON holds them."""

    above: list[dict[str, Any]] = field(default_factory=list)
    sla: list[dict[str, Any]] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """The fields of the questions asked, and no others."""
        return ({"above": self.above} if self.above else {}) | ({"sla": self.sla} if self.sla else {})

    def beside(self, groups: Mapping[str, Broken]) -> Verdicts:
        """The same, with how many groups break each agreement."""
        told = [one | (groups[one["question"]].to_dict() if one["question"] in groups else {}) for one in self.sla]
        return replace(self, sla=told)

    @property
    def hold(self) -> bool:
        """Whether every agreement is known to hold."""
        return all(verdict["holds"] for verdict in self.sla)

    @property
    def fail(self) -> bool:
        """Whether an agreement is known to fail."""
        return any(verdict["holds"] is False for verdict in self.sla)


class Broken(NamedTuple):
    """How groups meet an agreement: those that break it, those that cannot be judged, and the worst.

    These have their values, in seconds or shares, and samples.
    """

    failing: int
    unknown: int
    groups: int
    worst: Sequence[tuple[str, float, int]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {"groups": {"failing": self.failing, "of": self.groups, "worst": [key for key, *_ in self.worst]}}

    def names(self, question: str) -> str:
        """The worst, for a sentence; of how many samples, if these are too few to be sure."""
        from wirelag.stats.sla import Sla

        sla = Sla.parse(question)
        unit, enough = 1e9 if sla.limit_ns is None else 1, max(FEWEST, sla.takes)
        told = []
        for key, value, samples in self.worst:
            few = f", {many(samples, 'sample')}" if 0 < samples < enough else ""
            told.append(f"{key} ({sla.text_of(value * unit)}{few})")
        return ", ".join(told) + (", ..." if self.failing > len(told) else "")


def failing_groups(groups: Iterable[tuple[str, Verdicts, int]]) -> dict[str, Broken]:
    """How groups, each with its verdicts and samples, meet each agreement, if there are several.

    Those with too few samples for a place come last.
    """
    broken: dict[str, list[tuple[bool, float, str, int]]] = {}
    failing: Counter[str] = Counter()
    unknown: Counter[str] = Counter()
    count = 0
    for key, verdicts, samples in groups:
        count += 1
        for verdict in verdicts.sla:
            question, worst = verdict["question"], broken.setdefault(verdict["question"], [])
            unknown[question] += verdict["holds"] is None
            if verdict["holds"] is False:
                failing[question] += 1
                worst.append((samples < FEWEST, -verdict["value"], key, samples))
                worst.sort()
                del worst[MOST_NAMED:]
    if count < 2:
        return {}
    return {
        question: Broken(
            failing[question], unknown[question], count, [(key, -value, samples) for _, value, key, samples in worst]
        )
        for question, worst in broken.items()
    }


def with_groups(sentences: Iterable[str], broken: Mapping[str, Broken], each: bool = True) -> list[str]:
    """One verdict from each sentence about all delays and from groups: with `each`, no group may break an agreement."""
    return [_with_groups(line, broken, each) for line in sentences]


def _with_groups(line: str, broken: Mapping[str, Broken], each: bool) -> str:
    question = next((question for question in broken if line.startswith(f"{question}: ")), None)
    if question is None:
        return line
    found, rest = broken[question], line.removeprefix(f"{question}: ")
    some = f"{found.failing:,} of {found.groups:,} groups: {found.names(question)}"
    if found.failing and each:
        line = f"{question}: does not hold for {some}; all together: {rest}"
    elif found.failing:
        line += f"; beside the verdict (without --by): does not hold for {some}"
    return line + (f"; cannot say for {found.unknown:,} of {found.groups:,} groups" if found.unknown else "")


def _servers(names: Sequence[str]) -> str:
    return f"{len(names):,} {'server' if len(names) == 1 else 'servers'} ({named(names)})"


def named(names: Sequence[str]) -> str:
    """The first names, for a sentence."""
    return f"{', '.join(names[:MOST_NAMED])}{', ...' if len(names) > MOST_NAMED else ''}"


def _verdict_of_both(sla: Sla, delays: Delays, estimated: Delays, unasked: Sequence[str]) -> dict[str, Any]:
    """Whether an agreement holds for both; its value is that of the worse, or of what could be asked."""
    exact = sla.to_dict(delays)
    if sla.name != "mean":
        return {**exact, "holds": False if exact["holds"] is False else None, "not_asked": [*unasked]}
    known = [one for one in (exact, sla.to_dict(estimated)) if one["holds"] is not None]
    return max(known, key=lambda one: float(one["value"] or 0), default=exact)


def _sentence_of_both(sla: Sla, delays: Delays, estimated: Delays) -> str:
    if sla.name != "mean":
        said = f"{sla.text}: cannot say, it is {sla.value_text(delays)} where exchanges were paired"
        return said if sla.holds(delays) else sla.sentence(delays)
    if sla.value(delays) is None or sla.value(estimated) is None:
        return sla.sentence(estimated if sla.value(delays) is None else delays)
    holds = sla.holds(delays) and sla.holds(estimated)
    values = f"{sla.value_text(delays)} where exchanges were paired, {sla.value_text(estimated)} where estimated"
    return f"{sla.text}: {'holds' if holds else 'does not hold'}, it is {values}"


def _verdict(sla: Sla, legs: Mapping[str, Delays]) -> dict[str, Any]:
    """Whether an agreement holds on its leg, or on each that has delays; its value is that of the worst."""
    each = {name: sla.to_dict(delays) for name, delays in legs.items() if sla.asks(name)}
    known = {name: one for name, one in each.items() if one["holds"] is not None}
    failing = [name for name, one in known.items() if not one["holds"]]
    values = [known[name]["value"] for name in failing or known]
    return {
        "question": sla.text,
        "holds": not failing if known else None,
        "value": max(values, default=None),  # type: ignore[type-var]
        "legs": {name: {"holds": one["holds"], "value": one["value"]} for name, one in each.items()},
    }


def _sentence(sla: Sla, legs: Mapping[str, Delays]) -> str:
    """The verdict in words, with the leg that fails first."""
    asked = {name: delays for name, delays in legs.items() if sla.asks(name)}
    known = {name: delays for name, delays in asked.items() if sla.value(delays) is not None}
    if not known:
        return f"{sla.text}: cannot say"
    failing = [name for name, delays in known.items() if not sla.holds(delays)]
    order = failing + [name for name in known if name not in failing]
    said = ", ".join(f"{leg_text(name)} it is {sla.value_text(known[name])}" for name in order)
    if sla.asks("server") and [*known] == ["client"]:  # not the other way round: many protocols have no client leg
        said += ", to the server there are no delays"
    where = f" {' and '.join(leg_text(name) for name in failing)}" if failing and sla.leg != "both" else ""
    return f"{sla.text}: {'does not hold' + where if failing else 'holds'}; {said}"


def leg_text(leg: str) -> str:
    """Where delays of a leg are measured, in words."""
    return {"both": "on both legs together", "mixed": "on both legs mixed"}.get(leg, f"to the {leg}")


def _share(limit_ns: int, delays: Delays) -> dict[str, Any]:
    bounds = delays.share_above_ci(limit_ns)
    return {
        "limit": limit_ns / 1e9,
        "share": delays.share_above(limit_ns),
        "ci95": None if bounds is None else [*bounds],
    }


def _share_text(limit_ns: int, delays: Delays) -> str:
    share, bounds = delays.share_above(limit_ns), delays.share_above_ci(limit_ns)
    said = "cannot say" if share is None else f"{share:.2%}"
    said += f" (95% interval {bounds[0]:.2%} to {bounds[1]:.2%})" if bounds else ""
    return f"above {format_duration(limit_ns)}: {said}"
