"""Pirate, figures 4a-c, 4d, 5: the paper's web traffic: 200 connections, a server whose processor varies. Needs root.

Pages, at most 4 requests in flight. Fig. 4a-c: serving is computing, and the server's share of a core follows a series
of a data centre by a control group, a value each second. Each page follows the one before, and the server is fast
enough for 2,000 requests a second; or clients pause between pages, which gives the rate. Fig. 4d: a wide area of 70 ms,
with flows of DCTCP's sizes through the same bottleneck, which begin at random times; fewer connections, because the
lab's wire, a program, would be late. Fig. 5, of the first run: wrong epochs by connection. Parsing, scheduling: the
delay from a request to the one that its response causes, in the client's log, explains at least half of the error.
Other pairs: it does not.
"""

import json
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
from pirate_lab import (
    FEW,
    OF_CONNECTIONS,
    Recorded,
    answered,
    answers,
    compared,
    estimator_of,
    need_root,
    of_connections,
    percent,
    quantiles,
    recorded,
    scored,
    signed,
)
from traces import arguments, show

from lab.clients import Load, Task
from lab.cross import CrossTraffic
from lab.network import Network
from lab.processes import Process
from lab.scenarios import Scenario
from lab.score import CLOSE, errors
from lab.servers import Httpd
from lab.wire import Direction, Wire
from lab.workloads import ALIBABA_2018_CPU, GOOGLE_2019_CPU

CONNECTIONS, IN_FLIGHT = 200, 4
SECONDS, QUICK_S = 40.0, 5.0
PAGES = Load("pages", IN_FLIGHT, response="page")
PAUSES = replace(PAGES, think="exponential:1250000", think_share=1)
SERVER = Httpd("exponential:100", burn=True, cpu_shares=GOOGLE_2019_CPU)  # besides what sending takes
WEB = {
    "Google 2019": Scenario("web", SERVER, PAGES, None, CONNECTIONS),
    "Alibaba 2018": Scenario("web", replace(SERVER, cpu_shares=ALIBABA_2018_CPU), PAGES, None, CONNECTIONS),
    "Google 2019, pauses": Scenario("web", replace(SERVER, service="exponential:50"), PAUSES, None, CONNECTIONS),
}

METHODS = ("auto", "modes")
SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
NAMES = tuple(f"{100 * share:g}%" for share in SHARES)
PAPER_4C = ("beyond -15", "beyond -10", "-", "0.63", "-", "beyond +10", "beyond +15", "90")
PAIRS = "request to request"
KINDS = ("parsing, scheduling", "other pairs")

BOTTLENECK_MBIT = 50.0
QUEUE_US = 70_000  # a round trip
WIDE_CONNECTIONS = 20
WIDE = Wire(Direction(35_000, mbit=BOTTLENECK_MBIT, queue_us=QUEUE_US), Direction(35_000))
CROSS = (0.0, 0.25, 0.50, 0.75)  # share of the bottleneck


@dataclass(frozen=True)
class CrossedLoad(Load):
    """A client beside cross traffic, which is not measured."""

    cross_mbit: float = 0.0

    def start(self, network: Network, task: Task) -> Process:
        """Start the cross traffic first."""
        CrossTraffic(self.cross_mbit).start(network, task.seconds, task.seed, task.folder)
        return super().start(network, task)


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    seconds = QUICK_S if quick else SECONDS
    for number, (name, scenario) in enumerate(list(WEB.items())[: 1 if quick else None]):
        with recorded(scenario, seconds) as record:
            show_cluster(name, record, seconds)
            if not number:
                show_by_connection(record)
    show_wide_area(CROSS[2:3] if quick else CROSS, seconds)


# ---- 4a-c ----


def show_cluster(name: str, record: Recorded, seconds: float) -> None:
    """What was carried, and the distributions of the three figures."""
    pairs, *scores = from_request_to_request(record), *(scored(record, method) for method in METHODS)
    by_connection = record.truth.group_by("flow_key").agg(pl.col("in_flight").max())
    carried = len(by_connection), f"{len(record.truth) / seconds:.0f}", by_connection.select("in_flight").max().item()
    silent = [percent(one.abstained) for one in scores]
    header = ("connections", "requests/s", "in flight, most", *(f"{method} abstains, %" for method in METHODS))
    show(f"4, {name}: what was carried, of 2,000 requests/s", header, [(*carried, *silent)])
    found = {PAIRS: pairs, **{method: compared(record, method) for method in METHODS}}
    latencies = [(row, *cdf(epochs["mean_ns"] / 1e6)) for row, epochs in found.items()]
    all_epochs = errors(record.truth, answers(answered(record.capture, estimator_of("auto"))))
    truth = ("truth", *cdf(all_epochs["true_ns"] / 1e6))
    show(f"4a, {name}: mean latency of an epoch, ms", ("", *NAMES), [truth, *latencies])
    apart = {row: cdf((epochs["mean_ns"] - epochs["true_ns"]) / 1e6) for row, epochs in found.items()}
    off = [(row, *(f"{ms:+.2f}" for ms in values)) for row, values in apart.items()]
    show(f"4b, {name}: absolute error of an epoch, ms", ("", *NAMES), off)
    relative = [
        (row, len(epochs), *map(signed, cdf(epochs["error"])), percent(share(epochs["error"].abs() <= CLOSE)))
        for row, epochs in found.items()
    ]
    header = ("", "answered", *NAMES, "within 15%")
    show(f"4c, {name}: relative error of an epoch, %", header, [*relative, ("paper", "-", *PAPER_4C)])


