"""Deployment: hardened units that work, valid settings, and the lab of the whole system."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.command import wirelag
from tests.support.doc_pages import blocks
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.private_systemd import booted, lacking
from tests.support.waiting import PATIENCE_S

DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))
MOST_EXPOSED = {
    "wirelag-agent@.service": 2.5,
    "wirelag-balance@.service": 3.5,
    "wirelag-collect.service": 1.5,
    "wirelag-watch@.service": 2.0,
}
TOKEN = "a-token-that-is-long-enough"
IN_SYSTEMD = pytest.mark.skipif(bool(lacking()), reason=lacking() or "systemd can run")
NET_RAW, BIND = 1 << 13, 1 << 10
EDITED = "[Service]\nCapabilityBoundingSet=CAP_NET_BIND_SERVICE\nAmbientCapabilities=CAP_NET_BIND_SERVICE\n"


# ---- settings ----


def test_the_agent_s_settings_are_valid(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    certificate = tmp_path / "cert.pem"
    _certificate(tmp_path)
    settings = (DEPLOY / "agent.toml").read_text().replace('"eth0"', '"lo"')
    (tmp_path / "edge1.toml").write_text(settings.replace("/etc/wirelag/cert.pem", str(certificate)))
    done = wirelag("agent", str(tmp_path / "edge1.toml"), "--token-file", str(tmp_path / "token"), "--check", code=2)
    assert "https://collector.example:8321: unknown host" in done.stderr  # all else is right
    assert "edge1: captures on lo, packets that match 'not port 8321'" in done.stdout
    assert "segment edge2>edge1: packets 10.2.0.0/16>10.1.0.0/16" in done.stdout
    assert "to https://collector.example:8321, with a token" in done.stdout


def test_the_collector_s_settings_are_valid(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    _certificate(tmp_path)
    (tmp_path / "collector.toml").write_text(
        (DEPLOY / "collector.toml").read_text().replace("0.0.0.0:8321", "127.0.0.1:0")
    )
    files = ["--token-file", "tokens", "--certificate", "cert.pem", "--key", "key.pem", "--store", "results.db"]
    done = wirelag("collect", "collector.toml", *files, "--check", cwd=tmp_path)
    assert "listens on https://127.0.0.1:0/ for holders of one of 1 tokens" in done.stdout
    assert "  edge2>edge1: from edge2 to edge1" in done.stdout


def _certificate(folder: Path) -> None:
    if needs.absent("openssl"):
        pytest.skip(needs.absent("openssl"))
    made = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(["openssl", *made.split(), *names], cwd=folder, check=True, capture_output=True)


# ---- units ----


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: str(unit.name))
def test_units_are_valid_and_hardened(unit: Path, tool: Callable[[str], str], tmp_path: Path) -> None:
    analyze = tool("systemd-analyze")
    copy = tmp_path / unit.name
    copy.write_text(unit.read_text().replace("/opt/wirelag/bin/wirelag", sys.executable))
    named = copy.rename(tmp_path / unit.name.replace("@", "@eth0"))
    done = subprocess.run([analyze, "verify", "--man=no", str(named)], capture_output=True, text=True)
    assert [line for line in done.stderr.splitlines() if "wirelag" in line] == []
    done = subprocess.run(
        [analyze, "security", "--offline=true", "--json=short", str(named)], capture_output=True, text=True
    )
    exposed = [one for one in json.loads(done.stdout) if one["exposure"] is not None]
    assert exposed
    done = subprocess.run([analyze, "security", "--offline=true", str(named)], capture_output=True, text=True)
    level = re.search(r"exposure level for \S+: ([\d.]+)", done.stdout)
    assert level is not None, done.stdout + done.stderr
    assert float(level[1]) <= MOST_EXPOSED[unit.name]


@IN_SYSTEMD
@pytest.mark.acceptance
def test_units_work_as_shipped(tmp_path: Path) -> None:
    """A real systemd with all restrictions: the collector, an agent and a watch on loopback, over HTTPS."""
    _certificate(tmp_path)
    agent, collect, watch = "wirelag-agent@edge1.service", "wirelag-collect.service", "wirelag-watch@lo.service"
    units = {
        agent: DEPLOY / "wirelag-agent@.service",
        collect: DEPLOY / "wirelag-collect.service",
        watch: DEPLOY / "wirelag-watch@.service",
    }
    settings = """point = "edge1"
