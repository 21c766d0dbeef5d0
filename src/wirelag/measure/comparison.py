"""Two reports of the same quantity: what got slower or faster, by how much, and whether that is more than chance.

Guarantee: if nothing changed and the reports' 95% intervals are right, the total is called changed in at most 5% of
comparisons. Of the groups called changed, at most 5% on average are called by chance, however many there are
(Benjamini and Hochberg 1995; within a group Simes' test, and Benjamini and Bogomolov 2014 for which of its figures).

A delay is compared on the log scale, with the standard error that its interval implies; where an interval reaches
zero or less (one-way delay between two clocks), in seconds. Rates are compared as proportions.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from wirelag.measure.groups import OTHER
from wirelag.stats.distribution import Z95, wilson
from wirelag.stats.over_time import welch

Verdict = Literal["slower", "faster", "higher", "lower", "mixed", "no more than chance", "cannot say"]
Side = Literal["before", "after", "both"]
Bounds = tuple[float, float]

LEVEL: Final = 0.05
MEASURING: Final = "rtt, response, oneway or flows"
QUANTITIES: Final = ("round_trip", "response", "one_way")
RATES: Final = (("loss", "lost", "sent"), ("reordering", "reordered", "received"), ("copies", "duplicated", "received"))
# Quantiles come from bins up to 1/128 wide. Two in neighbouring bins must not differ by more than chance, however many
# samples they have. So each of them gets this error.
ROUNDING: Final = math.log1p(1 / 128) / Z95 / math.sqrt(2)


class ReportError(ValueError):
    """The reports cannot be compared; `side` names the one at fault, or both."""

    def __init__(self, text: str, side: Side) -> None:
        super().__init__(text)
        self.side: Side = side


@dataclass(frozen=True, slots=True)
class FigureChange:
    """One figure of both reports: the mean, a quantile as the reports name it, or a rate. Times in seconds."""

    name: str
    before: float | None
    after: float | None
    difference_ci95: Bounds | None = None
    ratio_ci95: Bounds | None = None
    p_value: float | None = None  # for this figure alone: how often chance changes it as much
    verdict: Verdict = "cannot say"
    reason: str | None = None  # why there is no verdict

    @property
    def difference(self) -> float | None:
        """After minus before."""
        return None if self.before is None or self.after is None else self.after - self.before

    @property
    def ratio(self) -> float | None:
        """After divided by before; None unless both are above zero, except for a rate of zero after."""
        if self.before is None or self.after is None or self.before <= 0 or self.after < 0:
            return None
        return self.after / self.before if self.is_rate or self.after > 0 else None

    @property
    def is_rate(self) -> bool:
        """Whether this is a share of packets, not a time."""
        return any(self.name == name for name, _, _ in RATES)

    @property
    def is_called(self) -> bool:
        """Whether it changed by more than chance."""
        return self.verdict not in ("no more than chance", "cannot say")

    def to_json(self) -> dict[str, Any]:
        """The change as docs/reference/schema/compare.json has it."""
        return {
            "name": self.name,
            "before": self.before,
            "after": self.after,
            "difference": self.difference,
            "difference_ci95": self.difference_ci95 and list(self.difference_ci95),
            "ratio": self.ratio,
            "ratio_ci95": self.ratio_ci95 and list(self.ratio_ci95),
            "p_value": self.p_value,
            "verdict": self.verdict,
        } | ({"reason": self.reason} if self.reason else {})

    def to_row(self) -> dict[str, Any]:
        """The change as a row: bounds are columns of their own."""
        plain = {"reason": None} | self.to_json()
        for name in ("difference", "ratio"):
            plain[f"{name}_low"], plain[f"{name}_high"] = plain.pop(f"{name}_ci95") or (None, None)
        return plain


@dataclass(frozen=True, slots=True)
class ComparedPart:
    """What both reports have: the total, a leg or a group, and each of its figures."""

    key: str
    samples: tuple[int | None, int | None]
    changes: tuple[FigureChange, ...]

    @property
    def p_value(self) -> float | None:
        """How often chance alone changes some figure of this part as much (Simes)."""
        return simes([change.p_value for change in self.changes])

    @property
    def verdict(self) -> Verdict:
        """All its figures in a word; "mixed" if some got better and some worse."""
        called: list[Verdict] = [change.verdict for change in self.changes if change.is_called]
        if {"slower", "higher"} & set(called) and {"faster", "lower"} & set(called):
            return "mixed"
        if called:
            return called[0]  # delays come before rates
        return "cannot say" if self.p_value is None else "no more than chance"

    @property
    def main(self) -> FigureChange:
        """The change to show first: the mean if it is called, else the first that is called, else the mean."""
        return next((change for change in self.changes if change.is_called), self.changes[0])

    @property
    def is_worse(self) -> bool:
        """Whether its delay or loss got worse by more than chance."""
        return any(change.verdict in ("slower", "higher") for change in self.changes)

    def to_json(self) -> dict[str, Any]:
        """The part as the schema has it."""
        return {
            "key": self.key,
            "samples": {"before": self.samples[0], "after": self.samples[1]},
            "verdict": self.verdict,
            "p_value": self.p_value,
            "changes": [change.to_json() for change in self.changes],
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two reports compared; groups that changed come first, the largest change at the top."""

    quantity: str
    estimators: tuple[str | None, str | None]
    total: ComparedPart
    legs: tuple[ComparedPart, ...]
    groups: tuple[ComparedPart, ...]
    only_before: tuple[str, ...]  # keys of groups
    only_after: tuple[str, ...]
    notes: tuple[str, ...]
    leg: str | None = None  # of round trips: whose figures the total has, in both

    @property
    def parts(self) -> tuple[ComparedPart, ...]:
        """The total, the legs and the groups."""
        return (self.total, *self.legs, *self.groups)

    @property
    def is_worse(self) -> bool:
        """Whether delay or loss got worse anywhere by more than chance."""
        return any(part.is_worse for part in self.parts)

    def to_json(self) -> dict[str, Any]:
        """The comparison as the schema has it."""
        return {
            "command": "compare",
            "quantity": self.quantity,
            "estimator": {"before": self.estimators[0], "after": self.estimators[1]},
            "level": LEVEL,
            "worse": self.is_worse,
            "total": self.total.to_json(),
            "legs": [part.to_json() for part in self.legs],
            "groups": [part.to_json() for part in self.groups],
            "only_before": list(self.only_before),
            "only_after": list(self.only_after),
            "notes": list(self.notes),
        }


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Comparison:
    """Compare two reports, each given as its JSON."""
    old, new = _read(before, "before"), _read(after, "after")
    if old.quantity != new.quantity:
        was, now = (quantity.replace("_", "-") for quantity in (old.quantity, new.quantity))
        raise ReportError(f"one measures {was} delay, the other {now} delay; compare two of the same kind", "both")
    if old.leg and new.leg and old.leg != new.leg:
        raise ReportError(f"one is of the leg {old.leg}, the other of {new.leg}; make both with the same --leg", "both")
    groups = _called([_part(key, old.groups[key], new.groups[key]) for key in old.groups if key in new.groups])
    legs = _called([_part(key, old.legs[key], new.legs[key]) for key in old.legs if key in new.legs])
    (total,) = _called([_part("all", old.total, new.total)])
    notes = list(_notes(old, new))
    return Comparison(
        old.quantity,
        (old.estimator, new.estimator),
        total,
        tuple(legs),
        tuple(sorted(groups, key=_rank)),
        tuple(key for key in old.groups if key not in new.groups),
        tuple(key for key in new.groups if key not in old.groups),
        tuple(notes),
        old.leg if old.leg == new.leg else None,
    )


