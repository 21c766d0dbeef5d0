"""`wirelag response` from end to end: loops with known latencies, every format, and its errors."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.support.captures import capture_name, capture_paths, ethernet, ipv4, ipv6, pcap, tcp, udp
from tests.support.client_loops import BEGIN_NS, MS, Loop, constant, exponential, run
from tests.support.command import wirelag
from tests.support.places import DATA
from tests.support.response_json import VALIDATOR, asked, by_key
from tests.support.simulated_captures import write_simulation
from wirelag.sim import Scenario, simulate
from wirelag.synopses.epochs import METHODS, REASONS

MIRROR = DATA / "response.pcap.gz"
LOGGED_S = {80: 0.020157, 8000: 0.046702, 8080: 0.070664}  # from the clients' log: data/README.md
CLIENT, SERVER = b"\x0a\0\0\1", b"\xc0\0\2\1"
HIDDEN = capture_paths("hidden")


def frames(loop: Loop, seed: int, port: int, server_port: int = 443, sixth: bool = False) -> list[tuple[int, bytes]]:
    """The client's packets of a loop as frames; TCP if it has a handshake."""
    made: list[tuple[int, bytes]] = []
    for packet in run(loop, seed)[0]:
        payload, ports = bytes(packet.payload), (port, server_port)
        if packet.has:
            body, protocol = tcp(payload, ports=ports, seq=packet.seq, ack=packet.ack, flags=packet.tcp_flags), 6
        else:
            body, protocol = udp(payload, ports), 17
        whole = ipv6(body, protocol) if sixth else ipv4(body, protocol, src=CLIENT, dst=SERVER, ident=len(made) % 65536)
        made.append((packet.time_ns, ethernet(whole, 0x86DD if sixth else 0x0800)))
    return made


def write(path: Path, *flows: list[tuple[int, bytes]]) -> Path:
    records = sorted((frame for flow in flows for frame in flow), key=lambda record: record[0])
    path.write_bytes(pcap([(ns, frame, len(frame)) for ns, frame in records], magic=0xA1B23C4D))
    return path


def turned(frame: bytes) -> bytes:
    """The frame with the ends of its IPv4 and TCP or UDP header exchanged."""
    ports = frame[36:38] + frame[34:36]
    return frame[:26] + frame[30:34] + frame[26:30] + ports + frame[38:]


# ---- results ----


def test_means_of_real_servers_equal_the_clients_log() -> None:
    found = asked(MIRROR)
    groups = by_key(found)
    for port, logged in LOGGED_S.items():
        group = groups[f"10.5.0.100:{port}"]
        assert group["mean"] == pytest.approx(logged, rel=0.02), port
        assert group["answered"] > 0.7 * group["epochs"]  # one epoch each until the server's clock is known
        assert group["ci95"]["mean"][0] < logged < group["ci95"]["mean"][1]
    assert groups["10.5.0.100:80"]["think"] == pytest.approx(0.075, rel=0.1)  # 150 ms after every second response
    assert groups["10.5.0.100:8080"]["in_flight"] == pytest.approx(4, abs=0.1)


def test_unknowable_latencies_are_not_reported() -> None:
    groups = by_key(asked(MIRROR))
    for port, reason in ((8443, "joined"), (9000, "spontaneous")):
        group = groups[f"10.5.0.100:{port}"]
        assert group["mean"] is None
        assert group["reason"]
        assert group["abstained"][reason] > 0.9 * group["epochs"]
    assert groups["10.5.0.100:8081"]["answered"] < 0.5 * groups["10.5.0.100:8081"]["epochs"]


@pytest.mark.parametrize("sixth", [False, True])
@pytest.mark.parametrize("in_flight", [1, 4])
def test_loops_with_known_latencies(in_flight: int, sixth: bool, tmp_path: Path) -> None:
    loop = Loop(exponential(20 * MS), in_flight, rtt_ns=200_000)
    flows = [frames(loop, seed, 40_000 + seed, sixth=sixth) for seed in range(6)]
    truth = [t.latency_ns for seed in range(6) for t in run(loop, seed)[1]]
    found = asked(write(tmp_path / "loops.pcap", *flows))
    assert found["mean"] == pytest.approx(sum(truth) / len(truth) / 1e9, rel=0.05)
    assert found["in_flight"] == pytest.approx(in_flight, abs=0.1)
    assert found["network"] == pytest.approx(200e-6, rel=0.01)
    assert found["method"] == ["auto"]


