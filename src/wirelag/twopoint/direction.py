"""The direction of packets: from the upstream to the downstream point, back, or not past both."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.clocks.fit import LONGEST_DELAY_NS
from wirelag.packets.addresses import Direction, address_keys, pair_keys, words_of
from wirelag.packets.batch import PacketBatch
from wirelag.twopoint.sketch import AddressPairs, Ints, Sighting, Words

Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float64]
Courses = npt.NDArray[np.uint8]

FORWARD, BACKWARD, ELSEWHERE = np.uint8(1), np.uint8(2), np.uint8(3)
FEWEST_TURNS: Final = 5  # successive packets in opposite directions that can contradict a direction that was given
CLEARLY: Final = 0.5  # share of turns, less the share of the others, that contradicts it


@dataclass(frozen=True, slots=True)
class Sides:
    """The side of the path on which addresses are: positive upstream, negative downstream."""

    addresses: Words
    votes: Floats

    @classmethod
    def of(cls, source: Words, destination: Words, weight: Floats) -> Sides:
        """Derived from pairs that travel from upstream to downstream (or, with a negative weight, back)."""
        addresses, place = np.unique(np.concatenate([source, destination]), return_inverse=True)
        votes = np.bincount(place.reshape(-1), np.concatenate([weight, -weight]), len(addresses))
        return cls(addresses, votes.astype(np.float64))

    def side(self, addresses: Words) -> Floats:
        """The side of each address; 0 if unknown."""
        if not len(self.addresses):
            return np.zeros(len(addresses))
        place = np.minimum(np.searchsorted(self.addresses, addresses), len(self.addresses) - 1)
        return np.where(self.addresses[place] == addresses, np.sign(self.votes[place]), 0.0)


@dataclass(frozen=True)
class Course:
    """The course of each address pair at one point, and the time span."""

    keys: Words
    courses: npt.NDArray[np.uint8]
    sides: Sides
    first_ns: int
    last_ns: int

    @cached_property
    def _known(self) -> _kernels.PairCourses:
        return _kernels.PairCourses(self.keys, self.courses)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_known"}

    def of(self, packets: PacketBatch, direction: Direction | None) -> npt.NDArray[np.uint8]:
        """FORWARD, BACKWARD or ELSEWHERE for each packet."""
        courses = np.empty(len(packets), np.uint8)
        self._known.of(*words_of(packets), courses)
        new = np.flatnonzero(courses == 0)
        if len(new):  # pairs that were not kept
            source, destination = packets.src[new], packets.dst[new]
            tendency = self.sides.side(address_keys(source)) - self.sides.side(address_keys(destination))
            courses[new] = _by_side(tendency, ELSEWHERE)
            if direction:
                courses[new] = _as_given(direction, source, destination, courses[new])
        return courses


def signs(courses: npt.NDArray[np.uint8]) -> Floats:
    return np.where(courses == FORWARD, 1.0, np.where(courses == BACKWARD, -1.0, 0.0))


def _by_side(tendency: Floats, unknown: np.uint8) -> npt.NDArray[np.uint8]:
    return np.where(tendency > 0, FORWARD, np.where(tendency < 0, BACKWARD, unknown))


def _as_given(direction: Direction, source: Words, destination: Words, found: Courses) -> Courses:
    """The course that a direction says; where it matches both ways, it says nothing, and what was found stays."""
    onward, back = direction.matches(source, destination), direction.matches(destination, source)
    given = np.where(onward, FORWARD, np.where(back, BACKWARD, ELSEWHERE))
    return np.where(onward & back, found, given).astype(np.uint8)


@dataclass(frozen=True, slots=True)
class Common:
    """The common packets of both samples, and their address pairs at upstream."""

    up: Ints  # rows of the samples
    down: Ints
    single: Bools
    difference_ns: Ints  # downstream time minus upstream time
    pair: Ints  # row of upstream's pairs
    courses: npt.NDArray[np.uint8]  # course of upstream's pairs; 0 if no packet is common
    talking: Bools  # pairs of conversations common in both directions
    turned: Floats  # share of their turns that say down less that says up; 0 with few


def find_courses(found: Common, pairs: AddressPairs, times_ns: Ints, direction: Direction | None) -> None:
    """The direction of the common packets of each address pair; `times_ns` are the packets' times upstream.

    A `direction` decides, except for pairs that it matches both ways. Without one, a ValueError if all seem to travel
    from downstream to upstream, and a clock does not clearly explain it.
    """
    order = np.lexsort((found.difference_ns, found.pair))
    used, starts, counts = np.unique(found.pair[order], return_index=True, return_counts=True)
    sources, destinations = (ends[used] for ends in pairs.ends)
    reverse = pair_keys(destinations, sources)
    place = np.minimum(np.searchsorted(pairs.keys[used], reverse), len(used) - 1)
    place = np.where(pairs.keys[used[place]] == reverse, place, -1)
    votes, found.turned[used], offset_times, offsets = _turns(found, used, place, times_ns)
    talking = votes != 0
    sides = Sides.of(sources, destinations, votes)
    middles = order[starts + counts // 2]
    offset = np.interp(times_ns[middles] - times_ns.min(), offset_times, offsets) if len(offsets) else 0
    tendency = sides.side(sources) - sides.side(destinations)
    unknown = (tendency == 0) & ~talking
    tendency = np.where(unknown, np.where(found.difference_ns[middles] >= offset, 1, -1), tendency)
    # If both addresses have a side, all their conversations together are more reliable than one.
    courses = _by_side(np.where(talking & (np.abs(tendency) < 2), votes, tendency), ELSEWHERE)
    if direction:
        source, destination = pairs.addresses[used, :2], pairs.addresses[used, 2:]
        courses = _as_given(direction, source, destination, courses)
        talking |= courses != ELSEWHERE
    elif not (courses == FORWARD).any():
        if not clock_behind(found.difference_ns):
            raise ValueError("all packets are seen downstream first")
        courses[:] = FORWARD
    found.courses[used] = courses
    found.talking[used] = talking


def against(found: Common) -> int:
    """Common packets that travel forward, as a direction says, and against what both directions show.

    Law: whatever the clocks, the way down and the way back together take no less than nothing.
    """
    wrong = (found.courses == FORWARD) & (found.turned < -CLEARLY)
    return int(np.count_nonzero(wrong[found.pair]))


def _turns(found: Common, used: Ints, place: Ints, times_ns: Ints) -> tuple[Floats, Floats, Floats, Floats]:
    """How clearly each pair travels down (positive) or up, in which share of turns, and the clocks' offset over time.

    In a conversation common in both directions, the larger time difference is the way down, whatever the clocks.
    Compared are successive packets in opposite directions; the closer they are, the more they count, because clocks
    drift little in between.
    """
    row = np.searchsorted(used, found.pair)
    conversation = np.where(place >= 0, np.minimum(place, np.arange(len(used))), -1)[row]
    onward = np.where(row == conversation, 1, -1)
    order = np.lexsort((times_ns, conversation))
    first, second = order[:-1], order[1:]
    turn = (
        (conversation[first] == conversation[second]) & (conversation[first] >= 0) & (onward[first] != onward[second])
    )
    first, second = first[turn], second[turn]
    if not len(first):
        return np.zeros(len(used)), np.zeros(len(used)), np.empty(0), np.empty(0)
    gap = np.abs(times_ns[second] - times_ns[first]) / 1e9
    gain = np.sign(found.difference_ns[first] - found.difference_ns[second]) * onward[first] / (1 + gap)
    sums = np.bincount(conversation[first], gain, len(used)).astype(np.float64)
    turns = np.bincount(conversation[first], minlength=len(used))
    shares = sums / np.maximum(np.bincount(conversation[first], 1 / (1 + gap), len(used)), 1e-9)
    shares = np.where(turns >= FEWEST_TURNS, shares, 0.0)
    way = np.where(place >= 0, np.where(place < np.arange(len(used)), -1.0, 1.0), 0.0)
    votes, shares = (way * each[np.minimum(place, np.arange(len(used)))] for each in (sums, shares))
    # Half of the sum is the offset, if delays are equal in both directions.
    order = np.argsort(times_ns[first], kind="stable")
    times = (times_ns[first] - times_ns.min())[order].astype(np.float64)
    halves = (found.difference_ns[first] // 2 + found.difference_ns[second] // 2)[order].astype(np.float64)
    parts = min(64, max(1, len(order) // 8))
    medians = [
        (np.median(t), np.median(h))
        for t, h in zip(np.array_split(times, parts), np.array_split(halves, parts), strict=True)
    ]
    return votes, shares, np.array([t for t, _ in medians]), np.array([h for _, h in medians])


def clock_behind(difference_ns: Ints) -> bool:
    """Whether packets of one direction that seem to arrive before they were sent show a clock that is behind.

    Delays have a long upper tail. If that is not clear and the difference is small, the captures are in the wrong
    order.
    """
    low, middle, high = np.quantile(difference_ns - difference_ns.min(), (0.05, 0.5, 0.95))
    if len(difference_ns) >= 50 and high - middle > 3 * (middle - low):
        return True
    return bool(middle - low <= 2 * (high - middle) and -np.median(difference_ns) >= LONGEST_DELAY_NS)


def courses_of(sighting: Sighting, courses: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The course of each sampled packet, from its pair's; 0 if the pair was not kept."""
    place = np.minimum(sighting.pair_rows, len(sighting.pairs) - 1)
    return np.where(sighting.pairs.keys[place] == sighting.keys, courses[place], 0)


