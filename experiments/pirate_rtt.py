"""Pirate, figures 1a, 1b, 6, 6b: response latency is not the round-trip time. Needs root.

One request in flight. All techniques but SYN-ACK and ours see both directions; ours sees only the client's packets.
Over TCP: the kernel's TCP_INFO, tcptrace, SYN-ACK; over QUIC: the spin bit.
"""

import re
import subprocess
from dataclasses import replace

import numpy as np
import polars as pl
from pirate_lab import QUICK_S, Floats, Recorded, answered, compared, need_root, percent, quantiles, recorded, signed
from traces import arguments, show

import wirelag
from lab.clients import Load
from lab.scenarios import FAR, SCENARIOS, Scenario
from lab.servers import Httpd
from wirelag.estimators.match import Match
from wirelag.estimators.pirate import Pirate
from wirelag.packets.batch import PacketBatch
from wirelag.synopses.samples import SampleBatch

NEAR = Scenario("near", Httpd("exponential:3000"), Load(tcp_info=True), both=True)
WEB = Scenario("web", Httpd("exponential:3000"), Load(response="page", tcp_info=True), FAR, both=True)
SLOW = Scenario("slow", Httpd("exponential:100000"), Load(tcp_info=True), both=True)
TCP = {"3 ms, 500 bytes": NEAR, "3 ms, web objects, 10 ms RTT": WEB, "100 ms, 500 bytes": SLOW}
QUIC = replace(SCENARIOS["http3-w1"], both=True)
MS = 1e6
SHARES = (0.10, 0.50, 0.90)

ByFlow = dict[int, float]  # mean of each connection, ns


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    for name, scenario in TCP.items():
        with recorded(scenario, QUICK_S if quick else None) as record:
            others = {"SYN-ACK": by_syn(record), "TCP_INFO": by_tcp_info(record), "tcptrace": by_tcptrace(record)}
            show_techniques(f"1a, 6: TCP, {name}", record, others)
            show_correlation(name, record)
    with recorded(QUIC, 2 * QUICK_S if quick else None) as record:
        show_techniques("1b: QUIC, 20 ms, 500 bytes", record, {"spin bit": by_spin(record)})


def show_techniques(title: str, record: Recorded, others: dict[str, ByFlow]) -> None:
    """Means of connections, and their errors against response latencies."""
    truth = by_truth(record)
    rows = []
    for name, means in ({"truth": truth} | others | {"ours": by_answers(record)}).items():
        flows = sorted(truth.keys() & means.keys())
        values, true = (np.array([of[flow] for flow in flows], np.float64) for of in (means, truth))
        off = values / true - 1
        of_median = quantiles(off, 0.5)[0]
        close = float(np.mean(np.abs(off) <= 0.15)) if len(off) else float("nan")
        middle = [value / MS for value in quantiles(values, *SHARES)]
        rows.append((name, len(flows), *middle, signed(of_median), percent(close)))
    header = (
        "means, ms",
        "connections",
        *(f"{100 * share:g}%" for share in SHARES),
        "median error, %",
        "within 15%, %",
    )
    show(title, header, rows)


def show_correlation(name: str, record: Recorded) -> None:
    """Whether a technique follows latency from epoch to epoch, which SYN-ACK, once per connection, cannot."""
    ours = compared(record)
    rtt_ns = _over_epochs(record, ours)
    pairs = {"ours": ours["mean_ns"].to_numpy(), "TCP_INFO": rtt_ns}
    true = ours["true_ns"].to_numpy()
    rows = [(technique, len(true), correlation(values, true)) for technique, values in pairs.items()]
    show(f"6b: correlation with response latency over epochs, {name}", ("technique", "epochs", "correlation"), rows)


def correlation(values: Floats, true: Floats) -> float:
    """NaN if one of them is constant."""
    return float(np.corrcoef(values, true)[0, 1]) if values.std() and true.std() else float("nan")


def _over_epochs(record: Recorded, epochs: pl.DataFrame) -> Floats:
    """The mean of the kernel's round-trip times at the responses of each epoch."""
    rtt = record.truth.select("flow_key", "t_response_ns", pl.col("rtt_us") * 1000)
    parts = {key[0]: part for key, part in rtt.partition_by("flow_key", as_dict=True).items()}
    means = []
    for key, start_ns, end_ns in epochs.select("flow_key", "start_ns", "end_ns").iter_rows():
        mine = parts[key].filter(pl.col("t_response_ns").is_between(start_ns, end_ns, closed="left"))
        means.append(float(mine["rtt_us"].to_numpy().mean()))
    return np.array(means)


def by_truth(record: Recorded) -> ByFlow:
    latency = (pl.col("t_response_ns") - pl.col("t_request_ns")).mean()
    return dict(record.truth.group_by("flow_key").agg(latency).iter_rows())


def by_tcp_info(record: Recorded) -> ByFlow:
    """The smoothed round-trip time of the client's kernel, when each response had arrived."""
    return dict(record.truth.group_by("flow_key").agg(pl.col("rtt_us").mean() * 1000).iter_rows())


def by_syn(record: Recorded) -> ByFlow:
    """From the SYN to the first acknowledgement, once per connection."""
    rows = answered(record.capture, Pirate()).rows
    rows = rows[rows["network_ns"] >= 0]
    return dict(zip(rows["key"].tolist(), rows["network_ns"].astype(np.float64).tolist(), strict=True))


def by_answers(record: Recorded) -> ByFlow:
    """The estimate of a connection: the sum of all latencies over their number."""
    rows = answered(record.capture, Pirate()).rows
    sums = pl.DataFrame({"key": rows["key"], "sum_ns": rows["sum_ns"], "count": rows["count"]})
    mean = pl.col("sum_ns").sum() / pl.col("count").sum()
    return dict(sums.filter(pl.col("count") > 0).group_by("key").agg(mean).iter_rows())


def by_tcptrace(record: Recorded) -> ByFlow:
    """The mean round-trip time of the client's packets; tcptrace prints ms with one digit."""
    assert record.both is not None
    words = ["tcptrace", "-nlr", str(record.both)]
    printed = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    keys = dict(record.truth.select("client_port", "flow_key").unique().iter_rows())
    pattern = re.compile(r"host \w+:\s+\S+?:(\d+)\n.*?RTT avg:\s+([\d.]+) ms", re.DOTALL)
    return {keys[int(port)]: float(ms) * MS for port, ms in pattern.findall(printed) if int(port) in keys}


def by_spin(record: Recorded) -> ByFlow:
    """Times between flips of the spin bit, of both directions."""
    assert record.both is not None
    sums: dict[int, list[int]] = {}

    def sink(packets: PacketBatch, found: SampleBatch) -> None:
        for key, delay_ns in zip(packets.flow_key[found.rows].tolist(), found.delays_ns.tolist(), strict=True):
            sums.setdefault(key, []).append(delay_ns)

    for _ in wirelag.run(Match(("quic-spin",), sinks=(sink,)), {"tap": wirelag.read(str(record.both))}):
        pass
    return {key: float(np.mean(delays)) for key, delays in sums.items()}


if __name__ == "__main__":
    main()
