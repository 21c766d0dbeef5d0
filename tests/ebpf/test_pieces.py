"""LDA in the kernel, cut at packets: on the same packets it cuts where the meter outside the kernel does.

BPF_PROG_TEST_RUN runs packets through the loaded program on one CPU, each with its own time; the agent's cutter reads
the kernel at odd moments. Every part must be the same: interval, delimiters, synopses of everything and of classes.
"""

import random
from pathlib import Path

import pytest

from tests.oracles.marking import blocks
from tests.support.captures import pcap
from tests.support.kernel_frames import udp
from tests.support.kernel_meters import BEGIN_NS, XDP_PASS, Sent, assert_same_lda, built
from wirelag.agent.config import Measured
from wirelag.agent.cutting import CutPart, Unseen, cutter
from wirelag.agent.in_kernel import KernelMeters
from wirelag.capture.pcap import CaptureFile
from wirelag.ebpf.lda import KernelLda
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda
from wirelag.measure.marking_kernel import KernelBlocks
from wirelag.packets.addresses import Direction
from wirelag.packets.intervals import Delimiters, control_payload
from wirelag.packets.packet_id import PacketId
from wirelag.protocol.terms import Terms
from wirelag.twopoint.marking import Block
from wirelag.twopoint.spans import ALL

LENGTH_NS, GRACE_NS = 10**8, 10**7
LDA = Lda(rows=32, shifts=(0, 2), tail=16, seed=3)
PORT = 5862


pytestmark = pytest.mark.usefixtures("one_cpu")


def controlled(sent: list[Sent], seed: int) -> list[Sent]:
    """The same with control packets among them, three copies of each, and other packets to their port."""
    rng, found, number = random.Random(seed), [], 0
    for i, (time_ns, frame) in enumerate(sent):
        if i % 90 == 50:
            number += 1
            found += [(time_ns, udp(40_000, PORT, control_payload(number)))] * 3
        if i % 200 == 130:
            found.append((time_ns, udp(40_000, PORT, bytes(9))))
        if rng.random() < 0.01:
            found.append((time_ns, udp(40_000, PORT, control_payload(max(0, number - 1)))))
        found.append((time_ns, frame))
    return found


def segments(delimiters: Delimiters | None, ways: tuple[str | None, ...], by: str | None) -> tuple[Measured, ...]:
    terms = Terms(LDA, PacketId(seed=3), LENGTH_NS, delimiters, by)
    found = []
    for i, way in enumerate(ways):
        course = Direction.parse(way) if way not in (None, "references") else None
        found.append(Measured(f"A>{i}", terms, course, way == "references"))
    return tuple(found)


def outside(measured: tuple[Measured, ...], sent: list[Sent], folder: Path) -> list[CutPart]:
    path = folder / "sent.pcap"
    path.write_bytes(pcap([(time_ns, frame, len(frame)) for time_ns, frame in sent], magic=0xA1B23C4D))
    cuts = cutter(measured, LENGTH_NS, GRACE_NS, Unseen(LENGTH_NS))
    parts = []
    for batch in CaptureFile(str(path), packet_id=PacketId(seed=3)):
        parts += list(cuts.take(batch))
    return parts + list(cuts.end(sent[-1][0]))


def inside(measured: tuple[Measured, ...], sent: list[Sent], seed: int) -> list[CutPart]:
    """The same from the kernel, which is read at odd moments."""
    rng, first = random.Random(seed), measured[0]
    meter = KernelLda(
        LDA,
        None,
        LENGTH_NS,
        packet_id=PacketId(seed=3),
        delimiters=first.terms.delimiters,
        grouping=first.grouping(),
        room=len(measured),
    )
    cuts = cutter(measured, LENGTH_NS, GRACE_NS, Unseen(LENGTH_NS), KernelMeters(meter))
    if first.terms.delimiters is None:
        cuts.begin(sent[0][0])
    parts = []
    for time_ns, frame in sent:
        assert meter.hooks.run(frame, time_ns) == XDP_PASS
        if rng.random() < 0.1:
            parts += list(cuts.passed(time_ns))
    parts += list(cuts.end(max(time_ns for time_ns, _ in sent)))
    assert not meter.hooks.counters["failed"].any()
    assert not meter.statistics().dropped
    meter.close()
    return parts


def of_segment(parts: list[CutPart], segment: str | None) -> list[CutPart]:
    return [part for part in parts if part.measured.segment == segment and part.cut.synopses[ALL].packets]


def assert_same(found: list[CutPart], expected: list[CutPart], measured: tuple[Measured, ...]) -> None:
    for one in measured:
        mine, theirs = of_segment(found, one.segment), of_segment(expected, one.segment)
        assert [part.cut.interval for part in mine] == [part.cut.interval for part in theirs]
        assert [part.cut.interval.name for part in mine] == [part.cut.interval.name for part in theirs]
        for part, other in zip(mine, theirs, strict=True):
            assert part.closed_by == other.closed_by
            classes, others = by_name(part), by_name(other)
            assert classes.keys() == others.keys()
            for key, synopsis in classes.items():
                assert_same_lda(synopsis, others[key])


