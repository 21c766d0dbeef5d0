"""The groups of round trips: their order, their entries, and agreements that they break."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from wirelag.measure.group_entries import GroupEntries
from wirelag.measure.group_order import failing, order
from wirelag.measure.groups import other_note
from wirelag.measure.questions import MOST_NAMED, Broken
from wirelag.measure.result import shape_only

if TYPE_CHECKING:
    from wirelag.measure.questions import Questions
    from wirelag.measure.result import Entry
    from wirelag.measure.rtt import Entries, RttResult, RttSettings
    from wirelag.synopses.connections import Connections
    from wirelag.synopses.group_delays import Group, GroupDelays
    from wirelag.synopses.samples import Samples

ON_A_PAGE: Final = 100  # groups


class Grouped(NamedTuple):
    """What the entries of groups are made from."""

    delays: GroupDelays
    entries: Entries
    connections: Connections
    both: bool
    whole: Samples
    questions: Questions

    threads: int

    @property
    def at_once(self) -> bool:
        """Whether figures of many are found at once."""
        return not self.questions and self.entries.at_once

    def each(self, places: Sequence[int]) -> Iterator[Entry]:
        """The entries of groups, with their verdicts; figures of legs are found at once."""
        if not self.at_once:
            yield from (self._asked(group) for group in self.delays.some(places))
            return
        whole = self.whole.figures()
        of_groups = self.delays.figures(places, self.connections, self.threads)
        for group, of_legs in zip(self.delays.some(places), of_groups, strict=True):
            for name, one in of_legs.items():
                if one.facts["samples"] == whole[name].facts["samples"]:  # all delays are in one group
                    of_legs[name] = whole[name]
            yield _named(self.entries.told("group", group.key, of_legs), group)

    def _asked(self, group: Group) -> Entry:
        from wirelag.measure.rtt import asked_of

        samples = self.delays.samples(group)
        samples.connections, samples.whole = self.connections, self.whole
        entry = _named(self.entries.of("group", group.key, samples, self.connections if self.both else None), group)
        asked = asked_of(entry, self.questions, self.connections, samples.tag)
        entry.verdicts = self.questions.of_legs(asked, entry.delays)
        return shape_only(entry)


def _named(entry: Entry, group: Group) -> Entry:
    """An entry as that of a group."""
    entry.words, entry.tag = group.words, group.tag
    if group.before:
        entry.report = replace(entry.report, details={**entry.report.details, "earlier_in_other": group.before})
    return entry


def add_groups(result: RttResult, settings: RttSettings, grouped: Grouped, page: bool) -> None:
    """The groups of a result in order, and what did not fit; `page`: whether one may be asked for."""
    delays, asked = grouped.delays, settings.groups
    result.ranked = settings.ranked
    result.sort, result.top = asked.sort or "p50", asked.shown
    if not delays.complete:
        tags, before = delays.tags_and_before()
        grouped.connections.keep(tags)
        held = sum(one.samples for one in delays.delays(0))
        samples = sum(leg.delays.samples for leg in result.total.legs.values())
        result.notes += other_note(f"about {delays.groups_in_other:,} (within 2%)", held, samples, asked.memory)
        if late := int((before > 0).sum()):
            result.notes.append(
                f"{late:,} of the {len(delays):,} groups kept came, or came back, when memory was full: up to "
                f"{delays.floor:,} earlier samples of each are in other (earlier_in_other in JSON)"
            )
    places, result.few = order(delays, result.ranked, result.sort, grouped.connections)
    slas = {sla.text: 1.0 if sla.limit_ns is not None else 1e9 for sla in grouped.questions.slas}  # ns, or shares
    broken = failing(delays, grouped.questions.slas, grouped.connections) if slas else {}
    for question, (some, values, counts) in broken.items():
        names = [delays.group(int(place)).key for place in some[:MOST_NAMED]]
        told, of = (values[:MOST_NAMED] / slas[question]).tolist(), counts[:MOST_NAMED].astype(int).tolist()
        result.broken[question] = Broken(len(some), 0, len(places), list(zip(names, told, of, strict=True)))
    result.broken = result.broken if len(places) > 1 else {}
    result.total.verdicts = result.total.verdicts.beside(result.broken)
    result.groups = GroupEntries(places, grouped.each, at_first=ON_A_PAGE if page and grouped.at_once else 1)
