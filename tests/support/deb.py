"""Build the Debian package from the wheel of a release: `python -m tests.support.deb DIST` (make deb).

Debian has no numpy 2 and no rustworkx, so the package brings what wirelag needs along, in /usr/lib/wirelag: the pinned
versions, installed with hashes. It fits one version of Debian's Python, that which builds it. No user is created: the
units have users of their own while they run (DynamicUser), but for the balancer, which is root.
"""

import gzip
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support import hashes, sbom
from tests.support.places import ROOT
from tests.support.release import PIP, run, write_sums

LIBRARY = "usr/lib/wirelag"
EXTRAS = ("live",)  # what the units need
PROGRAM = f"""\
#!/usr/bin/python3 -I
import sys

sys.path.insert(0, "/{LIBRARY}")
from wirelag.cli import main

main()
"""
CONTROL = """\
Package: wirelag
Version: {version}
Architecture: {architecture}
Maintainer: The wirelag authors
Section: net
Priority: optional
Installed-Size: {size}
Depends: python3 (>= {major}.{minor}), python3 (<< {major}.{next}), libc6 (>= {libc})
Recommends: systemd
Description: How late is the network? Measured from packets you already have
 wirelag measures delay, loss and response latency from captures and live
 traffic: at one point, between two points, and along a path. This package has
 the command, its manual pages and completion, and units for agents, a
 collector, a balancer and a live watch.
"""
AFTER = f"""\
#!/bin/sh
set -e
if [ "$1" = configure ]; then
    /usr/bin/python3 -m compileall -q -j 0 /{LIBRARY} >/dev/null || true
    [ ! -d /run/systemd/system ] || systemctl daemon-reload
fi
"""
BEFORE_REMOVAL = f"""\
#!/bin/sh
set -e
find /{LIBRARY} -name __pycache__ -type d -prune -exec rm -rf {{}} +
"""


def put(path: Path, text: str | bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    path.chmod(mode)


def packed(text: bytes) -> bytes:
    return gzip.compress(text, 9, mtime=0)


def library(wheel: Path, target: Path) -> None:
    """Install the wheel and all that it needs, at the pinned versions and with their hashes."""
    pins = hashes.read(ROOT / "constraints-hashed.txt")
    needed = sbom.needed("wirelag", EXTRAS).keys() - {"wirelag"}
    with TemporaryDirectory() as scratch:
        listed = Path(scratch) / "needed.txt"
        listed.write_text(hashes.text({name: pins[name] for name in needed}))
        plain = ("--no-deps", "--no-compile", "--only-binary", ":all:", "--target", str(target))
        for words in (["--require-hashes", "-r", str(listed)], ["--no-index", str(wheel)]):
            run(*PIP, "install", *plain, *words)
            for extra in ("bin", "share"):  # programs of others; ours are put where Debian has them
                shutil.rmtree(target / extra, ignore_errors=True)


def tree(wheel: Path, root: Path, version: str) -> None:
    """All files of the package."""
    library(wheel, root / LIBRARY)
    put(root / "usr/bin/wirelag", PROGRAM, 0o755)
    with zipfile.ZipFile(wheel) as inside:
        for name in inside.namelist():
            _, found, share = name.partition(".data/data/share/")
            if name.endswith("/"):
                continue
            if found and share.startswith("doc/"):
                put(root / "usr/share/doc/wirelag/examples" / Path(share).name, inside.read(name))
            elif found and share.startswith("man/"):
                put(root / "usr/share" / f"{share}.gz", packed(inside.read(name)))
            elif found:  # Debian's zsh looks for vendors' completions in a folder of their own
                share = share.replace("zsh/site-functions", "zsh/vendor-completions")
                put(root / "usr/share" / share, inside.read(name))
    documents = root / "usr/share/doc/wirelag"
    for file in sorted((root / LIBRARY / "wirelag/deploy").iterdir()):
        if file.suffix == ".service":
            unit = file.read_text().replace("/opt/wirelag/bin/wirelag", "/usr/bin/wirelag")
            put(root / "lib/systemd/system" / file.name, unit)
        else:
            put(documents / "examples" / file.name, file.read_bytes())
    put(documents / "copyright", (ROOT / "LICENSE").read_bytes())
    put(documents / "changelog.gz", packed((ROOT / "CHANGELOG.md").read_bytes()))
    (root / "etc/wirelag").mkdir(parents=True)
    libc = re.search(r"manylinux_(\d+)_(\d+)", wheel.name)
    if libc is None:
        raise SystemExit(f"{wheel.name}: no manylinux tag; make release gives it one")
    control = CONTROL.format(
        version=version, architecture=run("dpkg", "--print-architecture").strip(), libc=".".join(libc.groups()),
        size=sum(path.stat().st_size for path in root.rglob("*") if path.is_file()) >> 10,
        major=sys.version_info.major, minor=sys.version_info.minor, next=sys.version_info.minor + 1,
    )  # fmt: skip
    put(root / "DEBIAN/md5sums", "".join(sums(root)))
    put(root / "DEBIAN/control", control)
    put(root / "DEBIAN/postinst", AFTER, 0o755)
    put(root / "DEBIAN/prerm", BEFORE_REMOVAL, 0o755)


def sums(root: Path) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if path.is_file():
            yield f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n"


def main(dist: str) -> None:
    """Put the package beside the wheel that it is made of."""
    from wirelag import __version__

    wheel = next(Path(dist).glob(f"wirelag-{__version__}-*_{os.uname().machine}.whl"))
    when = run("git", "log", "-1", "--format=%ct").strip()
    os.umask(0o022)
    with TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        root.mkdir()
        tree(wheel, root, __version__)
        build = ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z6", "--build", str(root), dist]
        subprocess.run(build, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": when})
    write_sums(Path(dist))


if __name__ == "__main__":
    main(sys.argv[1])
