"""Agents in network namespaces: they measure, and survive signals, kills, cut links and packet loss."""

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from lab import flood
from lab.network import Network
from lab.processes import Process
from tests.support.agent_receiver import AGENT, LENGTH_NS, PORT, Receiver, synopses, whole
from tests.support.effort import ALONE
from tests.support.in_lab import IN_LAB
from tests.support.waiting import until
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import ClockReading, Message
from wirelag.protocol.reconcile import Reconciling
from wirelag.synopses.symbols import SymbolSynopsis


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    with Network("agent") as network:
        yield network


class Agents:
    """Agents in the namespaces of a network: `client` sends references to `server1`, and both measure them."""

    def __init__(self, network: Network, folder: Path) -> None:
        self.network, self.folder = network, folder
        (folder / "token").write_text("sesame")
        self._started = 0

    def start(self, host: str, *arguments: str) -> Process:
        """Return once the agent listens."""
        self._started += 1
        settings = self.folder / f"{host}.toml"
        sends = host == "client"
        settings.write_text(
            f"""
point = "{host}"
interface = "eth0"
interval = "{LENGTH_NS // 10**6}ms"
status = "1s"
filter = "udp port 862"
receive_references = {"false" if sends else "true"}
[collector]
url = "http://10.5.0.11:{PORT}"
insecure = true
token_file = "{self.folder}/token"
[spool]
folder = "{self.folder}/spool-{host}"
[clock]
error = "1us"
[capture]
ring = "4MiB"
[estimator]
tail = 64
[[segments]]
name = "client>server1"
direction = "10.5.0.1>10.5.0.11"
packets = "references"
"""
            + ('[[references]]\nto = "10.5.0.11"\nevery = "2ms"\nlink = "100Mbps"\nshare = "1%"\n' if sends else "")
        )
        process = self.network.start(host, [*AGENT, str(settings), *arguments], self.folder / f"{host}{self._started}")
        process.wait_for_line("listening at eth0")
        return process


