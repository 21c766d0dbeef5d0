"""A client, a vantage point and servers on one switch, in network namespaces.

    client --[wire]-- switch -- point, servers

The service's address is on the loopback of each server; the client sends to it through the point, which forwards. The
servers reply directly. So the point sees only what the client sends.

A namespace's name identifies the process that made it: the next `up` removes those of processes that are gone.
A network of another shape calls `clear`, `add` and `link` instead of `up`.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType

from lab.processes import Process, owner_lives, owner_name
from lab.quota import sweep_quotas

NAMESPACES = Path("/run/netns")
FOLDERS = Path("/run/lab")  # short paths: a socket's path may have 107 bytes
PREFIX = "lab"
CLIENT, POINT, FIRST_SERVER = 1, 2, 11  # last byte of their addresses
CLIENT_ADDRESS = f"10.5.0.{CLIENT}"
POINT_ADDRESS = f"10.5.0.{POINT}"
SERVICE_ADDRESS = "10.5.0.100"
QUIET = (
    *("net.ipv6.conf.all.disable_ipv6=1", "net.ipv6.conf.default.disable_ipv6=1"),
    *("net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.default.rp_filter=0"),
    *("net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.default.send_redirects=0"),
    *("net.ipv4.conf.all.accept_redirects=0", "net.ipv4.conf.default.accept_redirects=0"),
)
SERVING = ("net.ipv4.conf.all.arp_ignore=1", "net.ipv4.conf.all.arp_announce=2", "net.core.somaxconn=4096")
CLONE_NEWNET = 0x40000000


PROMPT = ("chrt", "-r", "10")  # others use the machine too


class Network:
    """`with Network("name") as network:` builds it, and leaves nothing behind."""

    def __init__(self, name: str, servers: int = 1, wired: bool = False) -> None:
        """`name`: unique among the networks of this process. `wired`: a wire can be placed before the client."""
        self.prefix = f"{PREFIX}-{owner_name()}-{name}-"
        self.folder = FOLDERS / self.prefix  # its contents are removed with the network
        self.wired = wired
        self.servers = {f"server{i + 1}": FIRST_SERVER + i for i in range(servers)}
        self.processes: list[Process] = []
        self.before: tuple[str, ...] = ()  # words before every program that is started, such as PROMPT

    def __enter__(self) -> Network:
        """Build it."""
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Remove it."""
        self.down()

    def up(self) -> None:
        """Build it anew; remove the leftovers of processes that are gone."""
        self.clear()
        try:
            self._build()
        except BaseException:
            self.down()
            raise

    def clear(self) -> None:
        """Remove everything of this network, and of processes that are gone."""
        sweep()
        self.down()

    def down(self) -> None:
        """Stop everything in it and remove it, as far as it exists."""
        for process in reversed(self.processes):
            process.stop(seconds=5)  # its last output is no longer needed
        self.processes.clear()
        _remove(name for name in _names() if name.startswith(self.prefix))

    def add(self, host: str, *settings: str) -> None:
        """Add a host without interfaces, with these kernel settings."""
        _run("ip", "netns", "add", self.namespace(host))
        self.run(host, "sysctl", "-qw", *QUIET, *settings)
        self.ip(host, "link set lo up")

    def link(self, host: str, name: str, peer: str, peer_name: str, mac: str = "") -> None:
        """Connect two hosts by a cable; `mac`: of the peer's end."""
        address = f" address {mac}" if mac else ""
        there = f"peer name {peer_name} netns {self.namespace(peer)}{address}"
        self.ip(host, f"link add {name} mtu 1500 type veth {there}")
        for end, interface in ((host, name), (peer, peer_name)):
            # Captures must show what a cable would carry: no merged segments, no missing checksums.
            self.run(end, *f"ethtool -K {interface} tso off gso off gro off tx off".split())
            self.ip(end, f"link set {interface} up")

    def ip(self, host: str, arguments: str) -> None:
        """Run `ip` on this host."""
        _run("ip", "-n", self.namespace(host), *arguments.split())

    def namespace(self, host: str) -> str:
        """The namespace of `client`, `point`, `server1`, `switch`, `wire`, or of an added host."""
        return self.prefix + host

    def command(self, host: str, arguments: Sequence[str]) -> list[str]:
        """`arguments` as a command that runs on this host."""
        return ["nsenter", f"--net={NAMESPACES / self.namespace(host)}", *arguments]

    def run(self, host: str, *arguments: str) -> str:
        """Run a short command on this host; return its output."""
        return _run(*self.command(host, arguments))

    def start(self, host: str, arguments: Sequence[str], output: Path) -> Process:
        """Start a program on this host that ends with the network."""
        process = Process(self.command(host, [*self.before, *arguments]), output)
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def inside(self, host: str) -> Iterator[None]:
        """Let sockets that this thread opens belong to the host."""
        libc = ctypes.CDLL(None, use_errno=True)
        home = os.open(f"/proc/self/task/{threading.get_native_id()}/ns/net", os.O_RDONLY)
        there = os.open(NAMESPACES / self.namespace(host), os.O_RDONLY)
        try:
            if libc.setns(there, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"setns: {host}")
            try:
                yield
            finally:
                libc.setns(home, CLONE_NEWNET)
        finally:
            os.close(home)
            os.close(there)

    def _build(self) -> None:
        hosts = {"client": CLIENT, "point": POINT, **self.servers}
        for host in ("switch", *(["wire"] if self.wired else []), *hosts):
            self.add(host, *(SERVING if host in self.servers else ()))
        self.ip("switch", "link add br0 type bridge stp_state 0 mcast_snooping 0 forward_delay 0")
        self.ip("switch", "link set br0 up")
        for host, number in hosts.items():
            self._connect(host, number)
            for other in hosts.values():
                if other != number:
                    self.ip(host, f"neigh replace 10.5.0.{other} lladdr {mac_of(other)} dev eth0 nud permanent")
        for server in self.servers:
            self.ip(server, f"addr add {SERVICE_ADDRESS}/32 dev lo")
        self.ip("client", f"route add {SERVICE_ADDRESS}/32 via {POINT_ADDRESS}")
        self.run("point", "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.eth0.send_redirects=0")
        self.ip("point", f"route add {SERVICE_ADDRESS}/32 via 10.5.0.{FIRST_SERVER}")

    def _connect(self, host: str, number: int) -> None:
        """Create the host's interface, and its connection to the switch."""
        if self.wired and host == "client":
            self.link("wire", "near", host, "eth0", mac_of(number))
            self.link("wire", "far", "switch", f"port{number}")
        else:
            self.link("switch", f"port{number}", host, "eth0", mac_of(number))
        self.ip("switch", f"link set port{number} master br0")
        # The switch has static entries: it never floods, so no host sees another's packets.
        self.run("switch", *f"bridge fdb replace {mac_of(number)} dev port{number} master static".split())
        self.ip(host, f"addr add 10.5.0.{number}/24 dev eth0")


def sweep() -> list[str]:
    """Remove the namespaces and folders of processes that are gone; return their names."""
    left = [name for name in _names() if not owner_lives(name.split("-")[1])]
    _remove(left)
    sweep_quotas()
    return left


def _names() -> list[str]:
    """The names of namespaces and folders."""
    return sorted({path.name for room in (NAMESPACES, FOLDERS) for path in room.glob(f"{PREFIX}-*")})


def _remove(names: Iterator[str] | Sequence[str]) -> None:
    """Another process may remove the same: a missing one is not an error."""
    for name in names:
        shutil.rmtree(FOLDERS / name, ignore_errors=True)
        if not (NAMESPACES / name).exists():
            continue
        listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        for pid in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        done = subprocess.run(["ip", "netns", "del", name], capture_output=True, text=True, check=False)
        if done.returncode and (NAMESPACES / name).exists():
            raise OSError(f"cannot remove namespace {name}: {done.stderr.strip()}")


def mac_of(number: int) -> str:
    """The MAC address of a host, by the last byte of its address."""
    return f"02:05:00:00:00:{number:02x}"


def _run(*arguments: str) -> str:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(arguments)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
