"""What one meter reads of many captures is the same on one machine and on many, and so is the answer."""

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wirelag
from tests.support.captures import SHARED_DATA, capture_paths, ethernet, ipv4, pcap, tcp
from tests.support.effort import scaled
from tests.support.fleets import Here, rotated, simulated
from wirelag.measure.fleet import Fleet
from wirelag.synopses.request_response import EXCHANGE, Exchanges

SECOND, DAY = 10**9, 86_400 * 10**9
SYN, ACK, PUSH = 2, 16, 24
End = tuple[str, int]
Record = tuple[int, bytes, int]


def of_both(question: str, files: Sequence[Path | str], **how: Any) -> tuple[str, str, Any]:
    """The answers of one machine and of tasks, and the latter's result."""
    ask, paths = getattr(wirelag, question), [str(file) for file in files]
    many = ask(paths, on=Fleet(Here(), task_size="64KiB"), **how)
    return json.dumps(ask(paths, **how).to_dict()), json.dumps(many.to_dict()), many


def sent(time_ns: int, of: End, to: End, flags: int = PUSH, length: int = 0, at: int = 1, ack: int = 1) -> Record:
    """A segment of TCP, `at` a place of the stream."""
    src, dst = (bytes(map(int, host.split("."))) for host, _ in (of, to))
    segment = tcp(bytes(length), ports=(of[1], to[1]), seq=at, ack=ack, flags=flags)
    frame = ethernet(ipv4(segment, 6, src=src, dst=dst, ident=at & 0xFFFF))
    return time_ns, frame, len(frame)


def asking(begin_ns: int, client: End, server: End, times: int = 20) -> list[Record]:
    """Requests of 50 bytes, and their responses of 900 after 10 ms."""
    found = []
    for i in range(times):
        at_ns = begin_ns + i * SECOND // 4
        found.append(sent(at_ns, client, server, PUSH, 50, 1 + 50 * i, 1 + 900 * i))
        found.append(sent(at_ns + SECOND // 100, server, client, PUSH, 900, 1 + 900 * i, 51 + 50 * i))
    return found


def written(path: Path, packets: list[Record]) -> Path:
    path.write_bytes(pcap(packets, magic=0xA1B23C4D))
    return path


def test_who_is_a_client_is_judged_in_each_capture(tmp_path: Path) -> None:
    """What is a server in one capture is a client in another; the look-ahead is for the beginning of each."""
    one, other, third = ("10.0.0.1", 40000), ("10.0.0.2", 40001), ("10.0.0.3", 40002)
    first = [sent(DAY - 1, one, other, SYN), *asking(DAY, one, other)]
    files = [written(tmp_path / "north.pcap", first), written(tmp_path / "south.pcap", asking(9 * DAY, other, third))]
    late = asking(20 * DAY, third, one)[1:]  # begins with a response
    files.append(written(tmp_path / "east.pcap", late))
    mine, theirs, many = of_both("response", files, by="client")
    assert mine == theirs
    assert {group.key for group in many.groups} == {"10.0.0.1", "10.0.0.2", "10.0.0.3"}


def test_captures_that_turn_out_to_share_connections_are_heard_as_one(tmp_path: Path) -> None:
    """Their names and beginnings do not tell: the request is in one, the response in the other."""
    busy = [sent(DAY + i, ("10.1.0.1", 1024 + i % 50), ("10.1.0.2", 443), ACK) for i in range(20_000)]
    client, server = ("10.0.0.1", 40000), ("10.0.0.2", 443)
    whole = asking(DAY + SECOND, client, server, 8)
    files = [written(tmp_path / "red.pcap", busy + whole[:7]), written(tmp_path / "blue.pcap", whole[7:])]
    mine, theirs, many = of_both("response", files, by="flow")
    assert mine == theirs
    assert many.groups[0].report.details["exchanges"] == 8
    assert not many.warnings


def test_small_files_of_a_rotated_set_are_warmed_up_on_several(tmp_path: Path) -> None:
    """No file is as long as a delay."""
    whole = simulated(tmp_path / "site.pcap", 12_000)
    mine, theirs, many = of_both("rtt", rotated(whole, 150), by="server")
    assert mine == theirs
    assert "continue another" in many.notes[-1]
    assert not many.warnings


def test_copies_among_many_captures_are_the_same_everywhere(tmp_path: Path) -> None:
    """Two of twenty hold the same packets, though no connection tells: one is behind an address translator."""
    server = ("198.51.100.7", 443)

    def capture(hour: int, client: End) -> Path:
        name = f"{'abcdefghijklmnopqrstuvwxyz'[hour]}-{client[1]}.pcap"
        packets = []
        for i in range(60):
            packets.append(sent(DAY + hour * 3600 * SECOND + i * SECOND // 5, client, server, PUSH, 80, hour << 16 | i))
        return written(tmp_path / name, packets)

    files = [capture(hour, ("10.0.0.1", 41000)) for hour in range(20)]
    files.insert(0, capture(7, ("203.0.113.9", 52000)))
    mine, theirs, _ = of_both("info", files)
    assert mine == theirs
    assert "one capture, not two points" in mine
    mine, theirs, many = of_both("rtt", files, force=True)
    assert mine == theirs
    assert "hold the same packets" in many.warnings[0]


def test_which_exchanges_stay_does_not_depend_on_their_order() -> None:
    rows = np.zeros(5000, EXCHANGE)
    rows["key"] = np.random.default_rng(1).integers(0, 1 << 63, len(rows))
    whole = Exchanges(rows, counts={"unlisted": 3}).at_most(900)
    assert 400 < len(whole) <= 900
    assert whole.counts == {"unlisted": 3 + 5000 - len(whole)}
    assert np.array_equal(np.sort(Exchanges(rows[::-1]).at_most(900).rows["key"]), np.sort(whole.rows["key"]))


@pytest.mark.skipif(SHARED_DATA is None, reason="needs the captures of ../shared/data")
@pytest.mark.parametrize("question", ["response", "rtt", "info"])
@pytest.mark.parametrize("seed", range(scaled(24)))
def test_real_captures_of_many_years_and_networks(question: str, seed: int) -> None:
    rng = random.Random(seed)
    pool = [path for path in capture_paths("wild", "twopoint", "hidden") if path.stat().st_size < 1 << 20]
    how: dict[str, Any] = {} if question == "info" else {"force": True, "by": rng.choice([None, "server", "client"])}
    mine, theirs, _ = of_both(question, rng.sample(pool, rng.randint(10, 40)), **how)
    assert mine == theirs