@contextmanager
def one_core() -> Iterator[None]:
    """Processes started here stay on one core: its packets do not overtake each other, as on a cable."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@pytest.fixture
def agents(network: Network, tmp_path: Path) -> Agents:
    return Agents(network, tmp_path)


@pytest.fixture
def receiver(network: Network) -> Iterator[Receiver]:
    with Receiver(lambda: network.inside("server1")) as receiver:
        yield receiver


@IN_LAB
def test_two_agents_measure_references_exactly(agents: Agents, receiver: Receiver) -> None:
    down = agents.start("server1")
    up = agents.start("client")
    messages = receiver.wait(lambda m: len(whole(m)) >= 4)
    for start_ns in whole(messages)[:4]:
        mine, theirs = (synopses(messages, point)[start_ns] for point in ("client", "server1"))
        assert mine.terms == theirs.terms
        assert (mine.segment, mine.clock) == ("client>server1", ClockReading(True, 1000, "stated"))
        assert mine.sent_ns - mine.interval.end_ns > 0
        assert 0 < mine.seen.packets <= 126  # expected 125; a busy host skips some
        estimator = mine.terms.estimator
        assert isinstance(estimator, Rda)
        synopses_of = [estimator.synopsis(m.records[0]) for m in (mine, theirs)]
        talk = Reconciling(estimator, [one for one in synopses_of if isinstance(one, SymbolSynopsis)])
        _, crossing = talk.ask(), talk.crossing()
        assert talk.decoded is not None
        assert crossing.only_upstream is not None
        assert (crossing.sent, crossing.received) == (mine.seen.packets, theirs.seen.packets)
        assert len(talk.decoded.numbers) == 2 * crossing.only_upstream + crossing.received - crossing.sent
        if not len(talk.decoded.numbers):
            assert crossing.used == mine.seen.packets
        assert crossing.moments.sum_ns > 0
        if ALONE:
            assert mine.sent_ns - mine.interval.end_ns < 200 * 10**6
            assert mine.seen.packets > 60
            assert crossing.only_upstream <= 1  # one may be in flight
            assert crossing.moments.sum_ns / crossing.used < 10**7
    start_ns = whole(messages)[0]
    mine = synopses(messages, "client")[start_ns]
    where = {"start_ns": mine.interval.start_ns, "end_ns": mine.interval.end_ns, "name": None, "class": None}
    question = where | {"symbols": 3000, "after": 1000, "cache_level": 0}
    receiver.ask(Message("ask", "client", mine.segment, mine.interval, mine.terms, records=(question,)))
    answers = [m for m in receiver.wait(lambda m: any(x.type == "times" for x in m)) if m.type == "times"]
    assert len(answers[0].records[0]["symbols"]) == 2000
    assert "sesame" not in up.said() + down.said()


@IN_LAB
def test_control_packets_cut_lda_at_both_ends_alike(agents: Agents, receiver: Receiver) -> None:
    lda = ("--estimator", "lda", "--rows", "64", "--control-port", "5862")
    wanted = ("--filter", "udp port 862 or udp port 5862")
    agents.start("server1", *lda, *wanted)
    with one_core():
        agents.start("client", *lda, *wanted, "--control-to", "10.5.0.11")

    def named(messages: Sequence[Message], point: str) -> dict[int, Message]:
        return {m.interval.name: m for m in synopses(messages, point).values() if m.interval.name is not None}

    def alike(messages: Sequence[Message]) -> list[int]:
        """Between the same two control packets at both ends; on a busy host a capture drops some, which it says."""
        both = [named(messages, point) for point in ("client", "server1")]
        ends = [{name: m.records[0].get("closed_by") for name, m in one.items()} for one in both]
        whole = [{name for name, m in one.items() if not m.seen.unseen} for one in both]
        return sorted(
            name
            for name in ends[0].keys() & ends[1].keys()
            if ends[0][name] == ends[1][name] is not None
            and all({name - 1, name, name + 1} <= one for one in whole)  # drops are counted, not timed
        )

    messages = receiver.wait(lambda m: len(alike(m)) >= 4)
    for name in alike(messages):
        mine, theirs = (named(messages, point)[name] for point in ("client", "server1"))
        estimator = mine.terms.estimator
        assert isinstance(estimator, Lda)
        crossing = estimator.cross(*(estimator.synopsis(m.records[0]) for m in (mine, theirs)))
        assert crossing.sent == crossing.received == mine.seen.packets > 0
        assert crossing.used >= crossing.sent  # no row is damaged: the first bank has every packet
        assert crossing.moments.sum_ns > 0
        if ALONE:
            assert mine.seen.packets > 60
            assert crossing.moments.sum_ns / crossing.used < 10**7


@IN_LAB
def test_sigterm_sends_the_open_interval(agents: Agents, receiver: Receiver) -> None:
    agents.start("server1")
    up = agents.start("client", "--clock", "hardware")
    receiver.wait(lambda m: len(whole(m)) >= 1)
    said = up.stop(signal.SIGTERM)
    assert up.finish() == said
    assert "Traceback" not in said
    assert said.count("eth0: this card does not timestamp packets; the kernel's timestamps are used instead") == 1
    messages = receiver.wait(lambda m: any(x.type == "status" and x.records[0]["ending"] for x in m))
    found = synopses(messages, "client")
    last = found[max(found)]
    assert 0 < last.seen.covered_ns < LENGTH_NS
    first = found[min(found)]
    assert 0 < first.seen.covered_ns < LENGTH_NS
    assert sorted(found) == list(range(min(found), max(found) + 1, LENGTH_NS))
    assert not list((agents.folder / "spool-client").glob("*.message"))


@IN_LAB
def test_kills_and_outages_lose_nothing_and_count_nothing_twice(agents: Agents, network: Network) -> None:
    down = agents.start("server1")
    up = agents.start("client")
    # No collector listens yet: intervals wait on disk.
    spools = [agents.folder / f"spool-{host}" for host in ("client", "server1")]
    until(lambda: all(len(list(spool.glob("*synopsis*"))) >= 6 for spool in spools), "six synopses on disk")
    up.stop(signal.SIGKILL)
    waiting = {path.name for path in spools[0].glob("*synopsis*")}
    with Receiver(lambda: network.inside("server1")) as receiver:
        again = agents.start("client")
        messages = receiver.wait(lambda m: len(synopses(m, "client")) >= len(waiting) + 4)
        receiver.wait(lambda m: whole(m)[-1:] > [max(synopses(messages, "client"))])
        question = {"start_ns": 0, "end_ns": LENGTH_NS, "name": None, "class": None}
        some = next(iter(synopses(messages, "client").values()))
        ask = Message("ask", "client", some.segment, Interval(0, LENGTH_NS), some.terms)
        wanted = {"wanted": np.ones(1, np.uint64), "difference": 1, "cache_level": 0}
        receiver.ask(replace(ask, records=(question | wanted,)))
        messages = receiver.wait(lambda m: any(x.type == "times" for x in m))
    assert next(m for m in messages if m.type == "times").records[0]["reason"] == "the agent was restarted since"
    found = synopses(messages, "client")
    told = sorted(found)
    steps = [(b - a) // LENGTH_NS for a, b in pairwise(told)]
    assert sum(step > 1 for step in steps) <= 1  # a gap while it was dead, no zeros
    assert {m.key for m in messages if m.point == "client"} >= {name[21:-8] for name in waiting}
    assert "the collector answers again" in down.said()
    assert again.stop()


@pytest.mark.acceptance
@IN_LAB
def test_an_agent_ends_with_one_line_if_its_interface_goes(agents: Agents, receiver: Receiver) -> None:
    down = agents.start("server1")
    up = agents.start("client")
    receiver.wait(lambda m: len(whole(m)) >= 1)
    agents.network.ip("client", "link set eth0 down")
    with pytest.raises(OSError, match="went down or has gone"):
        up.finish()
    assert "Traceback" not in up.said()
    assert down.stop()


@IN_LAB
def test_packets_that_the_capture_drops_are_unseen_and_counted_once(tmp_path: Path) -> None:
    network = Network("drops")
    try:
        flood.build(network)
        arguments = ("--point", "p", "--interface", flood.SOURCE, "--interval", "250ms", "--filter", "udp port 9")
        rest = ("--ring", "256KiB", "--spool", str(tmp_path / "s"), "--collector", f"http://127.0.0.1:{PORT}")
        (tmp_path / "token").write_text("sesame")
        with Receiver(lambda: network.inside(flood.SINK), "127.0.0.1") as receiver:
            command = [*AGENT, *arguments, *rest, "--token-file", str(tmp_path / "token")]
            agent = network.start(flood.SINK, command, tmp_path / "agent")
            agent.wait_for_line("listening at")
            receiver.wait(lambda m: any(x.type == "synopsis" for x in m))
            os.kill(agent.pid, signal.SIGSTOP)  # the ring is not read
            sent, _ = flood.result(flood.start(network, 30_000, None, tmp_path / "flood").finish())
            os.kill(agent.pid, signal.SIGCONT)
            receiver.wait(lambda m: any(x.seen.unseen for x in m if x.type == "synopsis"))
            agent.stop(signal.SIGTERM)
            messages = receiver.wait(lambda m: any(x.type == "status" and x.records[0]["ending"] for x in m))
    finally:
        network.down()
    seen = [m.seen for m in messages if m.type == "synopsis"]
    unseen = sum(each.unseen for each in seen)
    assert unseen > 10_000
    assert sum(each.packets for each in seen) + unseen == sent


@IN_LAB
def test_references_never_exceed_their_share(agents: Agents, receiver: Receiver) -> None:
    agents.start("client", "--reference", "10.5.0.11", "--every", "1ms", "--link", "1Mbps", "--share", "0.5%")
    messages = receiver.wait(lambda m: len([x for x in m if x.type == "status"]) >= 3)
    status = [m for m in messages if m.type == "status"][-1]
    said, passed_s = status.records[0], (status.sent_ns - status.records[0]["began_ns"]) / 1e9
    assert 0 < said["references_sent"] * 92 <= 625 * (passed_s + 1)  # up to one second's share may accumulate
    assert said["references_refused"] > (10 if ALONE else 1) * said["references_sent"]
