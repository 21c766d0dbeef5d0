"""A meter's programs at an interface: XDP for incoming packets, tc for outgoing ones, with the same maps.

Law: all reads are from memory shared with the kernel: once it is open, no privilege is needed. The programs' clock is
never set; `keep_time` tells them what ours differs by.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from wirelag.capture.ktime import follow_clock
from wirelag.capture.pcap import UNDECODED
from wirelag.ebpf.bpf import cpus
from wirelag.ebpf.dataplane import Dataplane, check_interface
from wirelag.errors import WirelagError
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId

Direction = Literal["both", "in", "out"]

BACK_NS: Final = 10**9  # a time that goes back by more than this means that the clock was set
OWN: Final = (".rodata", "then", "decodings", "passings")  # maps that each program has for itself
REASONS: Final = ("ok", *UNDECODED, "failed")


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
        """`sizes` are entries by map; `counters` those of a CPU, which has `skipped` and `failed`.

        `replayed`: programs get the time from outside; the default is to do so if there is no interface.
        """
        self.interface, self.interval_ns = interface, interval_ns
        self.cpus = cpus()
        self.notes: list[str] = []
        self._planes: list[Dataplane] = []
        told = {
            "interval_ns": interval_ns,
            "replayed": int(interface is None if replayed is None else replayed),
            "then_wanted": int(then is not None),
        }
        try:
            self.plane = self._loaded(stem, {"counters": self.cpus, **sizes}, {**constants, **told})
            self.counters: npt.NDArray[Any] = self.memory("counters", counters)
            self.closed_ns = self.plane.variable("closed_ns").view(np.uint64)
            self._ahead_ns = self.plane.variable("ahead_ns").view(np.int64)
            self.prepare()
            self.keep_time()
            if interface is not None:
                self._attach(stem, interface, direction, then, {**constants, **told})
        except BaseException:
            self.close()
            raise

    def prepare(self) -> None:
        """Do what must be done between loading and attaching."""

    def memory(self, name: str, kind: npt.DTypeLike = np.uint64) -> npt.NDArray[Any]:
        """The values of a map that is shared with the kernel."""
        return self.plane.maps[name].memory().view(kind)

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
            shared = {name: one for name, one in self.plane.maps.items() if name not in OWN}
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
        if self.interface is not None and now_ns < int(self.closed_ns[0]) - BACK_NS:
            self.closed_ns[0] = 0
            self.give_up_after(now_ns // self.interval_ns + 2)

    def give_up_after(self, name: int) -> None:
        """Give up intervals of a time that will come again after a clock was set back: they would block it."""

    def close_until(self, interval: Interval) -> int:
        """Nothing more goes into intervals up to this one; return its number, from 1."""
        name = interval.start_ns // self.interval_ns + 1
        self.closed_ns[0] = max(int(self.closed_ns[0]), name * self.interval_ns)
        self.keep_time()
        return name

    def skipped(self) -> dict[str, int]:
        """Frames without a row, by reason."""
        counts = self.counters["skipped"].sum(axis=0).tolist()
        return {reason: count for reason, count in zip(REASONS, counts, strict=True) if count}

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