def simes(p_values: Iterable[float | None]) -> float | None:
    """The p-value of several together, that nothing changed (Simes 1986). None stands for an unknown one.

    >>> simes([0.5, 0.01, None])
    0.02
    """
    known = sorted(p for p in p_values if p is not None)
    return min((p * len(known) / rank for rank, p in enumerate(known, 1)), default=None)


def benjamini_hochberg(p_values: Iterable[float | None], level: float) -> float:
    """The largest p-value to call, so that at most a share of `level` is called by chance; 0 if none is.

    >>> benjamini_hochberg([0.6, 0.001, 0.02, None], 0.05)
    0.03333333333333333
    """
    known = sorted(p for p in p_values if p is not None)
    called = max((rank for rank, p in enumerate(known, 1) if p <= level * rank / len(known)), default=0)
    return level * called / len(known) if called else 0.0


# Reading a report.


@dataclass(frozen=True, slots=True)
class _Read:
    quantity: str
    estimator: str | None
    command: str | None
    total: Mapping[str, Any]
    legs: dict[str, Mapping[str, Any]]
    groups: dict[str, Mapping[str, Any]]
    has_other: bool
    leg: str | None = None  # of round trips: whose figures come first


def _read(report: Mapping[str, Any], side: Side) -> _Read:
    try:
        return _parse(report)
    except ValueError as error:
        raise ReportError(str(error), side) from None


