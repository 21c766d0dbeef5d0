"""RDA and FineComb, figures 10, 11, 12, 13 and more: agents and a collector: how right, how soon, at what cost.

Two agents see the same datagrams before and after a wire that loses 1% and holds back 5%, which are overtaken; tcpdump
sees them beside the agents, and its captures, joined, are the truth. Needs root. Errors are of every interval.
"""

import os
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from traces import arguments, show

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the lab

from lab.live import HEADER_BYTES, Done, Setting, run
from wirelag.synopses.reordering import Order

SECONDS, QUICK_S = 60, 7
LOADS = (2000, 4000, 8000, 16_000)  # packets per second
RDA = Setting()
SETTINGS = {
    "rda": RDA,
    "finecomb": Setting("finecomb", "rows = 128"),
    "lda": Setting("lda", 'rows = 256\nloss = "1%"\npackets_per_interval = 8000', controlled=True),
}


@dataclass(frozen=True)
class Figures:
    """The results of a run; times in ms."""

    done: Done
    intervals: int  # complete ones, during the traffic
    reported: int  # intervals reported; if a control packet is lost, its interval is reported together with the next
    mean_errors: list[float]
    covered: float  # the share of means whose 95% interval contains the truth
    std_errors: list[float]
    equal: int  # intervals whose packets, summed delay and loss equal those of the captures
    lost: int
    truly_lost: int
    order: Order
    truly_overtaken: float  # the share
    ready: list[float]
    bytes: dict[str, float]  # per interval, by type of message
    traffic_bytes: float  # per interval

    @property
    def share(self) -> float:
        """Bytes of all messages as a share of the traffic."""
        return sum(self.bytes.values()) / self.traffic_bytes

    @property
    def cable_share(self) -> float:
        """The same with HTTP, TCP, IP and Ethernet."""
        seconds = (self.done.ended_ns - self.done.began_ns) / 1e9
        return self.done.cable_bytes / seconds / self.traffic_bytes


def figures(setting: Setting, seed: int = 1) -> Figures:
    """Run it."""
    with TemporaryDirectory() as folder:
        done = run(setting, Path(folder), seed)
    results, truth = done.results(), done.truth
    assert truth is not None
    means, stds, covered, equal, lost, truly_lost = [], [], 0, 0, 0, 0
    for start_ns, one in results.items():
        used, sum_ns, gone = truth.during(start_ns, one["end_ns"])
        mean_ns, std_ns = one["mean_ns"], one["std_ns"]
        means.append(abs(mean_ns - sum_ns / used) / (sum_ns / used) if mean_ns is not None else 1.0)
        covered += mean_ns is not None and abs(mean_ns - sum_ns / used) <= (one["bound_ns"] or 0.0) + 1e-6
        true_std_ns = truth.std_ns(start_ns, one["end_ns"])
        stds.append(abs(std_ns / true_std_ns - 1) if std_ns is not None else 1.0)
        equal += (one["used"], one["sum_ns"], one["lost"]) == (used, sum_ns, gone)
        lost, truly_lost = lost + (one["lost"] or 0), truly_lost + gone
    spent: Counter[str] = Counter()
    for message in done.during("message"):
        spent[message["type"]] += message["bytes"]
    for ask in done.during("ask"):
        spent["ask"] += ask["bytes"]
    whole = len(results) or 1
    packets = np.mean([one["sent"] for one in results.values()]) if results else 0.0
    starts = sorted(results)
    return Figures(
        done,
        round((results[starts[-1]]["end_ns"] - starts[0]) / 1e9) if starts else 0,
        round(sum((one["end_ns"] - one["start_ns"]) / 1e9 for one in results.values() if one["rank"] == 3)),
        means,
        covered / whole,
        stds,
        equal,
        lost,
        truly_lost,
        Order(*(sum(one[name] for one in results.values()) for name in ("checked", "overtaken"))),
        truth.overtaken,
        [1e-6 * one["ready_ns"] for one in results.values() if one["ready_ns"] is not None],
        {name: count / whole for name, count in spent.items()},
        float(packets) * (HEADER_BYTES + setting.payload),
    )


def stages(done: Done) -> dict[str, list[float]]:
    """For every interval, in ms: how the time between its end and its complete result was spent."""
    found: dict[str, list[float]] = {name: [] for name in ("cut", "transfer", "reconcile", "second round", "store")}
    by_start: dict[int, list[dict[str, Any]]] = {}
    for what in ("message", "ask", "rounds"):
        for one in done.during(what):
            by_start.setdefault(one["start_ns"], []).append(one)
    for start_ns, result in done.results().items():
        events = sorted(by_start.get(start_ns, []), key=lambda one: int(one["at_ns"]))
        synopses = [one for one in events if one.get("type") == "synopsis"]
        asks = [one for one in events if one["what"] == "ask"]
        times = [one for one in events if one.get("type") == "times"]
        if len(synopses) != 2 or result["ready_ns"] is None:
            continue
        last = synopses[-1]
        reconcile_ns = sum(one["took_ns"] for one in events if one["what"] == "rounds")
        answered_ns = times[-1]["at_ns"] - asks[0]["at_ns"] if asks and times else 0
        parts_ns = {
            "cut": last["sent_ns"] - result["end_ns"],
            "transfer": last["at_ns"] - last["sent_ns"],
            "reconcile": reconcile_ns,
            "second round": answered_ns,
        }
        for name, part_ns in parts_ns.items():
            found[name].append(1e-6 * part_ns)
        found["store"].append(1e-6 * max(0, result["ready_ns"] - sum(parts_ns.values())))
    return found


