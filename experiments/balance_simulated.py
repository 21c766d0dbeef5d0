"""Pirate, figure 9: the balancer in a simulation: four servers with queues, one slow by 5, another every 15 s.

Connections live for 1 s on average, with one request in flight. `paper` is the controller of its appendix C; `least
connections` needs the ends of connections, which a balancer with direct server return sees; `peak EWMA` needs each
response, which it cannot see; `told` knows who is slow at once, so that only connections which stay with a slow server
are left to suffer. Sums over epochs reach the controllers as `pirate` would report them. Numbers are means
over seeds.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import mean, stdev
from time import perf_counter

from traces import arguments, show

from wirelag.balance.controller import Policy
from wirelag.balance.maglev import SIZE, maglev, shares
from wirelag.balance.simulation import Chooser, Farm, Outcome, Slowdown, simulate

LOADS = (32, 64, 96)  # clients: the servers are busy for 20, 40 and 60% of the time
MOVES_S = 15.0
INTERVAL_S = 0.5
CHOOSERS: tuple[Chooser, ...] = ("equal", "latency", "paper", "least-connections", "peak-ewma", "told")
USUAL = Farm(think_s=0.02)


def moving(seconds: float, every_s: float = MOVES_S) -> tuple[Slowdown, ...]:
    """One server after the other is slow."""
    return tuple(Slowdown(i % 4, i * every_s, (i + 1) * every_s) for i in range(int(seconds / every_s)))


def run(farm: Farm, chooser: Chooser, policy: Policy | None = None, interval_s: float = INTERVAL_S) -> Outcome:
    return simulate(farm, chooser, policy, interval_s)


@cache
def p99_ms(farm: Farm, chooser: Chooser, seeds: int, policy: Policy | None = None) -> list[float]:
    return [1e3 * run(replace(farm, seed=seed), chooser, policy).quantile(0.99) for seed in range(1, seeds + 1)]


def lower(farm: Farm, seeds: int, policy: Policy | None = None, chooser: Chooser = "latency") -> tuple[float, float]:
    """By how many percent p99 is lower than with equal weights: the mean, and its standard error."""
    pairs = zip(p99_ms(farm, "equal", seeds), p99_ms(farm, chooser, seeds, policy), strict=True)
    found = [100 * (1 - mine / equal) for equal, mine in pairs]
    return mean(found), stdev(found) / len(found) ** 0.5


def recovery_s(farm: Farm, since_s: float, name: str = "server1", share: float = 0.225) -> float:
    """How long after this its weight was 90% of its fair share again."""
    return next(t - since_s for t, d in run(farm, "latency").decisions if t >= since_s and d.weights[name] >= share)


def tables(seconds: float, seeds: int, quick: bool) -> None:
    """All tables but Maglev's."""
    loads = LOADS[:1] if quick else LOADS
    usual = replace(USUAL, seconds=seconds)
    cases = {
        "one slow by 5, it moves": moving(seconds),
        "one slow by 5, it moves every 10 s": moving(seconds, 10.0),
        "one slow by 5, always the same": (Slowdown(0, 0, seconds),),
        "one slow by 2, always the same": (Slowdown(0, 0, seconds, 2.0),),
        "none": (),
        "all slow by 5 for 10 s": tuple(Slowdown(i, 5, 15) for i in range(4)),
    }
    rows: list[tuple[str, ...]] = []
    for name, slowdowns in cases.items():
        farms = [replace(usual, clients=clients, slowdowns=slowdowns) for clients in loads]
        for chooser, controller in (("latency", "wirelag"), ("paper", "paper")):
            found = [lower(farm, seeds, None, chooser) for farm in farms]
            average, error = mean(m for m, _ in found), (sum(e * e for _, e in found)) ** 0.5 / len(found)
            rows.append((name, controller, *(f"{m:.0f}" for m, _ in found), f"{average:.1f}", f"{error:.1f}"))
    header = ("slow", "controller", *(f"{clients} clients" for clients in loads), "average", "its s.e.")
    show("p99 of all requests, percent lower than with equal weights", header, rows)

    rows = []
    for chooser in CHOOSERS:
        farms = [replace(usual, clients=clients, slowdowns=moving(seconds)) for clients in loads]
        rows.append((chooser, *(f"{mean(p99_ms(farm, chooser, seeds)):.1f}" for farm in farms)))
    show("p99, ms, one slow by 5, it moves", ("chooser", *(f"{clients} clients" for clients in loads)), rows)

    rows = []
    for name, farm in (
        ("slow by 5", replace(usual, clients=loads[-1])),
        ("dead", replace(usual, clients=loads[-1], slowdowns=(Slowdown(0, 5, 15, 0.0),))),
        ("slow by 5, 16 clients", replace(usual, clients=16)),
        ("slow by 5, an open loop", replace(usual, arrivals=64.0)),
    ):
        farm = farm if farm.slowdowns else replace(farm, slowdowns=(Slowdown(0, 5, 15),))
        times = [recovery_s(replace(farm, seed=seed, seconds=45), 15.0) for seed in range(1, seeds + 1)]
        left = run(farm, "latency").decisions
        lost = next((t - 5 for t, d in left if t >= 5 and d.weights["server1"] < 0.05), None)
        rows.append((name, "-" if lost is None else f"{lost:.1f}", f"{mean(times):.1f}", f"{max(times):.1f}"))
    show("seconds until it has lost its load, and has 90% of it again", ("was", "lost", "mean", "most"), rows)

    rows = []
    for lifetime_s in (0.3, 1.0, 3.0) if quick else (0.1, 0.3, 1.0, 3.0, 10.0):
        farm = replace(usual, clients=loads[-1], lifetime_s=lifetime_s, slowdowns=moving(seconds))
        rows.append((f"{lifetime_s:g} s", *(f"{number:.0f}" for number in lower(farm, seeds))))
    show("percent lower, by how long connections live", ("lifetime", "lower", "its s.e."), rows)

    rows = []
    policies = (
        ("as shipped", Policy()),
        ("floor of 0.2%", Policy(floor=0.002)),
        ("floor of 2%", Policy(floor=0.02)),
        ("floor of 5%", Policy(floor=0.05)),
        ("chance of 50%", Policy(chance=0.5)),
        ("increments of 100%", Policy(increment=1.0)),
        ("quiet for 10 intervals", Policy(quiet=10)),
        ("all of the way back at once", Policy(regression=1.0)),
    )
    for name, policy in policies[:3] if quick else policies:
        farm = replace(usual, clients=loads[-1])
        moved = lower(replace(farm, slowdowns=moving(seconds)), seeds, policy)
        changed = [
            sum(bool(d.changes) for _, d in run(replace(farm, seed=seed), "latency", policy).decisions)
            for seed in range(1, seeds + 1)
        ]
        rows.append((name, f"{moved[0]:.0f}", f"{moved[1]:.0f}", f"{mean(changed):.1f}"))
    header = ("policy", "lower, one slow", "its s.e.", "intervals that moved weights, none slow")
    show("what the settings do", header, rows)


