"""Agents and m-sets: segments and references come and go while others continue."""

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import wirelag
from tests.support import needs
from tests.support.captures import ethernet, ipv4, pcap, udp
from tests.support.m_sets import AGENT, config_of
from tests.support.two_points import EPOCH_NS, SECOND_NS
from tests.support.waiting import PATIENCE_S, until
from wirelag.agent.config import Config, Reference
from wirelag.agent.cutting import CutPart
from wirelag.agent.msets import FOREVER_NS, Cutters, m_set_of
from wirelag.agent.references import Emitter
from wirelag.agent.settings import MOST_SEGMENTS
from wirelag.errors import WirelagError
from wirelag.packets.batch import PacketBatch
from wirelag.packets.interval import Interval
from wirelag.packets.packet_id import PacketId
from wirelag.packets.stamp import payload
from wirelag.protocol.messages import Message, decode, encode

IP_RECVTTL = 12


def m_set(config: Config, *segments: tuple[str, str, str, str, int | None], since_ns: int = EPOCH_NS) -> Message:
    """An m-set as it arrives."""
    place = {"start_ns": since_ns, "end_ns": since_ns, "name": None, "class": None}
    keys = ("segment", "source", "target", "way", "until_ns")
    records = tuple(place | dict(zip(keys, list[Any](one), strict=True)) for one in segments)
    return decode(encode(Message("m-set", "C", None, Interval(since_ns, since_ns), config.terms, records=records)))


CF = ("C>F", "10.0.0.1", "10.0.0.2", "out", None)
FC = ("F>C", "10.0.0.2", "10.0.0.1", "in", None)
CCF = ("C>>F", "10.6.0.3", "10.6.0.6", "out", None)


INSIDE = f'{AGENT.replace("lo", "any")}[inside]\nby = "collector"\n'


def test_ways_inside_the_router_are_in_its_m_set(tmp_path: Path) -> None:
    config = config_of(tmp_path, INSIDE)
    assert config.inside is not None
    assert config.inside.ports is None
    through, into = ("C[D>F]", "10.0.0.1", "10.0.0.3", "inside", 7), ("C[>F]", "::", "10.0.0.3", "inside", None)
    found = m_set_of(m_set(config, CF, through, into), config)
    assert [one.segment for one in found.measured] == ["C>F"]
    assert found.ways is not None
    assert found.ways.until_ns == {("D", "F"): 7, ("", "F"): FOREVER_NS}
    assert {(port.to, port.address) for port in found.ways.ports} == {("D", "10.0.0.1"), ("F", "10.0.0.3")}
    assert m_set_of(m_set(config, through), config_of(tmp_path)).ways is None  # it does not measure inside


