"""Write the software bill of materials of a release (CycloneDX 1.5): `python -m tests.support.sbom FILE` (make sbom).

It lists wirelag and, as installed here, every package that it needs, with its extras, or needs through another.
"""

import json
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

EXTRAS = ("live", "scale", "tables")


def needed(name: str, extras: tuple[str, ...] = ()) -> dict[str, metadata.Distribution]:
    """A package and all that it needs, by name; what is not installed here is not needed here."""
    from packaging.requirements import Requirement

    found: dict[str, metadata.Distribution] = {}
    waiting = [(name, extras)]
    while waiting:
        one, wanted = waiting.pop()
        try:
            package = metadata.distribution(one)
        except metadata.PackageNotFoundError:
            continue
        plain = re.sub(r"[-_.]+", "-", one).lower()
        if plain in found:
            continue
        found[plain] = package
        for line in package.requires or ():
            requirement = Requirement(line)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *wanted)):
                waiting.append((requirement.name, tuple(requirement.extras)))
    return found


def component(name: str, package: metadata.Distribution) -> dict[str, Any]:
    """A package in the terms of CycloneDX."""
    told = package.metadata
    text = told.get("License-Expression") or (told.get("License") or "").partition("\n")[0]
    license = text or ", ".join(
        one.rpartition(" :: ")[2] for one in told.get_all("Classifier") or () if "License" in one
    )
    return {
        "type": "library",
        "name": name,
        "version": package.version,
        "purl": f"pkg:pypi/{name}@{package.version}",
        "licenses": [{"license": {"name": license or "unknown"}}],
    }


def bill() -> dict[str, Any]:
    """The whole bill."""
    packages = needed("wirelag", EXTRAS)
    ours = packages.pop("wirelag")
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component("wirelag", ours) | {"type": "application"}},
        "components": [component(name, packages[name]) for name in sorted(packages)],
    }


def write(path: Path) -> None:
    """Write the bill."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(bill(), indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