def maglev_table() -> None:
    rows = []
    for backends in (4, 10, 100, 600):
        equal = {f"web{i}": 1.0 for i in range(backends)}
        slots = {name: place for place, name in enumerate(equal)}
        begin_s = perf_counter()
        whole = maglev(equal, slots)
        took_ms = 1e3 * (perf_counter() - begin_s)
        cells = []
        for after in (equal | {"web1": 0.0}, equal | {"web1": 0.032}):
            table = maglev(after, slots)
            least = sum(abs(shares(table, slots)[name] - shares(whole, slots)[name]) for name in equal) / 2
            cells += [f"{100 * float((table != whole).mean()):.2f}", f"{100 * least:.2f}"]
        off = max(abs(share * backends - 1) for share in shares(whole, slots).values())
        rows.append((str(backends), f"{took_ms:.1f}", f"{100 * off:.2f}", *cells))
    header = (
        "backends",
        "ms",
        "largest error of a share, %",
        "one removed, moved %",
        "least %",
        "one slow, moved %",
        "least %",
    )
    show(f"Maglev table of {SIZE:,} entries", header, rows)


def main() -> None:
    quick = arguments(__doc__).quick
    maglev_table()
    tables(*((30.0, 2) if quick else (45.0, 4)), quick)


if __name__ == "__main__":
    main()
