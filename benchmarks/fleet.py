"""Two worker processes against one, on the same captures, in one run; and what a task costs besides its work.

    python benchmarks/fleet.py --packets 40M --files 8      (4.4 GB of captures in a temporary folder)

It prints the time of each and of one process without `--on`, the speed-up, the largest memory of a worker, the bytes
that tasks return, and the overhead of a task in Dask, from tasks that do nothing. Run it alone, or with `chrt -r 10`:
other programs count. `--folder` keeps the captures for another run, `--only-write` writes them alone.
"""

import argparse
import json
import shutil
import struct
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import wirelag
from wirelag.measure.fleet import Fleet
from wirelag.scale.engine import Engine, Task, local
from wirelag.units import format_size

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

EMPTY = 2000  # tasks that do nothing


def nothing(place: int) -> bytes:
    """A task without work."""
    return b""


def peak() -> int:
    """The largest memory of this process so far, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM"))


def captures(folder: Path, packets: int, files: int) -> list[str]:
    """Captures of this many packets in all: one simulated, the others the same, each a day later."""
    from tests.support.simulated_captures import write_simulation
    from wirelag.sim import Scenario, simulate

    paths = [folder / f"tap-{i:03}.pcap" for i in range(files)]
    if not all(path.exists() for path in paths):
        write_simulation(simulate(Scenario(packets=packets // files, seed=1)), paths[0])
        data = np.fromfile(paths[0], np.uint8)
        seconds_at = np.array(records_at(data), np.int64)
        for i, path in enumerate(paths[1:], 1):
            seconds = sum(data[seconds_at + k].astype(np.int64) << 8 * k for k in range(4)) + 86400 * i
            shifted = data.copy()
            for k in range(4):
                shifted[seconds_at + k] = seconds >> 8 * k & 0xFF
            shifted.tofile(path)
    return [str(path) for path in paths]


def records_at(data: "np.ndarray[tuple[int], np.dtype[np.uint8]]") -> list[int]:
    """Where the records of a pcap file begin."""
    at, found, raw = 24, [], data.tobytes()
    length = struct.Struct("<I").unpack_from
    while at < len(raw):
        found.append(at)
        at += 16 + length(raw, at + 8)[0]
    return found


def run(files: list[str], workers: int, by: str | None) -> tuple[float, str, int, int, int]:
    """Seconds, the answer, the largest memory of a worker, tasks, and bytes returned."""
    with local(workers) as client:
        client.run(__import__, "wirelag.measure.rtt_many")
        fleet = Fleet(client)
        began = time.perf_counter()
        result = wirelag.rtt(files, by=by, charts=False, force=True, on=fleet)
        seconds = time.perf_counter() - began
        most = max(client.run(peak).values())
    return seconds, json.dumps(result.to_dict()), most, fleet.tasks, fleet.bytes_returned


def overhead() -> float:
    """Seconds that the scheduler and this process need for a task, without its work."""
    with local(2) as client:
        engine = Engine(client)
        list(engine.run([Task("nothing", nothing, (i,)) for i in range(50)]))
        began = time.perf_counter()
        list(engine.run([Task("nothing", nothing, (i,)) for i in range(EMPTY)]))
        return (time.perf_counter() - began) / EMPTY


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--packets", default="4M", help="of all captures, as 40M")
    parser.add_argument("--files", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=1, help="number of rounds; the fastest counts")
    parser.add_argument("--by", help="groups, as of wirelag rtt")
    parser.add_argument("--folder", help="where the captures are, or are written")
    parser.add_argument("--only-write", action="store_true")
    given = parser.parse_args()
    packets = int(float(given.packets.rstrip("Mm")) * 1e6) if given.packets[-1] in "Mm" else int(given.packets)
    folder = Path(given.folder or tempfile.mkdtemp(prefix="wirelag-fleet-"))
    try:
        files = captures(folder, packets, given.files)
        size = sum(Path(path).stat().st_size for path in files)
        print(f"{packets:,} packets in {len(files)} captures, {format_size(size)}")
        if given.only_write:
            return
        began = time.perf_counter()
        wirelag.rtt(files, by=given.by, charts=False, force=True)
        seconds = time.perf_counter() - began
        print(f"without --on, on all cores: {seconds:.2f} s, {packets / seconds / 1e6:.2f} M packets/s")
        found = {}
        for workers in (1, 2):
            seconds, answer, most, tasks, returned = min(run(files, workers, given.by) for _ in range(given.rounds))
            found[workers] = seconds, answer
            rate = f"{seconds:.2f} s, {packets / seconds / 1e6:.2f} M packets/s"
            told = f"{tasks} tasks, {format_size(returned / tasks)} returned by each"
            print(f"{workers} worker{'s' * (workers > 1)}: {rate}, {told}, at most {format_size(most)} of memory")
        (one, answer), (two, other) = found[1], found[2]
        print(f"speed-up: {one / two:.2f}; the answers are {'equal' if answer == other else 'DIFFERENT'}")
        print(f"overhead of a task in Dask: {overhead() * 1e3:.2f} ms")
    finally:
        if given.folder is None:
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
