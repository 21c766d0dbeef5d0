"""What an agent sends by IPFIX (`push.ipfix`), as nfdump and libfixbuf read it: the figures of its own messages."""

import socket
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import ipfix
from tests.support.command import as_process
from tests.support.frame_captures import write
from tests.support.ipfix_programs import ABSENT, collected, dumped, milliseconds
from tests.support.ports import free_port
from wirelag.collector.tally import Tally
from wirelag.protocol.messages import Message, decode
from wirelag.protocol.results import Ends, Result
from wirelag.protocol.session import Rounds
from wirelag.sim.queue import QueueScenario, run
from wirelag.sim.queue_frames import downstream_frames
from wirelag.transport.spool import Spool

SETTINGS = """
point = "B"
read = ["{folder}/behind.pcap"]
interval = "20ms"
grace = "5ms"
[estimator]
name = "{estimator}"
[[segments]]
name = "A>B"
direction = "10.0.0.0/8>192.0.2.0/24"
{more}
[push]
ipfix = "ipfix+udp://127.0.0.1:{port}"
[collector]
url = "http://127.0.0.1:{nowhere}"
insecure = true
[spool]
folder = "{folder}/spool"
"""


def agent_of(folder: Path, estimator: str, more: str = "") -> tuple[list[Message], list[bytes]]:
    """Messages and datagrams of an agent behind a queue, whose collector is not there."""
    write(folder / "behind.pcap", downstream_frames(run(QueueScenario(0.7, seed=3, seconds=0.1))))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inbox:
        inbox.bind(("127.0.0.1", 0))
        port = inbox.getsockname()[1]
        words = {"folder": folder, "estimator": estimator, "more": more, "port": port, "nowhere": free_port()}
        (folder / "agent.toml").write_text(SETTINGS.format(**words))
        as_process("agent", folder / "agent.toml")
        inbox.setblocking(False)
        datagrams = []
        while True:
            try:
                datagrams.append(inbox.recv(65_536))
            except BlockingIOError:
                break
    spool = Spool(folder / "spool")
    stored = [spool.read(name) for name in spool.names]
    spool.close()
    return [decode(data) for data in stored if data is not None], datagrams


def read_by_others(folder: Path, datagrams: Sequence[bytes]) -> dict[int, dict[str, str]]:
    """The records of ipfixDump, by their begin; nfdump has the same packets and times."""
    if ABSENT:
        pytest.skip(ABSENT)
    reader = ipfix.Reader()
    for datagram in datagrams:
        reader.read(datagram)
    (folder / "sent.ipfix").write_bytes(b"".join(datagrams))
    found = {milliseconds(one["152"]): one for one in dumped(folder / "sent.ipfix")}
    rows = collected(datagrams, folder / "nfdump", len(reader.about))
    assert sorted(int(row["ipkt"]) for row in rows) == sorted(int(one["2"]) for one in found.values())
    assert {one["83"] for one in found.values()} == {"(len: 3) A>B"}
    return found


def test_delays_between_references(tmp_path: Path) -> None:
    """An agent that measures alone sends delays: those that the collector makes of its messages."""
    messages, datagrams = agent_of(tmp_path, "rli", 'references = "198.18.0.1>198.18.0.2"')
    found = read_by_others(tmp_path, datagrams)
    rounds = Rounds([Ends("A>B", "A", "B")])
    results = [one for m in messages for one in rounds.take(m, m.interval.end_ns) if isinstance(one, Result)]
    assert len(results) == len(found) >= 5
    for result in results:
        ours = Tally.of(result, None).to_json(0, 1, True)
        theirs = found[result.interval.start_ns // 10**6]
        assert int(theirs["2"]) == ours["received"]
        assert ("530" in theirs) == (ours["mean"] is not None)
        assert ours["mean"] is None or int(theirs["530"]) == round(ours["mean"] * 1e6)
    assert sum("530" in one for one in found.values()) >= 5


def test_packets_of_one_end(tmp_path: Path) -> None:
    """An agent with another at the other end sends the packets that it saw, and no delay."""
    messages, datagrams = agent_of(tmp_path, "lda", "")
    found = read_by_others(tmp_path, datagrams)
    assert {start: int(one["2"]) for start, one in found.items()} == {
        round(message.interval.start_ns / 1e6): message.seen.packets for message in messages
    }
    assert sum(message.seen.packets for message in messages) > 1000
    assert not any("530" in one for one in found.values())