def test_udp_is_followed_blindly(tmp_path: Path) -> None:
    capture = write(tmp_path / "udp.pcap", frames(Loop(constant(8 * MS, jitter=0.6), seconds=12), 1, 40_000))
    found = asked(capture)
    assert found["method"] == ["blind"]
    assert found["mean"] == pytest.approx(0.008, rel=0.04)
    assert asked(capture, "--method", "ack")["abstained"].keys() <= {"not_tcp"}


# ---- clients and servers ----


def test_servers_can_be_named(tmp_path: Path) -> None:
    loop = Loop(constant(5 * MS), rtt_ns=100_000)
    capture = write(tmp_path / "two.pcap", frames(loop, 1, 40_000), frames(loop, 2, 40_001, 8443),
                    frames(loop, 3, 40_002, sixth=True))  # fmt: skip
    assert set(by_key(asked(capture))) == {"192.0.2.1:443", "192.0.2.1:8443", "[2001:db8::2]:443"}
    for words, keys in (
        (["192.0.2.0/24"], {"192.0.2.1:443", "192.0.2.1:8443"}),
        (["192.0.2.1:8443"], {"192.0.2.1:8443"}),
        (["[2001:db8::/32]:443"], {"[2001:db8::2]:443"}),
        (["2001:db8::/32", "192.0.2.1:443"], {"[2001:db8::2]:443", "192.0.2.1:443"}),
    ):
        found = asked(capture, *(word for server in words for word in ("--server", server)))
        assert set(by_key(found)) == keys
        assert found["clients"]["packets"] + found["clients"]["not_used"] == found["packets"]


def test_packets_from_servers_alone_are_refused(tmp_path: Path) -> None:
    flow = frames(Loop(constant(5 * MS), rtt_ns=100_000), 1, 40_000)
    capture = write(tmp_path / "back.pcap", [(ns, turned(frame)) for ns, frame in flow[1:]])
    said = refused(capture)
    assert "all packets come from servers" in said
    assert "--server PREFIX" in said
    assert asked(capture, "--server", "10.0.0.0/8")["clients"]["packets"] == len(flow) - 1
    assert "no packet goes to 203.0.113.0/24" in refused(capture, "--server", "203.0.113.0/24")


def test_no_usable_packets_are_reported(tmp_path: Path) -> None:
    empty = write(tmp_path / "empty.pcap")
    assert asked(empty)["reason"] == "no packets to measure"
    nothing = asked(MIRROR, "--port", "9")
    assert nothing["reason"] == "no packets to measure"
    assert "the filter leaves out all" in nothing["hint"]
    assert "Traceback" not in refused(tmp_path / "nowhere.pcap")


def refused(*words: object) -> str:
    """Standard error of a run with exit code 2 and no output."""
    ran = wirelag("response", *words, code=2)
    assert not ran.stdout
    return ran.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--method", "guess"],
        ["--by", "port"],
        ["--format", "xml"],
        ["--fewest", "0"],
        ["--epoch", "long"],
        ["--interval", "never"],
        ["--memory", "much"],
        ["--server", "nowhere"],
        ["--server", "192.0.2.1:0"],
        ["--server", "192.0.2.1:99999"],
        ["--sla", "p99<1ms"],
        ["--sla", "fast"],
        ["--format", "parquet"],
        ["-o", "same.html", "--html", "same.html"],
    ],
)
def test_wrong_options(words: list[str]) -> None:
    said = refused(MIRROR, *words)
    assert "Traceback" not in said
    assert "internal error" not in said


# ---- formats ----


