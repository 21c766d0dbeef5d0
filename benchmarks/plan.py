"""Benchmarks of `plan` for `benchmarks/run.py`: a network of the size of the paper's, and one of 5,000 routers."""

import random
import time

from wirelag.network.plan import Plan
from wirelag.network.topology import Link, Topology

SPRINT = 315, 972, 45  # routers, links, upgrades
LARGE = 5_000, 10_000, 45
NEAR = 200  # a router's first link leads to one of this many before it


def network(routers: int, links: int) -> Topology:
    """A connected network of this size with equal costs."""
    rng = random.Random(1)
    pairs = {(i, rng.randrange(max(0, i - NEAR), i)) for i in range(1, routers)}
    while len(pairs) < links:
        one, other = sorted(rng.sample(range(routers), 2), reverse=True)
        pairs.add((one, other))
    weights = {pair: rng.randrange(1, 20) for pair in sorted(pairs)}
    both = [(*pair, weight) for pair, weight in weights.items()]
    both += [(other, one, weight) for one, other, weight in both]
    return Topology(tuple(f"r{i}" for i in range(routers)), tuple(Link(f"r{a}", f"r{b}", w) for a, b, w in both))


def planned_s(routers: int, links: int, upgrades: int) -> float:
    """Seconds for a plan with this many upgrades."""
    topology = network(routers, links)
    start = time.perf_counter()
    Plan(topology).choose(upgrades)
    return time.perf_counter() - start
