"""Pirate, figures 4a-c, 4d, 5, 7: latency as estimated and as it was, and why the two differ. Needs root.

Fig. 4a-c: web pages, at most 4 requests in flight. 4d: a wide area of 70 ms with cross traffic through the same
bottleneck. Fig. 5: the paper's two causes of errors, one at a time, and the effect of a client that waits for a
processor: the truth is when its application has read a response, which is after its arrival. Fig. 7: memcached.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import polars as pl
from pirate_lab import QUICK_S, Recorded, compared, need_root, percent, quantiles, recorded, scored, signed
from traces import arguments, show

from lab.clients import Load, Task
from lab.network import Network
from lab.processes import Process
from lab.scenarios import SCENARIOS, Scenario
from lab.score import errors
from lab.servers import Httpd, Memcached
from lab.wire import Direction, Wire
from wirelag.capture.files import Capture
from wirelag.estimators.pairs import Pairs
from wirelag.packets.intervals import Interval

SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
NAMES = tuple(f"{100 * share:g}%" for share in SHARES)
METHODS = ("auto", "modes")
PAPER_4C = ("beyond -15", "beyond -10", "-", "0.63", "-", "beyond +10", "beyond +15", "90")
BOTTLENECK_MBIT = 20.0
WIDE = Wire(Direction(35_000, mbit=BOTTLENECK_MBIT), Direction(35_000))
POST_BYTES = 20_000
CROSS_CONNECTIONS = 10
CROSS = (0.0, 0.25, 0.50, 0.75)  # share of the bottleneck

PAGES = SCENARIOS["pages-varied"]
SLIDING = Scenario("several", Httpd("exponential:5000"), Load(in_flight=4))
LARGE = replace(SLIDING, client=Load(in_flight=4, response="constant:100000"))
STAGGERED = replace(LARGE, server=Httpd("exponential:5000", pieces=5, gap_us=2000))
CAUSES = {
    "none": SLIDING,
    "the client parses for 1 ms": replace(SLIDING, client=Load(in_flight=4, think="constant:1000", think_share=1)),
    "responses of 100 kB": LARGE,
    "the same in 5 pieces, 2 ms apart": STAGGERED,
}
WAITING = ("w1-nginx", "redis-w1", "memcached-w1", "w1-20k")
SLACK = 0.02
MEMCACHED = Scenario(
    "memcached", Memcached((40, 10_000)), Load(format="memcached", response="bimodal:40:10000:0.5"), connections=10
)


@dataclass(frozen=True)
class CrossedLoad(Load):
    """A client beside another one that sends through the same wire and is not measured."""

    cross: Load = field(default_factory=Load)

    def start(self, network: Network, task: Task) -> Process:
        """Start the other one first."""
        aside = task.folder / "cross"
        aside.mkdir()
        self.cross.start(network, replace(task, connections=CROSS_CONNECTIONS, folder=aside, seed=task.seed + 1))
        return super().start(network, task)


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    seconds = QUICK_S if quick else None
    with recorded(PAGES, seconds) as record:
        show_cdf("4a: mean latency of an epoch, ms; pages, 4 in flight", record)
        show_absolute("4b: absolute error of an epoch, ms", record)
        show_relative("4c: relative error of an epoch, %", record, PAPER_4C)
    show_wide_area(CROSS[2:3] if quick else CROSS, 2 * QUICK_S if quick else 12)
    show_causes(list(CAUSES)[:1] if quick else list(CAUSES), seconds)
    show_waiting(WAITING[:1] if quick else WAITING, seconds)
    with recorded(MEMCACHED, seconds) as record:
        show_cdf("7: mean latency of an epoch, ms; memcached, 10 connections", record)
        show_relative("7: relative error of an epoch, %", record)


def show_cdf(title: str, record: Recorded) -> None:
    """Per epoch, which is the unit of an estimate."""
    rows: list[tuple[object, ...]] = []
    for method in METHODS:
        epochs = compared(record, method)
        if not rows:
            rows.append(("truth", *(value / 1e6 for value in quantiles(epochs["true_ns"].to_numpy(), *SHARES))))
        rows.append((method, *(value / 1e6 for value in quantiles(epochs["mean_ns"].to_numpy(), *SHARES))))
    show(title, ("", *NAMES), rows)


def show_absolute(title: str, record: Recorded) -> None:
    """Estimated minus true."""
    rows = []
    for method in METHODS:
        epochs = compared(record, method)
        ms = (epochs["mean_ns"] - epochs["true_ns"]).to_numpy() / 1e6
        rows.append((method, *(f"{value:+.2f}" for value in quantiles(ms, *SHARES))))
    show(title, ("", *NAMES), rows)


def show_relative(title: str, record: Recorded, paper: tuple[str, ...] = ()) -> None:
    """The same relative to the truth."""
    rows: list[tuple[str, ...]] = []
    for method in METHODS:
        off = compared(record, method)["error"].to_numpy()
        close = float(np.mean(np.abs(off) <= 0.15)) if len(off) else float("nan")
        rows.append((method, *(signed(value) for value in quantiles(off, *SHARES)), percent(close)))
    show(title, ("", *NAMES, "within 15%"), [*rows, *([("paper", *paper)] if paper else [])])


def show_wide_area(cross: tuple[float, ...], seconds: float) -> None:
    """Cross traffic: uploads at random times, with this share of the bottleneck's capacity."""
    rows: list[tuple[object, ...]] = []
    for share in cross:
        rate = share * BOTTLENECK_MBIT * 1e6 / 8 / POST_BYTES / CROSS_CONNECTIONS
        client: Load = Load("pages", 4, response="page")
        if share:
            client = CrossedLoad("pages", 4, response="page", cross=Load("open", post=POST_BYTES, rate=rate))
        scenario = Scenario("wide", Httpd("exponential:5000", "serial"), client, WIDE)
        with recorded(scenario, seconds) as record:
            for method in METHODS:
                one = scored(record, method)
                cells = one.epochs, signed(one.median), percent(one.close), percent(one.abstained)
                rows.append(
                    (f"{method}, cross traffic {100 * share:g}%", *cells, ">90 near 0" if method == "modes" else "-")
                )
    show("4d: wide area, 70 ms", ("", "epochs", "median, %", "within 15%, %", "abstained, %", "paper"), rows)


