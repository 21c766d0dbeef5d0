"""Agents with meters in the kernel, in network namespaces."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.network import Network
from lab.processes import Process
from tests.support.agent_receiver import AGENT, LENGTH_NS, PORT, Receiver, synopses, whole
from tests.support.in_kernel import IN_KERNEL
from tests.support.in_lab import IN_LAB
from wirelag.agent.config import Config
from wirelag.agent.settings import SCHEMA
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda

IN_THE_KERNEL = ("--in-kernel", "--estimator", "lda", "--cut", "clock", "--rows", "64")


@pytest.fixture
def network() -> Iterator[Network]:
    with Network("inside") as network:
        yield network


def start(network: Network, host: str, folder: Path, *more: str) -> Process:
    (folder / "token").write_text("sesame")
    said = (
        *("--point", host, "--interface", "eth0", "--interval", f"{LENGTH_NS // 10**6}ms", "--clock-error", "1us"),
        *("--collector", f"http://10.5.0.11:{PORT}", "--insecure", "--token-file", str(folder / "token")),
        *("--spool", str(folder / f"spool-{host}"), "--segment", "client>server1", "--tail", "64"),
        *("--direction", "10.5.0.1>10.5.0.11"),
    )
    process = network.start(host, [*AGENT, *said, *IN_THE_KERNEL, *more], folder / f"{host}.txt")
    process.wait_for_line("listening at eth0")
    return process


@pytest.mark.acceptance
@IN_LAB
@IN_KERNEL
def test_two_agents_in_the_kernel_measure_a_segment(network: Network, tmp_path: Path) -> None:
    with Receiver(lambda: network.inside("server1")) as receiver:
        start(network, "server1", tmp_path, "--receive-references")
        up = start(network, "client", tmp_path, "--reference", "10.5.0.11", "--every", "2ms", "--share", "1%")
        messages = receiver.wait(lambda m: len(whole(m)) >= 6)
        compared = 0
        for start_ns in whole(messages):
            mine, theirs = (synopses(messages, point)[start_ns] for point in ("client", "server1"))
            estimator = mine.terms.estimator
            assert isinstance(estimator, Lda)
            crossing = estimator.cross(*(estimator.synopsis(m.records[0]) for m in (mine, theirs)))
            assert (crossing.sent, crossing.received) == (mine.seen.packets, theirs.seen.packets)
            assert mine.seen.unseen == theirs.seen.unseen == 0
            assert abs(mine.seen.packets - theirs.seen.packets) <= 4  # in flight at an edge
            if mine.seen.packets > 60 and crossing.used:
                assert 0 < crossing.moments.sum_ns / crossing.used < 10**8
                compared += 1
        assert compared >= 3
        assert "outside the kernel" not in up.said()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"--estimator": "rda"}, "rda cannot run in the kernel; known: lda"),
        ({"--interval": "50ms"}, "at least 100 ms"),
        ({"--filter": "tcp"}, r"filter.*is not available in the kernel"),
        ({"--in-kernel": False, "--then": "/sys/fs/bpf/x"}, "needs in_kernel"),
        ({"--interface": None, "-r": ["x.pcap"]}, "the kernel reads no captures"),
    ],
)
def test_settings_that_the_kernel_cannot_run_are_reported_first(given: dict[str, object], said: str) -> None:
    settings = SCHEMA.load(None)
    usual = {"--point": "a", "--interface": "eth0", "--estimator": "lda", "--cut": "clock", "--in-kernel": True}
    settings.put_flags(usual | given)
    with pytest.raises(WirelagError, match=said):
        Config.of(settings)
