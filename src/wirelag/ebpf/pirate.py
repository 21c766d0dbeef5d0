"""`pirate` in the kernel: packets incoming at an interface, turned into the same epochs as from captures.

Law: the same packets give the same epochs. The table is in the kernel (bpf/pirate_hook.h); epochs leave it through a
ring as they end; open flows are finished here at the end, by the same C. Failures are counted.
Memory: the estimator's, in the kernel, and a ring of 4 MiB.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence
from ipaddress import IPv4Network
from types import TracebackType
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wirelag import _kernels
from wirelag.capture.ktime import follow_clock
from wirelag.capture.live import LiveStatistics
from wirelag.capture.pcap import UNDECODED
from wirelag.ebpf.bpf import Map, Program, RingBuffer, cpus, info
from wirelag.ebpf.dataplane import Dataplane, check_interface
from wirelag.errors import WirelagError
from wirelag.estimators.pirate import Pirate
from wirelag.estimators.pirate_confidence import judged
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.interval import Interval
from wirelag.packets.roles import Server
from wirelag.synopses.epochs import EPOCH, METHODS, Epochs

Array = npt.NDArray[Any]

STEMS: Final = {"auto": "pirate_auto", "modes": "pirate_modes"}
RECORDS: Final = {"auto": 256, "modes": 144}  # bytes of a flow
BESIDES: Final = 8 + 8  # its key, and the time of its last packet; one bit of these is a group's lock
MOST_SERVERS: Final = 8
SLOTS: Final = 8  # slots per group
RING_BYTES: Final = 4 << 20
ALL, BY_PORTS, TO_SERVERS = range(3)
PROGRAM: Final = "wl_pirate"
MAPPED: Final = 0xFFFF << 32  # IPv4 as an IPv6 address
# struct wl_told: time, struct wl_epoch, name.
_SMALL: Final = (
    *((name, "<u4") for name in ("count", "batch_count", "think_count", "requests", "lost", "waits_before")),
    *((name, "<u2") for name in ("in_flight", "riding", "doubts")),
    *((name, "u1") for name in ("turns", "more", "reason", "method", "traits", "tick")),
)
_WORDS: Final = ("start_ns", "end_ns", "sum_ns", "batch_sum_ns", "think_sum_ns", "network_ns", "waits")
_ENDS: Final = ("src_high", "src_low", "dst_high", "dst_low", "ports")
TOLD: Final = np.dtype(
    [("at_ns", "<i8"), ("key", "<u8"), *((name, "<i8") for name in _WORDS), *_SMALL, ("", "V4")]
    + [(name, "<u8") for name in _ENDS]
)
# struct wl_work begins with these; then undecoded packets by reason.
COUNTS: Final = (
    *("packets", "bad_time", "flows", "evicted", "other", "from_servers"),
    *("busy", "untold", "failed", "not_handed_on"),
)
REASONS: Final = ("ok", *UNDECODED)


class KernelPirate:
    """A meter like `PirateMeter` that gets no packets: it sees those incoming at an interface.

    Without servers, the ports decide who is the client (`all_are_clients`: everyone is). `then` is a pinned XDP program
    that gets each packet afterwards. With `replayed` nothing is attached: `replay` passes it frames; `clock` is then
    the variables of another program that provides the time.
    """

    def __init__(
        self,
        estimator: Pirate,
        interface: str | None = None,
        *,
        servers: Sequence[Server] = (),
        all_are_clients: bool = False,
        tunnels: bool = False,
        then: str | None = None,
        replayed: bool = False,
        clock: Map | None = None,
    ) -> None:
        if estimator.method not in STEMS:
            raise WirelagError(f"the method {estimator.method} does not run in the kernel: use auto or modes")
        if len(servers) > MOST_SERVERS:
            raise WirelagError(
                f"the kernel supports at most {MOST_SERVERS} servers: name a prefix that covers them all"
            )
        self.estimator = estimator
        self._table = estimator.kernel(METHODS.index(estimator.method), estimator.memory)
        self._plane = Dataplane(
            STEMS[estimator.method],
            sizes={"groups": self._table.groups, "names": self._table.groups, "work": cpus(), "epochs": RING_BYTES},
            constants={
                "coin_key": self._table.coin_key,
                "address_key": _kernels.ADDRESS_KEY,
                "group_count": self._table.groups,
                "clients": ALL if all_are_clients else TO_SERVERS if servers else BY_PORTS,
                "server_count": len(servers),
                "servers": b"".join(map(_server, servers)).ljust(40 * MOST_SERVERS, b"\0"),
                "without_tcp": estimator.method != "auto",
                "tunnels": tunnels,
                "goes_on": then is not None,
                "replayed": replayed,
            },
            shared={".bss": clock} if clock else {},
        )
        self._replay_ns = self._plane.variable("replay_ns").view(np.int64)
        self._ahead_ns = self._plane.variable("ahead_ns").view(np.int64)
        self._groups = self._plane.maps["groups"].memory().reshape(self._table.groups, -1)
        self._names = self._plane.maps["names"].memory().view(np.uint64).reshape(self._table.groups, SLOTS, len(_ENDS))
        self._work = self._plane.maps["work"].memory().view(np.uint64).reshape(cpus(), -1)
        self._settle()
        self._ring = RingBuffer(self._plane.maps["epochs"])
        self._told: list[Array] = []
        self._unlisted = 0
        self._counted: dict[str, int] = {}
        self.notes: list[str] = []
        self._interface, self._index = interface, 0
        try:
            self._attach(then)
        except BaseException:
            self.close()
            raise

    def _attach(self, then: str | None) -> None:
        if then is not None:
            self._plane.run_then(then)
        if self._interface is None:
            return
        if self._plane.attach_xdp(PROGRAM, self._interface).mode == "generic":
            self.notes.append(f"{self._interface}: its driver does not support XDP; ours runs behind it (generic mode)")
        self._index = socket.if_nametoindex(self._interface)

    def __enter__(self) -> KernelPirate:
        """Return itself; leaving the context closes it."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Detach it."""
        self.close()

    def close(self) -> None:
        """Detach it, and release its tables."""
        self._plane.close()

    def _settle(self) -> None:
        """Update what may change while it runs: settings and the clock's seconds."""
        chosen = self.estimator
        words = np.array([chosen.epoch_ns, chosen.gap_ns], np.int64).tobytes()
        rest = np.array([chosen.fewest], np.uint32).tobytes() + bytes([chosen.literal, 0, 0, 0])
        self._plane.variable("settings")[:] = np.frombuffer(words + rest, np.uint8)
        follow_clock(self._ahead_ns)

    @property
    def program(self) -> Program:
        """The attached program."""
        return self._plane.programs[PROGRAM]

    @property
    def variables(self) -> Map:
        """Its variables at run time, including the time."""
        return self._plane.maps[".bss"]

    def replay(self, frame: bytes, time_ns: int) -> None:
        """Run it on a frame as if it arrived at that time."""
        self._replay_ns[0] = time_ns
        self.program.run(frame)

    def ran(self) -> tuple[int, int]:
        """How often it ran, and for how many ns, while the kernel kept statistics (kernel.bpf_stats_enabled)."""
        ns, times = struct.unpack_from("<QQ", info(self.program.fd, 208), 192)
        return times, ns

    def check(self) -> None:
        """Raise a WirelagError if the interface went down or is gone."""
        follow_clock(self._ahead_ns)
        if self._interface is not None:
            check_interface(self._interface, self._index)

    def statistics(self) -> LiveStatistics:
        """Counts so far; dropped packets could not be measured."""
        counts = self.counts()
        skipped = {name: counts[name] for name in REASONS[1:] if counts[name]}
        seen = sum(counts[name] for name in ("packets", "other", "from_servers"))
        return LiveStatistics(seen, counts["busy"] + counts["failed"], packets=seen, skipped=skipped)

    def observe(self, packets: PacketBatch, grouping: Grouping | None = None) -> None:
        """Do nothing: packets are observed in the kernel."""

    def collect(self) -> None:
        """Read epochs from the ring, as many as are listed; call it often enough that the ring does not fill."""
        told = self._ring.drain()
        kept = told[: max(0, self.estimator.most_epochs - sum(map(len, self._told)))]
        self._unlisted += len(told) - len(kept)
        if kept:
            self._told.append(np.frombuffer(b"".join(kept), TOLD))

    def cut(self, interval: Interval) -> Epochs:
        """The epochs that ended before the interval's end; open flows continue."""
        follow_clock(self._ahead_ns)
        self.collect()
        told = np.concatenate([np.empty(0, TOLD), *self._told])
        inside = told["at_ns"] < interval.end_ns
        self._told = [told[~inside]]
        return self._said(_rows(told[inside]))

    def finish(self) -> Epochs:
        """Detach it; return the epochs of all flows, including open ones."""
        for link in self._plane.links:
            link.close()
        self.collect()
        rows = _rows(np.concatenate([np.empty(0, TOLD), *self._told]))
        self._told = []
        last_ns = int(self._groups[:, 8 * SLOTS : 16 * SLOTS].copy().view(np.int64).max()) >> 1
        self._table.finish_groups(self._groups, self._names, last_ns)
        open_rows = np.zeros(self._table.epochs, EPOCH)
        self._table.take(open_rows.view("<u8").reshape(len(open_rows), len(_kernels.EPOCH_COLUMNS)))
        self._groups[:] = 0
        return self._said(np.concatenate([rows, open_rows]))

    def _said(self, rows: Array) -> Epochs:
        counts = self.counts()
        since = {name: n - self._counted.get(name, 0) for name, n in counts.items()}
        self._counted = counts
        listed = rows[: self.estimator.most_epochs]
        since["unlisted"] = len(rows) - len(listed) + since["untold"] + self._unlisted
        self._unlisted = 0
        return Epochs(judged(listed), since["packets"], since).possible()

    def counts(self) -> dict[str, int]:
        """Counters since it was loaded, over all CPUs."""
        words = self._work[:, : len(COUNTS) + len(REASONS)].sum(0).tolist()
        undecoded = dict(zip(REASONS, words[len(COUNTS) :], strict=False))
        return dict(zip(COUNTS, words, strict=False)) | {name: n for name, n in undecoded.items() if name != "ok"}

    def keys(self) -> list[int]:
        """The keys of its flows."""
        keys = self._groups[:, : 8 * SLOTS].copy().view(np.uint64)
        return [int(key) for key in keys[keys > 0]]

    @property
    def memory(self) -> int:
        """Size of the tables in the kernel, in bytes."""
        return sum(self._plane.maps[name].value_size for name in ("groups", "names")) * self._table.groups


def _rows(told: Array) -> Array:
    """Rows in the format of the C meter."""
    rows = np.zeros(len(told), EPOCH)
    for name in set(EPOCH.names or ()) & set(TOLD.names or ()):
        rows[name] = told[name]
    return rows


def _server(server: Server) -> bytes:
    """A server as struct wl_server."""
    net = server.net
    address, mask = int(net.network_address), int(net.netmask)
    if isinstance(net, IPv4Network):
        address, mask = address | MAPPED, mask | (1 << 128) - (1 << 32)
    halves = (address >> 64, address & (1 << 64) - 1, mask >> 64, mask & (1 << 64) - 1)
    return b"".join(half.to_bytes(8, "little") for half in halves) + server.port.to_bytes(8, "little")