def quantiles(values: list[float]) -> tuple[str, str, str]:
    """p50, p99, max."""
    if not values:
        return "-", "-", "-"
    middle, high = np.quantile(values, (0.5, 0.99))
    return f"{middle:.1f}", f"{high:.1f}", f"{max(values):.1f}"


def show_estimators(found: dict[str, Figures]) -> None:
    rows = []
    for name, one in found.items():
        control = sum(one.bytes.values())
        rows.append(
            (
                name,
                f"{one.reported} of {one.intervals}",
                f"{max(one.mean_errors):.2%}" if max(one.mean_errors) else "0",
                f"{one.covered:.0%}",
                f"{one.equal}",
                f"{one.lost} of {one.truly_lost}",
                *quantiles(one.ready),
                f"{control:.0f}",
                f"{one.share:.4%}",
                f"{one.cable_share:.4%}",
            )
        )
    header = (
        *("estimator", "reported", "worst mean", "covered", "equal", "lost of true", "ready ms p50", "p99", "max"),
        *("control bytes", "of the traffic", "with all headers"),
    )
    setting = next(iter(found.values())).done.setting
    show(f"{setting.seconds} s, {setting.rate} packets/s of {HEADER_BYTES + setting.payload} bytes", header, rows)


def show_bytes(found: dict[str, Figures]) -> None:
    kinds = ("synopsis", "ask", "times", "status")
    rows = [(name, *(f"{one.bytes.get(kind, 0):.0f}" for kind in kinds)) for name, one in found.items()]
    show("bytes of an interval, both points", ("estimator", *kinds), rows)


def show_time(one: Figures) -> None:
    results = one.done.results()
    means = [1e-6 * r["mean_ns"] for r in results.values() if r["mean_ns"] is not None]
    stds = [1e-6 * r["std_ns"] for r in results.values() if r["std_ns"] is not None]
    rows: list[tuple[str, ...]] = [
        ("mean, ms", f"{min(means):.4f}", f"{np.median(means):.4f}", f"{max(means):.4f}", "about 0.05"),
        ("deviation, ms", f"{min(stds):.4f}", f"{np.median(stds):.4f}", f"{max(stds):.4f}", "0.05 to 1"),
    ]
    show("10: latency of every second", ("", "least", "median", "largest", "paper"), rows)
    errors = ((one.mean_errors, "1e-8 to 1e-7"), (one.std_errors, "0.01 to 0.1"))
    rows = [
        (name, f"{np.median(values):.2g}", f"{max(values):.2g}", paper)
        for name, (values, paper) in zip(("mean", "deviation"), errors, strict=True)
    ]
    show("11: relative errors against the captures", ("", "median", "largest", "paper"), rows)
    counts = str(one.order.checked), str(one.order.overtaken)
    shares = f"{one.order.overtaken / max(1, one.order.checked):.2%}", f"{one.truly_overtaken:.2%}"
    show(
        "packets directly behind a later one", ("looked at", "overtaken", "share", "of all packets"), [counts + shares]
    )


def show_stages(one: Figures) -> None:
    found = stages(one.done)
    rows = [(name, *quantiles(values)) for name, values in found.items()]
    rows.append(("all", *quantiles(one.ready)))
    show("12: ms from an interval's end to its result; paper: 20 ms in all", ("stage", "p50", "p99", "max"), rows)


def show_loads(loads: tuple[int, ...], seconds: int) -> None:
    rows = []
    for rate in loads:
        one = figures(Setting(seconds=seconds, rate=rate))
        mbit = 8e-6 * one.traffic_bytes
        rows.append((str(rate), f"{mbit:.0f}", *quantiles(one.ready), f"{one.share:.4%}", f"{one.cable_share:.4%}"))
    header = ("packets/s", "Mbit/s", "ready ms p50", "p99", "max", "control", "with all headers")
    show("13: load, and ms until the result; paper: 940 Mbit/s, about 20 ms", header, rows)


if __name__ == "__main__":
    options = arguments(__doc__)
    if os.geteuid():
        print("the lab needs root: network namespaces", file=sys.stderr)
        sys.exit(2)
    seconds = QUICK_S if options.quick else SECONDS
    chosen = {"rda": RDA} if options.quick else SETTINGS
    found = {name: figures(replace(setting, seconds=seconds)) for name, setting in chosen.items()}
    show_estimators(found)
    show_bytes(found)
    show_time(found["rda"])
    show_stages(found["rda"])
    if not options.quick:
        show_loads(LOADS, 20)
