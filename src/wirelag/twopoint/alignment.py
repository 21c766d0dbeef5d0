"""What two captures of the same traffic have in common, determined before anything is measured.

Finds the packets that travel from the upstream to the downstream point, the relation of the clocks, and the time span
of both captures. If there is nothing to measure, the error says why, and what to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from wirelag.clocks.fit import FEWEST, Clock, fit
from wirelag.errors import WirelagError
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import Array, Block, PacketBatch
from wirelag.twopoint.direction import (
    BACKWARD,
    FORWARD,
    Common,
    Course,
    Sides,
    against,
    clock_behind,
    courses_at,
    courses_below,
    courses_of,
    find_courses,
    signs,
)
from wirelag.twopoint.sketch import Ints, Sighting, Words, common
from wirelag.units import format_duration, many

__all__ = ["Alignment", "Direction", "LeftOut", "Sighting", "align"]

Point = Literal["upstream", "downstream"]
POINTS: Final[tuple[Point, Point]] = ("upstream", "downstream")

FEWEST_COMMON: Final = 5
LEAST_SHARE: Final = 1e-3  # share of the smaller capture that must be common
LARGEST_FRAME: Final = 1500  # a larger payload did not cross an ordinary link in one piece


MARGIN_NS: Final = 10_000_000
EARLY_SHARE: Final = 0.01  # share of common packets below which negative delays are wrong pairs
AGAINST: Final = 0.1  # share of common packets that makes a direction wrong
FAR_OFF_NS: Final = 600 * 10**9  # distance from the other times: beyond it a time is damaged
_NOTHING: Final = (np.empty(0, np.int64), np.empty(0, np.int64))
_AT_ONCE: Final = 1 << 14
_SHOWN: Final = 4_000  # common packets of a direction, for a plot


@dataclass(slots=True)
class LeftOut:
    """Packets of one point that are not measured, by reason."""

    backward: int = 0  # travel from downstream to upstream
    elsewhere: int = 0  # the other point saw nothing between these addresses, so they never pass it
    outside: int = 0  # before the first or after the last common packet: one capture started earlier or ended later


@dataclass(slots=True)
class Alignment:
    """The relation of two captures; `select` returns the packets to measure, on one clock."""

    clock: Clock
    notes: list[str]
    common_packets: int  # travelling from upstream to downstream; estimated if the sample is not complete
    courses: dict[str, Course]
    direction: Direction | None = None
    forward: tuple[Ints, Ints] = _NOTHING  # times of some common packets at both points
    returning: tuple[Ints, Ints] = _NOTHING  # the same for packets that travel back
    forward_pairs: Words = field(default_factory=lambda: np.empty(0, np.uint64))  # address pairs of `forward`
    left_out: dict[str, LeftOut] = field(default_factory=lambda: {"upstream": LeftOut(), "downstream": LeftOut()})

    def select(self, point: Point, packets: PacketBatch) -> PacketBatch:
        """The rows that travel from upstream to downstream in the common span, with times on upstream's clock."""
        if not len(packets):
            return packets
        course, left_out = self.courses[point], self.left_out[point]
        courses = course.of(packets, self.direction)
        forward = courses == FORWARD
        rows = forward & (packets.time_ns >= course.first_ns) & (packets.time_ns <= course.last_ns)
        kept = int(np.count_nonzero(rows))
        if kept < len(packets):
            backward, onward = int(np.count_nonzero(courses == BACKWARD)), int(np.count_nonzero(forward))
            left_out.backward += backward
            left_out.elsewhere += len(packets) - backward - onward
            left_out.outside += onward - kept
            packets = packets.choose(np.flatnonzero(rows))
        if point == "downstream" and self.clock.corrects:
            packets = packets.at_times(self.clock.correct(packets.time_ns))
        return packets

    def kept(self, point: Point, seen: Sighting, capture: str) -> PacketBatch:
        """The same of all packets that were kept when they were seen, with the columns that were."""
        found, left_out = seen.take(self.courses[point], int(FORWARD), int(BACKWARD)), self.left_out[point]
        left_out.backward += found.backward
        left_out.elsewhere += found.elsewhere
        left_out.outside += found.outside
        if point == "downstream" and self.clock.corrects:
            for start in range(0, len(found.times_ns), _AT_ONCE):  # what it takes meanwhile stays in the cache
                some = found.times_ns[start : start + _AT_ONCE]
                some[:] = self.clock.correct(some)
        columns: dict[str, Array] = {"time_ns": found.times_ns, "packet_id": found.ids, "number": found.numbers}
        return PacketBatch(columns, (Block(capture, 0, np.empty(0, np.uint8)),), lasts=True)

    def agrees(self, other: Alignment) -> bool:
        """Whether any packets travel in the same direction in both alignments."""
        ways = [
            course.keys[course.courses == FORWARD] for course in (self.courses["upstream"], other.courses["upstream"])
        ]
        return bool(np.isin(*ways).any())

    @property
    def steps(self) -> tuple[Ints, Ints]:
        """Times of some common packets at both points, on upstream's clock."""
        up_ns, down_ns = self.forward
        return up_ns, self.clock.correct(down_ns)

    @property
    def ahead_ns(self) -> int:
        """How far the corrected downstream clock may still be ahead: the sampled negative delays plus a margin."""
        up_ns, down_ns = self.forward
        return MARGIN_NS + max(0, -int((self.clock.correct(down_ns) - up_ns).min())) if len(up_ns) else MARGIN_NS

    @property
    def least_ns(self) -> int:
        """The shortest possible delay: 0, minus what the clocks may differ by."""
        up_ns, down_ns = self.forward
        early = np.quantile(self.clock.correct(down_ns) - up_ns, EARLY_SHARE) if len(up_ns) else 0.0
        return min(0, int(early)) - MARGIN_NS

    @property
    def backward(self) -> int:
        """Packets of both points left out because they travel the other way."""
        return sum(left_out.backward for left_out in self.left_out.values())

    @property
    def elsewhere(self) -> int:
        """Packets of both points left out because they never pass the other point."""
        return sum(left_out.elsewhere for left_out in self.left_out.values())

    @property
    def outside(self) -> int:
        """Packets of both points left out because the other capture does not cover their time."""
        return sum(left_out.outside for left_out in self.left_out.values())