def test_an_m_set_from_the_collector(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    assert config.measured == ()
    assert config.receive_references
    found = m_set_of(m_set(config, CF, FC, (*CCF[:4], 7)), config)
    assert [one.segment for one in found.measured] == ["C>F", "F>C", "C>>F"]
    link, virtual = found.references
    assert (link.source, link.to, link.hops, link.spread, link.until_ns) == ("10.0.0.1", "10.0.0.2", 1, 1, None)
    assert (virtual.hops, virtual.spread, virtual.until_ns) == (0, 8, 7)
    # Both ends need the same terms, or their synopses cannot be compared.
    far = config_of(tmp_path, AGENT.replace('"C"', '"F"'))
    back = m_set_of(m_set(far, (*CF[:3], "in", None)), far)
    assert next(iter(back.measured)).terms == next(iter(found.measured)).terms
    assert not back.references


def test_an_agent_keeps_its_own_segments_and_its_bounds(tmp_path: Path) -> None:
    own = config_of(tmp_path, AGENT + '[[segments]]\nname = "C>F"\ndirection = "10.1.0.0/16>10.2.0.0/16"\n')
    assert [one.segment for one in m_set_of(m_set(own, CF, FC), own).measured] == ["F>C"]
    config = config_of(tmp_path)
    many = [(f"C>R{i}", "10.0.0.1", f"10.1.0.{i}", "out", None) for i in range(MOST_SEGMENTS + 3)]
    found = m_set_of(m_set(config, *many, ("nonsense", "10.0.0.1", "10.0.0.2", "out", None)), config)
    assert (len(found.measured), len(found.references), found.left_out) == (MOST_SEGMENTS, MOST_SEGMENTS, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        ("C>F", "here", "10.0.0.2", "out", None),
        ("C>F", "10.0.0.1", "10.0.0.2", "up", None),
        ("C>F", "10.0.0.1", "10.0.0.2", "out", 0.5),
        ("C\nF", "10.0.0.1", "10.0.0.2", "out", None),
    ],
)
def test_an_impossible_m_set_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r".+"):
        m_set(config_of(tmp_path), wrong)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('by = "collector"', 'by = "me"'), "m_set.by: 'me' is not one of collector"),
        (('interface = "lo"', 'read = "a.pcap"'), "m_set.by: needs an interface"),
        (("[m_set]", '[estimator]\nname = "lda"\n[m_set]'), "m_set.by: needs intervals cut by the clock"),
        (('every = "10ms"', 'every = "1us"'), "m_set.every: 1us is out of range: at least 1ms"),
        (('every = "10ms"', "dscp = 64"), "m_set.dscp: 64 is out of range: 0 to 63"),
    ],
)
def test_wrong_settings_are_reported(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match=said):
        config_of(tmp_path, AGENT.replace(*change))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('from = "::1"', "are of different address families"),
        ('from = "here"', "'here' is not an address"),
        ("hops = 256", "256 is out of range: 0 to 255"),
        ("spread = 0", "0 is out of range: 1 to 64"),
        ("spread = 2\nsource_port = 5000", "leave source_port out"),
    ],
)
def test_wrong_references_are_reported(line: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match=said):
        config_of(tmp_path, f'point = "C"\ninterface = "lo"\n[[references]]\nto = "192.0.2.1"\n{line}\n')


def references(folder: Path, sent: list[tuple[int, str, str]]) -> PacketBatch:
    """Captured reference packets: time, source, destination."""
    path = folder / "references.pcap"
    records = []
    for i, (time_ns, *ends) in enumerate(sent):
        source, target = map(socket.inet_aton, ends)
        frame = ethernet(ipv4(udp(payload(i, time_ns), (40_000, 862)), socket.IPPROTO_UDP, src=source, dst=target))
        records.append((time_ns, frame, len(frame)))
    path.write_bytes(pcap(records, magic=0xA1B23C4D))
    (batch,) = wirelag.read(str(path), packet_id=PacketId())
    return batch


