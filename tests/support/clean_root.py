"""A root folder with a minimal Debian and nothing else, and the steps of deploy/Containerfile that run in it."""

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.places import ROOT

SOURCES = (Path("/etc/apt/sources.list.d/debian.sources"), Path("/etc/apt/sources.list"))  # this machine's own


def container_steps() -> Iterator[tuple[str, str]]:
    """Each step: its kind and its words."""
    text = (ROOT / "deploy" / "Containerfile").read_text(encoding="utf-8")
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line and not line.startswith("#"):
            kind, _, words = line.partition(" ")
            yield kind, words


def debian() -> str:
    """The name of the Debian that the container file is based on."""
    base = next(words for kind, words in container_steps() if kind == "FROM")
    return base.removeprefix("debian:").removesuffix("-slim")


def debootstrap(path: Path, *options: str) -> None:
    """Fill a folder from the packages that this machine uses."""
    sources = next(one for one in SOURCES if one.exists()).read_text()
    subprocess.run(["mmdebstrap", "--quiet", *options, debian(), str(path), "-"], input=sources, text=True, check=True)


class CleanRoot:
    """Made by mmdebstrap, from the packages that this machine uses; each command has mounts of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        debootstrap(self.path, "--variant=minbase")
        shutil.copy("/etc/resolv.conf", self.path / "etc/resolv.conf")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path)

    def copy(self, base: Path, pattern: str, target: str) -> None:
        """COPY of a container file: one file."""
        (found,) = base.glob(pattern)
        shutil.copy(found, self.path / target.lstrip("/"))

    def run(self, command: str, user: int = 0) -> str:
        """The output of a command inside, with /proc and /dev, which end with it."""
        mounts = "mount -t proc proc proc && mount --rbind /dev dev"
        as_user = f"setpriv --reuid {user} --regid {user} --clear-groups" if user else ""
        inside = [
            "unshare",
            "--mount",
            "--pid",
            "--fork",
            "sh",
            "-c",
            f'{mounts} && exec chroot . {as_user} sh -ec "$0"',
        ]
        plain = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp", "DEBIAN_FRONTEND": "noninteractive"}
        kept = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        ran = subprocess.run([*inside, command], cwd=self.path, env=plain | kept, capture_output=True, text=True)
        assert ran.returncode == 0, f"{command}\n{ran.stdout}{ran.stderr}"
        return ran.stdout