def align(
    up: Sighting,
    down: Sighting,
    *,
    names: tuple[str, str],
    direction: Direction | None = None,
    clock: Literal["auto", "none"] | int = "auto",
    nat: bool = False,
) -> Alignment:
    """Determine what two captures have in common; a WirelagError says why it is nothing.

    `names` are the names of the captures. `direction` overrides the detected one. `clock` is an offset in ns (by which
    downstream's clock is ahead) or how to find it. With `nat`, addresses may differ between the points.
    """
    up.settle()
    down.settle()
    level = max(up.level, down.level)
    up.thin(level)
    down.thin(level)
    rows_up, rows_down, single = common(up, down)
    if up.pairs.scale > 1 or down.pairs.scale > 1:
        kept = np.isin(up.keys[rows_up], up.pairs.keys) & np.isin(down.keys[rows_down], down.pairs.keys)
        rows_up, rows_down, single = rows_up[kept], rows_down[kept], single[kept]
    _enough_in_common(up, down, len(rows_up), names, nat)
    found = Common(
        rows_up,
        rows_down,
        single,
        down.times_ns[rows_down] - up.times_ns[rows_up],
        up.pair_rows[rows_up],
        np.zeros(len(up.pairs), np.uint8),
        np.zeros(len(up.pairs), np.bool_),
        np.zeros(len(up.pairs)),
    )
    if not direction and not found.difference_ns.any():
        raise WirelagError(
            f"{names[0]} and {names[1]} show the same packets at the same times: is it one capture twice?"
        )
    try:
        find_courses(found, up.pairs, up.times_ns[rows_up], direction)
    except ValueError:
        earlier = format_duration(-int(np.median(found.difference_ns)))
        raise WirelagError(
            f"all packets that {names[0]} and {names[1]} have in common are seen in {names[1]} first, by {earlier}:"
            " swap the captures, or set the direction of travel with --direction"
        ) from None
    forward = found.courses[found.pair] == FORWARD
    if not forward.any():
        raise WirelagError(
            f"nothing that {names[0]} and {names[1]} have in common travels from the first to the second"
            + (": check --direction, or swap the captures" if direction else ": swap the captures")
        )
    wrong, every = against(found) if direction and clock == "auto" else 0, int(np.count_nonzero(forward))
    if wrong > AGAINST * every:
        raise WirelagError(
            f"{wrong:,} of {every:,} common packets that --direction names travel from {names[1]} to {names[0]}, as"
            " those that come back show: leave --direction out, or swap the captures"
        )
    related = Clock() if clock == "none" else _fit(up, down, found) if clock == "auto" else Clock.given(clock)
    notes = list(related.notes)
    weight = np.bincount(found.pair, minlength=len(up.pairs)).astype(np.float64)
    sides = Sides.of(*up.pairs.ends, weight * signs(found.courses))
    # A packet with a damaged time does not show when the captures begin and end.
    sane = forward & (np.abs(found.difference_ns - int(np.median(found.difference_ns[forward]))) < FAR_OFF_NS)
    spans = [(int(t.min()), int(t.max())) for t in (up.times_ns[rows_up[sane]], down.times_ns[rows_down[sane]])]
    courses = {
        "upstream": courses_at(up, down.pairs, found.courses, sides, spans[0], direction, nat, upstream=True),
    }
    below = courses_below(down, found)
    if nat:
        sides = Sides.of(*down.pairs.ends, signs(below))
    courses["downstream"] = courses_at(down, up.pairs, below, sides, spans[1], direction, nat, upstream=False)
    scale = 2**level
    alignment = Alignment(related, notes, int(np.count_nonzero(forward)) * scale, courses, direction)
    *times, alignment.forward_pairs = _shown(up, down, found, FORWARD)
    alignment.forward = times[0], times[1]
    alignment.returning = _shown(up, down, found, BACKWARD)[:2]
    early = int(np.count_nonzero(related.correct(down.times_ns[rows_down[forward]]) < up.times_ns[rows_up[forward]]))
    count = int(np.count_nonzero(forward))
    if early and (direction or early > 1e-3 * count):
        notes.append(
            f"{early:,} of {count:,} common packets were seen in {names[1]} before {names[0]}: negative delays"
            + ("; is --direction right?" if direction and 2 * early > count else "")
        )
    notes += _span_notes(alignment, (up, down), names, scale)
    notes += _offload_notes(alignment, (up, down), (rows_up, rows_down), names)
    notes += _prefix_notes(up, down, names)
    return alignment


