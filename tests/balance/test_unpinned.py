"""Machines without bpffs: one line names both solutions, and a balancer without pins ends with its process."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.balance import EQUAL, Site, site
from tests.support.balanced_site import LONG_S, SHORT_LIVES, stop_client, traffic
from tests.support.balancer_packets import CONFIG
from tests.support.command import WIRELAG, wirelag
from tests.support.in_lab import IN_LAB
from tests.support.waiting import PATIENCE_S, until
from wirelag.balance.settings import Config
from wirelag.errors import WirelagError

UNMOUNT = 'while mountpoint -q /sys/fs/bpf; do umount /sys/fs/bpf; done; exec "$@"'
WITHOUT_BPFFS = ("unshare", "--mount", "sh", "-c", UNMOUNT, "sh")
UNPINNED = {**EQUAL, "pins": False}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("unpinned", tmp_path, seed=2, servers=2, service="exponential:5000") as built:
        yield built


def balance(place: Site, *options: str) -> tuple[int, str]:
    """Run the command without a bpffs; return its exit code and its errors."""
    command = [*WITHOUT_BPFFS, *WIRELAG, "balance", "--config", str(place.config), *options]
    words = place.network.command("point", command)
    ran = subprocess.run(words, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    return ran.returncode, ran.stderr


def attached(place: Site) -> bool:
    return "xdp" in place.network.run("point", "ip", "-d", "link", "show", "eth0")


def test_pins_are_a_folder_or_false(tmp_path: Path) -> None:
    path = tmp_path / "lb.toml"
    found = []
    for line in ("", "pins = true\n", 'pins = "/run/wirelag/bpf/lb"\n', "pins = false\n"):
        path.write_text(line + CONFIG, encoding="utf-8")
        found.append(Config.load(str(path)).pins)
    assert found == ["/sys/fs/bpf/wirelag/lb", "/sys/fs/bpf/wirelag/lb", "/run/wirelag/bpf/lb", None]
    assert "not pinned: it ends with its process" in wirelag("balance", "--config", path, "--check").stdout
    for line in ("pins = 0\n", 'pins = ""\n', "pins = []\n"):
        path.write_text(line + CONFIG, encoding="utf-8")
        with pytest.raises(WirelagError, match=r"pins: .* is neither a folder in bpffs nor false"):
            Config.load(str(path))


@IN_LAB
def test_without_bpffs_a_line_names_both_solutions(place: Site) -> None:
    place.configure([1, 2], {"pins": True})
    for options in ((), ("--check",), ("--remove",)):
        code, said = balance(place, *options)
        assert (code, said.count("\n")) == (2, 1), said
        assert "/sys/fs/bpf/wirelag/lb: pins must be in bpffs" in said
        assert "mount -t bpf bpf /sys/fs/bpf" in said
        assert "pins = false" in said
        assert not attached(place), "never unpinned unless that is asked for"
    place.configure([1, 2], {"pins": False})
    assert balance(place, "--check") == (0, "")
    code, said = balance(place, "--remove")
    assert (code, said.count("\n")) == (0, 1), said
    assert "nothing is pinned, so there is nothing to remove" in said


@pytest.mark.acceptance
@IN_LAB
def test_without_pins_it_balances_until_its_process_ends(place: Site) -> None:
    place.configure([1, 2], UNPINNED)
    first = place.steer(before=WITHOUT_BPFFS)
    assert "XDP at eth0 (native), not pinned: it ends with this process" in first.said()
    command = [*WITHOUT_BPFFS, *WIRELAG, "watch", "eth0", "rtt", "--in-kernel", "--interval", "200ms"]
    command += ["--format", "jsonl"]
    watch = place.network.start("client", command, place.folder / "watch.txt")
    watch.wait_for_line('"packets": ')
    client = place.ask(8, LONG_S, SHORT_LIVES)
    traffic(place, 1, 2)
    watch.wait_for_line(r'"samples": [1-9]\d')
    assert "outside the kernel" not in watch.stop(signal.SIGINT)
    code, said = balance(place)
    assert (code, said.count("\n")) == (2, 1), said
    assert "eth0: another XDP program is attached there" in said
    traffic(place, 1, 2)
    asked = stop_client(client, place)
    assert set(asked["server"].tolist()) == {1, 2}
    assert "nothing was pinned: the balancer has ended" in first.stop()
    assert not attached(place)

    killed = place.steer("killed", before=WITHOUT_BPFFS)
    assert attached(place)
    os.kill(killed.pid, signal.SIGKILL)
    until(lambda: not attached(place), "its end")
    assert "taken over" not in place.steer("again", before=WITHOUT_BPFFS).said()