def courses_below(down: Sighting, found: Common) -> npt.NDArray[np.uint8]:
    """The course of downstream's pairs: that of most of their common packets."""
    place = down.pair_rows[found.down]
    votes = np.zeros((4, len(down.pairs)), np.int64)
    np.add.at(votes, (found.courses[found.pair], place), 1)
    return np.where(votes.any(axis=0), votes.argmax(axis=0), 0).astype(np.uint8)


def courses_at(
    sighting: Sighting,
    others: AddressPairs,
    known: npt.NDArray[np.uint8],
    sides: Sides,
    span: tuple[int, int],
    direction: Direction | None,
    nat: bool,
    upstream: bool,
) -> Course:
    """The course of every address pair of a point; `known` has those with common packets."""
    pairs = sighting.pairs
    source, destination = pairs.ends
    seen_there = np.isin(pairs.keys, others.keys) | (pairs.keys >= np.uint64(2**64 // others.scale - 1))
    side, other_side = sides.side(source), sides.side(destination)
    guess = _by_side(side - other_side, ELSEWHERE if (known == BACKWARD).any() else FORWARD)
    crosses = (side > 0) & (other_side < 0)
    if direction:
        guess = _as_given(direction, pairs.addresses[:, :2], pairs.addresses[:, 2:], guess)
        crosses |= direction.matches(pairs.addresses[:, :2], pairs.addresses[:, 2:])
    # Between hosts whose other packets get through, all packets may be lost: an outage. Others never pass the other
    # point.
    elsewhere = (guess == FORWARD) & ~seen_there & (not nat)
    if upstream:
        elsewhere &= ~crosses
    guess = np.where(elsewhere, ELSEWHERE, guess)
    return Course(pairs.keys, np.where(known == 0, guess, known).astype(np.uint8), sides, *span)