def by_name(part: CutPart) -> dict:
    return {part.keys[tag] if tag != ALL else None: one for tag, one in part.cut.synopses.items()}


CUTS = {
    "any": Delimiters(LENGTH_NS, 0, 3),
    "one-in-8": Delimiters(LENGTH_NS, 3, 3),
    "control": Delimiters(LENGTH_NS, control_port=PORT),
    "clock": None,
}


@pytest.mark.every(6)
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize(
    ("ways", "by"),
    [((None,), None), (("10.0.0.0/8>", "references", ">10.0.0.0/8"), None), ((None,), "prefix/24/48/4000")],
    ids=("one", "three", "classes"),
)
def test_the_kernel_cuts_where_the_meter_does(
    cut: str, ways: tuple[str | None, ...], by: str | None, tmp_path: Path
) -> None:
    sent = built(7, 900)
    sent = controlled(sent, 1) if cut == "control" else sent
    measured = segments(CUTS[cut], ways, by)
    found = inside(measured, sent, 5)
    expected = outside(measured, sent, tmp_path)
    assert_same(found, expected, measured)
    assert len(of_segment(expected, "A>0")) > 3


def marked(seed: int, periods: int) -> list[Sent]:
    """Packets whose colour changes every period, some of them late; in one period they come in both colours."""
    rng, found = random.Random(seed), []
    for i in range(120 * periods):
        sent_ns = BEGIN_NS + i * LENGTH_NS // 120
        colour = i // 120 % 2 if i // 120 != 4 else rng.randrange(2)
        late_ns = rng.randrange(LENGTH_NS // 3) if rng.random() < 0.1 else rng.randrange(100)
        found.append((sent_ns + late_ns, udp(1000 + i % 7, 80, i.to_bytes(8), tos=colour << 4)))
    return sorted(found)


@pytest.mark.every(2)
@pytest.mark.parametrize("ways", [(None,), ("10.0.0.0/8>", ">10.0.0.0/8")], ids=("one", "two"))
def test_the_kernel_cuts_where_colours_change(ways: tuple[str | None, ...], tmp_path: Path) -> None:
    """As the meter outside of it does: with late packets, a flood of both colours, and frames of all kinds."""
    measured = segments(Delimiters(LENGTH_NS, 0, colour=2), ways, None)
    for sent in (marked(3, 10)[150:], built(7, 600)):
        expected = outside(measured, sent, tmp_path)
        assert_same(inside(measured, sent, 5), expected, measured)
        assert len(of_segment(expected, "A>0")) > 5


def test_blocks_in_the_kernel_are_those_of_the_twin() -> None:
    """The counters of alternate marking: packets and the sum of their times, of each period."""
    sent, kernel, rng = marked(11, 12), KernelBlocks(None, 2, LENGTH_NS), random.Random(2)
    for time_ns, frame in sent:
        assert kernel.inside.hooks.run(frame, time_ns) == XDP_PASS
        if rng.random() < 0.1:
            kernel.read(time_ns)
    kernel.end()
    kernel.inside.close()
    twin = blocks(((time_ns, bool(frame[15] & 16)) for time_ns, frame in sent), LENGTH_NS)
    assert len(twin) > 10
    assert kernel.blocks == [Block(colour, len(some), sum(some), min(some), max(some)) for colour, some in twin]
    assert not kernel.inside.statistics().dropped


def test_classes_are_refused_where_colours_cut() -> None:
    terms = segments(Delimiters(LENGTH_NS, 0, colour=2), (None,), "dscp/24/48/9")
    with pytest.raises(WirelagError, match="the kernel tells no classes apart where colours cut"):
        inside(terms, marked(1, 2), 1)


def scanned(intervals: int) -> list[Sent]:
    """Each interval, hundreds of sources send one packet each, and a customer 46 after the first of them."""
    found, number = [], 0
    for i in range(intervals):
        for place in range(240):
            number += 1
            time_ns = 1_700_000_100 * 10**9 + i * LENGTH_NS + place * LENGTH_NS // 240
            customer = place >= 100 and place % 3 == 0
            source = (10, 1, 1, 1) if customer else (172, 16 + number % 16, number // 16 % 256, 1)
            found.append((time_ns, udp(5000, 6000, number.to_bytes(8, "big"), src=bytes(source))))
    return found


@pytest.mark.parametrize("where", ["kernel", "outside"])
def test_a_scan_does_not_hide_a_customer(where: str, tmp_path: Path) -> None:
    measured = segments(None, (None,), "prefix/24/48/8")
    sent = scanned(6)
    parts = inside(measured, sent, 5) if where == "kernel" else outside(measured, sent, tmp_path)
    assert len(parts) == 6
    found = [by_name(part) for part in parts]
    customer = "10.1.1.0/24 > 10.9.9.0/24"
    assert customer not in found[0]  # the first seen have all places
    assert [part.overflow for part in parts] == [True] * 6
    assert [one[customer].packets for one in found[4:]] == [46, 46]
    for one in found:
        assert sum(s.packets for key, s in one.items() if key is not None) == one[None].packets == 240