def test_every_format_says_the_same(tmp_path: Path) -> None:
    found = asked(MIRROR, "--interval", "1s")
    table = wirelag("response", MIRROR, "--interval", "1s").stdout.splitlines()
    assert table[1].split()[1] == f"{found['samples']:,}"
    rows = list(csv.DictReader(io.StringIO(wirelag("response", MIRROR, "--interval", "1s", "--format", "csv").stdout)))
    assert [row["scope"] for row in rows] == ["all"] + ["interval"] * len(found["intervals"]) + ["group"] * 6
    assert float(rows[0]["mean"]) == found["mean"]
    path = tmp_path / "answer.parquet"
    wirelag("response", MIRROR, "--interval", "1s", "--format", "parquet", "-o", path)
    assert pl.read_parquet(path)["mean"].to_list() == [float(row["mean"]) if row["mean"] else None for row in rows]
    lines = wirelag("response", MIRROR, "--interval", "1s", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["samples"] for line in lines] == [part["samples"] for part in found["intervals"]]


@pytest.mark.parametrize("interval", ["1s", "auto", "200ms"])
def test_intervals_divide_all_epochs_between_them(interval: str) -> None:
    found = asked(MIRROR, "--interval", interval)
    parts = found["intervals"]
    assert len(parts) <= 60
    for name in ("samples", "epochs", "answered", "requests"):
        assert sum(part[name] for part in parts) == found[name]
    total = sum(part["samples"] * (part["mean"] or 0) for part in parts) / found["samples"]
    assert total == pytest.approx(found["mean"])
    assert all(part["end"] > part["start"] for part in parts)
    starts = [part["start"] for part in parts]
    assert starts == sorted(starts)


@pytest.mark.parametrize(("by", "count"), [("server", 6), ("flow", 21), ("client", 1)])
def test_groups_divide_all_responses_between_them(by: str, count: int) -> None:
    found = asked(MIRROR, "--by", by)
    assert len(found["groups"]) == count
    assert sum(group["samples"] for group in found["groups"]) == found["samples"]
    means = [group["mean"] for group in found["groups"]]
    known = [mean for mean in means if mean is not None]
    assert means == [*sorted(known, reverse=True), *[None] * (len(means) - len(known))]


def test_agreements_have_an_exit_code() -> None:
    assert asked(MIRROR, "--sla", "mean<50ms")["sla"][0]["holds"] is True
    found = asked(MIRROR, "--sla", "mean<50ms", "--sla", "mean<10ms", code=3)
    assert [answer["holds"] for answer in found["sla"]] == [True, False]
    unknown = asked(MIRROR, "--port", "8443", "--sla", "mean<50ms", code=3)  # nothing is known to hold
    assert unknown["sla"][0]["holds"] is None


def test_epochs_are_the_basis_of_the_result(tmp_path: Path) -> None:
    path = tmp_path / "epochs.parquet"
    found = asked(MIRROR, "--epochs", path)
    epochs = pl.read_parquet(path)
    assert len(epochs) == found["epochs"]
    answered = epochs.filter(pl.col("responses") > 0)
    assert len(answered) == found["answered"]
    assert answered["reason"].null_count() == len(answered)
    total = np.average(answered["mean"], weights=answered["responses"])
    assert total == pytest.approx(found["mean"])
    silent = epochs.filter(pl.col("responses") == 0)
    assert silent["mean"].null_count() == len(silent)
    assert dict(silent["reason"].value_counts().iter_rows()) == found["abstained"]
    assert set(epochs["method"].unique()) <= set(METHODS)
    assert set(silent["reason"].unique()) <= set(REASONS)
    assert (epochs["end_ns"] >= epochs["start_ns"]).all()


def test_the_schema_is_strict() -> None:
    found = asked(MIRROR, "--interval", "5s")
    for name in found:
        assert not VALIDATOR.is_valid({key: value for key, value in found.items() if key != name}), name
    group = found["groups"][0]
    for wrong in (
        {"more": 1},
        {"mean": "slow"},
        {"abstained": {"bored": 3}},
        {"confidence": 1.5},
        {"groups": [group | {"more": 1}]},
        {"groups": [{key: value for key, value in group.items() if key != "abstained"}]},
        {"intervals": [group]},
    ):
        assert not VALIDATOR.is_valid(found | wrong), wrong


