"""Records that threads decode and match at once: the answer is that of packet batches, for any file and cores."""

import gzip
import json
import lzma
import struct
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support.captures import (
    block,
    capture_name,
    capture_paths,
    enhanced,
    interface,
    packets,
    pcap,
    plain_bytes,
    section,
)
from tests.support.simulated_captures import write_simulation
from wirelag import info, rtt
from wirelag.capture import files, undecoded
from wirelag.errors import WirelagError
from wirelag.estimators import fridge, fridge_plan
from wirelag.measure import trial
from wirelag.sim import Scenario, simulate

OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"leg": "client", "top": 30},
    {"leg": "mixed", "filter": "tcp"},
    {"match": "tcp-timestamps", "retransmitted": "first"},
    {"match": "handshake", "tunnels": True},
    {"table_memory": "40KiB"},
    {"memory": "2KiB", "top": 30},
    {"memory": "16KiB", "match": "tcp-timestamps,dns", "leg": "client", "seed": 3},
    {"slots": (64, 32), "entry_probability": (0.5, 0.25)},
    {"slots": (4, 2, 1), "match": "flow-duration,dns"},
    {"memory": "4KiB", "interval": "300ms", "leg": "mixed"},
    {"by": "server", "interval": "1s", "charts": True},
    {"by": "flow", "interval": "70ms", "leg": "both", "group_memory": "1MiB", "filter": "tcp"},
    {"samples": True, "table_memory": "40KiB", "interval": "5s"},
    {"by": "subnet", "ipv4_prefix": 28, "charts": True},
    {"by": "client", "top": 2, "charts": True},
    {"by": "port", "leg": "mixed", "interval": "300ms", "retransmitted": "first"},
)
SECOND = 10**9


def answer(path: Path, cores: int, **options: Any) -> str:
    """Everything that is told, or the error."""
    try:
        result = rtt(path, cores=cores, **{"charts": False} | options)
    except WirelagError as error:
        return str(error)
    page = result.to_html() if options.get("charts") else ""
    samples = "" if result.samples is None else result.samples.table().csv()
    return json.dumps([result.to_dict(), result.warnings, result.notes, page, samples])


def by_batches(path: Path, **options: Any) -> str:
    """The same from packet batches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "one_file", lambda _: None)
        return answer(path, 1, **options)


@pytest.fixture
def short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecoded, "BYTES_A_THREAD", 3_000)


def check(path: Path, **options: Any) -> str:
    alone = by_batches(path, **options)
    for cores in (1, 2, 3):
        assert answer(path, cores, **options) == alone
    return alone


@pytest.mark.every(60)
@pytest.mark.parametrize("path", capture_paths("wild", "rtt", "malformed", "readers"), ids=capture_name)
@pytest.mark.usefixtures("short_blocks")
def test_every_capture_has_the_answer_of_batches(path: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.pcap"
    plain.write_bytes(plain_bytes(path)[:2_000_000])
    check(plain, **OPTIONS[sum(path.name.encode()) % len(OPTIONS)])


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("undecoded") / "one.pcap"
    write_simulation(simulate(Scenario(packets=4_000)), path)
    return path


@pytest.mark.every(4)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.usefixtures("short_blocks")
def test_options_have_the_answer_of_batches(capture: Path, options: dict[str, Any]) -> None:
    assert '"samples"' in check(capture, **options)


@pytest.mark.parametrize("options", [{"interval": "70ms"}, {"match": "handshake,dns", "seed": 4}], ids=str)
@pytest.mark.usefixtures("short_blocks")
def test_fridges_that_change_all_the_time(
    capture: Path, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request comes twice, so that some wait in the fridges in use and in the drained ones."""
    monkeypatch.setattr(fridge_plan, "STRETCH_NS", 50_000_000)
    monkeypatch.setattr(fridge_plan, "FEWEST_TO_ADAPT", 2)
    monkeypatch.setattr(fridge_plan, "WORTH_IT", 0.0)
    some = list(packets(capture.read_bytes()))[:1500]
    copies = [(one.time_ns + late_ns, one.frame, one.wire_length) for one in some for late_ns in (0, 30_000_000)]
    path = tmp_path / "twice.pcap"
    path.write_bytes(pcap(sorted(copies, key=lambda copy: copy[0]), magic=0xA1B23C4D))
    replaced, replace = [], fridge.Generations.replace
    counting = lambda *given: replaced.append(given) or replace(*given)  # noqa: E731
    monkeypatch.setattr(fridge.Generations, "replace", counting)
    assert json.loads(check(path, memory="3KiB", **options))[0]["samples"]
    assert len(replaced) > 20


