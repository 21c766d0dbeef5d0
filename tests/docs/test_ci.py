""".ci/without-leftovers: no leftovers on a machine can make tests pass."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from lab.network import Network
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S

SCRIPT = ".ci/without-leftovers"
LOOK = """
pwd; ls -A . ../shared
ls -A .. /run/netns /run/lab | grep -e left -e lab-
mountpoint -q /sys/fs/bpf && echo bpffs
sleep infinity & # it has our standard output: whoever reads that to its end waits for it
exit 7
"""


@IN_LAB
def test_leftovers_are_hidden_and_nothing_is_left(bpffs: Path) -> None:
    with tempfile.TemporaryDirectory() as name, Network("ci") as network:
        checkout, shared = Path(name).resolve() / "main", Path(name) / "shared"
        (checkout / SCRIPT).parent.mkdir(parents=True)
        shutil.copy(ROOT / SCRIPT, checkout / SCRIPT)
        for folder in (shared, checkout, network.folder):
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"of-{folder.name}").touch()
        (Path(name) / "left").touch()
        command = [str(checkout / SCRIPT), "sh", "-c", LOOK]
        ran = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=PATIENCE_S
        )
        assert (ran.returncode, ran.stderr) == (7, "")
        assert ran.stdout.split() == [str(checkout), ".:", ".ci", "of-main", "../shared:", "of-shared"]


def test_without_root_the_machine_s_mounts_are_used(tmp_path: Path) -> None:
    """The same if unshare is missing or not permitted."""
    (tmp_path / "unshare").symlink_to("/bin/false")
    command = ["sh", "-c", f'PATH={tmp_path}:$PATH exec {ROOT / SCRIPT} sh -c "echo ran; exit 7"']
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ran.returncode == 7
    assert ran.stdout.splitlines()[1:] == ["ran"]
    assert "leftovers of this machine are not hidden" in ran.stdout
