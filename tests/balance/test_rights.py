"""The balancer gives up what it no longer needs, and still steers, reloads its file, and is taken over."""

import json
import os
import pwd
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.balance import EQUAL, Site, entries, site
from lab.processes import Process
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import until
from wirelag.capture.privileges import all_may_read

pytestmark = IN_LAB


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Site]:
    with site("rights", tmp_path, seed=5, servers=2, service="exponential:5000") as built:
        yield built


def rights(process: Process) -> dict[str, set[str]]:
    """Users, groups, capabilities and NoNewPrivs of all its threads."""
    wanted = ("Uid", "Gid", "Groups", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs")
    found: dict[str, set[str]] = {name: set() for name in wanted}
    for task in Path(f"/proc/{process.pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in wanted:
                found[name] |= set(value.split())
    return found


def readable_by_all() -> list[str]:
    """Words before a command, so that any user can read Python and wirelag: folders that only root may enter are
    replaced by empty ones that hold nothing else, in a mount namespace of the command's own."""
    needed = sorted({os.path.realpath(path) for path in (sys.prefix, sys.base_prefix, ROOT)})
    closed = {path: next((str(one) for one in way(path) if not one.stat().st_mode & 0o001), "") for path in needed}
    script = ["set -e", "kept=$(mktemp -d)"]
    inside = {path: f"$kept/{number}" for number, path in enumerate(needed) if closed[path]}
    script += [f"mkdir {place} && mount --bind {shlex.quote(path)} {place}" for path, place in inside.items()]
    script += [f"mount -t tmpfs -o mode=755 none {shlex.quote(one)}" for one in sorted(set(closed.values()) - {""})]
    for path, place in inside.items():
        script.append(f"mkdir -p {shlex.quote(path)} && mount --bind {place} {shlex.quote(path)}")
    script.append(f"cd {shlex.quote(str(ROOT))}")
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", "\n".join([*script, 'exec "$@"']), "sh"]


def way(path: str) -> list[Path]:
    """The folders on the way to a path, from the top."""
    return list(reversed(Path(path).parents))


def shown(process: Process) -> set[str]:
    said = entries(process)
    return {one["name"] for one in said[-1]["backends"]} if said else set()


@pytest.mark.every(2)
@pytest.mark.parametrize("public", [False, True], ids=["only root reads the file", "all read it"])
def test_it_gives_up_root_and_capabilities(place: Site, public: bool) -> None:
    log = place.folder / "audit.jsonl"
    place.configure([1, 2], {**EQUAL, "audit": str(log)})
    if public:
        for folder in (place.config, *place.config.parents):
            folder.chmod(folder.stat().st_mode | (0o005 if folder.is_dir() else 0o004))
    else:
        place.config.chmod(0o600)
    assert all_may_read(str(place.config)) == public
    before = ["env", "-u", "SUDO_UID", *readable_by_all()]
    command = place.steer(before=before)
    until(lambda: shown(command) == {"server1", "server2"}, "the first interval")
    whom = {str(pwd.getpwnam("nobody").pw_uid)} if public else {"0"}
    nothing = {"0" * 16}
    kinds = dict.fromkeys(("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), nothing)
    found = rights(command)
    groups = found.pop("Groups")
    assert found == {"Uid": whom, "Gid": group(public), "NoNewPrivs": {"1"}} | kinds
    assert not public or not groups
    place.configure([1], {**EQUAL, "audit": str(log)})
    os.kill(command.pid, signal.SIGHUP)
    until(lambda: shown(command) == {"server1"}, "the file read again")
    command.stop()
    again = place.steer("again", before)
    assert "taken over" in again.said()
    until(
        lambda: log.read_text().count('"what": "start"') == 2, "the second start in the audit log"
    )  # packets go first
    said = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["what"] for line in said if line["what"] != "weights applied"] == ["start", "reload", "start"]
    assert said[0]["where"].startswith("XDP at eth0")
    assert {tuple(line["weights"]) for line in said if line["what"] == "weights applied"} <= {("server1",)}


def group(public: bool) -> set[str]:
    return {str(pwd.getpwnam("nobody").pw_gid)} if public else {"0"}
