"""`wirelag watch`: replays equal `rtt` and `response`; live with real servers; an orderly end."""

import json
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import numpy.typing as npt
import pytest

from lab.clients import LOG, Load, Task, read_log
from lab.network import SERVICE_ADDRESS, Network
from lab.processes import Process
from lab.servers import Httpd
from tests.support import needs
from tests.support.command import WIRELAG, wirelag
from tests.support.effort import ALONE
from tests.support.in_kernel import IN_KERNEL
from tests.support.in_lab import IN_LAB
from tests.support.places import DATA, SCHEMAS
from tests.support.waiting import PATIENCE_S
from tests.support.watching import Watching, lines_of
from wirelag.capture.files import Capture
from wirelag.capture.live import Replay
from wirelag.measure.groups import Groups
from wirelag.measure.live import ENTRY_BYTES, GROUP_BYTES, RoundTrips, watch
from wirelag.measure.recent import SHOWN_GROUPS, Recent
from wirelag.measure.rtt import GROUPS, RttSettings
from wirelag.packets.filters import Filter
from wirelag.render.prometheus import BOUNDS_S, buckets, parse_address
from wirelag.render.watch import View
from wirelag.stats.distribution import Distribution

SCHEMA = SCHEMAS / "watch.json"
S = 10**9


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("watch") / "capture.pcap"
    wirelag("simulate", "--packets", "20000", "--seed", "1", "-o", str(path), "--quiet")
    return str(path)


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("watch") as network:
        yield network


def replayed(capture: str, *arguments: str) -> list[dict[str, Any]]:
    return lines_of(wirelag("watch", "-r", capture, "--speed", "max", "--format", "jsonl", *arguments).stdout)


def measured(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wirelag(*arguments, "--format", "json").stdout)
    return found


SAME = ("estimator", "quantity", "packets", "samples", "mean", "std", "min", "max", "quantiles", "ci95")


@pytest.mark.every(2)
@pytest.mark.parametrize("what", [["rtt"], ["rtt", "--memory", "8KiB"], ["response"], ["response", "--method", "auto"]])
def test_lines_follow_their_schema(capture: str, what: list[str]) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))
    lines = replayed(capture, *what, "--interval", "20s", "--by", "server")
    for line in lines:
        validator.validate(line)
        for name in ("command", "samples", "dropped", "capture", "groups"):
            assert not validator.is_valid({key: value for key, value in line.items() if key != name}), name
    assert not validator.is_valid(lines[0] | {"final": True})


@pytest.mark.parametrize("memory", [(), ("--memory", "64KiB")])
def test_replay_equals_rtt(capture: str, memory: tuple[str, ...]) -> None:
    *intervals, final = replayed(capture, "rtt", "--interval", "10s", *memory)
    expected = measured("rtt", capture, "--interval", "10s", *memory)
    assert {name: final[name] for name in SAME} == {name: expected[name] for name in SAME}
    assert final["final"] is True
    assert len(intervals) == len(expected["intervals"])
    for mine, theirs in zip(intervals, expected["intervals"], strict=True):
        assert {name: mine[name] for name in SAME[:-1]} == {name: theirs[name] for name in SAME[:-1]}
        # A capture also shows, as a whole, how slowly delays change: a row may be too short for it, or less sure.
        assert not theirs["ci95"] or theirs["ci95"].keys() == mine["ci95"].keys()
        for figure, (low, high) in theirs["ci95"].items():
            mine_low, mine_high = mine["ci95"][figure]
            assert low <= mine_low * (1 + 1e-12)  # rounding
            assert high >= mine_high * (1 - 1e-12)
    # The first and the last interval were not watched completely.
    assert [line["start"] for line in intervals[1:]] == [line["start"] for line in expected["intervals"][1:]]
    assert intervals[0]["start"] > expected["intervals"][0]["start"]
    assert intervals[-1]["end"] < expected["intervals"][-1]["end"]


def test_replay_equals_response(capture: str) -> None:
    *intervals, final = replayed(capture, "response", "--interval", "10s")
    expected = measured("response", capture)
    for name in ("samples", "mean", "std", "min", "max", "quantiles", "ci95", "estimator"):
        assert final[name] == expected[name], name
    # Exchanges whose server was not silent for long before the end are in no interval.
    assert 0.98 * expected["samples"] <= sum(line["samples"] for line in intervals) <= expected["samples"]


