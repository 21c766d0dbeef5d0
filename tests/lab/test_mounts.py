"""Private mounts of the lab: other processes do not see them, but find what a killed owner leaves."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S

OWNER = """
import json, pathlib, sys, lab.mounts, lab.network, lab.processes
lab.mounts.private_bpffs()
network = lab.network.Network("mounts")
network.up()
server = network.start("server1", [lab.processes.program("httpd")], pathlib.Path(sys.argv[1]))
server.wait_for_port(80)
print(json.dumps([network.prefix, server.pid]), flush=True)
sys.stdin.read()
"""
NEIGHBOUR = """
import json, os, select, subprocess, sys, lab.network
words = [sys.executable, "-c", *sys.argv[1:]]
with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
    prefix, server = json.loads(owner.stdout.readline())
    ended, before = os.pidfd_open(server), lab.network.sweep()
    owner.kill()
    owner.wait()
    swept = lab.network.sweep()
    left = os.listdir("/run/netns")
    stopped = bool(select.select([ended], [], [], 20)[0])
print(json.dumps([before, {name.removeprefix(prefix) for name in swept} == {"switch", "client", "point", "server1"}]))
print(json.dumps([left, stopped]))
"""
# A machine without network namespaces: /run/netns does not exist.
FRESH = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs tmpfs /run && exec "$@"', "fresh")


@IN_LAB
def test_a_bpffs_is_private_to_its_process(bpffs: Path) -> None:
    (bpffs / "ours").mkdir()
    script = (
        "import lab.mounts; path = lab.mounts.private_bpffs() / 'theirs'; path.mkdir(); print(*path.parent.iterdir())"
    )
    other = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "theirs" in other.stdout
    assert "ours" not in other.stdout
    assert not (bpffs / "theirs").exists()
    (bpffs / "ours").rmdir()


@IN_LAB
def test_threads_and_child_processes_share_it(bpffs: Path) -> None:
    here, seen = os.readlink("/proc/thread-self/ns/mnt"), []
    thread = threading.Thread(target=lambda: seen.append(os.readlink("/proc/thread-self/ns/mnt")))
    thread.start()
    thread.join()
    program = subprocess.run(["readlink", "/proc/self/ns/mnt"], capture_output=True, text=True, check=True)
    assert [*seen, program.stdout.strip()] == [here, here]


@IN_LAB
def test_others_clean_up_after_a_killed_owner(tmp_path: Path) -> None:
    command = [*FRESH, sys.executable, "-c", NEIGHBOUR, OWNER, str(tmp_path / "httpd.txt")]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line) for line in ran.stdout.splitlines()] == [[[], True], [[], True]]