def _parse(report: Mapping[str, Any]) -> _Read:
    quantity, command, estimator = (report.get(name) for name in ("quantity", "command", "estimator"))
    if quantity is None and "flows" in report:
        quantity = "one_way"
    if quantity not in QUANTITIES or command in ("score", "compare"):
        printed = f"printed by wirelag {command}" if isinstance(command, str) else 'no "quantity"'
        raise ValueError(f"not a report of delays ({printed}); give the JSON of wirelag {MEASURING}")
    listed = [*_list(report, "groups"), *_list(report, "flows")]
    groups: dict[str, Mapping[str, Any]] = {}
    for group in listed:
        key = group.get("key") if isinstance(group, Mapping) else None
        if not isinstance(key, str):
            raise ValueError('a group has no "key"; write the report again')
        if key in groups:
            raise ValueError(f"two groups have the key {key!r}; write the report again")
        groups[key] = group
    has_other = groups.pop(OTHER, None) is not None
    legs = {name: _mapping({name: leg}, name) for name, leg in _mapping(report, "legs").items()}
    return _Read(
        str(quantity),
        estimator if isinstance(estimator, str) else None,
        command if isinstance(command, str) else None,
        report,
        legs,
        groups,
        has_other,
        report.get("leg") if isinstance(report.get("leg"), str) else None,
    )


def _list(report: Mapping[str, Any], name: str) -> list[Any]:
    value = report.get(name)
    if value is not None and not isinstance(value, list):
        raise ValueError(f'"{name}" is not a list; write the report again')
    return value or []


def _mapping(report: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = report.get(name)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f'"{name}" is not an object; write the report again')
    return value or {}


def _number(value: Any, name: str) -> float | None:
    if value is None:
        return None
    try:
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError
    except (ValueError, OverflowError):
        raise ValueError(f'"{name}" is not a number; write the report again') from None
    return float(value)


def _count(report: Mapping[str, Any], name: str) -> int | None:
    value = report.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63):
        raise ValueError(f'"{name}" is not a count; write the report again')
    return value


def _bounds(report: Mapping[str, Any], name: str) -> Bounds | None:
    intervals = report.get("ci95")
    if isinstance(intervals, list | tuple):  # where there is only a mean
        intervals = {"mean": intervals}
    pair = _mapping({"ci95": intervals}, "ci95").get(name)
    if pair is None:
        return None
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        raise ValueError(f'the 95% interval of "{name}" is not [low, high]; write the report again')
    low, high = (_number(end, name) for end in pair)
    if low is None or high is None:
        return None
    if low > high:
        raise ValueError(f'the 95% interval of "{name}" ends before it begins; write the report again')
    return low, high


@dataclass(frozen=True, slots=True)
class _Estimate:
    samples: int | None
    value: float | None
    bounds: Bounds | None
    freedom: float  # degrees of freedom of the interval's error


def _estimate(report: Mapping[str, Any], name: str) -> _Estimate:
    value = report.get("mean") if name == "mean" else _mapping(report, "quantiles").get(name)
    samples = _count(report, "samples")
    return _Estimate(samples, _number(value, name), _bounds(report, name), _freedom(name, samples))


def _freedom(name: str, samples: int | None) -> float:
    """Degrees of freedom of the interval's error: few with few samples.

    An interval of a quantile spans 2 * 1.96 sqrt(n q (1 - q)) neighbouring samples, k in all. A sum of k spacings
    scatters by 1 / sqrt(k) of itself, an error with f degrees of freedom by 1 / sqrt(2 f): so f = k / 2.
    """
    if samples is None:
        return math.inf
    if name == "mean":
        return max(samples - 1.0, 1.0)
    share = float(name)
    return max(Z95 * math.sqrt(samples * share * (1 - share)), 1.0)


