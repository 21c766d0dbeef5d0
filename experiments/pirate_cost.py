"""Pirate, figures 8, 8d: cost inside the kernel: time for a packet against connections and load, and memory.

Against connections: test runs of the attached program's code, compared in one run with one that only passes packets on.
Each packet is the next one of its connection, all connections in turn. `told` is with the time given, `clock` with the
clock read: the latter includes what that takes on this machine. Against load: real requests of 64 connections in the
lab, with the kernel's own statistics of programs, which include reading two clocks. Fig. 8d: what the processor counts
during the same test runs, for a packet, where it can count. Needs root.

    python experiments/pirate_cost.py [--quick]
"""

import argparse
import json
import os
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from counters import counted, why_none
from pirate_lab import need_root
from traces import show

from lab.clients import Load
from lab.run import run
from lab.scenarios import Scenario
from lab.servers import Httpd
from wirelag.ebpf import bpf
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.pirate import RECORDS, KernelPirate
from wirelag.estimators.pirate import Method, Pirate

CONNECTIONS = (1, 64, 1024, 1 << 14, 1 << 17, 1 << 20)
QUICK = (1, 1024)
LOADS = (1000, 2000, 4000, 8000)  # requests per second
QUICK_LOADS = (2000,)
LOADED = 64  # connections
METHODS: tuple[Method, ...] = ("modes", "auto")
RUNS, REPEAT = 7, 200_000
RATES = {
    "per cycle": ("instructions", "cycles"),
    "branches": ("branch misses", "branches"),
    "loads": ("data cache misses", "data cache loads"),
}
ENABLE_STATISTICS = 32  # bpf(2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two numbers of connections, one load")
    quick = parser.parse_args().quick
    need_root()
    rows = [against_connections(flows, 3 if quick else RUNS) for flows in (QUICK if quick else CONNECTIONS)]
    kinds = [f"{method}, {clock}" for method in METHODS for clock in ("told", "clock")]
    show("ns for a packet", ("connections", "pass", *kinds), [row[:6] for row in rows])
    show("times the pass", ("connections", *kinds), [(row[0], *(ns / row[1] for ns in row[2:])) for row in rows])
    loads = [against_load(rate, 1.0 if quick else 4.0) for rate in (QUICK_LOADS if quick else LOADS)]
    header = ("requests/s", *(f"{method}, {what}" for method in METHODS for what in ("ns", "% of a core")))
    show("in the lab, 64 connections", header, loads)
    show_counters(QUICK if quick else CONNECTIONS)
    show("bytes for a connection", ("method", "record", "key, time, lock", "name", "64K connections, MB"), memory())


def frame() -> bytes:
    """A request of 100 bytes."""
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 152, 1, 0, 64, 6, 0, bytes([10, 0, 0, 1]), bytes([10, 9, 9, 9]))
    tcp = struct.pack(">HHIIBBHHHBBBBII", 40000, 80, 1, 1, 0x80, 0x18, 500, 0, 0, 1, 1, 8, 10, 1, 1)
    return bytes(12) + b"\x08\x00" + ip + tcp + bytes(100)


def against_connections(flows: int, runs: int) -> tuple[int, ...]:
    """Ns per packet: passed on; for each method, with the time given and with the clock read."""
    packet = frame()

    def best(program: bpf.Program) -> int:
        return min(program.run(packet, repeat=max(REPEAT, 2 * flows)).duration_ns for _ in range(runs))

    with Dataplane("moving", constants={"flows": flows}) as moving:
        moves, passes = moving.programs["wl_moving"], moving.programs["wl_pass"]
        alone = best(passes)
        moving.maps["next"].update(0, passes)
        moved = best(moves)
        costs = []
        for method in METHODS:
            for told in (True, False):
                estimator = memory_for(method, flows)
                clock = moving.maps[".bss"] if told else None
                with KernelPirate(estimator, all_are_clients=True, replayed=told, clock=clock) as meter:
                    moving.maps["next"].update(0, meter.program)
                    costs.append(best(moves) - moved + alone)
    return flows, alone, *costs


def show_counters(connections: tuple[int, ...]) -> None:
    """Instructions for a cycle, and misses, against connections; a machine that cannot count says why."""
    header = ("connections", *(f"{method}, {what}" for method in METHODS for what in RATES), "why not")
    why = why_none()
    none = ("any", *["-"] * (len(header) - 2), why)
    rows = [none] if why else [(f"{flows}", *rates(flows), "-") for flows in connections]
    show("8d: instructions for a cycle; misses, % of branches and of loads", header, rows)


def rates(flows: int) -> list[str]:
    """For each method: instructions for a cycle, misses of branches and of the data cache in percent."""
    packet, repeat, found = frame(), max(REPEAT, 2 * flows), []
    with Dataplane("moving", constants={"flows": flows}) as moving:
        for method in METHODS:
            with KernelPirate(memory_for(method, flows), all_are_clients=True) as meter:
                moving.maps["next"].update(0, meter.program)
                for events, base in RATES.values():
                    many, all_ = (
                        counted(name, lambda: moving.programs["wl_moving"].run(packet, repeat=repeat))
                        for name in (events, base)
                    )
                    found.append(f"{(1 if base == 'cycles' else 100) * many / max(1, all_):.2f}")
    return found


def memory_for(method: Method, flows: int) -> Pirate:
    """A meter with room for as many connections."""
    return Pirate(method, max(1 << 20, 2 * flows * (RECORDS[method] + 56)))


def against_load(rate: int, seconds: float) -> tuple[object, ...]:
    """Requests per second achieved; for each method ns per packet and the share of a core."""
    scenario = Scenario("cost", Httpd("constant:100"), Load("open", rate=rate / LOADED), None, LOADED, seconds)
    found: list[object] = [rate]
    keeps, _ = bpf.call(ENABLE_STATISTICS, struct.pack("<I", 0))
    try:
        for method in METHODS:
            with TemporaryDirectory() as folder:
                done = run(scenario, 1, Path(folder), method)
                assert done.epochs is not None
                said = json.loads(done.epochs.with_suffix(".json").read_text())
            found += [round(said["ns"] / said["ran"]), 100 * said["ns"] / 1e9 / seconds]
    finally:
        os.close(keeps)
    return tuple(found)


def memory() -> list[tuple[object, ...]]:
    """Bytes, from the maps."""
    rows: list[tuple[object, ...]] = []
    for method in METHODS:
        with KernelPirate(Pirate(method, 1), replayed=True) as meter:
            whole = meter.memory / 8
        besides = round(whole - 40 - RECORDS[method])
        rows.append((method, RECORDS[method], besides, 40, f"{whole * 65536 / 1e6:.1f}"))
    return rows


if __name__ == "__main__":
    main()
