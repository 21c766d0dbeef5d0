"""What a test needs and this machine lacks, in one form: `needs tshark (run: apt-get install tshark)`.

`paragraph` counts skipped tests by what they lack, at the end of `make test`.
"""

import os
import re
import shutil
from collections import Counter
from collections.abc import Iterable

# Debian's package of a program, if its name differs.
PACKAGES = {
    "bridge": "iproute2",
    "capinfos": "wireshark-common",
    "editcap": "wireshark-common",
    "cc": "gcc",
    "groff": "groff-base",
    "ip": "iproute2",
    "ipfixDump": "libfixbuf-tools",
    "mergecap": "wireshark-common",
    "nfcapd": "nfdump",
    "nginx": "nginx-light",
    "nsenter": "util-linux",
    "pivot_root": "util-linux",
    "promtool": "prometheus",
    "pzstd": "zstd",
    "redis-benchmark": "redis-tools",
    "setpriv": "util-linux",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "systemd-analyze": "systemd",
    "tc": "iproute2",
    "unshare": "util-linux",
    "vtysh": "frr",
    "wg": "wireguard-tools",
    "xz": "xz-utils",
}
SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"  # not on an ordinary user's PATH
FORM = re.compile(r"needs (?P<what>.*?)(?: \(run: (?P<command>.*)\))?$", re.DOTALL)


def needs(what: str, command: str = "") -> str:
    """Why a test is skipped: what is missing, and the command that installs it, if there is one."""
    return f"needs {what} (run: {command})" if command else f"needs {what}"


ROOT = needs("root", "sudo make test")
LIVE = needs("wirelag[live]", "pip install 'wirelag[live]'")
SHARED_DATA = needs("shared/data beside the repository", "WIRELAG_SHARED_DATA=FOLDER make test")
IDLE = needs("an idle machine")
TWO_CPUS = needs("two CPUs")


def program(name: str) -> str:
    """The reason if a program is missing."""
    return needs(name, f"apt-get install {PACKAGES.get(name, name)}")


def find(name: str) -> str | None:
    """The path of a program, also of one for administrators."""
    return shutil.which(name) or shutil.which(name, path=SYSTEM)


def absent(*names: str) -> str:
    """The reason, with the first of these programs that is missing; empty if none is."""
    return next((program(name) for name in names if find(name) is None), "")


def ebpf(error: Exception) -> str:
    """The reason, from the error of loading a program into the kernel."""
    if "without clang" in str(error):
        return program("clang")
    return ROOT if "permit" in str(error) and os.geteuid() else str(error)


def paragraph(reasons: Iterable[str]) -> str:
    """All skipped tests by what they lack, most first; empty if none was skipped."""
    counts = Counter(reason.removeprefix("Skipped: ") for reason in reasons)
    said = [_counted(reason, count) for reason, count in counts.most_common()]
    total = counts.total()
    return f"Skipped {total} {'test' if total == 1 else 'tests'}: {', '.join(said)}." if said else ""


def _counted(reason: str, count: int) -> str:
    if form := FORM.fullmatch(reason):
        command = f" (run: {form['command']})" if form["command"] else ""
        return f"{count} {'needs' if count == 1 else 'need'} {form['what']}{command}"
    return f"{count} because: {reason}"
