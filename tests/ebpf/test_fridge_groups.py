"""Fridges in the kernel with filters and groups: the same packets, samples and groups as outside, bit for bit."""

import random
from pathlib import Path

import pytest

from tests.support.captures import pcap
from tests.support.kernel_meters import (
    XDP_PASS,
    Sent,
    assert_same_samples,
    built,
    by_interval,
    in_order,
    intervals_of,
    real,
    talks,
)
from wirelag.capture.pcap import CaptureFile
from wirelag.ebpf.fridge import KernelFridge
from wirelag.ebpf.told import LOG
from wirelag.estimators.fridge import Fridge
from wirelag.measure.groups import Groups
from wirelag.packets.batch import PacketBatch
from wirelag.packets.filters import Filter
from wirelag.packets.interval import Interval
from wirelag.packets.intervals import split
from wirelag.synopses.group_delays import GroupDelays
from wirelag.synopses.samples import LEGS

FRIDGE = Fridge(memory=1 << 14, slots=(256,), probabilities=(1.0,), seed=5)
LENGTH_NS = 10**8
BY = ("flow", "client", "server", "subnet", "port", "prefix", "dscp")


pytestmark = pytest.mark.usefixtures("one_cpu")


def delays(by: str) -> GroupDelays:
    grouping = Groups(by, BY, 1 << 22).delays()
    assert grouping is not None
    return grouping


def figures(grouping: GroupDelays) -> dict[str, list]:
    """Each group's delays by leg."""
    found = {}
    for key, group in ((one.key, samples) for one, samples in grouping.few(10**6)):
        each = [group.distribution(leg) for leg in range(len(LEGS))]
        found[key] = [(d.weights.tolist(), d.samples, d.weight, d.mean_ns, d.min_ns, d.max_ns) for d in each]
    return found


def outside(by: str, sent: list[Sent], folder: Path, wanted: Filter) -> tuple[list[Interval], list]:
    """Each interval, with its samples and groups."""
    path = folder / "sent.pcap"
    path.write_bytes(pcap([(time_ns, frame, len(frame)) for time_ns, frame in sent], magic=0xA1B23C4D))
    pieces, meter, found = list(split(CaptureFile(str(path), filter=wanted), LENGTH_NS)), FRIDGE.meter("tap"), []
    for interval, batches in by_interval(pieces):
        grouping = delays(by)
        for batch in batches:
            meter.observe(batch, grouping)
        found.append((meter.cut(interval), figures(grouping)))
    return intervals_of(pieces), found


def inside(by: str, sent: list[Sent], intervals: list[Interval], wanted: Filter) -> list:
    """The same from the kernel, whose log is read at odd moments."""
    kernel = KernelFridge(FRIDGE, None, LENGTH_NS, wanted=wanted, grouped=True)
    rng, waiting, grouping, found = random.Random(2), list(intervals), delays(by), []
    kernel.observe(PacketBatch.empty(), grouping)

    def cut() -> GroupDelays:
        found.append((kernel.cut(waiting.pop(0)), figures(grouping)))
        fresh = delays(by)
        kernel.observe(PacketBatch.empty(), fresh)
        return fresh

    for time_ns, frame in sent:
        while waiting and waiting[0].end_ns + waiting[0].length_ns <= time_ns:
            grouping = cut()
        assert kernel.hooks.run(frame, time_ns) == XDP_PASS
        if rng.random() < 0.1:
            kernel.collect()
    while waiting:
        grouping = cut()
    assert not kernel.statistics().dropped
    assert not kernel.in_no_group
    kernel.close()
    return found


@pytest.mark.every(6)
@pytest.mark.parametrize("by", BY)
def test_groups_and_filters_in_the_kernel_are_those_outside(by: str, tmp_path: Path) -> None:
    recorded = real(False, "rtt")
    sent = in_order(talks(1, 30), built(3, 200), recorded)
    wanted = Filter.parse(
        ports="443,53,80,40000-40012", protocols=("tcp", "udp"), nets=("10.0.0.0/8", "192.168.0.0/16")
    )
    intervals, expected = outside(by, sent, tmp_path, wanted)
    found = inside(by, sent, intervals, wanted)
    for (samples, groups), (others, other_groups) in zip(found, expected, strict=True):
        assert_same_samples(samples, others)
        assert groups == other_groups
    assert sum(samples.packets for samples, _ in found) < len(sent)
    assert not recorded or sum(len(groups) for _, groups in found) > 3


def test_a_log_that_is_not_read_keeps_all_figures_but_no_more_groups() -> None:
    kernel = KernelFridge(FRIDGE, None, 10**15, grouped=True)
    grouping = delays("server")
    kernel.observe(PacketBatch.empty(), grouping)
    kernel.hooks.counters["written"] = LOG  # as if so many had come
    for time_ns, frame in talks(1, 5):
        kernel.hooks.run(frame, 10**15 + time_ns)
    lost = kernel.in_no_group
    kernel.hooks.counters["written"] = 0
    samples = kernel.cut(Interval(10**15, 2 * 10**15))
    assert lost == sum(samples.distribution(leg).samples for leg in range(len(LEGS))) > 0
    assert not figures(grouping)
    kernel.close()
