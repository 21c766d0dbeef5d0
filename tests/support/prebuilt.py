"""Compile the eBPF programs for both processors into bpf/prebuilt: `python -m tests.support.prebuilt` (make prebuilt).

The sources of a release bring them along, so that they build without clang. eBPF is the same on all processors of one
byte order, but for a store that x86-64 orders by itself.
"""

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.places import ROOT

PROCESSORS = ("x86_64", "aarch64")


def build(tree: Path) -> None:
    """Compile the programs of a source tree."""
    scripts = sysconfig.get_path("scripts")  # of cmake and ninja
    environment = os.environ | {"PATH": os.pathsep.join([scripts, os.environ["PATH"]])}

    def cmake(*words: str) -> None:
        subprocess.run(["cmake", *words], check=True, env=environment, stdout=subprocess.DEVNULL)

    for processor in PROCESSORS:
        with TemporaryDirectory() as scratch:
            cmake("-G", "Ninja", "-S", str(tree / "bpf"), "-B", scratch, f"-DWIRELAG_PROCESSOR={processor}")
            cmake("--build", scratch)
            cmake("--install", scratch, "--prefix", str(tree / "bpf" / "prebuilt" / processor))


if __name__ == "__main__":
    build(Path(sys.argv[1]).resolve() if sys.argv[1:] else ROOT)
