"""A wheel for aarch64 on another processor: `python -m tests.support.arm DIST` (make arm), as root on Debian.

It is cross-compiled from the sources in DIST, for Debian's Python, by Debian's compiler, in a root of its own: an
overlay over this machine's, so that nothing is installed here. `ArmRoot` runs it with Debian's Python for aarch64 under
qemu.
"""

import shutil
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from tests.support.clean_root import debian, debootstrap
from tests.support.places import ROOT
from tests.support.release import PIP, repair, run, with_tools, write_sums

KIND = "aarch64-linux-gnu"
QEMU = "qemu-aarch64-static"
PACKAGES = (f"g++-{KIND}", "qemu-user-static")
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
GLIBC = (*range(35, 27, -1), 17)  # of wheels that Debian's C library runs
SETTINGS = (  # of CMake; eBPF programs come with the sources
    "CMAKE_SYSTEM_NAME=Linux", "CMAKE_SYSTEM_PROCESSOR=aarch64", "WIRELAG_CLANG=OFF",
    f"CMAKE_C_COMPILER={KIND}-gcc", f"CMAKE_CXX_COMPILER={KIND}-g++",
)  # fmt: skip
OVERLAY = """
mount -t tmpfs none "$0"
mkdir "$0/new" "$0/work" "$0/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$0/new,workdir=$0/work" "$0/root"
mount -t proc proc "$0/root/proc"
mount --rbind /dev "$0/root/dev"
for folder in "$1" "$2"; do # they may be on another file system
    mkdir -p "$0/root$folder"
    mount --bind "$folder" "$0/root$folder"
done
exec chroot "$0/root" sh -ec "$3"
"""


class ArmRoot:
    """A folder with Debian's Python for aarch64, its headers, and qemu. Packages are unpacked, none is configured."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Self:
        debootstrap(self.path, "--variant=extract", "--arch=arm64", "--include=python3,libpython3-dev,libstdc++6")
        if not (self.path / "usr/bin" / PYTHON).exists():
            raise SystemExit(f"Debian {debian()} has no {PYTHON}: name its own (make PYTHON=/usr/bin/python3 arm)")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path)

    def build(self, sdist: Path, folder: Path) -> Path:
        """Cross-compile the wheel. qemu is left in the root, too."""
        with TemporaryDirectory(dir=self.path) as place, TemporaryDirectory() as overlay:
            work = Path(place)
            with tarfile.open(sdist) as packed:
                packed.extractall(work, filter="data")
            (source,) = work.iterdir()
            for name in ("told", "plain"):
                (work / name).mkdir()
            data = f"_sysconfigdata__{KIND}"  # what Python for aarch64 knows of itself: names and tags of extensions
            shutil.copy(self.path / "usr/lib" / PYTHON / f"{data}.py", work / "told")
            headers = self.path / "usr/include"
            settings = (*SETTINGS, f"Python_INCLUDE_DIR={headers / PYTHON}", f"CMAKE_CXX_FLAGS=-I{headers}")
            environment = {
                "CMAKE_ARGS": " ".join(f"-D{one}" for one in settings),
                "PYTHONPATH": str(work / "told"),
                "_PYTHON_SYSCONFIGDATA_NAME": data,
                "_PYTHON_HOST_PLATFORM": "linux-aarch64",
            }
            words = " ".join(f"{name}='{value}'" for name, value in environment.items())
            build = "from scikit_build_core.build import build_wheel; build_wheel('../plain')"
            steps = (
                "apt-get update -qq",
                f"apt-get install -qq --no-install-recommends {' '.join(PACKAGES)} >/dev/null 2>&1",
                f"cp /usr/bin/{QEMU} {work}",
                f"cd {source}",
                f'{words} {sys.executable} -c "{build}" >../log 2>&1 || {{ tail -n 40 ../log; exit 1; }}',
            )
            plain = {"DEBIAN_FRONTEND": "noninteractive"}
            mounts = ["unshare", "--mount", "--pid", "--fork", "sh", "-ec", OVERLAY, overlay]
            seen = [str(self.path), sys.prefix]
            print(run(*mounts, *seen, "\n".join(steps), PATH=with_tools(), **plain), end="", file=sys.stderr)
            shutil.copy(work / QEMU, self.path)
            return repair(next((work / "plain").glob("*.whl")), folder)

    def install(self, wheel: Path) -> None:
        """Install the wheel with what it needs, at the pinned versions, as pip does on aarch64."""
        wanted = [f"--platform=manylinux_2_{one}_aarch64" for one in GLIBC]
        words = ["--only-binary", ":all:", "--python-version", PYTHON.removeprefix("python"), "--no-compile"]
        target = ["--target", str(self.path / "opt"), "-c", str(ROOT / "constraints.txt")]
        run(*PIP, "install", *target, *words, *wanted, str(wheel))

    def wirelag(self, *words: str) -> str:
        """The output of a command under qemu."""
        program = (f"/{QEMU}", "-E", "PYTHONPATH=/opt", f"/usr/bin/{PYTHON}", "-m", "wirelag.cli")
        return run("chroot", str(self.path), *program, *words)


def main(dist: str) -> None:
    """Put the wheel beside the sources that it is built from, after it has said its version."""
    from wirelag import __version__

    folder = Path(dist).resolve()
    with TemporaryDirectory() as place, ArmRoot(Path(place) / "root") as root:
        wheel = root.build(next(folder.glob(f"wirelag-{__version__}.tar.gz")), folder)
        root.install(wheel)
        if __version__ not in root.wirelag("--version"):
            raise SystemExit(f"{wheel}: under qemu it does not say version {__version__}")
    write_sums(folder)


if __name__ == "__main__":
    main(sys.argv[1])