def test_segments_begin_and_end_while_others_go_on(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    tenth = SECOND_NS // 10
    sent = [(EPOCH_NS + i * tenth, *(CF if i % 2 else CCF)[1:3]) for i in range(40)]
    batch = references(tmp_path, sent)
    cutters = Cutters(config, EPOCH_NS, live=True)
    parts = list[CutPart]()
    for i in range(len(batch)):
        now_ns = int(batch.time_ns[i])
        if i == 5:
            cutters.turn(m_set_of(m_set(config, CF), config))
        if i == 15:  # both until 3.5 s
            until_ns = EPOCH_NS + 35 * tenth
            cutters.turn(m_set_of(m_set(config, (*CF[:4], until_ns), CCF), config))
        parts += cutters.take(batch[i : i + 1], now_ns, 0)
    parts += cutters.end(EPOCH_NS + 39 * tenth)
    found = [
        (part.measured.segment, (part.cut.interval.start_ns - EPOCH_NS) // SECOND_NS, part.seen.packets)
        for part in parts
    ]
    covered = {place[:2]: part.seen.covered_ns / SECOND_NS for place, part in zip(found, parts, strict=True)}
    assert sorted(found) == [
        ("C>>F", 1, 2), ("C>>F", 2, 5), ("C>>F", 3, 5), ("C>F", 0, 3), ("C>F", 1, 5), ("C>F", 2, 5), ("C>F", 3, 3),
    ]  # fmt: skip
    assert covered == {
        ("C>F", 0): 0.5, ("C>F", 1): 1, ("C>F", 2): 1, ("C>F", 3): 0.5,
        ("C>>F", 1): 0.5, ("C>>F", 2): 1, ("C>>F", 3): 0.9,
    }  # fmt: skip


class Heard:
    """Packets that arrive at port 862 of an address."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
        self.socket.settimeout(PATIENCE_S)

    def some(self, count: int) -> list[tuple[str, int, int]]:
        """Source address, source port and remaining hops."""
        found = []
        for _ in range(count):
            _, (_, _, ttl), _, (address, port) = _received(self.socket)
            found.append((address, port, ttl))
        return found


def _received(sock: socket.socket) -> tuple[bytes, tuple[int, int, int], int, tuple[str, int]]:
    data, control, flags, source = sock.recvmsg(200, 100)
    (level, kind, ttl), *_ = control
    return data, (level, kind, int.from_bytes(ttl, "little")), flags, source


@pytest.fixture
def heard() -> Iterator[Heard]:
    found = Heard()
    try:
        found.socket.bind(("127.0.0.2", 862))
    except OSError as error:
        found.socket.close()
        pytest.skip(needs.ROOT if error.errno == errno.EACCES else f"port 862: {error.strerror}")
    yield found
    found.socket.close()


def test_references_change_while_they_run(heard: Heard, tmp_path: Path) -> None:
    config = config_of(tmp_path, AGENT.replace("10ms", "1ms"))
    said: list[str] = []
    emitter = Emitter((), None, SECOND_NS, said.append)
    emitter.start()
    link = config.reference("C>F", "127.0.0.3", "127.0.0.2", None)
    emitter.turn([link])
    assert {(address, ttl) for address, _, ttl in heard.some(20)} == {("127.0.0.3", 1)}
    virtual = config.reference("C>>F", "127.0.0.4", "127.0.0.2", None)
    emitter.turn([link, virtual])
    while len({port for address, port, _ in heard.some(16) if address == "127.0.0.4"}) < 6:
        pass  # the ports rotate
    until_ns = time.time_ns() + 50 * 10**6
    emitter.turn([replace(virtual, until_ns=until_ns), _impossible(config)])
    until(lambda: emitter.failed and time.time_ns() > until_ns, "a stream that cannot be sent, and the other's end")
    _heard_beside(emitter, heard.socket)  # packets sent before the change
    assert _heard_beside(emitter, heard.socket) == 0  # the first stream was removed, the second reached its end
    assert said == ["127.0.0.2: cannot send packets (Cannot assign requested address); still trying"]
    emitter.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "references"]


def _heard_beside(emitter: Emitter, sock: socket.socket) -> int:
    """The number of packets that arrive while a stream that cannot be sent is tried three times."""
    failed, found = emitter.failed, 0
    until(lambda: emitter.failed > failed + 2, "another try")
    sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while sock.recv(200):
            found += 1
    return found


def _impossible(config: Config) -> Reference:
    return config.reference("C>F", "192.0.2.1", "127.0.0.2", None)


def test_streams_have_different_phases(tmp_path: Path) -> None:
    """Each keeps its phase, so streams that start at different times do not meet later."""
    config = config_of(tmp_path)
    streams = [config.reference("C>F", f"127.0.0.{last}", "127.0.0.2", None) for last in range(3, 40)]
    emitter = Emitter(tuple(streams), None, SECOND_NS, print)
    try:
        phases = {due_ns % streams[0].injection.tau_ns for due_ns, _ in emitter._due}
        assert len(phases) == len(streams)
    finally:
        emitter.close()
