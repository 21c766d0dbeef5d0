"""The path between two vantage points: delay, loss, reordering, copies, and the second point's clock."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from wirelag.sim.packets import Packets
from wirelag.sim.scenario import Scenario
from wirelag.sim.traffic import DATA, QUERY, SYN, Bools, Ints

MOST_HOLD_NS: Final = 10_000_000  # a packet is held back no longer, so in sparse traffic it may keep its place
LONGEST_DELAY_NS: Final = 10 * 10**9
SHORTEST: Final = 0.02  # quantile of the distribution that is the smallest delay
SPELL: Final = 50  # a delay lasts this many times the mean delay, then the next one is drawn


@dataclass(frozen=True)
class Path:
    """The delay of each direction as a function of time: constant for a spell, then redrawn.

    A path that preserves order cannot draw a delay per packet: a short one after a long one would overtake. With
    spells, packet delays follow the requested distribution, except for the few that wait at the edge of a spell. A path
    has a length, the same in both directions: delays below the 2% quantile are raised to it.
    """

    spell_ns: int
    forward: Ints
    reverse: Ints
    longest_ns: int  # upper bound of all delays

    @classmethod
    def draw(cls, scenario: Scenario, rng: np.random.Generator) -> "Path":
        """Draw all delays of a simulation."""
        distribution = scenario.delay_distribution
        typical = distribution.draw(rng, 4096)
        shortest = np.quantile(typical, SHORTEST)
        spell = int(max(SPELL * typical.mean(), scenario.duration_ns / 4_000_000, 1_000))
        count = scenario.duration_ns // spell + 2
        forward, reverse = (
            np.clip(distribution.draw(rng, count), shortest, LONGEST_DELAY_NS).astype(np.int64) for _ in range(2)
        )
        hold = MOST_HOLD_NS if scenario.reorder else 0
        return cls(spell, forward, reverse, int(max(forward.max(), reverse.max())) + hold)


def cross(scenario: Scenario, path: Path, forward: bool, time_ns: Ints, rng: np.random.Generator) -> Ints:
    """Arrival times at the second point of packets that pass the first at these times, in order."""
    delays = path.forward if forward else path.reverse
    arrival = np.maximum.accumulate(time_ns + delays[time_ns // path.spell_ns])
    if not scenario.reorder:
        return arrival
    held = rng.random(len(arrival)) < scenario.reorder
    passed_by = np.minimum(np.arange(len(arrival)) + rng.integers(1, 4, len(arrival)), len(arrival) - 1)
    until = arrival[passed_by] + 100
    return np.where(held & (until - arrival <= MOST_HOLD_NS), until, arrival)


def lose(scenario: Scenario, packets: Packets, rng: np.random.Generator) -> Bools:
    """Packets that never arrive: those that TCP or the resolver retransmits, and an equal share of the rest."""
    repaired = (packets.kind == DATA) | (packets.kind == SYN) | (packets.kind == QUERY)
    unlucky = rng.random(len(packets)) < scenario.loss
    return np.where(repaired, packets.lost, unlucky)


def copies(scenario: Scenario, count: int, rng: np.random.Generator) -> Ints:
    """How long after the packet its exact copy arrives; 0: none."""
    copied = rng.random(count) < scenario.duplicate
    return np.where(copied, rng.integers(1_000, 100_000, count), 0)


def clock(scenario: Scenario, time_ns: Ints) -> Ints:
    """Times shown by the second point's clock at these true times since the start."""
    drift: Ints = np.rint(scenario.clock_skew_ppm * 1e-6 * time_ns).astype(np.int64)
    return time_ns + scenario.clock_offset_ns + drift