def show_causes(names: list[str], seconds: float | None) -> None:
    """How often an epoch is wrong by more than 15%, and by how much then."""
    rows = []
    for name in names:
        with recorded(CAUSES[name], seconds) as record:
            for method in METHODS:
                epochs = compared(record, method)
                wrong = epochs.filter(pl.col("error").abs() > 0.15)["error"]
                share = len(wrong) / len(epochs) if len(epochs) else float("nan")
                size = float(np.mean(wrong.abs().to_numpy())) if len(wrong) else float("nan")
                median = quantiles(epochs["error"].to_numpy(), 0.5)[0]
                rows.append((f"{method}, {name}", len(epochs), signed(median), percent(share), percent(size)))
    header = ("cause", "answered", "median error, %", "off by > 15%, %", "mean |error| of these, %")
    show("5: why it errs, 4 in flight", header, rows)


def show_waiting(names: tuple[str, ...], seconds: float | None) -> None:
    """Responses as they arrive at the client's interface, as `auto` dates them, as the application reads them."""
    rows = []
    for name in names:
        with recorded(replace(SCENARIOS[name], both=True), seconds) as record:
            epochs = compared(record)
            come = errors(arrived(record), epochs.select("flow_key", "start_ns", "end_ns", "mean_ns"))
            both = epochs.join(come, on=["flow_key", "start_ns"], suffix="_come")
            low, said, high = (both[column].to_numpy() for column in ("true_ns_come", "mean_ns", "true_ns"))
            between = float(np.mean((said >= low * (1 - SLACK)) & (said <= high * (1 + SLACK))))
            rows.append((name, *(float(np.mean(ns)) / 1e6 for ns in (low, said, high)), percent(between)))
    header = ("means of epochs, ms", "come", "auto", "read", f"between, give or take {SLACK:.0%}, %")
    show("5: where the client waits for a processor", header, rows)


def arrived(record: Recorded) -> pl.DataFrame:
    """The truth according to both directions at the client's interface."""
    assert record.both is not None
    meter = Pairs().meter("tap")
    for batch in Capture([str(record.both)]):
        meter.observe(batch)
    rows = meter.cut(Interval(0, 0)).single.rows
    return pl.DataFrame({"flow_key": rows["key"], "t_request_ns": rows["request_ns"], "t_response_ns": rows["last_ns"]})


if __name__ == "__main__":
    main()