@pytest.mark.parametrize("by", ["server", "subnet"])
def test_flows_come_again_after_they_were_forgotten(tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some 2,000 are known of each of eight parts."""
    monkeypatch.setattr(undecoded, "BYTES_A_THREAD", 100_000)
    once, twice = tmp_path / "once.pcap", tmp_path / "twice.pcap"
    write_simulation(simulate(Scenario(packets=80_000, dns=1.0)), once)
    some = list(packets(once.read_bytes()))
    again = [(one.time_ns + late_ns, one.frame, one.wire_length) for late_ns in (0, 100 * SECOND) for one in some]
    twice.write_bytes(pcap(again, magic=0xA1B23C4D))
    assert json.loads(check(twice, by=by, charts=True, interval="7s"))[0]["groups"]


@pytest.mark.usefixtures("short_blocks")
def test_times_relative_to_the_first_packet(capture: Path) -> None:
    """Only who reads the first packet knows when that is."""
    from wirelag import Filter

    whole = json.loads(answer(capture, 2))[0]["samples"]
    between = Filter(from_ns=2 * SECOND, to_ns=9 * SECOND, relative=True)
    part = json.loads(check(capture, filter=between))[0]["samples"]
    assert 0 < part < whole
    assert len(json.loads(check(capture, filter=between, interval="1s"))[0]["intervals"]) in (7, 8)


@pytest.mark.usefixtures("short_blocks")
def test_sections_and_interfaces_in_the_middle(capture: Path, tmp_path: Path) -> None:
    """A new interface, section or byte order ends what is decoded at once; blocks without packets do not."""
    seen = list(packets(capture.read_bytes()))
    data, other = b"", block("<", 0xBAD, b"nothing that is known")
    for number, order in enumerate("<><"):
        data += section(order) + interface(order, 1) + interface(order, 1)
        for i, packet in enumerate(seen[number::3]):
            assert packet.time_ns is not None
            if i % 200 == 100:
                data += interface(order, 1)
            data += enhanced(order, packet.frame, packet.time_ns // 1000, i % 2)
            data += other if order == "<" and i % 7 == 0 else b""
    path = tmp_path / "sections.pcapng"
    path.write_bytes(data)
    assert json.loads(check(path))[0]["packets"] == len(seen)


@pytest.mark.every(2)
@pytest.mark.usefixtures("short_blocks")
@pytest.mark.parametrize("cut", [0, 9, 5_000])
@pytest.mark.parametrize("ending", ["gz", "xz", "zst"])
def test_compressed_captures_whole_and_cut(capture: Path, tmp_path: Path, ending: str, cut: int) -> None:
    """They are decompressed ahead; what comes before the place where one breaks off counts."""
    packed = {"gz": gzip.compress, "xz": lzma.compress, "zst": zstandard.compress}[ending](capture.read_bytes())
    path = tmp_path / f"capture.pcap.{ending}"
    path.write_bytes(packed[: len(packed) - cut])
    said, warnings, *_ = json.loads(check(path))
    assert bool(warnings) == bool(cut)
    assert said["samples"] > 100


@pytest.mark.usefixtures("short_blocks")
def test_info_of_more_packets_than_it_tries_commands_on(capture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "MOST_TRIED", 500)
    told = [info(capture, cores=cores).to_dict() for cores in (1, 2)]
    monkeypatch.setattr("wirelag.measure.info.LONG_BYTES", 0)  # commands are tried beside
    told.append(info(capture, cores=3).to_dict())
    monkeypatch.setattr(files, "one_file", lambda _: None)
    by_batches = info(capture, cores=1).to_dict()
    assert told == [by_batches] * 3
    assert by_batches["packets"] == sum(by_batches["kinds"].values()) == 4_000


def test_groups_of_more_flows_than_are_remembered(tmp_path: Path) -> None:
    """Beyond 4,096 of a shard all are forgotten, and their addresses are looked up again."""
    path = tmp_path / "flows.pcap"
    write_simulation(simulate(Scenario(packets=80_000, dns=1.0)), path)
    alone = by_batches(path, by="server")
    assert all(answer(path, cores, by="server") == alone for cores in (1, 2))
    assert len(json.loads(alone)[0]["groups"]) == 40  # two addresses for each server


@pytest.mark.usefixtures("short_blocks")
def test_a_record_that_is_longer_than_many_blocks(capture: Path, tmp_path: Path) -> None:
    data = capture.read_bytes()
    long = struct.pack("<IIII", *struct.unpack("<II", data[24:32]), 200_000, 200_000) + bytes(200_000)
    path = tmp_path / "long.pcap"
    path.write_bytes(data[:24] + long + data[24:])
    assert json.loads(check(path))[0]["skipped"]


@pytest.mark.usefixtures("short_blocks")
def test_of_equal_delays_the_first_are_the_slowest(capture: Path, tmp_path: Path) -> None:
    """All packets at one instant: every delay is 0, and only the place in the file tells them apart."""
    path = tmp_path / "equal.pcap"
    path.write_bytes(pcap([(10**15, packet.frame, packet.wire_length) for packet in packets(capture.read_bytes())]))
    slowest = json.loads(check(path))[0]["slowest"]
    places = [one["frames"][-1]["number"] for one in slowest]
    assert len(places) == 5
    assert places == sorted(places)
