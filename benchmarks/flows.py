"""Benchmarks of the receiver of `rli` for `benchmarks/run.py`: packets of a million flows, with references."""

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wirelag import _kernels
from wirelag.estimators.rli import Rli, RliMeter
from wirelag.packets.batch import COLUMNS, Kind, PacketBatch
from wirelag.packets.stamp import PORT, PTP, STANDARD_BYTES
from wirelag.stats.queue_drain import Drain

FLOWS = 1_000_000
PACKETS = 2_000_000
EVERY = 49  # packets per reference
BURST = 40  # packets
LINK = 1_250_000_000  # bytes per second
SIZE = 500
RECORD_BYTES = 144
CUT_BYTES = 32 << 20  # while a table empties, a part of it exists twice more
RLI = Rli(memory=256 << 20, bytes_per_s=LINK, noise_ns=0.0)  # two slots per flow: with one, many would be evicted
STREAM = 1 << 40


def columns() -> list[PacketBatch]:
    """Batches as from a reader: every flow twice, in random order; bursts of packets wait for the link."""
    whole: dict[str, Any] = {
        name: np.zeros((PACKETS, width) if width > 1 else PACKETS, dtype) for name, dtype, width in COLUMNS
    }
    rng, row = np.random.default_rng(1), np.arange(PACKETS)
    reference = row % EVERY == EVERY - 1
    serialisation_ns = SIZE * 10**9 // LINK
    whole["time_ns"] += 1_700_000_000 * 10**9 + (row + row // BURST * 10) * serialisation_ns
    whole["wire_length"][:] = SIZE
    whole["packet_id"][:] = rng.integers(0, 2**64, PACKETS, dtype=np.uint64)
    whole["flow_key"][:] = rng.permutation(row % FLOWS).astype(np.uint64) << np.uint64(1)
    whole["flow_key"][reference] = STREAM
    whole["src"][:, 1] = 0xFFFF_0A00_0000 + whole["flow_key"]
    whole["dst"][:, 1] = 0xFFFF_C000_0201
    whole["protocol"][:], whole["dst_port"][:] = 6, 443
    sent_ns = whole["time_ns"][reference] - serialisation_ns - row[reference] % BURST * 100
    whole["kind"][reference], whole["message"][reference], whole["dst_port"][reference] = Kind.STAMP, PTP, PORT
    whole["seq"][reference] = np.arange(np.count_nonzero(reference))
    whole["payload_length"][reference] = STANDARD_BYTES
    whole["transaction"][reference] = (sent_ns // 10**9) << 32 | sent_ns % 10**9
    batch = PacketBatch(whole)
    return [batch[start : start + _kernels.BATCH_ROWS] for start in range(0, PACKETS, _kernels.BATCH_ROWS)]


def observed(meter: RliMeter, batches: list[PacketBatch]) -> RliMeter:
    """Process all packets."""
    for batch in batches:
        meter.observe(batch)
    return meter


def a_second_later(batches: list[PacketBatch]) -> None:
    """Shift the same packets by a second; references continue counting."""
    for batch in batches:
        batch.time_ns += 10**9
        rows = batch.kind == Kind.STAMP
        batch.seq[rows] += np.uint32(PACKETS // EVERY + 1)
        batch.transaction[rows] += np.uint64(1 << 32)


def packets_per_s(rounds: int = 10) -> tuple[float, float]:
    """Rates of the meter, and of its kernel alone, with all flows in the table: the best round, in processor time."""
    batches = columns()
    return PACKETS / min(_meter_s(batches, rounds)), PACKETS / min(_kernel_s(batches, rounds))


def _meter_s(batches: list[PacketBatch], rounds: int) -> Iterator[float]:
    """Seconds of each round after the first, which fills the table."""
    meter = observed(RLI.meter("downstream"), batches)
    for _ in range(rounds):
        a_second_later(batches)
        start = time.process_time()
        observed(meter, batches)
        yield time.process_time() - start


def _kernel_s(batches: list[PacketBatch], rounds: int) -> Iterator[float]:
    """The same for prepared columns, without addresses."""
    kernel = RLI.kernel(Drain(LINK, 0.0))
    for round_ in range(rounds + 1):
        a_second_later(batches)
        spent_s = sum(_spent_s(kernel, batch) for batch in batches)
        if round_:
            yield spent_s


def _spent_s(kernel: _kernels.Rli, batch: PacketBatch) -> float:
    kinds = (batch.kind == Kind.STAMP).astype(np.uint8)
    rows = np.flatnonzero(kinds)
    stamps = batch.transaction[rows]
    sent_ns = ((stamps >> np.uint64(32)) * np.uint64(10**9) + (stamps & np.uint64(0xFFFFFFFF))).astype(np.int64)
    nothing_ns, nothing = np.full(len(rows), -(2**63), np.int64), np.zeros(len(rows), np.uint64)
    columns = batch.time_ns, kinds, batch.wire_length, batch.flow_key, batch.packet_id
    start = time.process_time()
    kernel.observe(*columns, batch.seq[rows], sent_ns, nothing_ns, nothing)
    spent_s = time.process_time() - start
    kernel.take(np.empty((kernel.records, _kernels.FLOW_WORDS), np.uint64))
    return spent_s


_OBSERVE_AND_CUT = """
import re, sys
sys.path.insert(0, sys.argv[1])
from flows import RLI, columns, observed
from wirelag.packets.interval import Interval
def private():
    fields = dict(re.findall(r"(\\w+):\\s+(\\d+) kB", open("/proc/self/status").read()))
    return int(fields["VmHWM"]) - int(fields["RssFile"])
batches = columns()
before = private()
meter = observed(RLI.meter("downstream"), batches)
observing = private() - before
flows = meter.cut(Interval(0, 1))
print(meter.memory, len(flows), observing * 1024, (private() - before) * 1024)
"""


def memory() -> tuple[int, int, int, int]:
    """Bytes of table and buffer, records at the cut, and the peak growth of memory before and after it."""
    words = [sys.executable, "-c", _OBSERVE_AND_CUT, str(Path(__file__).parent)]
    table, records, observing, cutting = map(int, subprocess.run(words, check=True, capture_output=True).stdout.split())
    return table, records, observing, cutting