def _quantiles(report: Mapping[str, Any]) -> dict[str, float]:
    shares = {}
    for name in _mapping(report, "quantiles"):
        try:
            shares[name] = float(name)
        except ValueError:
            shares[name] = math.nan
        if not 0 <= shares[name] <= 1:
            raise ValueError(f'quantile "{name}" is not between 0 and 1; write the report again')
    return shares


# The tests.


def _part(key: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> ComparedPart:
    """Each figure of a part with its p-value; nothing is called yet."""
    names: list[list[str]] = []
    estimates: list[dict[str, _Estimate]] = []
    counts: list[dict[str, int | None]] = []
    sides: tuple[tuple[Mapping[str, Any], Side], ...] = ((before, "before"), (after, "after"))
    for report, side in sides:
        try:
            shares = _quantiles(report)
            names.append(["mean", *sorted(shares, key=lambda name: shares[name])])
            estimates.append({name: _estimate(report, name) for name in names[-1]})
            counts.append({name: _count(report, name) for rate in RATES for name in rate[1:]})
        except ValueError as error:
            raise ReportError(str(error) if key == "all" else f"{key}: {error}", side) from None
    changes = [_delay(name, estimates[0][name], estimates[1][name]) for name in names[0] if name in names[1]]
    for name, few, many in RATES:
        if all(counted[few] is not None and counted[many] is not None for counted in counts):
            changes.append(_rate(name, *((counted[few] or 0, counted[many] or 0) for counted in counts)))
    return ComparedPart(key, (_count(before, "samples"), _count(after, "samples")), tuple(changes))


def _delay(name: str, before: _Estimate, after: _Estimate) -> FigureChange:
    change = FigureChange(name, before.value, after.value)
    sides = ("before", before), ("after", after)
    for side, estimate in sides:
        if estimate.value is None:
            return replace(change, reason=f"{'no delays' if estimate.samples == 0 else 'not given'} {side}")
    for side, estimate in sides:
        if estimate.bounds is None:
            return replace(change, reason=f"no 95% interval {side}")
    if min(low for estimate in (before, after) for low in (estimate.value or 0, (estimate.bounds or (0, 0))[0])) > 0:
        return _on_log_scale(change, before, after)
    return _in_seconds(change, before, after)


def _on_log_scale(change: FigureChange, before: _Estimate, after: _Estimate) -> FigureChange:
    rounding = 0.0 if change.name == "mean" else ROUNDING
    # Intervals are longer upwards, for means that a capture is too short to show: the lower half has the error.
    errors = [
        math.hypot(math.log((estimate.value or 0.0) / estimate.bounds[0]) / Z95, rounding)
        for estimate in (before, after)
        if estimate.bounds
    ]
    ratio = change.ratio or 1.0
    error, freedom = welch(zip(errors, (before.freedom, after.freedom), strict=True))
    reach = _far(freedom) * error
    ratio_ci95 = ratio * math.exp(-reach), ratio * math.exp(reach)
    # The difference in seconds has the sign of the logarithm, at both ends. Measured from the smaller of the two, its
    # interval is never too narrow.
    low, high = (
        (change.before or 0) * (end - 1) if ratio > 1 else (change.after or 0) * (1 - 1 / end) for end in ratio_ci95
    )
    return replace(
        change,
        ratio_ci95=ratio_ci95,
        difference_ci95=(low, high),
        p_value=_p_value(math.log(ratio), error, freedom),
    )


def _in_seconds(change: FigureChange, before: _Estimate, after: _Estimate) -> FigureChange:
    errors = []
    for estimate in (before, after):
        low, high = estimate.bounds or (0.0, 0.0)
        # An interval of the mean that reaches below zero was cut at zero; its upper half is complete.
        half = high - (estimate.value or 0.0) if low == 0 else (estimate.value or 0.0) - low
        rounding = 0.0 if change.name == "mean" else ROUNDING * abs(estimate.value or 0.0)
        errors.append(math.hypot(max(half, 0.0) / Z95, rounding))
    error, freedom = welch(zip(errors, (before.freedom, after.freedom), strict=True))
    difference = change.difference or 0.0
    reach = _far(freedom) * error
    return replace(
        change,
        difference_ci95=(difference - reach, difference + reach),
        p_value=_p_value(difference, error, freedom),
    )


def _p_value(difference: float, error: float, freedom: float) -> float:
    if difference == 0:
        return 1.0
    if error == 0:
        return 0.0
    t = difference / error
    if math.isfinite(freedom):
        # Wallace 1959: the normal deviate of about the same probability. It is never too small; with 3 degrees of
        # freedom it is 2% too large at t = 3 and 20% at t = 10, with 30 it is 0.1% and 4%.
        t = (8 * freedom + 1) / (8 * freedom + 3) * math.sqrt(freedom * math.log1p(t * t / freedom))
    return math.erfc(abs(t) / math.sqrt(2))


def _far(freedom: float) -> float:
    """How many standard errors a 95% interval reaches: the inverse of the function above."""
    if not math.isfinite(freedom):
        return Z95
    z = Z95 * (8 * freedom + 3) / (8 * freedom + 1)
    return math.sqrt(freedom * math.expm1(z * z / freedom))


def _rate(name: str, before: tuple[int, int], after: tuple[int, int]) -> FigureChange:
    """Two proportions: the z test with Yates' correction, and Newcombe's interval of their difference."""
    if not before[1] or not after[1]:
        return FigureChange(name, None, None, reason="no packets to take a share of")
    shares = [min(few / many, 1.0) for few, many in (before, after)]
    change = FigureChange(name, shares[0], shares[1])
    inverse = 1 / before[1] + 1 / after[1]
    pooled = min((before[0] + after[0]) / (before[1] + after[1]), 1.0)
    error = math.sqrt(pooled * (1 - pooled) * inverse)
    difference = shares[1] - shares[0]
    (low0, high0), (low1, high1) = (wilson(share, n) for share, (_, n) in zip(shares, (before, after), strict=True))
    return replace(
        change,
        difference_ci95=(
            difference - math.hypot(shares[1] - low1, high0 - shares[0]),
            difference + math.hypot(high1 - shares[1], shares[0] - low0),
        ),
        p_value=_p_value(max(0.0, abs(difference) - inverse / 2), error, math.inf),
    )


# The verdicts.


def _called(parts: Sequence[ComparedPart]) -> list[ComparedPart]:
    """Decide which parts changed, and which of their figures.

    All parts together set the limit. Within a part the same rule at that limit decides which figures changed. Since the
    p-value of a part is Simes', it finds at least one in exactly the parts that are called.
    """
    limit = benjamini_hochberg([part.p_value for part in parts], LEVEL)
    called = []
    for part in parts:
        inner = benjamini_hochberg([change.p_value for change in part.changes], limit)
        changes = tuple(replace(change, verdict=_verdict(change, inner)) for change in part.changes)
        called.append(replace(part, changes=changes))
    return called


def _verdict(change: FigureChange, limit: float) -> Verdict:
    if change.p_value is None:
        return "cannot say"
    difference = change.difference
    if change.p_value > limit or not difference:
        return "no more than chance"
    if change.is_rate:
        return "higher" if difference > 0 else "lower"
    return "slower" if difference > 0 else "faster"


def _rank(part: ComparedPart) -> tuple[int, float]:
    order = {"no more than chance": 1, "cannot say": 2}.get(part.verdict, 0)
    ratio, difference = part.main.ratio, part.main.difference
    return order, -abs(math.log(ratio)) if ratio else -abs(difference or 0.0)


def _notes(old: _Read, new: _Read) -> Iterable[str]:
    for side, read in (("before", old), ("after", new)):
        why = read.total.get("hint") or read.total.get("reason")
        if read.total.get("samples") == 0 and isinstance(why, str):
            yield f"the report {side} has no delays: {why}"
    named = ("command", old.command, new.command), ("estimator", old.estimator, new.estimator)
    for what, was, now in named:
        if was != now:
            yield f"the {what} changed: {was or 'unknown'} before, {now or 'unknown'} after"
    if bool(old.groups) != bool(new.groups):
        yield f"only the report {'before' if old.groups else 'after'} has groups"
    elif old.groups and not old.groups.keys() & new.groups.keys():
        yield "no group is in both reports: were they made with the same --by?"
    if old.has_other and new.has_other:
        yield "the groups 'other' are not compared: they may hold different traffic"
