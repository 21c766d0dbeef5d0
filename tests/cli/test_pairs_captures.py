"""`pairs` on captures: simulations with known truth, tshark's `http.time`, real captures; the estimator's synopsis."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.oracles import pairs as naive
from tests.support.captures import capture_paths
from tests.support.conversations import SILENCE_NS, SYN, Row, Talk, batch_of, hold_equal
from tests.support.places import ROOT
from tests.support.simulated_captures import write_point
from wirelag import _kernels, response
from wirelag.capture.pcap import CaptureFile
from wirelag.errors import WirelagError
from wirelag.estimators.pairs import Pairs, sent_by_client
from wirelag.measure.loop import run
from wirelag.packets.batch import Kind
from wirelag.sim import Scenario, simulate
from wirelag.sim.truth import responses
from wirelag.synopses.request_response import Exchanges

# Captures


@pytest.mark.every(2)
@pytest.mark.parametrize(
    "rough", [{}, {"loss": 0.03}, {"loss": 0.05, "reorder": 0.05, "duplicate": 0.05}], ids=["smooth", "loss", "rough"]
)
def test_simulated_captures_against_the_truth(rough: dict[str, float], tmp_path: Path) -> None:
    """First and last byte are exact. A request is whole when its holes are filled; ours ends with its last byte.

    With more simultaneous holes than are remembered, the last byte is unknown, and the exchange says so.
    """
    simulation = simulate(Scenario(packets=12_000, seed=3, dns=0.2, **rough))  # type: ignore[arg-type]
    write_point(simulation, 0, tmp_path / "x.pcap")
    batches = list(CaptureFile(str(tmp_path / "x.pcap")))
    clients = [sent_by_client(packets).astype(np.uint8) for packets in batches]
    found = hold_equal(list(zip(batches, clients, strict=True)), 8 << 20).exchanges
    packets = simulation.packets
    numbers = np.arange(1, len(packets) + 1)
    truth = responses(packets, simulation.connections, numbers, int(packets.time_ns[-1]))
    known = {
        (row["client_port"], row["response_ns"]): (row["request_ns"], row["last_ns"])
        for row in truth.iter_rows(named=True)
    }
    later = unseen = 0
    for exchange in found:
        request_ns, last_ns = known[exchange.ends[4] >> 32, exchange.first_ns]
        if exchange.flags & naive.CUT:  # by the end of the capture
            continue
        assert not exchange.flags & ~(naive.RETRANSMITTED | naive.UNSEEN)
        unseen += exchange.flags & naive.UNSEEN > 0
        assert exchange.last_ns == last_ns or exchange.flags & naive.UNSEEN
        assert exchange.request_ns <= request_ns
        later += exchange.request_ns < request_ns
    assert len(found) > 0.98 * len(known)
    assert unseen <= (0.01 * len(found) if "reorder" in rough else 0)
    assert later <= (0.03 * len(found) if rough else 0)


def test_kernel_and_twin_agree_on_real_captures(shared_data: Path) -> None:
    compared = 0
    for path in capture_paths("rtt", "hidden", "malformed"):
        if path.stat().st_size > 300_000:
            continue
        try:
            batches = list(CaptureFile(str(path)))
        except WirelagError:
            continue
        parts = [(packets, sent_by_client(packets).astype(np.uint8)) for packets in batches]
        compared += len(hold_equal(parts, 1 << 18).exchanges) if parts else 0
    assert compared > 5_000


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("tcptrace/http.dmp.gz", 100),
        ("debian-ndpi-4.2/WebattackXSS.pcap.gz", 1700),
        ("zeek/1000-requests-one-dropped-response.pcap.gz", 990),
    ],
)
def test_the_first_byte_equals_tshark_s(shared_data: Path, name: str, least: int, tool: Callable[[str], str]) -> None:
    """Without reassembly, `http.time` runs from a request's last packet to the packet with the response's header."""
    path = shared_data / "rtt" / name
    words = ["-Y", "http.time", "-T", "fields", "-e", "frame.number", "-e", "http.time"]
    ran = subprocess.run(
        [tool("tshark"), "-r", path, "-o", "tcp.desegment_tcp_streams:FALSE", *words],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    theirs = {int(line.split()[0]): round(float(line.split()[1]) * 1e9) for line in ran.stdout.splitlines()}
    meter = Pairs().meter("tap")
    number: dict[tuple[int, int], int] = {}
    for packets in CaptureFile(str(path)):
        meter.observe(packets)
        seen = zip(packets.dst_port.tolist(), packets.time_ns.tolist(), packets.number.tolist(), strict=True)
        number |= {(port, time_ns): n for port, time_ns, n in seen}
    rows = meter.finish().single.rows
    ports = (rows["ends"][:, 4] >> np.uint64(32)).tolist()
    times = zip(ports, rows["first_ns"].tolist(), (rows["first_ns"] - rows["request_ns"]).tolist(), strict=True)
    ours = {number[port, first_ns]: took_ns for port, first_ns, took_ns in times}
    both = ours.keys() & theirs.keys()
    assert len(both) >= max(least, 0.97 * len(theirs))
    assert {frame: ours[frame] for frame in both} == {frame: theirs[frame] for frame in both}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("name", "responses", "equal"),
    [
        ("wild/FoxIO-LLC__ja4__pcap__http1.pcapng.gz", 55, 55),  # neither SYNs nor a packet after the last response
        ("wild/cisco__mercury__test__data__top-https.mcap.gz", 1, 1),
        ("rtt/tcptrace/http.dmp.gz", 103, 97),  # six end with a FIN
    ],
)
def test_whole_responses_equal_tshark_s(
    shared_data: Path, name: str, responses: int, equal: int, tool: Callable[[str], str]
) -> None:
    tool("tshark")
    script = ROOT / "experiments" / "pairs_tshark.py"
    ran = subprocess.run([sys.executable, script, shared_data / name], capture_output=True, text=True, check=True)
    assert ran.stdout.split()[:3] == [str(equal), "of", str(responses)]


@pytest.mark.parametrize(
    ("name", "exchanges"),
    [
        ("wild/FoxIO-LLC__ja4__pcap__http1.pcapng.gz", 55),  # all but one are the first of a connection without a SYN
        ("hidden/beats/wsgi_drum.pcap.gz", 16),  # packets turn up again, much later, with the time that they had
    ],
)
def test_every_exchange_is_in_the_figures(shared_data: Path, name: str, exchanges: int) -> None:
    report = response(str(shared_data / name)).report
    assert (report.samples, report.details["exchanges"]) == (exchanges, exchanges)


# The estimator


def many_exchanges(connections: int = 40) -> list[Row]:
    """Each connection asks ten times and waits 1 to 10 ms; some connections are faster than others."""
    rows = []
    for key in range(connections):
        talk = Talk((key + 1) * 0x9E3779B97F4A7C15 % 2**64, 10**9 + 7_000_000 * key)
        talk.shake_hands()
        for turn in range(10):
            talk.send(50_000_000, True, 100)
            talk.send(1_000_000 * (1 + key % 10), False, 1000 + turn)
            talk.send(2_000_000, True)
        rows += [row | {"src_port": row["src_port"] + key * row["from_client"]} for row in talk.rows]
    return sorted(rows, key=lambda row: int(row["time_ns"]))


def test_intervals_hold_each_exchange_once() -> None:
    packets = batch_of(many_exchanges())
    (whole,) = run(Pairs(), {"tap": [packets]})
    assert (whole.samples, whole.packets) == (400, len(packets))
    assert whole.mean == pytest.approx(0.0055)
    parts = list(run(Pairs(), {"tap": [packets]}, interval_ns=100_000_000))
    assert len(parts) > 5
    assert sum(report.samples for report in parts) == 400
    assert sum(report.mean * report.samples for report in parts if report.mean) / 400 == pytest.approx(0.0055)
    # Exchanges of a connection are alike, and connections follow one another: 400 exchanges count for far fewer.
    assert "mean" not in whole.ci95
    assert "fewer than two independent stretches" in whole.details["no_interval"]


def test_excess_exchanges_are_thinned_evenly() -> None:
    meter = Pairs(most=100).meter("tap")
    meter.observe(batch_of(many_exchanges()))
    kept = meter.finish()
    assert 25 <= len(kept) <= 100
    assert kept.counts["unlisted"] == 400 - len(kept)
    meter.observe(batch_of(many_exchanges()[:2]))
    assert meter.finish().counts["unlisted"] == 0


def test_groups_add_up() -> None:
    meter = Pairs().meter("tap")
    meter.observe(batch_of(many_exchanges()))
    exchanges = meter.finish()
    assert [(name, len(group)) for name, group in exchanges.groups("client")] == [("::1", 400)]
    assert [(name, len(group)) for name, group in exchanges.groups("server")] == [("[::2]:80", 400)]
    flows = dict(exchanges.groups("flow"))
    assert len(flows) == 40
    assert flows["[::1]:5003 > [::2]:80 tcp"].report().mean == pytest.approx(0.004)
    assert sorted((exchanges + exchanges).rows["key"].tolist()) == sorted(exchanges.rows["key"].tolist() * 2)
    assert list(Exchanges(exchanges.rows[:0]).groups("flow")) == []
    assert Exchanges(exchanges.rows[:0]).report().reason


def test_a_flood_stays_in_its_memory_and_is_counted() -> None:
    rng = np.random.default_rng(1)
    kernel = _kernels.Pairs(1 << 18, SILENCE_NS)
    before = kernel.memory
    packets = batch_of([{"time_ns": 1, "kind": Kind.TCP, "message": SYN}] * 8_000)
    for _ in range(10):
        packets.flow_key[:] = rng.integers(0, 2**64, 8_000, dtype=np.uint64)
        kernel.observe(packets, np.ones(8_000, np.uint8))
    assert kernel.memory == before <= 1 << 18
    assert (kernel.records, kernel.counts()["evicted"]) == (0, 80_000 - before // 280)


def test_arrays_that_do_not_fit_are_refused() -> None:
    kernel, packets = _kernels.Pairs(1 << 18, SILENCE_NS), batch_of([{"kind": Kind.TCP}] * 3)
    with pytest.raises(ValueError, match="sender"):
        kernel.observe(packets, np.ones(2, np.uint8))
    with pytest.raises(ValueError, match="five words"):
        kernel.observe(packets, np.ones(3, np.uint8), np.zeros((3, 4), np.uint64))
    with pytest.raises(ValueError, match="a number for each"):
        kernel.observe(packets, np.ones(3, np.uint8), None, np.zeros(2, np.uint64))
    with pytest.raises(ValueError, match="8 slots"):
        _kernels.Pairs(100, SILENCE_NS)