def _shown(up: Sighting, down: Sighting, found: Common, way: np.uint8) -> tuple[Ints, Ints, Words]:
    """Times at both points of common packets of one direction, few enough to plot, and their address pairs."""
    rows = np.flatnonzero(found.courses[found.pair] == way)
    rows = rows[:: max(1, -(-len(rows) // _SHOWN))]
    return up.times_ns[found.up[rows]], down.times_ns[found.down[rows]], down.keys[found.down[rows]]


def _enough_in_common(up: Sighting, down: Sighting, count: int, names: tuple[str, str], nat: bool) -> None:
    for sighting, name in ((up, names[0]), (down, names[1])):
        if not sighting.packets:
            raise WirelagError(f"{name} holds no packets to compare")
    smaller = min(len(up.ids), len(down.ids))
    if (count >= FEWEST_COMMON and count >= LEAST_SHARE * smaller) or 0 < count >= 0.5 * smaller:
        return
    reasons = []
    tunnelled = [name for seen, name in zip((up, down), names, strict=True) if 2 * seen.tunnelled >= seen.packets]
    if tunnelled:
        reasons.append(f"packets of {' and '.join(tunnelled)} are tunnelled: use --tunnels")
    if _cut_unlike(up, down):
        reasons.append("they were captured with different snap lengths: use --prefix 0")
    if not nat:
        reasons.append("addresses are translated between them: use --nat")
    reasons.append("they are captures of different traffic")
    (first, last), (other_first, other_last) = up.span_ns, down.span_ns
    if first > other_last or other_first > last:
        reasons[-1] += " (their times do not overlap either)"
    many = "no packets" if not count else f"hardly any packets ({count:,} of {smaller:,})"
    either = "either " if len(reasons) > 1 else ""
    raise WirelagError(f"{names[0]} and {names[1]} have {many} in common: {either}{', or '.join(reasons)}")


def _fit(up: Sighting, down: Sighting, found: Common) -> Clock:
    """Compare the clocks, by conversations common in both directions if most packets belong to such."""
    used = found.single if np.count_nonzero(found.single) >= FEWEST else np.ones(len(found.up), np.bool_)
    talking = found.talking[found.pair]
    if 2 * np.count_nonzero(talking & used) >= np.count_nonzero(used):
        used = used & talking
    courses = found.courses[found.pair]
    times = []
    for course in (FORWARD, BACKWARD):
        rows = used & (courses == course)
        times += [up.times_ns[found.up[rows]], down.times_ns[found.down[rows]]]
    clock = fit(*times)
    if clock.method == "minimum" and clock.offset_ns < 0 and not clock_behind(times[1] - times[0]):
        return Clock()  # the direction was given, and may be wrong
    return clock


def _span_notes(
    alignment: Alignment, sightings: tuple[Sighting, Sighting], names: tuple[str, str], scale: int
) -> list[str]:
    """Notes on one capture starting much later or ending much earlier than the other."""
    notes = []
    up_ns = np.array(sightings[0].span_ns)
    begins, ends = alignment.clock.correct(np.array(sightings[1].span_ns)) - up_ns
    for i, sighting in enumerate(sightings):
        course = alignment.courses["downstream" if i else "upstream"]
        times = sighting.times_ns[courses_of(sighting, course.courses) == FORWARD]
        long = max(10**9, (course.last_ns - course.first_ns) // 100)
        later, earlier = (-begins, ends) if i else (begins, -ends)
        for rows, gap, words in (
            (times < course.first_ns, later, "begins {} after"),
            (times > course.last_ns, earlier, "ends {} before"),
        ):
            count = int(np.count_nonzero(rows)) * scale
            if count and gap >= long:
                when = words.format(format_duration(int(gap)))
                left_out, are = many(count, "packet"), "is" if count == 1 else "are"
                notes.append(
                    f"{names[1 - i]} {when} {names[i]}: {left_out} of {names[i]} from that time {are} left out,"
                    " not counted as lost"
                )
    return notes


def _offload_notes(
    alignment: Alignment, sightings: tuple[Sighting, Sighting], rows: tuple[Ints, Ints], names: tuple[str, str]
) -> list[str]:
    """Notes on segmentation offload: one large segment here is several small ones there, which no id can match."""
    alone = []
    for sighting, matched, course in zip(sightings, rows, alignment.courses.values(), strict=True):
        inside = courses_of(sighting, course.courses) == FORWARD
        inside &= (sighting.times_ns >= course.first_ns) & (sighting.times_ns <= course.last_ns)
        all_large = int(np.count_nonzero(inside & (sighting.payloads > LARGEST_FRAME)))
        inside[matched] = False
        alone.append((sighting.payloads[inside].astype(np.int64), all_large))
    for i in (0, 1):
        (payloads, all_large), (pieces, _) = alone[i], alone[1 - i]
        large, pieces = payloads[payloads > LARGEST_FRAME], pieces[pieces > 0]
        if len(large) < FEWEST_COMMON or 2 * len(large) < all_large or not len(pieces):
            continue
        # Splitting preserves the number of bytes.
        if len(pieces) > 1.5 * len(large) and 0.5 < pieces.sum() / large.sum() < 2 and pieces.max() < large.max():
            return [
                f"segmentation offload: {len(large):,} segments of up to {large.max():,} bytes in {names[i]} are"
                f" {len(pieces):,} of up to {pieces.max():,} in {names[1 - i]}, and none of them can be matched; before"
                " capturing, switch it off: ethtool -K DEVICE tso off gso off gro off lro off"
            ]
    return []


def _cut_unlike(up: Sighting, down: Sighting) -> bool:
    """Whether one capture holds less payload than the other."""
    return abs(up.prefix_cut / up.packets - down.prefix_cut / down.packets) > 0.05


def _prefix_notes(up: Sighting, down: Sighting, names: tuple[str, str]) -> list[str]:
    if not _cut_unlike(up, down):
        return []
    shares = (f"{s.prefix_cut / s.packets:.0%} of {name}" for s, name in zip((up, down), names, strict=True))
    return [
        f"the captures have different snap lengths ({' and '.join(shares)} hold less payload than packet ids are made"
        " of): such packets do not match; use --prefix 0"
    ]
