"""The bill of materials has every package that wirelag needs, in the version that is tested."""

import re
import tomllib

from tests.support.places import ROOT
from tests.support.sbom import bill


def test_the_bill_has_what_wirelag_needs() -> None:
    found = bill()
    versions = {one["name"]: one["version"] for one in found["components"]}
    pinned = dict(
        line.split("==")
        for line in (ROOT / "constraints.txt").read_text().lower().splitlines()
        if "==" in line and not line.startswith("#")
    )
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.split(r"[^A-Za-z0-9_.-]", line)[0].lower() for line in project["dependencies"]}
    assert wanted <= versions.keys()
    assert {name: version for name, version in versions.items() if name in pinned} == {
        name: pinned[name] for name in versions if name in pinned
    }
    assert len(versions) > len(wanted), "and what these need"
    assert not versions.keys() & {"pytest", "ruff", "mypy", "wirelag"}
    assert found["metadata"]["component"]["name"] == "wirelag"
    assert all(one["licenses"][0]["license"]["name"] for one in found["components"])
