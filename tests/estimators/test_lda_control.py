"""LDA cut at control packets: both points cut alike, whatever happens to some of the packets."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.lda_traces import SECOND_NS, Trace, batch, per_second
from wirelag.estimators.lda import Lda
from wirelag.packets.batch import Kind, PacketBatch
from wirelag.packets.intervals import CONTROL, CONTROL_PORT, Delimiters, control_payload
from wirelag.twopoint.spans import spans_between


def with_control(trace: Trace, every: int, left_out: dict[str, set[int]]) -> dict[str, list[PacketBatch]]:
    """Control packet 0, 1, 2, ... before every `every` packets, except those that a point does not see."""
    sources = {}
    for point, (seen,) in trace.sources().items():
        numbers = [n for n in range(len(trace.sent_ns) // every) if n not in left_out.get(point, set())]
        before = np.searchsorted(seen.packet_id - np.uint64(trace.first_id), np.array(numbers, np.uint64) * every)
        payloads = [control_payload(n) for n in numbers]
        count = len(seen) + len(numbers)
        at = before + np.arange(len(numbers))
        is_control = np.zeros(count, bool)
        is_control[at] = True
        columns: dict[str, npt.NDArray[Any]] = {
            "time_ns": np.empty(count, np.int64),
            "packet_id": np.full(count, 77, np.uint64),
            "kind": np.full(count, Kind.UDP, np.uint8),
            "dst_port": np.full(count, 53, np.uint16),
            "message": np.full(count, 0x57, np.uint8),
            "transaction": np.full(count, 0x4C41470100000003, np.uint64),  # only to this port it is a control packet
        }
        columns["time_ns"][~is_control], columns["time_ns"][at] = seen.time_ns, seen.time_ns[before]
        columns["packet_id"][~is_control] = seen.packet_id
        columns["dst_port"][at] = CONTROL_PORT
        columns["message"][at] = [payload[0] for payload in payloads]
        columns["transaction"][at] = [int.from_bytes(payload[1:9], "big") for payload in payloads]
        sources[point] = [batch(**columns)]
    return sources


CONTROLLED = Delimiters(SECOND_NS, control_port=CONTROL_PORT)


def test_control_packets_cut_at_both_points_and_are_not_measured() -> None:
    trace = per_second(0.5, True, seed=11)
    spans = list(spans_between(Lda(), with_control(trace, 100_000, {}), SECOND_NS, CONTROLLED))
    assert [span.interval.name for span in spans] == [CONTROL + n for n in range(5)]
    assert [(span.whole.sent, span.whole.received) for span in spans] == [(100_000, 100_000)] * 5
    for n, span in enumerate(spans):
        assert span.whole.sum_ns == trace.delays_ns[n * 100_000 : (n + 1) * 100_000].sum()
        assert span.lost_delimiters == 0


def test_copies_of_control_packets_neither_cut_nor_are_measured() -> None:
    """Each comes three times, also where a batch ends between copies."""
    trace = per_second(0.5, True, seed=11)
    plain = with_control(trace, 100_000, {})
    copied = {
        point: [batch[np.repeat(np.arange(len(batch)), np.where(batch.dst_port == CONTROL_PORT, 3, 1))]]
        for point, (batch,) in plain.items()
    }
    for split in (1, 2):
        (down,) = copied["downstream"]
        first = int(np.flatnonzero(down.dst_port == CONTROL_PORT)[3]) + split
        copied["downstream"] = [down[:first], down[first:]]
        spans = list(spans_between(Lda(), copied, SECOND_NS, CONTROLLED))
        copied["downstream"] = [down]
        assert [span.interval.name for span in spans] == [CONTROL + n for n in range(5)]
        assert [(span.whole.sent, span.whole.received) for span in spans] == [(100_000, 100_000)] * 5
        assert [span.whole.sum_ns for span in spans] == [
            trace.delays_ns[n * 100_000 : (n + 1) * 100_000].sum() for n in range(5)
        ]


def test_the_next_copy_cuts_if_the_first_was_lost() -> None:
    """With a packet between the copies, only that packet is in another interval at each point."""
    trace = per_second(0.5, True, seed=11)
    sources = {}
    for point, (seen,) in with_control(trace, 100_000, {}).items():
        rows = np.arange(len(seen), dtype=np.float64)
        control = np.flatnonzero(seen.dst_port == CONTROL_PORT)
        copies = control if point == "upstream" else control[:2]  # downstream the first copies of 2, 3 and 4 were lost
        order = np.argsort(np.concatenate((np.delete(rows, control[len(copies) :]), copies + 0.1, control + 1.5)))
        rows = np.concatenate((np.delete(np.arange(len(seen)), control[len(copies) :]), copies, control))[order]
        sources[point] = [seen[rows]]
    spans = list(spans_between(Lda(), sources, SECOND_NS, CONTROLLED))
    assert [span.interval.name for span in spans] == [CONTROL + n for n in range(5)]
    assert [span.lost_delimiters for span in spans] == [0] * 5
    assert [span.whole.sent for span in spans] == [100_000] * 5
    assert [span.whole.received - 100_000 for span in spans] == [0, 1, 0, 0, -1]


@pytest.mark.parametrize(
    "left_out", [{"downstream": {2}}, {"upstream": {2}}, {"downstream": {2, 3}}, {"downstream": {2}, "upstream": {3}}]
)
def test_a_lost_control_packet_is_noticed_and_joins_intervals(left_out: dict[str, set[int]]) -> None:
    trace = per_second(0.6, True, seed=12)
    spans = list(spans_between(Lda(), with_control(trace, 100_000, left_out), SECOND_NS, CONTROLLED))
    lost = set().union(*left_out.values())
    kept = [n for n in range(6) if n not in lost]
    assert [span.interval.name for span in spans] == [CONTROL + n for n in kept]
    assert [span.lost_delimiters for span in spans] == [len(lost) if n == 1 else 0 for n in kept]
    for first, end, span in zip(kept, [*kept[1:], 6], spans, strict=True):
        assert span.whole.sum_ns == trace.delays_ns[first * 100_000 : end * 100_000].sum()
        assert span.whole.lost == 0
