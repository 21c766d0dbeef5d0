"""The balancer gives up what it no longer needs, and still steers, reloads its file, and is taken over."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.balance import EQUAL, Site, entries, site
from lab.processes import Process
from tests.support.in_lab import IN_LAB
from tests.support.waiting import until
from wirelag.capture.privileges import all_may_read

pytestmark = IN_LAB
NOBODY = 65534


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("rights", tmp_path, seed=5, servers=2, service="exponential:5000") as built:
        yield built


def rights(process: Process) -> set[tuple[str, str, str]]:
    """User, effective and permitted capabilities of each of its threads."""
    found = set()
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        lines = dict(line.split(":\t", 1) for line in (task / "status").read_text().splitlines() if ":\t" in line)
        found.add((lines["Uid"].split()[0], lines["CapEff"], lines["CapPrm"]))
    return found


def shown(process: Process) -> set[str]:
    said = entries(process)
    return {one["name"] for one in said[-1]["backends"]} if said else set()


@pytest.mark.parametrize("public", [False, True], ids=["only root reads the file", "all read it"])
def test_it_gives_up_root_and_capabilities(place: Site, public: bool) -> None:
    nothing = "0" * 16
    log = place.folder / "audit.jsonl"
    place.configure([1, 2], {**EQUAL, "audit": str(log)})
    if public:
        for folder in (place.config, *place.config.parents):
            folder.chmod(folder.stat().st_mode | (0o005 if folder.is_dir() else 0o004))
    assert all_may_read(str(place.config)) == public
    command = place.steer()
    until(lambda: shown(command) == {"server1", "server2"}, "the first interval")
    users = {user for user, _, _ in rights(command)}
    assert {(effective, permitted) for _, effective, permitted in rights(command)} == {(nothing, nothing)}
    assert users == ({str(os.environ.get("SUDO_UID", NOBODY))} if public and installed_for_all() else {"0"})
    place.configure([1], {**EQUAL, "audit": str(log)})
    os.kill(command.pid, signal.SIGHUP)
    until(lambda: shown(command) == {"server1"}, "the file read again")
    command.stop()
    again = place.steer("again")
    assert "taken over" in again.said()
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["what"] for line in said if line["what"] != "weights applied"] == ["start", "reload", "start"]
    assert said[0]["where"].startswith("XDP at eth0")
    assert {tuple(line["weights"]) for line in said if line["what"] == "weights applied"} <= {("server1",)}


def installed_for_all() -> bool:
    """Whether another user could still import modules: otherwise root stays root, without capabilities."""
    import sys

    return all(all_may_read(path) for path in sys.path if Path(path).exists())
