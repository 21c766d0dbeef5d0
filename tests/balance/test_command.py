"""`wirelag balance` without its kernel program: settings, the loop, other balancers, displays."""

import json
import os
import pty
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from threading import Lock
from typing import Any

import jsonschema
import pytest

from lab.clients import LOG, Load, Task, read_log
from lab.network import POINT_ADDRESS, SERVICE_ADDRESS, Network
from lab.servers import Httpd
from tests.support import needs
from tests.support.balance_loop import NAMES, S, of, steered, well
from tests.support.balancer_packets import CONFIG, SERVICE, write
from tests.support.command import WIRELAG, wirelag
from tests.support.effort import ALONE
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S, until
from wirelag.balance.apply import Applier, whole
from wirelag.balance.metrics import Totals, exporter
from wirelag.balance.settings import Config
from wirelag.balance.simulation import Farm
from wirelag.balance.view import View, plain_lines
from wirelag.capture.neighbours import mac_of
from wirelag.ebpf.service import Service
from wirelag.errors import WirelagError

CAPTURE = ROOT / "tests" / "data" / "balance.pcap.gz"
SCHEMA = json.loads((ROOT / "docs" / "reference" / "schema" / "balance.json").read_text(encoding="utf-8"))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "lb.toml"
    path.write_text(CONFIG, encoding="utf-8")
    return path


def dry_run(config: Path, *arguments: object) -> list[dict[str, Any]]:
    done = wirelag("balance", "--config", config, "--dry-run", "--speed", "max", *arguments)
    return [json.loads(line) for line in done.stdout.splitlines()]


# ---- the command ----


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "interface is missing: name the one where packets to 192.0.2.10 arrive"),
        (("-r", CAPTURE), "a capture cannot be steered"),
        (("--dry-run", "--apply", "true"), "--dry-run applies nothing"),
        (("--dry-run", "-r", "nowhere.pcap"), "nowhere.pcap: there is no such file"),
        (("--dry-run", "-r", CAPTURE, "--speed", "fast"), "'fast' is not a speed"),
        (("--apply", "'", "-r", CAPTURE, "--speed", "max"), "No closing quotation"),
        (("--apply", "", "-r", CAPTURE, "--speed", "max"), "is empty: give a command"),
        (("--method", "gap"), "'gap' is not one of auto, modes"),
        (("--check", "--prometheus", "x"), "'x' is not an address"),
    ],
)
def test_errors_are_reported(config: Path, arguments: tuple[object, ...], says: str) -> None:
    done = wirelag("balance", "--config", config, *arguments, code=2)
    assert says in " ".join(re.sub("[│╭╮╰╯─]", "", done.stderr).split())
    assert not done.stdout


def test_a_check_reports_what_a_run_would_refuse(config: Path, tmp_path: Path) -> None:
    config.write_text(f'interface = "nowhere9"\npins = "{tmp_path}"\n{CONFIG}', encoding="utf-8")
    done = wirelag("balance", "--config", config, "--check", code=2)
    assert done.stdout.count("\n") == 8
    interface, pins = done.stderr.splitlines()
    assert interface.startswith(f"wirelag: {config}: nowhere9: there is no such interface")
    assert f"{tmp_path}: pins must be in bpffs" in pins


# ---- packets from another balancer ----


def test_what_can_fail_comes_before_packets_are_balanced(config: Path, tmp_path: Path) -> None:
    """There is no such interface, either: but that is found when the program is loaded, later."""
    text = config.read_text()
    config.write_text(f'interface = "no-such-interface"\naudit = "{tmp_path}/nowhere/audit.jsonl"\n{text}')
    said = wirelag("balance", "--config", config, "--check", code=2).stderr
    assert f"audit: there is no folder {tmp_path}/nowhere" in said
    assert "nowhere/audit.jsonl: cannot write the audit log" in wirelag("balance", "--config", config, code=2).stderr
    config.write_text(f'interface = "no-such-interface"\n{text}')
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert (
            f"{address}: cannot listen"
            in wirelag("balance", "--config", config, "--prometheus", address, code=2).stderr
        )


def test_the_capture_is_what_its_script_writes(tmp_path: Path) -> None:
    import gzip

    write(tmp_path / "again.pcap")
    assert gzip.decompress(CAPTURE.read_bytes()) == (tmp_path / "again.pcap").read_bytes()


