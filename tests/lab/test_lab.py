"""The lab: networks that leave nothing behind, the wire's impairments, servers, clients and the recorder."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl
import pytest

import wirelag
from lab.clients import Client, GrpcCalls, H2load, Http3Load, Https, Load, Person, RedisBenchmark, SmbClient, Wrk
from lab.network import SERVICE_ADDRESS, Network, sweep
from lab.processes import owner_lives, owner_name, program
from lab.record import Recorder
from lab.run import run
from lab.scenarios import FAR, SCENARIOS, Scenario, held_back, missing
from lab.score import batches, errors, score
from lab.servers import Gateway, Grpc, Http3, Httpd, Memcached, Nginx, Redis, Samba, Server, Sshd, Udpd
from lab.wire import Direction, Wire, statistics
from tests.support import needs
from tests.support.effort import ALONE
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from wirelag.capture.files import Capture
from wirelag.estimators.pirate import Pirate
from wirelag.packets.batch import Kind, PacketBatch

NAMESPACES = Path("/run/netns")


MS = 1_000_000


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network("test", wired=True) as network:
        yield network


def _namespaces(prefix: str) -> list[str]:
    return [path.name for path in NAMESPACES.glob("*") if path.name.startswith(prefix)]


def _packets(capture: Path) -> pl.DataFrame:
    """The packets of a capture; `port`: only to this port."""
    names = ("packet_id", "flow_key", "time_ns", "dst_port", "payload_length")
    parts = wirelag.read(str(capture))
    packets = pl.concat(pl.DataFrame({name: getattr(part, name).copy() for name in names}) for part in parts)
    return packets.rename({"packet_id": "id", "dst_port": "port", "payload_length": "payload"})


def _latency_ms(truth: pl.DataFrame) -> npt.NDArray[np.float64]:
    return (truth["t_response_ns"] - truth["t_request_ns"]).to_numpy() / MS


def _truth(scenario: Scenario, folder: Path, seed: int = 1) -> pl.DataFrame:
    result = run(scenario, seed, folder)
    assert result.truth is not None
    return pl.read_parquet(result.truth)


# ---- networks ----


@IN_LAB
def test_up_and_down_leave_nothing(tmp_path: Path) -> None:
    network = Network("again", servers=2, wired=True)
    for _ in range(3):
        network.up()
        network.up()
        process = network.start("server2", [program("httpd"), f"address={SERVICE_ADDRESS}"], tmp_path / "httpd.txt")
        process.wait_for_port(80)
        assert len(_namespaces(network.prefix)) == 6
        network.down()
        network.down()
        assert _namespaces(network.prefix) == []
        assert not Path(f"/proc/{process.pid}").exists()


def _up() -> None:
    with Network("next"):
        pass


def _down() -> None:
    subprocess.run([sys.executable, "-m", "lab", "down"], cwd=ROOT, check=True)


@IN_LAB
@pytest.mark.parametrize("clean", [_up, _down])
def test_a_crash_leaves_nothing_after_the_next_command(clean: Callable[[], None], tmp_path: Path) -> None:
    script = f"""