interface = "lo"
status = "1s"
receive_references = true
[capture]
promiscuous = true
[collector]
url = "https://localhost:8321"
ca = "/etc/wirelag/cert.pem"
"""
    files = {
        "/etc/wirelag/edge1.toml": (settings, 0o644),
        "/etc/wirelag/collector.toml": ('listen = "127.0.0.1:8321"\n', 0o644),
        "/etc/wirelag/token": (TOKEN, 0o600),
        "/etc/wirelag/tokens": (TOKEN, 0o600),
        "/etc/wirelag/cert.pem": ((tmp_path / "cert.pem").read_text(), 0o644),
        "/etc/wirelag/key.pem": ((tmp_path / "key.pem").read_text(), 0o600),
        f"/etc/systemd/system/{agent}.d/edited.conf": (EDITED, 0o644),
        "/etc/wirelag/watch-lo.env": ("WATCH=rtt --by server\nADDRESS=127.0.0.1:9465\n", 0o644),
    }
    with booted(tmp_path, units, files) as system:

        def agents() -> list[dict[str, Any]]:
            text = system.python(_ask("https://localhost:8321/api/v1/agents", tmp_path / "cert.pem"))
            found: list[dict[str, Any]] = json.loads(text)["agents"] if text else []
            return found

        def measures() -> bool:
            return any(one["packets"] > 0 and one["says"] for one in agents())

        system.until(measures, units)
        (one,) = agents()
        assert (one["point"], one["alive"]) == ("edge1", True)
        assert one["clock"]["source"] in ("adjtimex", "chrony", "ptp")  # it may read the state of the clock
        metrics = system.python(_ask("http://127.0.0.1:9465/metrics"))
        assert 'wirelag_capture_packets_total{interface="lo"}' in metrics
        for unit, allowed in ((agent, NET_RAW | BIND), (collect, 0), (watch, NET_RAW)):
            main = system.show(unit, "MainPID")
            about = system.run("cat", f"/proc/{main}/status")
            found = dict(line.split(":\t") for line in about.splitlines() if ":\t" in line)
            assert int(found["CapBnd"], 16) == allowed
            held = system.run("sh", "-c", f"grep -H -e CapEff -e Name /proc/{main}/task/*/status")
            assert {int(line.split()[1], 16) for line in held.splitlines() if "CapEff" in line} == {0}, unit + held
            assert (found["NoNewPrivs"], found["Seccomp"]) == ("1", "2")
            assert 61184 <= int(found["Uid"].split()[0]) < 65520  # a dynamic user for this service
            assert system.show(unit, "NRestarts") == "0", system.said(unit)
        # A killed service restarts and continues.
        system.run("systemctl", "kill", "--signal=KILL", agent)
        before = one["says"]["began_ns"]
        system.until(lambda: any(one["says"].get("began_ns", before) != before for one in agents()), units)
        for unit in (agent, watch, collect):
            system.run("systemctl", "stop", unit)
            assert system.show(unit, "Result") == "success", system.said(unit)
            said = system.said(unit)
            assert "Traceback" not in said
            assert "internal error" not in said
            assert TOKEN not in said
        assert "-rw-------" in system.run("ls", "-l", "/var/lib/wirelag/results.db")
    assert not Path("/var/lib/wirelag").exists()


@IN_SYSTEMD
@pytest.mark.acceptance
def test_the_guide_leads_to_a_working_system(tmp_path: Path, tool: Callable[[str], str]) -> None:
    """Run the guide's commands for hosts (sh) in order; the others (bash) need registries or Grafana."""
    tool("curl")
    tool("openssl")
    text = (ROOT / "docs" / "guides" / "live-in-ten-minutes.md").read_text()
    steps = ["\n".join(block.lines) for block in blocks(text) if block.language == "sh"]
    assert len(steps) == 8
    script = "\n".join(["set -eu", "export PATH=/opt/wirelag/bin:$PATH", "cd /srv/wirelag", *steps, "echo; echo done"])
    hosts = Path("/etc/hosts").read_text() + "\n127.0.0.1 collector.example\n"
    files = {"/srv/guide.sh": (script, 0o755), "/etc/hosts": (hosts, 0o644), "/etc/wirelag/.keep": ("", 0o644)}
    for path in DEPLOY.iterdir():  # the only interface here is loopback
        files[f"/srv/wirelag/deploy/{path.name}"] = (path.read_text().replace('"eth0"', '"lo"'), 0o644)
    with booted(tmp_path, {}, files) as system:
        said = system.run("bash", "/srv/guide.sh")
        assert "\ndone\n" in said, said
        assert '"version"' in said
        assert "edge1: captures on lo" in said
        assert "wirelag_capture_packets_total" in said
        token = system.run("sh", "-c", "sed -n 's/ *$//; 1p' /etc/wirelag/tokens").strip()
        ask = (
            f"curl -s --cacert /etc/wirelag/cert.pem -H 'Authorization: Bearer {token}' https://collector.example:8321"
        )

        def heard() -> bool:
            answer = system.run("sh", "-c", f"{ask}/metrics")
            return 'wirelag_agent_last_interval_timestamp_seconds{point="edge1"}' in answer

        system.until(heard, ())
        about = system.run("sh", "-c", "cat /proc/$(systemctl show --value -p MainPID wirelag-agent@edge1)/status")
        assert f"CapBnd:\t{NET_RAW:016x}" in about  # the only capability
        assert "the token is missing or wrong" in system.run("sh", "-c", f"{ask.replace(token, token[::-1])}/metrics")


