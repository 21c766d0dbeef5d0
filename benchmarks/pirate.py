"""Benchmarks of `pirate` for `benchmarks/run.py`: requests of many connections, each after a response."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from wirelag import _kernels
from wirelag.estimators.pirate import Pirate, PirateMeter
from wirelag.packets.batch import COLUMNS, Flag, Kind, PacketBatch, TcpFlag
from wirelag.synopses.epochs import METHODS

FLOWS = 100_000
PACKETS = 2_000_000
CYCLE_NS = 25_000_000  # from a request to the next one of its connection: 20 of them are an epoch
REQUEST, RESPONSE = 120, 700  # bytes
ASKS = TcpFlag.ACK | TcpFlag.PSH
PIRATE = Pirate(memory=256 << 20)  # four slots per flow: with two, some groups are full


def columns(flows: int = FLOWS) -> list[PacketBatch]:
    """Batches as from a reader: every flow once per cycle, each time in another order; first all connect."""
    whole: dict[str, Any] = {
        name: np.zeros((PACKETS, width) if width > 1 else PACKETS, dtype) for name, dtype, width in COLUMNS
    }
    rng, row = np.random.default_rng(1), np.arange(PACKETS)
    order = np.concatenate([rng.permutation(flows) for _ in range(PACKETS // flows)])
    cycle = row // flows
    whole["time_ns"][:] = 1_700_000_000 * 10**9 + row * CYCLE_NS // flows
    whole["flow_key"][:] = (order.astype(np.uint64) + np.uint64(1)) << np.uint64(1)
    whole["src"][:, 1] = 0xFFFF_0A00_0000 + order
    whole["dst"][:, 1] = 0xFFFF_C000_0201
    whole["protocol"][:], whole["src_port"][:], whole["dst_port"][:] = 6, 40_000, 443
    whole["kind"][:], whole["message"][:] = Kind.TCP, np.where(cycle > 0, ASKS, TcpFlag.SYN)
    whole["flags"][:] = Flag.TIMESTAMPS
    whole["seq"][:], whole["ack"][:] = np.maximum(1 + (cycle - 1) * REQUEST, 0), cycle * RESPONSE
    whole["tsval"][:] = whole["tsecr"][:] = 1000 + whole["time_ns"] // 10**6 % 2**31
    whole["payload_length"][:], whole["wire_length"][:] = np.where(cycle > 0, REQUEST, 0), REQUEST + 52
    whole["ip_id"][:] = cycle
    batch = PacketBatch(whole)
    return [batch[start : start + _kernels.BATCH_ROWS] for start in range(0, PACKETS, _kernels.BATCH_ROWS)]


def later(batches: list[PacketBatch], flows: int = FLOWS) -> None:
    """Continue the same connections."""
    cycles = PACKETS // flows
    for batch in batches:
        batch.time_ns += cycles * CYCLE_NS
        batch.seq += np.uint32(cycles * REQUEST)
        batch.ack += np.uint32(cycles * RESPONSE)
        batch.tsval += np.uint32(cycles * CYCLE_NS // 10**6)
        batch.tsecr += np.uint32(cycles * CYCLE_NS // 10**6)
        batch.ip_id += np.uint16(cycles)
        batch.message[:], batch.payload_length[:] = ASKS, REQUEST


def packets_per_s(flows: int = FLOWS, rounds: int = 10) -> tuple[float, float]:
    """Rates of the meter, and of its kernel alone, with all flows in the table: the best round, in processor time."""
    batches = columns(flows)
    return PACKETS / min(_meter_s(batches, flows, rounds)), PACKETS / min(_kernel_s(batches, flows, rounds))


def _observed_s(meter: PirateMeter, batches: list[PacketBatch]) -> float:
    start = time.process_time()
    for batch in batches:
        meter.observe(batch)
    return time.process_time() - start


def _meter_s(batches: list[PacketBatch], flows: int, rounds: int) -> Iterator[float]:
    """Seconds of each round after the first, which fills the table."""
    meter = PIRATE.meter("tap")
    _observed_s(meter, batches)
    for _ in range(rounds):
        later(batches, flows)
        yield _observed_s(meter, batches)


def _kernel_s(batches: list[PacketBatch], flows: int, rounds: int) -> Iterator[float]:
    """The same for prepared columns, without addresses."""
    kernel = PIRATE.kernel(METHODS.index("auto"), PIRATE.memory // 2)
    for round_ in range(rounds + 1):
        later(batches, flows)
        spent_s = sum(_kernel_takes_s(kernel, batch) for batch in batches)
        if round_:
            yield spent_s


def _kernel_takes_s(kernel: _kernels.Pirate, batch: PacketBatch) -> float:
    mss = np.zeros(len(batch), np.uint16)
    has = np.full(len(batch), 1 | 2 | 4, np.uint8)  # headers of TCP, timestamps, IP ids
    start = time.process_time()
    kernel.observe(
        batch.time_ns, batch.flow_key, batch.seq, batch.ack, batch.tsval, batch.tsecr, batch.wire_length,
        batch.payload_length, batch.ip_id, mss, batch.message, has,
    )  # fmt: skip
    spent_s = time.process_time() - start
    kernel.take(np.empty((kernel.epochs, len(_kernels.EPOCH_COLUMNS)), np.uint64))
    return spent_s