import pathlib, sys, lab.network, lab.processes
network = lab.network.Network("crash")
network.up()
server = network.start("server1", [lab.processes.program("httpd")], pathlib.Path({str(tmp_path / "httpd.txt")!r}))
server.wait_for_port(80)
print(network.prefix, server.pid, flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crashing:
        assert crashing.stdout is not None
        prefix, server = crashing.stdout.readline().split()
        sweep()
        assert len(_namespaces(prefix)) == 4  # its owner lives
        crashing.send_signal(signal.SIGKILL)
        crashing.wait()
    clean()
    assert _namespaces(prefix) == []
    stat = Path(f"/proc/{server}/stat")  # a zombie until init reaps it
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_owners() -> None:
    pid, _, start = owner_name().partition("s")
    assert owner_lives(f"{pid}s{start}")
    assert not owner_lives(f"{pid}s{int(start) + 1}")
    assert not owner_lives("999999999s1")
    assert not owner_lives("nobody")


@IN_LAB
def test_responses_do_not_pass_the_point(network: Network, tmp_path: Path) -> None:
    Wire().start(network, tmp_path, 1)
    Httpd().start(network, tmp_path, 1)
    recorder = Recorder(network, tmp_path / "point.pcap")
    network.run("client", program("load"), f"address={SERVICE_ADDRESS}", "requests=20", "seconds=5")
    recorder.stop()
    packets = _packets(tmp_path / "point.pcap")
    assert packets["port"].unique().to_list() == [80]
    assert packets.filter(pl.col("payload") > 0).height == 20


# ---- the wire ----


def _through(network: Network, folder: Path, up: Direction, rate: int = 100) -> tuple[pl.DataFrame, dict[str, int]]:
    """Send datagrams at random times; return the times at the client and at the point, in the client's order."""
    wire = Wire(up, Direction()).start(network, folder, 1)
    Udpd().start(network, folder, 1)
    at_client = Recorder(network, folder / "client.pcap", "client", both=True)
    at_point = Recorder(network, folder / "point.pcap")
    load = ["format=udp", "pattern=open", f"rate={rate}", "connections=20", "seconds=1.5", "request=constant:1000"]
    network.run("client", program("load"), f"address={SERVICE_ADDRESS}", "port=9000", *load)
    at_client.stop()
    at_point.stop()
    sent, got = (_packets(folder / name).filter(pl.col("port") == 9000) for name in ("client.pcap", "point.pcap"))
    arrived = got.select("id", "flow_key", point_ns="time_ns")
    both = sent.join(arrived, on=["id", "flow_key"], how="left", maintain_order="left")
    assert len(both) == len(sent)
    counted: dict[str, int] = statistics(wire)["up"]
    return both, counted


@IN_LAB
def test_the_wire_delays(network: Network, tmp_path: Path) -> None:
    packets, _ = _through(network, tmp_path, Direction(delay_us=10_000))
    delay_ms = (packets["point_ns"] - packets["time_ns"]).to_numpy() / MS
    assert len(delay_ms) > 500
    assert packets["point_ns"].null_count() == 0
    assert delay_ms.min() >= 10
    if ALONE:
        assert len(delay_ms) > 2000
        assert np.median(delay_ms) < 10.2
        assert np.quantile(delay_ms, 0.99) < 11


@IN_LAB
def test_the_wire_loses(network: Network, tmp_path: Path) -> None:
    packets, counted = _through(network, tmp_path, Direction(loss=0.1))
    lost = packets["point_ns"].null_count()
    assert abs(lost / len(packets) - 0.1) < 4 * (0.1 * 0.9 / len(packets)) ** 0.5
    assert counted["lost"] == lost
    assert counted["received"] == counted["sent"] + counted["lost"]


@IN_LAB
def test_the_wire_reorders(network: Network, tmp_path: Path) -> None:
    packets, counted = _through(network, tmp_path, Direction(delay_us=5000, held=0.25, hold_us=4000))
    assert packets["point_ns"].null_count() == 0
    assert abs(counted["held"] / len(packets) - 0.25) < 4 * (0.25 * 0.75 / len(packets)) ** 0.5
    arrived = packets["point_ns"].to_numpy()
    earliest_behind = np.minimum.accumulate(arrived[::-1])[::-1]
    overtaken = np.count_nonzero(arrived[:-1] > earliest_behind[1:])
    # 2,000 packets a second: the next packet overtakes some of those held for up to 4 ms, and no others.
    assert 0.5 * counted["held"] < overtaken <= 1.05 * counted["held"]


@pytest.mark.acceptance
@IN_LAB
def test_jitter_keeps_the_order_and_a_rate_queues(network: Network, tmp_path: Path) -> None:
    # 2,000 packets of 1,042 bytes a second are 16.7 Mbit/s.
    packets, _ = _through(network, tmp_path, Direction(delay_us=5000, jitter_us=4000, mbit=20))
    arrived = packets["point_ns"].to_numpy()
    assert (np.diff(arrived) >= 0).all()
    delay_ms = (arrived - packets["time_ns"].to_numpy()) / MS
    assert np.std(delay_ms) > 0.5
    assert delay_ms.min() > 1.4  # 5 - 4, and 0.42 for its own bits


@pytest.mark.acceptance
@IN_LAB
def test_a_full_queue_loses(network: Network, tmp_path: Path) -> None:
    """16.7 Mbit/s into 5: two thirds are lost, and nothing waits longer than the queue; 1.7 ms for its own bits."""
    packets, counted = _through(network, tmp_path, Direction(mbit=5, queue_us=20_000))
    lost = packets["point_ns"].null_count()
    assert counted["lost"] == lost > 0.3 * len(packets)
    arrived = packets.drop_nulls("point_ns")
    delay_ms = (arrived["point_ns"] - arrived["time_ns"]).to_numpy() / MS
    assert np.median(delay_ms) > 15
    if ALONE:
        assert np.quantile(delay_ms, 0.99) < 22


# ---- servers and clients ----


SERVERS: dict[str, tuple[Server, Client, str]] = {
    "httpd": (Httpd(), Load(), ""),
    "httpd-post": (Httpd(), Load(post=8192), ""),
    "udpd": (Udpd(), Load(format="udp"), ""),
    "udpd-acknowledged": (Udpd(), Load(format="udp", request="constant:100", ack="constant:20", ack_every=2), ""),
    "udpd-acknowledged-late": (Udpd(), Load(format="udp", ack="constant:20", ack_delay_us=1000), ""),
    "udpd-clock": (Udpd(), Load("clock", format="udp"), ""),
    "nginx": (Nginx((2000,)), Load(response="constant:2000"), "nginx"),
    "memcached": (Memcached(), Load(format="memcached"), "memcached"),
    "redis": (Redis(), Load(format="redis"), "redis-server"),
    "http3": (Http3("constant:5000"), Http3Load(2), ""),
    "http2": (Gateway("constant:5000"), H2load(2), "nginx"),
    "tls": (Gateway("constant:5000", tls=True), Https(tls=True), "nginx"),
    "parts": (Httpd(), Https(parts=3, gap_us=500), ""),
    "grpc": (Grpc("constant:5000"), GrpcCalls(2), ""),
}


@pytest.mark.every(4)
@IN_LAB
@pytest.mark.parametrize("name", SERVERS)
def test_server_answers(name: str, tmp_path: Path) -> None:
    server, client, needed = SERVERS[name]
    if needed and shutil.which(needed) is None:
        pytest.skip(needs.program(needed))
    if name == "http3":
        pytest.importorskip("aioquic", reason=needs.needs("aioquic", "pip install aioquic"))
    scenario = Scenario(name, server, client, connections=2, seconds=0.5)
    if lacking := missing(scenario):
        pytest.skip(lacking)
    result = run(scenario, 1, tmp_path)
    assert result.truth is not None
    truth = pl.read_parquet(result.truth)
    assert len(truth) > (50 if ALONE else 5)
    assert (_latency_ms(truth) > 0).all()
    seen = set(_packets(result.capture)["flow_key"].to_list())
    assert seen == set(truth["flow_key"].to_list())
    assert len(seen) == 2


OTHERS: dict[str, tuple[Server, Client]] = {
    "wrk": (Httpd(), Wrk()),
    "redis-benchmark": (Redis(), RedisBenchmark()),
    "ssh": (Sshd(), Person()),
    "smbclient": (Samba(), SmbClient(rate=20)),
}


@pytest.mark.every(4)
@IN_LAB
@pytest.mark.parametrize("name", OTHERS)
def test_other_clients(name: str, tmp_path: Path) -> None:
    if shutil.which(name) is None:
        pytest.skip(needs.program(name))
    server, client = OTHERS[name]
    scenario = Scenario(name, server, client, connections=2, seconds=1, both=True)
    if lacking := missing(scenario):
        pytest.skip(lacking)
    result = run(scenario, 1, tmp_path)
    assert result.both is not None
    assert result.truth is not None
    truth = pl.read_parquet(result.truth)
    assert (_latency_ms(truth) > 0).all()
    assert set(truth["flow_key"]) <= set(_packets(result.capture)["flow_key"])
    assert len(truth) > (10 if ALONE else 2)
    ports = _packets(result.both)["port"].unique().to_list()
    assert server.port in ports
    assert len(ports) >= 3
    one_way = _packets(result.capture)
    assert one_way["port"].unique().to_list() == [server.port]
    assert one_way.height > (100 if ALONE else 10)


@IN_LAB
def test_the_log_agrees_with_the_capture(tmp_path: Path) -> None:
    result = run(Scenario("log", Httpd(), Load(), connections=4, seconds=1), 1, tmp_path)
    assert result.truth is not None
    truth = pl.read_parquet(result.truth)
    packets = _packets(result.capture).filter(pl.col("payload") > 0)
    late_ms = []
    for (key,), asked in truth.sort("t_request_ns").group_by("flow_key"):
        seen = packets.filter(pl.col("flow_key") == key)["time_ns"].to_numpy()
        assert len(seen) == len(asked)
        late_ms.append((seen - asked["t_request_ns"].to_numpy()) / MS)
    late = np.concatenate(late_ms)
    assert len(late) > 20
    assert late.min() > -0.01
    if ALONE:
        assert len(late) > 500
        assert np.median(late) < 0.2
        assert np.mean(late < 1) > 0.95


@pytest.mark.acceptance
@IN_LAB
def test_service_times_and_orders(tmp_path: Path) -> None:
    """Four in flight on two connections, 5 ms each: at once, in order per connection, in order over all."""
    load = Load(in_flight=4)
    for order, expected_ms in (("parallel", 5), ("serial", 20), ("worker", 40)):
        httpd = Httpd("constant:5000", order)
        truth = _truth(Scenario(order, httpd, load, connections=2, seconds=0.6), tmp_path / order)
        median_ms = np.median(_latency_ms(truth))
        assert median_ms > 0.9 * expected_ms
        assert not ALONE or median_ms < 1.1 * expected_ms
        assert truth["in_flight"].max() == 4
    drawn = Scenario("drawn", Httpd("exponential:5000"), Load(), seconds=0.8)
    exponential = _truth(drawn, tmp_path / "drawn")
    latency_ms = _latency_ms(exponential)
    assert np.std(latency_ms) > 0.5 * np.mean(latency_ms)
    if ALONE:
        assert np.mean(latency_ms) == pytest.approx(5.2, rel=0.15)
        assert np.std(latency_ms) == pytest.approx(5, rel=0.2)


@pytest.mark.acceptance
@IN_LAB
def test_patterns(tmp_path: Path) -> None:
    httpd = Httpd("constant:1000", "serial")
    batching = Load("batch", 4)
    batch = _truth(Scenario("batch", httpd, batching, connections=1, seconds=0.4), tmp_path / "batch")
    sizes = batch.sort("t_request_ns").group_by("round", maintain_order=True).len()["len"].to_list()
    assert set(sizes[:-1]) == {4}  # the end of the run may cut the last batch
    rounds = batches(batch).sort("round")
    assert (rounds["t_request_ns"][1:] >= rounds["t_response_ns"][:-1]).all()

    thinking = Load(think="constant:20000", think_share=1.0)
    think = _truth(Scenario("think", httpd, thinking, connections=1, seconds=0.5), tmp_path / "think")
    think = think.sort("t_request_ns")
    pause_ms = (think["t_request_ns"][1:].to_numpy() - think["t_response_ns"][:-1].to_numpy()) / MS
    assert pause_ms.min() >= 20
    assert not ALONE or np.median(pause_ms) < 21

    pacing = Load("batch", 4, pace_us=2000)
    paced = _truth(Scenario("paced", httpd, pacing, connections=1, seconds=0.4), tmp_path / "paced").sort(
        "t_request_ns"
    )
    assert paced["t_request_ns"].diff().drop_nulls().to_numpy().min() >= 2 * MS
    assert set(paced.group_by("round", maintain_order=True).len()["len"].to_list()[:-1]) == {4}

    pages = Load("pages", 4, objects="constant:6")
    page = _truth(Scenario("pages", httpd, pages, connections=1, seconds=0.4), tmp_path / "pages").sort("t_request_ns")
    whole = page.group_by("round", maintain_order=True).agg(pl.len(), pl.col("in_flight"))[:-1]
    assert set(whole["len"].to_list()) == {7}
    assert whole["in_flight"].list.max().to_list() == [4] * len(whole)
    assert whole["in_flight"].list.first().to_list() == [1] * len(whole)

    often = Load("open", rate=500)
    poisson = _truth(Scenario("open", httpd, often, connections=4, seconds=0.5), tmp_path / "open")
    assert len(poisson) < 1000 + 4 * 1000**0.5
    assert len(poisson) > (1000 - 4 * 1000**0.5 if ALONE else 100)


@IN_LAB
def test_without_timestamps_and_with_the_kernels_round_trip_time(tmp_path: Path) -> None:
    scenario = Scenario("rtt", Httpd(), Load(tcp_info=True), FAR, connections=2, seconds=0.5, timestamps=False)
    result = run(scenario, 1, tmp_path)
    assert result.truth is not None
    rtt_ms = pl.read_parquet(result.truth)["rtt_us"].to_numpy() / 1000
    assert np.median(rtt_ms) > 10
    assert not any(batch.tsval.any() for batch in wirelag.read(str(result.capture)))


@IN_LAB
def test_a_quota_slows_a_server(tmp_path: Path) -> None:
    httpd = Httpd("constant:1000", burn=True, cpu_shares=(0.25,))
    truth = _truth(Scenario("quota", httpd, Load(), connections=2, seconds=1), tmp_path)
    assert 5 < len(truth) < 350  # 1,000 without; a busy machine may be slower
    assert not list(Path("/sys/fs/cgroup").glob(f"**/lab-{owner_name()}"))


@IN_LAB
def test_a_tunnel_is_one_flow(tmp_path: Path) -> None:
    if not Path("/dev/net/tun").exists():
        pytest.skip(needs.needs("/dev/net/tun", "modprobe tun"))
    scenario = Scenario("tunnel", Httpd(), Load(), connections=20, seconds=0.5, tunnels=2)
    result = run(scenario, 1, tmp_path)
    assert result.truth is not None
    truth = pl.read_parquet(result.truth)
    seen = set(_packets(result.capture)["flow_key"].to_list())
    assert seen == set(truth["flow_key"].to_list())
    assert len(seen) == 2
    assert truth.group_by("flow_key").len()["len"].to_numpy().min() > (500 if ALONE else 20)


@IN_LAB
def test_wireguard_hides_connections(tmp_path: Path) -> None:
    """Its datagrams are recognised, and a tunnel of many connections has no estimate."""
    if lacking := needs.absent("wireguard-go", "wg"):
        pytest.skip(lacking)
    if not Path("/dev/net/tun").exists():
        pytest.skip(needs.needs("/dev/net/tun", "modprobe tun"))
    scenario = Scenario("wireguard", Httpd(), Load(), connections=5, seconds=1, tunnels=2, wireguard=True)
    result = run(scenario, 1, tmp_path)
    assert result.truth is not None
    truth = pl.read_parquet(result.truth)
    packets = PacketBatch.concatenate(list(Capture([str(result.capture)])))
    assert set(packets.kind.tolist()) == {int(Kind.WIREGUARD)}
    assert set(packets.flow_key.tolist()) == set(truth["flow_key"].to_list())
    meter = Pirate().meter("tap")
    meter.observe(packets)
    assert meter.finish().report().samples == 0


@IN_LAB
def test_joined_in_mid_connection(tmp_path: Path) -> None:
    scenario = Scenario("joined", Httpd(), Load(), connections=2, seconds=1, join_after_s=0.3)
    result = run(scenario, 1, tmp_path)
    assert result.truth is not None
    first_ns = _packets(result.capture)["time_ns"].to_numpy().min()
    asked_ns = pl.read_parquet(result.truth)["t_request_ns"].to_numpy().min()
    assert first_ns - asked_ns > 250 * MS


# ---- scenarios and scores ----


def test_held_back_scenarios_differ() -> None:
    for scenario in SCENARIOS.values():
        if not isinstance(scenario.client, RedisBenchmark | Person):
            assert held_back(scenario) != scenario
    assert held_back(SCENARIOS["w1-bimodal"]).server == Httpd("bimodal:3200:32000:0.3")
    nginx = held_back(SCENARIOS["w1-nginx"])
    assert nginx.server == Nginx([1400])
    assert nginx.client == replace(Load(), response="constant:1400")


def test_score() -> None:
    # Responses of flow 1 end at 10, 20, 30, ... and take 10; those of flow 2 take 20.
    ends = np.arange(10, 1010, 10)
    truth = pl.DataFrame(
        {
            "flow_key": pl.Series([1] * 100 + [2] * 100, dtype=pl.UInt64),
            "t_request_ns": np.concatenate((ends - 10, ends - 20)),
            "t_response_ns": np.concatenate((ends, ends)),
            "round": np.concatenate((np.arange(100) // 4, np.arange(100) // 4)),
        }
    )
    epochs = pl.DataFrame(
        {
            "flow_key": pl.Series([2, 1, 1, 1, 3], dtype=pl.UInt64),
            "start_ns": [0, 0, 500, 2000, 0],
            "end_ns": [1000, 500, 1001, 3000, 1000],
            "mean_ns": [40.0, 11.0, None, 5.0, 5.0],
        }
    )
    found = errors(truth, epochs)
    assert found["true_ns"].to_list() == [20, 10, 10]  # none ended in the last two
    assert found["error"].to_list() == [1.0, pytest.approx(0.1), None]
    scored = score(truth, epochs)
    assert scored.epochs == 3
    assert scored.abstained == pytest.approx(1 / 3)
    assert scored.median == pytest.approx(0.55)
    assert (scored.close, scored.far_off) == (0.5, 0.5)
    # A response that ends at the end of an epoch belongs to the next one.
    edge = epochs.head(1).with_columns(end_ns=pl.lit(10))
    assert errors(truth, edge).is_empty()
    whole = epochs.head(1).with_columns(mean_ns=pl.lit(50.0))
    assert errors(batches(truth), whole)["true_ns"].to_list() == [50]