def test_client_packets_alone() -> None:
    """Epochs of flows end later than their packets, so intervals differ; the sum does not."""
    capture = str(DATA / "response.pcap.gz")
    *_, final = replayed(capture, "response", "--interval", "2s", "--method", "auto")
    expected = measured("response", capture, "--method", "auto")
    assert final["estimator"] == "pirate"
    assert (final["samples"], final["mean"]) == (expected["samples"], pytest.approx(expected["mean"], rel=1e-12))
    low, high = final["ci95"].get("mean", (0, math.inf))  # few flows: no confidence interval
    assert low < final["mean"] < high
    assert sum(final["abstained"].values()) == sum(expected["abstained"].values())


def _of_servers(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Groups with figures of the leg to the server; one that has none shows the other leg."""
    return [group for group in line["groups"] if group.get("leg", "server") == "server"]


@pytest.mark.every(2)
@pytest.mark.parametrize("quantity", ["rtt", "response"])
def test_groups_add_up(capture: str, quantity: str) -> None:
    *intervals, final = replayed(capture, quantity, "--interval", "10s", "--by", "server")
    expected = {group["key"]: group for group in measured(quantity, capture, "--by", "server")["groups"]}
    assert {group["key"]: group["samples"] for group in _of_servers(final) if group["samples"]} == {
        key: group["samples"] for key, group in expected.items() if group["samples"]
    }
    for line in (*intervals, final):
        assert sum(group["samples"] for group in _of_servers(line)) == line["samples"]
        # How delays of a group vary is not kept, and independent they are not.
        assert quantity == "response" or not any(group["ci95"] for group in line["groups"])
    bounded = replayed(capture, quantity, "--interval", "10s", "--by", "flow", "--group-memory", "1MiB")
    each = GROUP_BYTES if quantity == "rtt" else ENTRY_BYTES
    assert max(len(line["groups"]) for line in bounded[:-1]) <= (1 << 18) // each + 1
    (other,) = [group for group in bounded[-1]["groups"] if group["key"] == "other"]
    assert other["samples"]
    assert sum(group["samples"] for group in bounded[-1]["groups"]) == final["samples"]


@pytest.mark.acceptance
def test_the_final_table_shows_the_slowest_groups(capture: str) -> None:
    told = wirelag("watch", "-r", capture, "--speed", "max", "rtt", "--by", "server").stdout
    groups = replayed(capture, "rtt", "--by", "server")[-1]["groups"]
    assert [group["key"] in told for group in groups[:21]] == [True] * 20 + [False]
    assert f"and {len(groups) - 20} more groups; --format jsonl lists all" in told
    assert "\nby server, largest mean to the server first" in told
    assert {group["leg"] for group in groups} == {"server"}
    words = ("watch", "-r", capture, "--speed", "max")
    assert "\nby client, largest mean to the client first" in wirelag(*words, "rtt", "--by", "client").stdout
    assert "\nby client, largest mean first" in wirelag(*words, "response", "--by", "client").stdout


def test_groups_with_one_leg_and_intervals_without_a_method(shared_data: Path) -> None:
    """DNS has no delays to its client: groups by client had no samples. An interval without epochs had a method."""
    capture = shared_data / "hidden/PcapPlusPlus/DnsPackets.pcap"
    words = "watch", "-r", capture, "--speed", "max", "--interval", "60s", "--by", "client"
    assert re.search(r"^10\.0\.0\.1, to the server +209 ", wirelag(*words, "rtt").stdout, re.MULTILINE)
    *intervals, final = lines_of(wirelag(*words, "rtt", "--format", "jsonl").stdout)
    assert [(group["leg"], group["samples"]) for group in final["groups"]] == [("server", 209)]
    assert sum(group["samples"] for line in intervals for group in line["groups"]) == 209
    told = wirelag(*words, "response").stdout
    assert "pairs" in told
    assert "pirate" not in told
    assert not any("estimated" in line for line in lines_of(wirelag(*words, "response", "--format", "jsonl").stdout))


def test_only_packets_of_the_time_asked_for_count(capture: str) -> None:
    """A batch that was read has packets from later, too."""
    for length in ("0.5s", "12s", "10m"):
        words = ("rtt", "--interval", "1s", "--for", length)
        *intervals, final = replayed(capture, *words)
        cut = measured("rtt", capture, "--to", f"+{length}")
        assert (final["samples"], final["mean"]) == (cut["samples"], cut["mean"])
        held = sum(map(len, Capture([capture], filter=Filter.parse(end=f"+{length}"))))
        assert final["packets"] == sum(part["packets"] for part in intervals) == held
        counted = f"{final['packets']:,} packets; 0 dropped"
        assert counted in wirelag("watch", "-r", capture, "--speed", "max", *words).stdout


def test_the_same_packets_are_not_replayed_twice(capture: str, tmp_path: Path) -> None:
    copy = tmp_path / "copy.pcap"
    copy.write_bytes(Path(capture).read_bytes())
    words = ("watch", "-r", capture, "-r", copy, "--speed", "max", "rtt")
    assert "hold the same packets" in wirelag(*words, code=2).stderr
    assert "40,000 packets" in wirelag(*words, "--force").stdout


def test_speed(capture: str) -> None:
    began = time.monotonic()
    done = wirelag("watch", "-r", capture, "--speed", "100x", "rtt", "--interval", "10s")
    assert time.monotonic() - began > 0.3
    assert "20,000 packets; 0 dropped by the capture" in done.stdout
    done = wirelag("watch", "-r", capture, "--for", "300ms", "rtt", "--interval", "100ms", "--format", "jsonl")
    lines = lines_of(done.stdout)
    assert lines[-1]["final"]
    watched_s = lines[-2]["end"] - lines[0]["start"]
    assert watched_s >= 0.2  # the last interval may have no packets
    if ALONE:
        assert watched_s < 0.6


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rtt"], "name one interface"),
        (["eth0", "ping"], "'ping' is not one of rtt, response"),
        (["eth0", "-r", "x.pcap", "rtt"], "leave the interface out"),
        (["-r", "x.pcap", "rtt", "--speed", "fast"], "'fast' is not a speed"),
        (["-r", "x.pcap", "rtt"], "x.pcap: "),
        (["eth0", "rtt", "--interval", "1ms"], "must be at least 100ms"),
        (["eth0", "response", "--by", "port"], "'port' is not one of server, flow, client"),
        (["eth0", "rtt", "--method", "ack"], "applies to response only"),
        (["eth0", "response", "--memory", "1KiB"], "applies to rtt only"),
        (["-r", "CAPTURE", "rtt", "--filter", "tcp prot 9"], "write it as for tcpdump"),
        (["-r", "x.pcap", "rtt", "--direction", "in"], "needs an interface"),
        (["-r", "x.pcap", "rtt", "--ring", "1MiB"], "needs an interface"),
        (["eth0", "rtt", "--speed", "2x"], "needs a capture"),
        (["-r", "CAPTURE", "rtt", "--prometheus", "nowhere"], "'nowhere' is not an address"),
        (["nosuchinterface", "rtt"], "nosuchinterface: "),
    ],
)
def test_errors_are_reported(capture: str, arguments: list[str], says: str) -> None:
    done = wirelag("watch", *(capture if word == "CAPTURE" else word for word in arguments), code=2)
    assert says in " ".join(re.sub("[│╭╮╰╯─]", "", done.stderr).split())
    assert not done.stdout


# ---- live ----


def load(network: Network, folder: Path, seconds: int = 3) -> Process:
    """A server that takes 5 ms, and clients that log latencies."""
    Httpd(service="constant:5000").start(network, folder, 1)
    return Load(in_flight=1).start(network, Task(SERVICE_ADDRESS, Httpd.port, 8, seconds, 1, folder))


def took_s(folder: Path) -> npt.NDArray[np.float64]:
    """The client's logged latency of each request."""
    entries = read_log(folder / LOG)
    found: npt.NDArray[np.float64] = (entries["answered_ns"] - entries["asked_ns"]) / S
    return found


@IN_LAB
def test_responses_equal_the_client_s_log(network: Network, tmp_path: Path) -> None:
    options = ("--format", "jsonl", "--interval", "500ms", "--by", "server")
    watching = Watching(network, "client", "eth0", "response", *options)
    first = watching.line()  # it listens
    client = load(network, tmp_path)
    client.finish()
    lines, _ = watching.end()
    truth, final = took_s(tmp_path), lines[-1]
    assert final["final"]
    assert final["estimator"] == "pairs"
    assert final["dropped"] == 0
    assert final["samples"] == pytest.approx(len(truth), rel=0.02)
    assert 0.005 <= final["mean"] <= truth.mean()  # the server takes 5 ms; the client sees packets last
    if ALONE:
        assert final["mean"] == pytest.approx(truth.mean(), rel=0.1)
    assert final["groups"][0]["key"] == f"{SERVICE_ADDRESS}:80"
    starts = [line["start"] for line in lines[:-1]]
    apart = {round(after - before, 3) for before, after in pairwise(starts[1:])}
    assert all(seconds > 0 and seconds % 0.5 == 0 for seconds in apart)
    assert sum(line["packets"] for line in lines[:-1]) == final["packets"] - first["packets"]
    if ALONE:
        assert apart == {0.5}  # a watch that waits for a processor skips intervals without packets


@IN_LAB
def test_client_packets_at_the_vantage_point(network: Network, tmp_path: Path) -> None:
    options = ("--direction", "in", "--format", "jsonl", "--interval", "500ms")
    watching = Watching(network, "point", "eth0", "response", *options)
    watching.line()
    client = load(network, tmp_path)
    client.finish()
    lines, _ = watching.end(signal.SIGTERM)
    assert lines[-1]["estimator"] == "pirate"
    truth = took_s(tmp_path)
    assert truth.min() < lines[-1]["mean"] < truth.max()
    if ALONE:
        assert lines[-1]["mean"] == pytest.approx(truth.mean(), rel=0.1)


@pytest.mark.every(2)
@IN_LAB
@pytest.mark.parametrize("where", [(), pytest.param(("--in-kernel",), marks=IN_KERNEL)], ids=("copies", "in-kernel"))
def test_an_interface_that_goes_down_keeps_the_results(
    network: Network, tmp_path: Path, where: tuple[str, ...]
) -> None:
    watching = Watching(network, "client", "eth0", "rtt", "--format", "jsonl", "--interval", "200ms", *where)
    watching.line()
    client = load(network, tmp_path, seconds=1)
    client.finish()
    network.ip("client", "link set eth0 down")
    lines, said = watching.end(0, code=2)
    assert lines[-1]["final"]
    assert lines[-1]["samples"] > (100 if ALONE else 10)
    words = "went down" if where else "went down or has gone"
    assert said == f"wirelag: eth0: the interface {words}; nothing more comes from it\n"


@IN_KERNEL
def test_an_unknown_interface_is_one_line() -> None:
    (line,) = wirelag("watch", "nowhere9", "rtt", "--in-kernel", code=2).stderr.splitlines()
    assert line.startswith("wirelag: nowhere9: there is no such interface")


def test_an_option_that_the_kernel_lacks_names_what_to_use_instead() -> None:
    (line,) = wirelag("watch", "lo", "response", "--in-kernel", "--port", "80", code=2).stderr.splitlines()
    said = "--port: needs the packets themselves: name servers with --server NETWORK:PORT, or leave out --in-kernel"
    assert line.startswith(f"wirelag: {said}")


@IN_LAB
def test_prometheus_reads_the_metrics(network: Network, tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason=needs.LIVE)
    options = ("--format", "jsonl", "--interval", "200ms", "--by", "server", "--prometheus", "9464")
    watching = Watching(network, "client", "eth0", "rtt", *options)
    watching.line()
    client = load(network, tmp_path, seconds=1)
    client.finish()
    ended = time.time()
    while (line := watching.line())["packets"] or line["start"] < ended:
        pass  # until no packet comes and all are served
    text = network.run("client", sys.executable, "-c", SCRAPE)
    lines, _ = watching.end()
    numbers = dict(re.findall(r"^(\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE))
    for leg in ("server", "client"):
        where = f'{{interface="eth0",leg="{leg}"}}'
        counts = [
            float(value)
            for name, value in numbers.items()
            if name.startswith("wirelag_round_trip_seconds_bucket") and f'leg="{leg}"' in name
        ]
        assert counts == sorted(counts)
        assert counts[-1] == float(numbers[f"wirelag_round_trip_seconds_count{where}"])
        assert counts[-1] == lines[-1]["legs"][leg]["samples"]
        total = float(numbers[f"wirelag_round_trip_seconds_sum{where}"])
        assert total == pytest.approx(lines[-1]["legs"][leg]["mean"] * counts[-1], rel=1e-6)
    assert numbers['wirelag_capture_dropped_packets_total{interface="eth0"}'] == "0.0"
    assert float(numbers['wirelag_capture_packets_total{interface="eth0"}']) == lines[-1]["packets"]
    group = f'wirelag_round_trip_group_seconds_count{{group="{SERVICE_ADDRESS}",interface="eth0",leg="server"}}'
    assert float(numbers[group]) > 0


SCRAPE = "import urllib.request; print(urllib.request.urlopen('http://127.0.0.1:9464/metrics').read().decode())"


def on_a_terminal(command: list[str], until: str, **environment: str) -> tuple[str, int]:
    """The output of a program on a terminal of 120 columns; sends Ctrl-C once it shows `until`."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"COLUMNS": "120", "LINES": "40", "TERM": "xterm-256color"} | environment
        os.execvp(command[0], command)
    shown, pressed, deadline = "", False, time.monotonic() + 60
    while time.monotonic() < deadline and select.select([terminal], [], [], 60)[0]:
        try:
            data = os.read(terminal, 65536)
        except OSError:
            break
        if not data:
            break
        shown += data.decode(errors="replace")
        if not pressed and until in shown:
            os.write(terminal, b"\x03")
            pressed = True
    os.close(terminal)
    return shown, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_view(capture: str) -> None:
    """Until all of it has been drawn; then Ctrl-C stops and prints a final report.

    It ended with a fault at the first interval of `rtt`, and only a test that runs rarely would have seen it.
    """
    command = [*WIRELAG, "watch", "-r", capture, "rtt", "--speed", "20x", "--interval", "2s", "--by", "server"]
    shown, code = on_a_terminal(command, "in the last 5 intervals")
    assert code == 0
    _, _, final = shown.rpartition("Ctrl-C stops and prints a final report")
    spans, rest = ("now", "last minute", "last 10 minutes"), ("dropped by the capture", "of memory")
    for words in (*spans, *rest, "by server, largest mean to the server in the last minute first"):
        assert words in shown, words
    assert "to the server" in final
    assert "0 dropped by the capture" in final


@pytest.mark.parametrize("quantity", ["rtt", "response"])
def test_the_view_on_a_terminal_that_is_not_utf_8(capture: str, quantity: str) -> None:
    """Its pictures are in ASCII, as in the final report; before, it ended with a fault."""
    command = [*WIRELAG, "watch", "-r", capture, quantity, "--speed", "20x", "--interval", "2s", "--by", "server"]
    shown, code = on_a_terminal(command, "in the last 2 intervals", PYTHONIOENCODING="ascii")
    assert code == 0
    assert shown.isascii()
    live, _, final = shown.rpartition("Ctrl-C stops and prints a final report")
    for text in (live, final):
        assert re.search(r" s  +[.:=+*%#-]{3,}|ms  +[.:=+*%#-]{3,}", text)


def test_the_view_shows_each_leg_of_the_last_minutes(capture: str) -> None:
    from rich.console import Console

    source = Replay([capture], speed=None)
    measure = RoundTrips(RttSettings().estimator().meter("tap"), "match", Groups("server", GROUPS))
    view = View(source, "round_trip", recent := Recent(measure, "server"), "server")
    for part, _ in watch(source, measure, 10 * S):
        view.add(part)
    expected = measured("rtt", capture)["legs"]
    last_ten = {entry.key: entry for entry in recent.entries() if entry.key.startswith("last 10 minutes")}
    for leg, known in expected.items():  # all of the capture
        found = last_ten[f"last 10 minutes, to the {leg}"].report.to_json("watch")
        assert {name: found[name] for name in ("samples", "mean", "quantiles", "ci95")} == {
            name: known[name] for name in ("samples", "mean", "quantiles", "ci95")
        }
    lines = str(view.draw(Console(width=80))).splitlines()
    rows = [line for line in lines if re.search(r"\d (us|ms)", line) and " intervals" not in line]
    assert len(rows) == 6 + SHOWN_GROUPS
    assert all(len(line) <= 80 and len(re.findall(r"[\d.]+ [um]s\b", line)) >= 3 for line in rows)
    assert not any("left out" in line for line in lines), "a live view cannot be piped elsewhere"


@IN_LAB
def test_a_closed_pipe(network: Network) -> None:
    command = network.command("client", [*WIRELAG, "watch", "eth0", "rtt", "--format", "jsonl", "--interval", "100ms"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout
        assert process.stderr
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr.read() == b""


# ---- parts ----


def test_buckets_count_values_below_their_bound() -> None:
    delays = Distribution()
    delays.add(np.array([5_000, 90_000, 900_000, 40_000_000, 20 * S]))
    found = dict(buckets(delays))
    assert [found[name] for name in ("1e-05", "0.0001", "0.001", "0.05", "10", "+Inf")] == [1, 2, 3, 4, 4, 5]
    assert len(found) == len(BOUNDS_S) + 1
    assert buckets(delays.compact()) == buckets(delays)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("9464", ("127.0.0.1", 9464)), (":1", ("127.0.0.1", 1)), ("[::1]:80", ("::1", 80)), ("0.0.0.0:9", ("0.0.0.0", 9))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected
