"""Captures that hold the same packets: recognised whatever differs between them, and nothing else is."""

import json
import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.captures import packets, pcap, plain_bytes
from tests.support.command import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.capture.files import Capture
from wirelag.errors import WirelagError
from wirelag.measure import copies
from wirelag.measure.copies import Copies, find_copies, refuse_copies
from wirelag.packets.filters import Filter
from wirelag.sim import Scenario, simulate

NS = 0xA1B23C4D
Record = tuple[int, bytes, int]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """What one point saw."""
    path = tmp_path_factory.mktemp("copies") / "one.pcap"
    write_simulation(simulate(Scenario(packets=60_000, seed=8)), path)
    every = [(one.time_ns or 0, one.frame, one.wire_length) for one in packets(path.read_bytes())]
    return [record for record in every if record[1][12:14] == b"\x08\x00"]  # IPv4


def found(tmp_path: Path, *parts: list[Record], wanted: Filter | None = None) -> Copies | None:
    paths = [str(tmp_path / f"{n}.pcap") for n in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        Path(path).write_bytes(pcap(part, magic=NS))
    return find_copies(Capture(paths, filter=wanted).files)


def later(ns: int) -> Callable[[Record], Record]:
    return lambda record: (record[0] + ns, *record[1:])


def translated(record: Record) -> Record:
    """The client behind an address translator: another address and port."""
    time_ns, frame, wire = record
    changed = bytearray(frame)
    for address, port in ((26, 34), (30, 36)):
        if frame[address] == 10:
            changed[address : address + 4] = bytes([203, 0, 113, 1])
            (old,) = struct.unpack_from(">H", frame, port)
            struct.pack_into(">H", changed, port, (old * 7 + 11) % 2**16)
    return time_ns + 300_000, bytes(changed), wire


def heartbeat(time_ns: int, host: int, target: str = "192.0.2.1") -> Record:
    """A datagram that is the same each time."""
    address = bytes(map(int, target.split(".")))
    ip = struct.pack(">BBHHHBBH4s4s", 0x45, 0, 36, 0, 0x4000, 64, 17, 0, bytes([10, 0, 0, host]), address)
    frame = bytes(12) + b"\x08\x00" + ip + struct.pack(">HHHH", 5000, 5000, 16, 0) + b"I live!!"
    return time_ns, frame, len(frame)


@pytest.mark.acceptance
def test_whatever_differs(tmp_path: Path, seen: list[Record]) -> None:
    """Delay, clock, snap length, addresses, a late beginning, a part of the traffic."""
    cut = [(time_ns, frame[:66], wire) for time_ns, frame, wire in seen]
    other = {
        "delay": list(map(later(20_000_000), seen)),
        "clock": list(map(later(3_600 * 10**9), seen)),
        "snap length": cut,
        "addresses": list(map(translated, seen)),
        "late": list(map(later(50_000), seen[38_500:40_000])),
        "tenth": seen[::10],
        "few": list(map(later(50_000), seen[20_000:20_010])),
    }
    for name, part in other.items():
        for both in ((seen, part), (part, seen)):
            one = found(tmp_path, *both)
            assert one is not None, name
            assert one.share > 0.25, name
            assert one.translated == (name == "addresses"), name
            assert (one.one, one.other) == (str(tmp_path / "0.pcap"), str(tmp_path / "1.pcap"))


def test_late_copies_need_the_whole_way(tmp_path: Path, seen: list[Record], monkeypatch: pytest.MonkeyPatch) -> None:
    """The beginning of both captures alone does not show them."""
    late = list(map(later(50_000), seen[38_500:40_000]))
    assert found(tmp_path, seen, late)
    monkeypatch.setattr(copies, "MOST_BATCHES", copies.BATCHES)
    assert found(tmp_path, seen, late) is None


def test_rotated_sets_are_none(tmp_path: Path, seen: list[Record]) -> None:
    third = len(seen) // 3
    assert found(tmp_path, seen[:third], seen[third : 2 * third], seen[2 * third :]) is None
    interleaved = seen[:third] + seen[third : 2 * third : 2], seen[third + 1 : 2 * third : 2] + seen[2 * third :]
    assert found(tmp_path, *interleaved) is None


def test_packets_without_a_number_tell_nothing(tmp_path: Path) -> None:
    """Forty hosts that send the same datagram again and again: every file of the set holds the same ids."""
    every = [heartbeat(minute * 60 * 10**9 + host, host) for minute in range(21) for host in range(40)]
    assert found(tmp_path, every[:280], every[280:560], every[560:]) is None
    assert found(tmp_path, every, list(map(later(5_000_000), every)))  # at the same time they are the same


def test_broadcasts_in_common_are_two_interfaces(tmp_path: Path, seen: list[Record]) -> None:
    """Both interfaces of a bridge see its broadcasts, but not the same conversations."""
    first_ns = seen[0][0]
    loud = [heartbeat(first_ns + n * 10**7, n % 250, "224.0.0.251") for n in range(2_000)]
    here, there = seen[:10_000], seen[10_000:20_000]
    assert found(tmp_path, sorted(here + loud), sorted(there + list(map(later(10**5), loud)))) is None
    crossing = list(map(later(10**5), here[::20]))
    assert found(tmp_path, sorted(here + loud), sorted(there + crossing)) is not None


def test_only_what_is_read_counts(tmp_path: Path, seen: list[Record]) -> None:
    def port(record: Record) -> set[int]:
        return set(struct.unpack_from(">HH", record[1], 34))

    part = [record for record in seen if 53 not in port(record)]
    assert found(tmp_path, seen, part)
    assert found(tmp_path, seen, part, wanted=Filter.parse(ports=53)) is None


def test_real_points_of_one_network(shared_data: Path) -> None:
    """Four interfaces of an access point: lan has two packets, and wan has these, too."""
    folder = shared_data / "twopoint/smart-home-firewall/tplink-plug/no-firewall"
    lan, wan, slow, fast = (str(folder / f"{name}.pcap") for name in ("lan", "wan", "wlan2.4", "wlan5.0"))
    for one, other in ((lan, wan), (wan, slow), (fast, slow)):
        with pytest.raises(WirelagError, match=r"hold the same packets \(100% of those compared\), which would count"):
            refuse_copies(Capture([one, other]))
        told = json.loads(wirelag("info", one, other, "--format", "json").stdout)["commands"]
        answers = {verdict["command"]: verdict for verdict in told}
        for command in ("rtt", "response"):
            assert not answers[command]["applies"]
            assert "hold the same packets" in answers[command]["why"]
    refuse_copies(Capture([wan, fast]))  # different devices


@pytest.mark.parametrize("command", ["rtt", "response", "cut"])
def test_copies_that_are_read_all_the_same_are_told(command: str, shared_data: Path, tmp_path: Path) -> None:
    capture, copy = shared_data / "rtt/zeek/modbusBig.pcap.gz", tmp_path / "copy.pcap.gz"
    copy.write_bytes(capture.read_bytes())
    words = (command, capture, copy, *(("-o", tmp_path / "a.syn") if command == "cut" else ()))
    assert "which would count twice" in wirelag(*words, code=2).stderr
    told = wirelag(*words, "--force").stderr
    assert f"warning: {capture} and {copy} hold the same packets (100% of those compared), which may count" in told
    alone = wirelag(*words[:2], *words[3:], "--force").stderr
    assert "hold the same packets" not in alone


def test_halves_of_one_conversation_are_none(shared_data: Path, tmp_path: Path) -> None:
    halves = [shared_data / f"hidden/zeek/ssh.{side}-side-half-duplex.pcap" for side in ("client", "server")]
    paths = [tmp_path / f"{n}.pcap" for n in range(2)]
    for path, half in zip(paths, halves, strict=True):
        path.write_bytes(plain_bytes(half if half.exists() else half.with_name(half.name + ".gz")))
    assert find_copies(Capture([str(path) for path in paths]).files) is None


def test_info_names_the_way_between_translated_points(tmp_path: Path, seen: list[Record]) -> None:
    for name, part in (("lan", seen[:5_000]), ("wan", list(map(translated, seen[:5_000])))):
        (tmp_path / f"{name}.pcap").write_bytes(pcap(part, magic=NS))
    told = wirelag("info", tmp_path / "lan.pcap", tmp_path / "wan.pcap").stdout
    (line,) = [line for line in told.splitlines() if "wirelag oneway" in line]
    assert "hold the same packets with other addresses" in line
    assert line.endswith("use --nat")
    wirelag("oneway", tmp_path / "lan.pcap", tmp_path / "wan.pcap", "--nat")


@pytest.mark.skipif(bool(lacks := needs.absent("mergecap", "editcap")), reason=lacks)
def test_files_that_overlap_are_put_together_as_the_message_says(tmp_path: Path, seen: list[Record]) -> None:
    """Files of a ring that were copied while it ran: to name one of them, as was advised, would lose packets."""
    third = len(seen) // 3
    for name, part in (("whole", seen), ("a", seen[: 2 * third]), ("b", seen[third:])):
        (tmp_path / f"{name}.pcap").write_bytes(pcap(part, magic=NS))
    said = wirelag("rtt", "a.pcap", "b.pcap", cwd=tmp_path, code=2).stderr
    assert "oneway" not in said
    (commands,) = re.findall(r"\((mergecap .*)\)", said)
    for command in commands.split("; "):
        subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)
    whole, once = (json.loads(wirelag("rtt", tmp_path / name, "--format", "json").stdout) for name in
                   ("whole.pcap", "once.pcap"))  # fmt: skip
    assert once["packets"] == whole["packets"]
    assert once["legs"] == whole["legs"]
    told = json.loads(wirelag("info", tmp_path / "a.pcap", tmp_path / "b.pcap", "--format", "json").stdout)
    assert not any(command["applies"] for command in told["commands"])


def test_two_points_are_compared(tmp_path: Path, seen: list[Record]) -> None:
    one = found(tmp_path, seen, list(map(later(20_000_000), seen)))
    assert one is not None
    assert not one.same_times
    assert "wirelag oneway" in one.way_out