def test_a_dry_run_prints_the_weights(config: Path) -> None:
    lines = dry_run(config, "-r", CAPTURE)
    validator = jsonschema.Draft202012Validator(SCHEMA)
    for line in lines:
        validator.validate(line)
        assert sum(one["weight"] for one in line["backends"]) == pytest.approx(1)
        assert not line["steered"]
        for one in line["backends"]:
            assert one["weight"] >= 0.008 - 1e-9
            assert (one["latency"] is None) == (one["latency_between"] is None)
    began = lines[0]["time"]
    slow = [line["time"] - began for line in lines if of(line, "web2")["standing"] == "slow"]
    assert 3 < slow[0] < 5
    assert slow[-1] < 11
    during = [of(line, "web2") for line in lines if 6 < line["time"] - began < 9]
    assert all(one["latency"] == pytest.approx(0.1, rel=0.15) for one in during)
    assert all(one["weight"] == pytest.approx(0.008) for one in during)
    assert of(lines[-1], "web2")["weight"] > 0.2
    assert lines[-1]["counters"]["unknown_backend"] == 0


def test_both_methods_find_the_slow_server(config: Path) -> None:
    lines = dry_run(config, "-r", CAPTURE, "--method", "modes")
    assert min(of(line, "web2")["weight"] for line in lines) == pytest.approx(0.008)


def test_the_paper_s_controller_decides_if_asked_to(config: Path) -> None:
    config.write_text('controller = "paper"\n' + config.read_text(encoding="utf-8"), encoding="utf-8")
    lines = dry_run(config, "-r", CAPTURE)
    reasons = {str(of(line, "web2")["reason"]) for line in lines}
    assert any(reason.startswith("slow, ") for reason in reasons)
    assert min(of(line, "web2")["weight"] for line in lines) < 0.1
    said = wirelag("balance", "--config", config, "--check").stdout
    assert "by auto, as the paper: a backend above 1.5 times" in said


def test_backends_are_distinguished_by_address(config: Path, tmp_path: Path) -> None:
    """As a balancer that translates addresses sends them; here one backend has the service's own address."""
    text = re.sub(r"mac = .*\n", "", CONFIG).replace(f'address = "{SERVICE}"', 'address = "192.0.2.99"')
    config.write_text(text.replace("10.0.0.11", SERVICE), encoding="utf-8")
    lines = dry_run(config, "-r", CAPTURE)
    assert of(lines[5], "web1")["samples"] > 50
    assert {of(line, "web3")["standing"] for line in lines} == {"unknown"}


def test_a_capture_from_the_wrong_side_is_reported(config: Path) -> None:
    config.write_text(re.sub(r"mac = .*\n", "", CONFIG), encoding="utf-8")
    done = wirelag("balance", "--config", config, "--dry-run", "-r", CAPTURE, "--speed", "max")
    assert "no packet to 192.0.2.10 has a backend's address or MAC address: capture where" in done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["counters"]["unknown_backend"] > 8000
    assert [one["weight"] for one in last["backends"]] == [0.25] * 4


def test_text_output(config: Path) -> None:
    done = wirelag("balance", "--config", config, "--dry-run", "--format", "table", "-r", CAPTURE, "--speed", "max")
    first = done.stdout.splitlines()[0]
    assert re.search(r"web2 \d\.\d%: slow, \d\.\d times the fastest \(.* against .*\); web1 .* takes over$", first)