@pytest.mark.every(2)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_on_real_packets(method: str) -> None:
    found = asked(MIRROR, "--method", method)
    assert found["method"] == (["auto", "blind"] if method == "auto" else [method])
    assert found["answered"] + sum(found["abstained"].values()) == found["epochs"]
    if method == "syn":
        assert found["mean"] < 1e-3


def test_an_interval_never_begins_below_zero(tmp_path: Path) -> None:
    """Flows so different that the usual interval would begin below 0."""
    flows = [frames(Loop(constant(ms * MS), rtt_ns=100_000, seconds=2), ms, 40_000 + ms) for ms in (1, 1, 1, 400)]
    found = asked(write(tmp_path / "apart.pcap", *flows), "--method", "ack", "--by", "client")
    assert found["ci95"]["mean"][0] >= 0


# ---- real captures ----


@pytest.mark.parametrize("path", HIDDEN, ids=capture_name)
@pytest.mark.every(4)
def test_real_captures_of_hidden_traffic(path: Path) -> None:
    """A plausible result, or none and a reason."""
    if "server-side" in path.name:
        assert "all packets come from servers" in refused(path)
        return
    found = asked(path)
    if found["estimator"] == "pairs":
        found = asked(path, "--method", "auto")
    assert found["answered"] + sum(found["abstained"].values()) == found["epochs"]
    if found["mean"] is None:
        assert found["reason"]
        return
    assert 0 <= found["mean"] < 60
    assert found["samples"] >= found["answered"]


def test_half_of_a_capture_gives_the_same_as_the_whole(shared_data: Path) -> None:
    """Client packets of ssh give the same with and without those of servers, and nearly the truth."""
    half = asked(shared_data / "hidden/zeek/ssh.client-side-half-duplex.pcap")
    assert half["estimator"] == "pirate"
    full = shared_data / "rtt/zeek/ssh.pcap.gz"
    whole = by_key(asked(full, "--port", "22", "--method", "auto"))
    groups = by_key(half)
    assert len(groups) >= 6
    for key, group in groups.items():
        for name in ("samples", "mean", "think", "epochs", "abstained"):
            assert group[name] == whole[key][name], (key, name)
    paired = asked(full, "--port", "22")
    assert paired["estimator"] == "pairs"
    # Not the same responses: an epoch in which most took longer than the handshake's round trip has no estimate.
    assert half["answered"] < half["epochs"]
    assert half["mean"] == pytest.approx(paired["mean"], rel=0.5)


# ---- both directions ----


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("both") / "both.pcap"
    write_simulation(simulate(Scenario(packets=8_000)), path)
    return path


def test_visible_responses_are_paired(both: Path) -> None:
    found = asked(both, "--interval", "10s", "--sla", "p99<5s")
    assert found["estimator"] == "pairs"
    assert found["sla"][0]["holds"] is True
    assert found["quantiles"]["0.5"] < found["mean"] < found["quantiles"]["0.99"]
    assert found["mean"] == pytest.approx(found["network"] + found["server"] + found["transfer"], rel=0.05)
    assert sum(group["samples"] for group in found["groups"]) == found["samples"]
    assert sum(part["samples"] for part in found["intervals"]) == found["samples"]
    assert set(by_key(found)) >= set(by_key(asked(both, "--method", "auto")))


def test_one_direction_can_be_chosen_in_a_capture_of_both(both: Path) -> None:
    found = asked(both, "--method", "auto")
    assert found["estimator"] == "pirate"
    assert found["clients"]["not_used"] > 0
    assert "one direction gives only the mean" in refused(both, "--method", "auto", "--sla", "p99<1s").replace(
        "\n", " "
    )


def test_times_start_at_the_first_packet_of_the_capture(tmp_path: Path) -> None:
    capture = write(tmp_path / "loop.pcap", frames(Loop(constant(5 * MS), rtt_ns=100_000), 1, 40_000))
    path = tmp_path / "epochs.parquet"
    asked(capture, "--epochs", path)
    assert 0 <= pl.read_parquet(path)["start_ns"].min() - BEGIN_NS < MS  # type: ignore[operator]