def share(chosen: pl.Series) -> float:
    """How many of them; NaN without any."""
    return float(np.mean(chosen.to_numpy())) if len(chosen) else float("nan")


def cdf(values: pl.Series) -> list[float]:
    """The quantiles of the figures."""
    return quantiles(values.to_numpy(), *SHARES)


def from_request_to_request(record: Recorded) -> pl.DataFrame:
    """`auto`'s epochs with the mean delay of causal pairs instead of its estimates."""
    edges = answers(answered(record.capture, estimator_of("auto"))).select("flow_key", "start_ns", "end_ns")
    pairs = causal_pairs(record.truth)
    # Pairs count where the response ended: so move the request, not the end.
    moved = pairs.with_columns(t_request_ns=pl.col("t_request_ns") + pl.col("t_response_ns") - pl.col("t_next_ns"))
    said = errors(moved, edges.with_columns(mean_ns=pl.lit(None, pl.Float64)))
    edges = said.select("flow_key", "start_ns", "end_ns", mean_ns="true_ns")
    return errors(pairs, edges)


def causal_pairs(truth: pl.DataFrame) -> pl.DataFrame:
    """Responses that caused a request of the same page, with the time of that request."""
    asked = truth.select("flow_key", "round", pl.col("t_request_ns").alias("t_next_ns")).sort("t_next_ns")
    return (
        truth.sort("t_response_ns")
        .join_asof(
            asked,
            left_on="t_response_ns",
            right_on="t_next_ns",
            by=["flow_key", "round"],
            strategy="forward",
            check_sortedness=False,
        )
        .drop_nulls("t_next_ns")
    )


# ---- 5 ----


def show_by_connection(record: Recorded) -> None:
    """How many of a connection's epochs are wrong, and by how much, over connections."""
    caused = from_request_to_request(record).select("flow_key", "start_ns", pl.col("error").alias("caused"))
    prevalence: list[tuple[object, ...]] = []
    magnitude: list[tuple[object, ...]] = []
    for method in METHODS:
        epochs = compared(record, method).join(caused, on=["flow_key", "start_ns"], how="left").fill_null(0)
        for kind, of_kind in zip(KINDS, (explained(), ~explained()), strict=True):
            shares, sizes = of_connections(epochs, of_kind)
            few = percent(float(np.mean(shares < FEW)) if len(shares) else float("nan"))
            row = f"{method}, {kind}"
            prevalence.append((row, len(shares), *map(percent, quantiles(shares, *OF_CONNECTIONS)), few))
            magnitude.append((row, len(sizes), *map(percent, quantiles(sizes, *OF_CONNECTIONS))))
    names = tuple(f"{100 * part:g}%" for part in OF_CONNECTIONS)
    paper = ("paper", "-", *["-"] * len(names), "70")
    header = ("over connections", "connections", *names, "below 5%, % of them")
    show("5a: wrong epochs of a connection, %", header, [*prevalence, paper])
    show("5b: mean |error| of a connection's wrong epochs, %", ("over connections", "have any", *names), magnitude)


def explained() -> pl.Expr:
    """Whether the client's own delay is at least half of the error, and in the same direction."""
    return (pl.col("caused") / pl.col("error")) >= 0.5


# ---- 4d ----


def show_wide_area(cross: tuple[float, ...], seconds: float) -> None:
    """With this share of the bottleneck's capacity in cross traffic on average, and what it was in this run."""
    rows: list[tuple[object, ...]] = []
    wires: list[tuple[object, ...]] = []
    for part in cross:
        client = CrossedLoad(**vars(PAGES), cross_mbit=part * BOTTLENECK_MBIT)
        with recorded(Scenario("wide", SERVER, client, WIDE, WIDE_CONNECTIONS, seconds)) as record:
            uploads = json.loads((record.capture.parent / "cross.txt").read_text())
            wire = json.loads((record.capture.parent / "wire.json").read_text())
            carried = percent(uploads["bytes"] * 8e-6 / seconds / BOTTLENECK_MBIT)
            lost, late = percent(wire["up"]["lost"] / wire["up"]["received"]), wire["late_us"]
            requests = f"{len(record.truth) / seconds:.0f}"
            wires.append((percent(part), uploads["flows"], carried, lost, requests, late["p50"], late["p99"]))
            for method in METHODS:
                one = scored(record, method)
                cells = one.epochs, signed(one.median), percent(one.close), percent(one.abstained)
                paper = ">90 near 0" if method == "modes" else "-"
                rows.append((f"{method}, cross traffic {100 * part:g}%", *cells, paper))
    title = f"4d: wide area, 70 ms, {WIDE_CONNECTIONS} connections"
    header = ("cross traffic, % of the bottleneck", "flows", "carried, %", "frames lost, %", "requests/s")
    show(f"{title}: the wire, {BOTTLENECK_MBIT:g} Mbit/s", (*header, "late us, p50", "p99"), wires)
    show(title, ("", "epochs", "median, %", "within 15%, %", "abstained, %", "paper"), rows)


if __name__ == "__main__":
    main()