def test_sighup_reads_the_file_again_and_sigterm_ends_it(config: Path) -> None:
    command = [*WIRELAG, "balance", "--config", str(config), "--dry-run", "-r", str(CAPTURE), "--speed", "1x"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stderr
        assert len(json.loads(process.stdout.readline())["backends"]) == 4
        config.write_text(CONFIG[: CONFIG.rindex("[[backends]]")], encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert "reloaded" in process.stderr.readline()
        while len([o for o in json.loads(process.stdout.readline())["backends"] if o["standing"] != "draining"]) == 4:
            pass
        config.write_text("service = 1", encoding="utf-8")
        process.send_signal(signal.SIGHUP)
        assert process.stderr.readline().rstrip().endswith("nothing changed")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0


# ---- another balancer ----


def test_weights_go_to_a_command_as_json(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "weights.jsonl"
    command = f"sh -c 'cat >> {out}; echo $WIRELAG_SERVICE $WIRELAG_PORT $WIRELAG_PROTOCOL >> {out}'"
    done = wirelag(
        "balance", "--config", config, "--apply", command, "-r", CAPTURE, "--speed", "16x", "--format", "jsonl"
    )
    lines = out.read_text(encoding="utf-8").splitlines()
    assert lines[1] == "192.0.2.10 80 tcp"
    said = [json.loads(line)["backends"] for line in lines[::2]]
    assert said[0] == [
        {"name": f"web{i}", "address": f"10.0.0.{10 + i}", "share": 0.25, "weight": 250} for i in range(1, 5)
    ]
    given = [[one["weight"] for one in backends] for backends in said]
    printed = [
        [round(1000 * one["weight"]) for one in json.loads(line)["backends"]] for line in done.stdout.splitlines()
    ]
    assert min(map(min, printed)) == 8
    assert given[-1] == printed[-1]
    rest = iter(printed)  # weights that are stale before the command is free again are left out
    assert all(weights in rest for weights in given)


def test_one_command_for_each_backend(config: Path, tmp_path: Path) -> None:
    out = tmp_path / "calls"
    script = tmp_path / "ipvsadm"
    script.write_text(f'#!/bin/sh\necho "$@" >> {out}\n', encoding="utf-8")
    script.chmod(0o755)
    backends = Config.load(str(config)).backends
    applier = Applier(f"{script} -e -r {{address}}:80 -w {{weight}}", Service(SERVICE, (80,)), print)
    applier.offer(backends, dict.fromkeys(NAMES, 0.25))
    applier.close()
    assert out.read_text(encoding="utf-8").splitlines() == [f"-e -r 10.0.0.{10 + i}:80 -w 250" for i in range(1, 5)]
    assert (applier.runs, applier.failures) == (4, 0)


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split()[2] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_command_that_takes_too_long_is_killed_with_its_children(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wirelag.balance.apply.TIMEOUT_S", 2.0)
    said, started = list[str](), tmp_path / "started"
    applier = Applier(f"sh -c 'sleep 600 & echo $! > {started}; wait'", Service(SERVICE, (80,)), said.append)
    applier.offer(Config.load(str(config)).backends, dict.fromkeys(NAMES, 0.25))
    applier.close()
    assert said == ["--apply: sh: took longer than 2 s and was killed; the next interval runs it again"]
    pid = started.read_text(encoding="utf-8").strip()
    until(lambda: not runs(pid), "the end of what it had started")


def test_a_command_that_fails_is_reported_once_and_run_again(config: Path) -> None:
    done = wirelag(
        "balance", "--config", config, "--apply", "sh -c 'echo no such service >&2; exit 3'", "-r", CAPTURE,
        "--speed", "16x",
    )  # fmt: skip
    assert done.stderr.splitlines() == [
        "wirelag balance: --apply: sh: exit code 3: no such service; the next interval runs it again"
    ]
    backends = Config.load(str(config)).backends
    lines: list[str] = []
    applier = Applier("/nowhere/at/all", Service(SERVICE, (80,)), lines.append)
    applier.offer(backends, dict.fromkeys(NAMES, 0.25))
    applier.close()
    assert applier.failures == 1
    assert lines == [
        "--apply: /nowhere/at/all: cannot run it (No such file or directory); the next interval runs it again"
    ]


def test_whole_weights() -> None:
    assert [whole(share) for share in (0, 1e-9, 0.008, 0.25, 1)] == [0, 1, 8, 250, 1000]


# ---- displays ----


def entries(config: Path) -> Iterator[Any]:
    dataplane, balancer = steered(config)
    for _ in range(4):
        yield balancer.step(dataplane.reading(web1=well(50), web2=well(), web3=well()))


def test_prometheus_reads_the_metrics(config: Path) -> None:
    pytest.importorskip("prometheus_client", reason=needs.LIVE)
    totals = Totals()
    for entry in entries(config):
        totals.add(entry)
    served = exporter("127.0.0.1:0", Lock(), [totals])
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{served.port}/metrics", timeout=PATIENCE_S) as answer:
            text = answer.read().decode()
    finally:
        served.close()
    numbers = dict(re.findall(r"^(wirelag_\w+(?:\{.*\})?) (\S+)$", text, re.MULTILINE))
    assert float(numbers['wirelag_balance_weight{backend="web1",service="service"}']) < 0.02
    assert float(numbers['wirelag_balance_latency_seconds{backend="web1",service="service"}']) == pytest.approx(0.05)
    assert 'wirelag_balance_latency_seconds{backend="web4",service="service"}' not in numbers
    assert float(numbers['wirelag_balance_unknown_intervals_total{backend="web4",service="service"}']) == 4
    assert float(numbers['wirelag_balance_requests_total{backend="web2",service="service"}']) == 800
    assert float(numbers['wirelag_balance_response_seconds_sum{backend="web2",service="service"}']) == pytest.approx(4)
    assert float(numbers['wirelag_balance_standing{backend="web1",service="service",standing="slow"}']) == 1


def test_the_view(config: Path) -> None:
    from rich.console import Console

    view = View(Config.load(str(config)))
    console = Console(width=120, file=StringIO(), record=True)
    console.print(view.draw())
    for entry in entries(config):
        view.add(entry)
    console.print(view.draw())
    text = console.export_text()
    assert "waiting for the first interval to end" in text
    assert re.search(r"web1 +0\.8% +50\.0 ms, .* slow", text)
    assert re.search(r"web4 .* unknown .* unknown", text)
    assert "slow, 10.0 times the fastest (50 ms against 5 ms)" in text
    assert plain_lines(entry) == []


def test_the_view_on_a_terminal(config: Path) -> None:
    main, side = pty.openpty()
    command = [*WIRELAG, "balance", "--config", str(config), "--apply", "true", "-r", str(CAPTURE), "--speed", "max"]
    with subprocess.Popen(command, stdout=side, stderr=subprocess.PIPE) as process:
        os.close(side)
        shown = b""
        try:
            while piece := os.read(main, 1 << 16):
                shown += piece
        except OSError:  # the other end is closed
            pass
        assert process.wait(PATIENCE_S) == 0
    os.close(main)
    assert "measures only" in shown.decode(errors="replace")  # a terminal that is not read in time loses bytes


# ---- live ----


@IN_LAB
def test_neighbours_are_found_or_requested() -> None:
    with Network("neighbours") as network:
        network.ip("point", "neigh del 10.5.0.11 dev eth0")
        with network.inside("point"):
            mac = mac_of("10.5.0.11", "eth0", PATIENCE_S)
            with pytest.raises(WirelagError, match="no reply on eth0"):
                mac_of("10.5.0.77", "eth0")
            with pytest.raises(WirelagError, match="there is no such interface"):
                mac_of("10.5.0.11", "eth9")
        assert f"link/ether {mac.hex(':')} " in network.run("server1", "ip", "link", "show", "eth0")


@IN_LAB
def test_a_dry_run_at_an_interface(tmp_path: Path) -> None:
    config = tmp_path / "lb.toml"
    config.write_text(
        f'interface = "eth0"\n[service]\naddress = "{SERVICE_ADDRESS}"\nports = [80]\n'
        f'[[backends]]\nname = "one"\naddress = "10.5.0.11"\n[[backends]]\nname = "two"\naddress = "{POINT_ADDRESS}"\n'
        'mac = "02:00:00:00:00:77"\n',
        encoding="utf-8",
    )
    with Network("balance") as network:
        command = network.command("point", [*WIRELAG, "balance", "--config", str(config), "--dry-run"])
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout
            process.stdout.readline()  # it listens
            Httpd(service="constant:5000").start(network, tmp_path, 1)
            Load().start(network, Task(SERVICE_ADDRESS, Httpd.port, 8, 1, 1, tmp_path)).finish()
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, said
    lines = [json.loads(line) for line in out.splitlines()]
    samples = sum(of(line, "one")["samples"] for line in lines)
    truth = read_log(tmp_path / LOG)
    took_s = (truth["answered_ns"] - truth["asked_ns"]) / S
    known = [of(line, "one")["latency"] for line in lines if of(line, "one")["latency"] is not None]
    assert samples > 0
    assert took_s.min() <= known[-1] <= took_s.max()
    if ALONE:
        assert samples > 0.7 * len(truth)
        assert known[-1] == pytest.approx(took_s.mean(), rel=0.15)
    assert {of(line, "two")["latency"] for line in lines} == {None}


def test_equal_seeds_give_equal_farms() -> None:
    from wirelag.balance.simulation import simulate

    farm = Farm(clients=8, seconds=3)
    assert simulate(farm, "latency").latencies == simulate(farm, "latency").latencies
