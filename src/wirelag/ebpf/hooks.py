"""A meter's programs at an interface: XDP for incoming packets, tc for outgoing ones, with the same maps.

Law: intervals have two sides (bpf/turn.h). While the kernel fills one, `ended` yields the other and empties it; an
interval that is not fetched before the next but one begins is lost, and its packets count as missed. All reads are from
memory shared with the kernel: once it is open, no privilege is needed.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag.capture.ktime import follow_clock
from wirelag.capture.live import LiveStatistics
from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.dataplane import Dataplane, check_interface
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketId
from wirelag.packets.intervals import Interval

Direction = Literal["both", "in", "out"]

BACK_NS: Final = 10**9  # a time that goes back by more than this means that the clock was set
REASONS: Final = ("ok", "link_type", "not_ip", "cut", "malformed", "layers", "no_timestamp", "failed")
TURN: Final = [("start_ns", "u8"), ("side", "u4"), ("refused", "u4"), ("name", "u8", 2), ("missed", "u8")]


def counters_of(side: list[tuple[Any, ...]]) -> np.dtype[Any]:
    """The counters of a CPU; `side` are a method's counters on each side of its interval."""
    return np.dtype([*TURN, ("at", np.dtype(side), 2), ("skipped", "u8", len(REASONS)), ("failed", "u8")])


def decoding(packet_id: PacketId | None, tunnels: bool) -> bytes:
    """`struct wl_decode_options`."""
    fields, prefix, seed = (packet_id.fields, packet_id.prefix, packet_id.seed) if packet_id else (0, 0, 0)
    words = np.array([fields, prefix, tunnels, 0], np.uint32)
    return seed.to_bytes(8, "little") + words.tobytes()


class Hooks:
    """Programs of one stem, attached or, without an interface, only loaded, to replay packets."""

    def __init__(
        self,
        stem: str,
        interface: str | None,
        *,
        counters: np.dtype[Any],
        sizes: Mapping[str, int],
        constants: Mapping[str, int | bytes],
        interval_ns: int,
        direction: Direction = "both",
        then: str | None = None,
        replayed: bool | None = None,
    ) -> None:
        """`sizes` are per CPU, except maps whose name begins with `slots`, which all CPUs share.

        `replayed`: programs get the time from outside; the default is to do so if there is no interface.
        """
        self.interface, self.interval_ns = interface, interval_ns
        self.cpus = cpus()
        self.notes: list[str] = []
        self._given_up = 0  # packets counted in intervals that can no longer be fetched
        self._planes: list[Dataplane] = []
        every = {name: size if name.startswith("slots") else size * self.cpus for name, size in sizes.items()}
        told = {
            "interval_ns": interval_ns,
            "replayed": int(interface is None if replayed is None else replayed),
            "then_wanted": int(then is not None),
        }
        try:
            self.plane = self._loaded(stem, {"counters": self.cpus, **every}, {**constants, **told})
            memory = self.plane.maps["counters"].memory()
            self.counters: npt.NDArray[Any] = memory.view(counters)
            self.sides = {
                name: self.plane.maps[name].memory().view(np.uint64).reshape(self.cpus * 2, -1)
                for name in sizes
                if not name.startswith("slots")
            }
            self._closed_ns = self.plane.variable("closed_ns").view(np.uint64)
            self._ahead_ns = self.plane.variable("ahead_ns").view(np.int64)
            self.keep_time()
            if interface is not None:
                self._attach(stem, interface, direction, then, {**constants, **told})
        except BaseException:
            self.close()
            raise

    def _loaded(self, stem: str, sizes: Mapping[str, int], constants: Mapping[str, int | bytes]) -> Dataplane:
        self._planes.append(Dataplane(stem, sizes=sizes, constants=constants))
        return self._planes[-1]

    def _attach(
        self, stem: str, interface: str, direction: Direction, then: str | None, constants: Mapping[str, int | bytes]
    ) -> None:
        (program,) = self.plane.programs
        if then is not None:
            if direction == "out":
                raise WirelagError(f"{then}: runs after our program for incoming packets; --direction out has none")
            self.plane.run_then(then)
        # A loopback shows every packet twice: outgoing and incoming.
        if direction != "in" and interface != "lo":
            shared = {
                name: one for name, one in self.plane.maps.items() if name not in (".rodata", "then", "decodings")
            }
            egress = Dataplane(f"{stem}_egress", constants=constants, shared=shared)
            self._planes.append(egress)
            egress.attach_egress(program, interface)
        if direction != "out":
            link = self.plane.attach_xdp(program, interface)
            if link.mode == "generic":
                self.notes.append(f"{interface}: its driver does not support XDP; ours runs behind it (generic mode)")
        self._index = socket.if_nametoindex(interface)

    def close(self) -> None:
        """Detach."""
        for plane in self._planes:
            plane.close()

    def keep_time(self) -> None:
        """Follow our clock: the programs' clock is never set, ours may be. If it was set back, intervals start anew."""
        now_ns = time.time_ns()
        follow_clock(self._ahead_ns)
        if self.interface is not None and now_ns < int(self._closed_ns[0]) - BACK_NS:
            self._closed_ns[0] = 0
            self._give_up_after(now_ns // self.interval_ns + 2)

    def check(self) -> None:
        """Raise a WirelagError if the interface went down or is gone."""
        self.keep_time()
        if self.interface is not None:
            check_interface(self.interface, self._index)

    def run(self, frame: bytes, time_ns: int) -> int:
        """Run the program on a replayed frame; return its verdict."""
        self.plane.variable("replay_ns").view(np.uint64)[0] = time_ns
        (program,) = self.plane.programs.values()
        return program.run(frame).result

    # ---- intervals ----

    def ended(self, interval: Interval) -> Iterator[tuple[Any, int]]:
        """The counters of each CPU for an interval that is over, and the number of its side; both are then emptied."""
        name = interval.start_ns // self.interval_ns + 1
        self._closed_ns[0] = max(int(self._closed_ns[0]), name * self.interval_ns)
        self.keep_time()
        for cpu, counted in enumerate(self.counters):
            for side in range(2):
                found = int(counted["name"][side])
                if found == 0 or found > name:  # a late call leaves the side being filled alone
                    continue
                if found == name:
                    yield counted["at"][side], cpu * 2 + side
                else:  # it was not fetched in time
                    self._given_up += int(counted["at"][side]["packets"])
                self._empty(cpu, side)

    def _empty(self, cpu: int, side: int) -> None:
        counted = self.counters[cpu]
        counted["at"][side] = np.zeros((), counted["at"].dtype)
        for memory in self.sides.values():
            memory[cpu * 2 + side] = 0
        counted["name"][side] = 0

    def _give_up_after(self, name: int) -> None:
        """Give up intervals of a time that will come again after a clock was set back: they would block it."""
        for cpu, side in np.argwhere(self.counters["name"] > name).tolist():
            self._given_up += int(self.counters[cpu]["at"][side]["packets"])
            self._empty(cpu, side)

    def seen(self) -> LiveStatistics:
        """All counts so far."""
        missed = int(self.counters["missed"].sum()) + self._given_up
        skipped = self.counters["skipped"].sum(axis=0).tolist()
        return LiveStatistics(dropped=missed, skipped={r: n for r, n in zip(REASONS, skipped, strict=True) if n})
