"""mPlane, figures 8, 9, 9a, 9b, section VI: what each router watches, and what upgrading routers saves.

Probe hops and hops of a path (localisation granularity) against upgraded routers: chosen by the paper's count, by the
hops that an upgrade saves, and at random; Sprint's map and five others of Rocketfuel. The maps are below the folder in
WIRELAG_SHARED_DATA, or shared/data beside the repository. The costs of the network with six routers are ours, chosen so
that its m-sets are those of figure 8: the paper's text has lost them.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from traces import arguments, show

from wirelag.network.plan import Extent, Plan, Strategy
from wirelag.network.topology import Topology, read_topology

ROOT = Path(__file__).resolve().parents[1]
MAPS = Path(os.environ.get("WIRELAG_SHARED_DATA") or ROOT.parent / "shared" / "data") / "topologies"
SPRINT = MAPS / "ns-3-dev-git" / "RocketFuel_toposample_1239_weights.txt"
OTHERS = ("1221 Telstra", "1755 Ebone", "3257 Tiscali", "3967 Exodus", "6461 Abovenet")
MARKS = (0, 5, 10, 20, 30, 45, 50, 100)
SHARES = (0, 2, 5, 10, 15, 20, 30)  # %
STRATEGIES: dict[str, Strategy] = {"by count (paper)": "count", "by hops saved": "reduction"}


def curve(topology: Topology, upgrades: int, strategy: Strategy, seed: int = 0) -> list[Extent]:
    """What is to be measured after 0, 1, ... upgrades; the last repeated if no more are worth it."""
    plan = Plan(topology)
    plan.choose(upgrades, strategy, seed)
    found = [plan.before, *(step.extent for step in plan.steps)]
    return found + found[-1:] * (upgrades + 1 - len(found))


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def sprint(topology: Topology, seeds: range) -> None:
    chosen = {name: curve(topology, max(MARKS), strategy) for name, strategy in STRATEGIES.items()}
    drawn = [curve(topology, max(MARKS), "random", seed) for seed in seeds]
    header = ("upgraded routers", *map(str, MARKS))
    rows: list[tuple[object, ...]] = [
        (name, *(extents[n].probe_hops for n in MARKS)) for name, extents in chosen.items()
    ]
    random_name = f"at random, mean of {len(seeds)}"
    rows.append((random_name, *(round(mean([one[n].probe_hops for one in drawn])) for n in MARKS)))
    show(
        f"9a: probe hops, Sprint, {len(topology.routers)} routers; the paper: 1,000,000 at 0, 10,000 at 45",
        header,
        rows,
    )
    rows = [
        (f"{name}, {what}", *(getattr(extents[n], what) for n in MARKS))
        for name, extents in chosen.items()
        for what in ("granularity", "shortest", "longest")
    ]
    rows.append((f"{random_name}, granularity", *(mean([one[n].granularity or 0.0 for one in drawn]) for n in MARKS)))
    rows.append((f"{random_name}, longest", *(mean([one[n].longest for one in drawn]) for n in MARKS)))
    show("9b: hops of a path, Sprint; the paper: about 4 on average at 0, 1.5 at 50", header, rows)


def others(seeds: range) -> None:
    rows: list[tuple[object, ...]] = []
    for name in ("1239 Sprint", *OTHERS):
        topology = read_topology(MAPS / "icarus" / name.split()[0] / "weights.intra")
        upgrades = round(0.15 * len(topology.routers))
        before, after = (curve(topology, upgrades, "count")[i] for i in (0, -1))
        saved = curve(topology, upgrades, "reduction")[-1]
        drawn = [curve(topology, upgrades, "random", seed)[-1] for seed in seeds]
        fewer = [before.probe_hops / extent.probe_hops for extent in (after, saved)]
        rows.append(
            (
                name,
                len(topology.routers),
                upgrades,
                before.probe_hops,
                *(f"{ratio:.1f}" for ratio in fewer),
                f"{mean([before.probe_hops / one.probe_hops for one in drawn]):.1f}",
                before.granularity,
                after.granularity,
                mean([one.granularity or 0.0 for one in drawn]),
            )
        )
    header = ("map", "routers", "upgraded", "probe hops", "fewer, count", "fewer, hops", "fewer, random",
              "hops of a path", "after, count", "after, random")  # fmt: skip
    show("15% of the routers upgraded; the paper: two orders of magnitude fewer on average", header, rows)


def other_curves(seeds: range) -> None:
    """Like figure 9, for maps of other sizes: by share of upgraded routers."""
    hops: list[tuple[object, ...]] = []
    lengths: list[tuple[object, ...]] = []
    for name in OTHERS:
        topology = read_topology(MAPS / "icarus" / name.split()[0] / "weights.intra")
        marks = [round(share * len(topology.routers) / 100) for share in SHARES]
        chosen = curve(topology, max(marks), "count")
        drawn = [curve(topology, max(marks), "random", seed) for seed in seeds]
        hops.append((f"{name}, by count", *(chosen[n].probe_hops for n in marks)))
        hops.append((f"{name}, at random", *(round(mean([one[n].probe_hops for one in drawn])) for n in marks)))
        lengths.append((f"{name}, by count", *(chosen[n].granularity for n in marks)))
        lengths.append((f"{name}, at random", *(mean([one[n].granularity or 0.0 for one in drawn]) for n in marks)))
    header = ("upgraded, %", *map(str, SHARES))
    show("9a of five other maps: probe hops", header, hops)
    show("9b of five other maps: hops of a path, mean", header, lengths)


def m_sets() -> None:
    six = read_topology(ROOT / "tests" / "data" / "six.json")
    plan = Plan(six, ["C", "F"])
    paper = {"A": "B F", "C": "F D E", "F": "A B E D2"}
    rows = [
        (
            router,
            " ".join(sorted(member.target for member in plan.m_set(router))),
            " ".join(str(one) for one in plan.watched(router) if one.kind != "inside"),
            paper.get(router, "-"),
        )
        for router in six.routers
    ]
    show(
        "8: m-sets with C and F upgraded (the text of the paper has lost F's C)",
        ("", "m-set", "segments", "paper"),
        rows,
    )


def main() -> None:
    chosen = arguments(__doc__)
    if not SPRINT.exists():
        sys.exit(f"{SPRINT}: there are no maps; name their folder with WIRELAG_SHARED_DATA")
    seeds = range(3 if chosen.quick else 10)
    m_sets()
    sprint(read_topology(SPRINT), seeds)
    others(seeds)
    other_curves(seeds)


if __name__ == "__main__":
    main()
