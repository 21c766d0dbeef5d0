"""`wirelag doctor`: it tries things for real, and says how to mend what does not work."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support import needs
from tests.support.command import WIRELAG, wirelag
from tests.support.in_lab import IN_LAB
from tests.support.places import ROOT
from tests.support.waiting import PATIENCE_S

SCHEMA = json.loads((ROOT / "docs" / "reference" / "schema" / "doctor.json").read_text())
WITHOUT_POLARS = """
import sys
sys.modules["polars"] = None
from wirelag.cli import app
app(["doctor", "--format", "json"])
"""


def _checks(text: str) -> dict[str, dict[str, Any]]:
    told = json.loads(text)
    jsonschema.validate(told, SCHEMA)
    return {one["name"]: one for one in told["checks"]}


def test_what_this_environment_has_is_found() -> None:
    found = _checks(wirelag("doctor", "--format", "json").stdout)
    assert {found[name]["state"] for name in ("captures", "extra tables", "extra live")} == {"yes"}
    assert all(one["fix"] for one in found.values() if one["state"] == "no")
    table = wirelag("doctor").stdout.splitlines()
    assert all(any(name in line for line in table) for name in found)
    wrong = [one for one in found.values() if one["state"] != "yes"]
    assert sum("needed for: " in line for line in table) == len(wrong)
    assert sum("to mend it: " in line for line in table) == sum(bool(one["fix"]) for one in wrong)


def test_a_missing_extra_is_named_with_its_command() -> None:
    ran = subprocess.run([sys.executable, "-c", WITHOUT_POLARS], capture_output=True, text=True, check=True)
    (state, fix) = (_checks(ran.stdout)["extra tables"][key] for key in ("state", "fix"))
    assert (state, fix) == ("no", f"{sys.executable} -m pip install 'wirelag[tables]'")


@IN_LAB
@pytest.mark.skipif(shutil.which("setpriv") is None, reason=needs.program("setpriv"))
def test_root_and_an_ordinary_user_get_different_answers(bpffs: Path) -> None:
    root = _checks(subprocess.run([*WIRELAG, "doctor", "--format", "json"], capture_output=True, check=True).stdout)
    assert {root[name]["state"] for name in ("live capture", "eBPF", "bpffs")} <= {"yes", "limited"}
    # Reading our files may need a capability of its own, if they are in root's home.
    kept = ("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search")
    command = ["setpriv", "--reuid", "65534", "--clear-groups", *kept, *WIRELAG, "doctor", "--format", "json"]
    done = subprocess.run(command, capture_output=True, check=True, timeout=PATIENCE_S, env=dict(os.environ))
    other = _checks(done.stdout)
    assert other["captures"]["state"] == "yes"
    assert other["live capture"]["state"] == other["eBPF"]["state"] == "no"
    assert "sudo" in other["live capture"]["fix"]
    assert "root" in other["eBPF"]["fix"]


@IN_LAB
@pytest.mark.skipif(shutil.which("unshare") is None, reason=needs.program("unshare"))
def test_bpffs_that_is_not_mounted_is_told() -> None:
    script = "while mountpoint -q /sys/fs/bpf; do umount -l /sys/fs/bpf; done; exec $0 doctor --format json"
    ran = subprocess.run(["unshare", "--mount", "sh", "-c", script, *WIRELAG], capture_output=True, check=True)
    (state, fix) = (_checks(ran.stdout)["bpffs"][key] for key in ("state", "fix"))
    assert (state, fix) == ("no", "mount -t bpf bpf /sys/fs/bpf")