def _ask(url: str, certificate: Path | None = None) -> str:
    """A program that prints the state."""
    context = f"ssl.create_default_context(cafile={str(certificate)!r})" if certificate else "None"
    request = f"urllib.request.Request({url!r}, headers={{'Authorization': 'Bearer {TOKEN}'}})"
    opened = f"urllib.request.urlopen({request}, context={context}, timeout=120)"
    return f"import ssl, urllib.request; print({opened}.read().decode())"


# ---- the lab of the whole system ----


@pytest.mark.acceptance
@IN_LAB
def test_the_whole_system_on_one_machine() -> None:
    """Wait for results in both directions, then press Ctrl-C: nothing is left."""
    before = _namespaces()
    command = [sys.executable, "-m", "lab", "system", "--port", "0", "--seconds", "600"]
    said_to = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    with subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **said_to) as process:
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if line.count(" ms, loss ") == 2 and "unknown" not in line:
                os.killpg(process.pid, signal.SIGINT)  # as a terminal does
                break
        else:
            pytest.fail("".join(said))
        rest = process.stdout.read()
        assert process.wait(PATIENCE_S) == 0, rest
    text = "".join(said)
    assert re.search(r"page +http://127\.0\.0\.1:\d+/", text)
    assert re.search(r"token +\S{20,}", text)
    there, back = (float(found) for found in re.findall(r"(?:client>server|server>client) ([\d.]+) ms", said[-1]))
    assert there > 4.5  # the wire's delay, and that of this machine
    assert back > 6.0
    assert "client>server" in rest
    assert "Traceback" not in rest
    made = {name for name in _namespaces() - before if name.split("-")[1].startswith(f"{process.pid}s")}
    assert made == set()


def _namespaces() -> set[str]:
    folder = Path("/run/netns")
    return set(os.listdir(folder)) if folder.exists() else set()
