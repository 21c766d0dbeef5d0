"""Pirate, figures 5, 7: why estimates and latencies differ, one cause at a time; memcached. Needs root.

Fig. 5: the paper's two causes of errors, and how many epochs of a connection are wrong, over connections; and the
effect of a client that waits for a processor: the truth is when its application has read a response, which is after its
arrival. Fig. 7: memcached. Fig. 4 is that of pirate_web.py.
"""

from dataclasses import replace

import numpy as np
import polars as pl
from pirate_lab import (
    FEW,
    OF_CONNECTIONS,
    QUICK_S,
    Recorded,
    compared,
    need_root,
    of_connections,
    percent,
    quantiles,
    recorded,
    signed,
)
from traces import arguments, show

from lab.clients import Load
from lab.scenarios import SCENARIOS, Scenario
from lab.score import CLOSE, errors
from lab.servers import Httpd, Memcached
from wirelag.capture.files import Capture
from wirelag.estimators.pairs import Pairs
from wirelag.packets.interval import Interval

SHARES = (0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95)
NAMES = tuple(f"{100 * share:g}%" for share in SHARES)
METHODS = ("auto", "modes")
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


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    seconds = QUICK_S if quick else None
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


def show_relative(title: str, record: Recorded) -> None:
    """The same relative to the truth."""
    rows: list[tuple[str, ...]] = []
    for method in METHODS:
        off = compared(record, method)["error"].to_numpy()
        close = float(np.mean(np.abs(off) <= CLOSE)) if len(off) else float("nan")
        rows.append((method, *(signed(value) for value in quantiles(off, *SHARES)), percent(close)))
    show(title, ("", *NAMES, "within 15%"), rows)


def show_causes(names: list[str], seconds: float | None) -> None:
    """How often an epoch is wrong, how often those of a connection are, and by how much then."""
    rows = []
    for name in names:
        with recorded(CAUSES[name], seconds) as record:
            for method in METHODS:
                epochs = compared(record, method)
                shares, sizes = of_connections(epochs, pl.lit(True))
                median = quantiles(epochs["error"].to_numpy(), 0.5)[0]
                wrong = float((epochs["error"].abs() > CLOSE).mean() or 0)
                cells = [percent(value) for value in (wrong, *quantiles(shares, *OF_CONNECTIONS))]
                few = float(np.mean(shares < FEW)) if len(shares) else float("nan")
                size = quantiles(sizes, 0.5)[0]
                rows.append((f"{method}, {name}", len(epochs), signed(median), *cells, percent(few), percent(size)))
    header = ("cause", "answered", "median error, %", "off by > 15%, %")
    columns = (
        *(f"of connections, {100 * share:g}%" for share in OF_CONNECTIONS),
        "with < 5%, %",
        "mean |error|, median",
    )
    show("5: why it errs, 4 in flight; wrong epochs, of all and of a connection", (*header, *columns), rows)


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
