"""`wirelag flows`: the delay of every flow from captures, whatever happens to the references."""

import csv
import json
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import polars as pl
import pytest

from tests.support import command
from tests.support.frame_captures import write
from tests.support.places import DATA, SCHEMAS
from wirelag.errors import SettingError
from wirelag.sim.queue import QueueScenario, QueueSimulation, run
from wirelag.sim.queue_frames import FIRST_PORT, downstream_frames, upstream_frames
from wirelag.stats.queue_drain import parse_drain
from wirelag.units import format_duration

SCHEMA = SCHEMAS / "flows.json"
PAYLOAD = 42  # bytes of headers: UDP over IPv4 over Ethernet
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def wirelag(*words: str | Path, code: int = 0) -> str:
    return command.wirelag(*words, code=code).text


def answer(*words: str | Path, code: int = 0) -> dict[str, Any]:
    found = json.loads(wirelag("flows", *words, "--format", "json", code=code))
    assert isinstance(found, dict)
    VALIDATOR.validate(found | {"flows": found["flows"][:20] + found["flows"][-20:]})
    return found


@dataclass
class Queue:
    simulation: QueueSimulation
    before: Path
    behind: Path

    @cached_property
    def records(self) -> list["Record"]:
        return list(records(self.behind))

    def means(self, found: dict[str, Any]) -> dict[int, float]:
        """The mean of each simulated flow that has one, by its source port."""
        return {
            int(flow["key"].split(" > ")[0].split(":")[1]) - FIRST_PORT: flow["mean"]
            for flow in found["flows"]
            if "198.18." not in flow["key"] and flow["mean"] is not None
        }

    def error(self, found: dict[str, Any]) -> float:
        """The median relative error of the flows' means."""
        true = self.simulation.truth().mean_ns / 1e9
        return float(np.median([abs(mean / true[flow] - 1) for flow, mean in self.means(found).items()]))


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Queue:
    folder = tmp_path_factory.mktemp("queue")
    simulation = run(QueueScenario(0.7, seed=3, seconds=0.4))
    assert simulation.bursts.flows < 50_000  # source ports identify flows
    before = write(folder / "before.pcap", upstream_frames(simulation))
    return Queue(simulation, before, write(folder / "behind.pcap", downstream_frames(simulation)))


@pytest.fixture(scope="module")
def clean(queue: Queue) -> dict[str, Any]:
    return answer(queue.behind)


Record = tuple[int, int, bytes]  # ns, wire length, bytes


def records(path: Path) -> Iterator[Record]:
    data, place = path.read_bytes(), 24
    while place < len(data):
        seconds, ns, length, wire = struct.unpack_from("<IIII", data, place)
        yield seconds * 10**9 + ns, wire, data[place + 16 : place + 16 + length]
        place += 16 + length


def write_records(path: Path, header: Path, rows: Iterable[Record]) -> Path:
    parts = [header.read_bytes()[:24]]
    parts += [struct.pack("<IIII", *divmod(ns, 10**9), len(data), wire) + data for ns, wire, data in rows]
    path.write_bytes(b"".join(parts))
    return path


def is_reference(data: bytes) -> bool:
    return data[23] == 17 and data[36:38] == b"\x03\x5e"


def changed(data: bytes, at: int, value: bytes) -> bytes:
    return data[:at] + value + data[at + len(value) :]


def forged(data: bytes, how: str) -> bytes:
    sequence, seconds = struct.unpack_from(">II", data, PAYLOAD)
    if how == "time":
        return changed(data, PAYLOAD + 4, struct.pack(">I", seconds + 1_000_000))
    if how == "early":
        return changed(data, PAYLOAD + 4, struct.pack(">I", seconds - 60))
    if how == "sequence":
        return changed(data, PAYLOAD, struct.pack(">I", (sequence - (1 << 21)) % (1 << 32)))
    if how == "malformed":
        return changed(data, PAYLOAD + 8, b"\xff\xff\xff\xff")
    if how == "size":
        short = changed(data, 16, struct.pack(">H", 28 + 44))
        return changed(short, 38, struct.pack(">H", 8 + 44))[: PAYLOAD + 44]
    assert how == "foreign"
    return changed(data, 26, b"\xc6\x12\x00\x63")


@pytest.mark.every(2)
@pytest.mark.parametrize(("method", "bound"), [("busy", 0.12), ("linear", 0.2), ("left", 0.3)])
def test_every_flow(queue: Queue, method: str, bound: float) -> None:
    found = answer(queue.behind, "--method", method)
    simulation = queue.simulation
    there = simulation.left_ns >= 0
    flows = np.unique(simulation.bursts.flow[there])
    assert sum(flow["packets"] for flow in found["flows"]) == np.count_nonzero(there)
    assert len(found["flows"]) == len(flows)
    assert found["references"]["accepted"] == np.count_nonzero(simulation.reference_left_ns >= 0)
    assert sum(found["references"]["rejected"].values()) == 0
    assert found["coverage"] > 0.98
    assert found["mean"] == pytest.approx(simulation.delay_ns[there].mean() / 1e9, rel=0.05)
    assert queue.error(found) < bound
    places = [(flow["timed"] < 6, -flow["mean"]) for flow in found["flows"] if flow["mean"] is not None]
    assert places == sorted(places)  # one slow packet leads no list
    assert {few for few, _ in places} == {False, True}
    assert found["flows"][len(places) :] == [flow for flow in found["flows"] if not flow["timed"]]
    (note,) = [note for note in found["notes"] if "come after the others" in note]
    first = next(flow for flow in found["flows"] if flow["timed"] < 6)
    assert note.startswith(f"{sum(few for few, _ in places):,} flows come after the others")
    assert f"the slowest of them: {first['key']}, {format_duration(first['mean'] * 1e9)} " in note


def test_busy_uses_the_sender_s_times(clean: dict[str, Any]) -> None:
    assert clean["fallback"] is None
    assert clean["counts"]["previous_used"] > 0.9 * clean["references"]["accepted"]


def test_drain_and_fallback(queue: Queue) -> None:
    given = answer(queue.behind, "--drain", "2Gbps")
    assert given["drain_bytes_per_s"] == queue.simulation.scenario.bytes_per_s
    wrong = answer(queue.behind, "--drain", "200Gbps")
    assert wrong["fallback"]
    assert any("fell back to linear" in note for note in wrong["notes"])
    assert queue.error(wrong) < 0.2


def test_what_fell_back_to_linear_is_called_linear_and_is_no_surer(shared_data: Path) -> None:
    """It said "method busy", with the intervals of busy: a wrong rate made them ten times as narrow."""
    folder = shared_data / "twopoint/mptcpanalyzer-0.3.2"
    pair = folder / "node1filtered.pcapng.gz", "--upstream", folder / "node0filtered.pcapng.gz"
    linear = answer(*pair, "--method", "linear")
    for words in ((), ("--drain", "200Gbps")):
        found = answer(*pair, *words)
        assert found["method"] == "linear"
        assert found["fallback"]
        assert found["mean"] == pytest.approx(linear["mean"], rel=1e-6)
        assert found["ci95"]["mean"][0] <= linear["ci95"]["mean"][0]
        assert found["ci95"]["mean"][1] >= linear["ci95"]["mean"][1]
        said = wirelag("flows", *pair, *words)
        assert "method linear instead of busy" in said
        assert "method busy" not in said
    assert "method linear;" in wirelag("flows", *pair, "--method", "linear")


def with_forged(queue: Queue, path: Path, how: str) -> tuple[dict[str, Any], int]:
    """One reference in ten is forged."""
    rng = np.random.default_rng(1)
    rows, false = [], 0
    for i, (ns, wire, data) in enumerate(queue.records):
        change = i > 1000 and is_reference(data) and rng.random() < 0.1
        false += change
        rows.append((ns, wire, forged(data, how) if change else data))
    return answer(write_records(path, queue.behind, rows)), false


@pytest.fixture(scope="module")
def unreadable(queue: Queue, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return with_forged(queue, tmp_path_factory.mktemp("unreadable") / "unreadable.pcap", "malformed")[0]


@pytest.mark.every(4)
@pytest.mark.parametrize("how", ["time", "early", "sequence", "size", "foreign"])
def test_forged_references_are_rejected(
    queue: Queue, clean: dict[str, Any], unreadable: dict[str, Any], tmp_path: Path, how: str
) -> None:
    """Flows equal those with the same references made unreadable: no forged value is used."""
    found, false = with_forged(queue, tmp_path / "forged.pcap", how)
    rejected = found["references"]["rejected"]
    assert rejected.pop("time" if how == "early" else how) == false
    assert not any(rejected.values())
    assert found["references"]["accepted"] == clean["references"]["accepted"] - false
    assert unreadable["references"]["rejected"]["malformed"] == false
    assert queue.means(found) == queue.means(unreadable)
    low, high = found["ci95"]["mean"]
    simulation = queue.simulation
    assert abs(found["mean"] - simulation.delay_ns[simulation.left_ns >= 0].mean() / 1e9) < high - low
    assert queue.error(found) < queue.error(clean) + 0.03


def test_a_false_first_reference_costs_little(queue: Queue, clean: dict[str, Any], tmp_path: Path) -> None:
    """It belongs to another stream, with another sequence: it costs two references and the packets before them."""
    rows = list(queue.records)
    _, wire, data = next(row for row in rows if is_reference(row[2]))
    false = rows[0][0], wire, forged(forged(data, "foreign"), "sequence")
    found = answer(write_records(tmp_path / "front.pcap", queue.behind, [false, *rows]))
    assert found["references"]["accepted"] >= clean["references"]["accepted"] - 2
    assert found["mean"] == pytest.approx(clean["mean"], rel=0.01)
    assert found["coverage"] > 0.98


def test_lost_and_repeated_references(queue: Queue, clean: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    rows: list[Record] = []
    late: list[tuple[int, Record]] = []  # copies, and the row after which each comes
    lost = 0
    for i, (ns, wire, data) in enumerate(queue.records):
        luck = rng.random() if i > 1000 and is_reference(data) else 1.0
        lost += luck < 0.1
        if luck >= 0.1:
            rows.append((ns, wire, data))
        if 0.1 <= luck < 0.2:
            late.append((i + int(rng.integers(0, 200)), (ns, wire, data)))
        while late and late[0][0] <= i:
            rows.append((ns, wire, late.pop(0)[1][2]))
    found = answer(write_records(tmp_path / "copies.pcap", queue.behind, rows))
    rejected = found["references"]["rejected"]
    copies = sum(is_reference(data) for _, _, data in rows) - (clean["references"]["accepted"] - lost)
    assert copies > 20
    assert rejected["repeated"] + rejected["sequence"] == copies == sum(rejected.values())
    assert found["references"]["accepted"] == clean["references"]["accepted"] - lost
    # Each lost reference leaves a gap after the queue that looks like an idle link, hence the wide bound.
    assert found["mean"] == pytest.approx(clean["mean"], rel=0.05)
    assert queue.error(found) < queue.error(clean) + 0.05


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["busy", "linear"])
def test_references_of_two_captures(queue: Queue, method: str) -> None:
    found = answer(queue.behind, "--reference", "capture", "--upstream", queue.before, "--method", method)
    assert found["reference"] == "capture"
    packets = np.count_nonzero(queue.simulation.left_ns >= 0)
    share = found["references"]["accepted"] / packets
    assert share == pytest.approx(1 / 20, abs=4 * (0.05 * 0.95 / packets) ** 0.5)
    # Flows contain neither the drawn packets nor those of the STAMP sender, which upstream did not capture.
    assert sum(flow["packets"] for flow in found["flows"]) == packets - found["references"]["accepted"]
    assert queue.error(found) < 0.15
    assert answer(queue.behind, "--upstream", queue.before, "--every", "100")["references"]["accepted"] < packets / 80


def test_another_clock(queue: Queue, tmp_path: Path) -> None:
    """STAMP references include the offset in every delay; with two captures it is corrected as far as possible."""
    rows = ((ns + 5 * 10**9, wire, data) for ns, wire, data in queue.records)
    ahead = write_records(tmp_path / "ahead.pcap", queue.behind, rows)
    plain = answer(queue.behind)
    assert answer(ahead)["mean"] == pytest.approx(plain["mean"] + 5, abs=1e-6)
    assert answer(ahead)["std"] == pytest.approx(plain["std"], rel=1e-3)
    assert answer(ahead, "--upstream", queue.before)["clock"]["method"]


def test_filters_choose_flows_without_changing_delays(queue: Queue, clean: dict[str, Any]) -> None:
    every = {flow["key"]: flow for flow in clean["flows"]}
    host = clean["flows"][0]["key"].split(" > ")[1].split(":")[0]
    found = answer(queue.behind, "--host", host)
    assert {flow["key"]: flow for flow in found["flows"]} == {k: f for k, f in every.items() if f"> {host}:" in k}
    packets = sum(flow["packets"] for flow in found["flows"])
    mean = sum(flow["mean"] * flow["packets"] for flow in found["flows"] if flow["mean"] is not None)
    assert found["mean"] == pytest.approx(mean / packets, rel=0.05)
    assert found["ci95"]["mean"][0] < found["mean"] < found["ci95"]["mean"][1]
    assert answer(queue.behind, "--proto", "tcp", "--net", "10.0.0.0/8", "--port", "5001")["flows"] == clean["flows"]
    nothing = answer(queue.behind, "--proto", "icmp")
    assert (nothing["flows"], nothing["mean"], nothing["reason"]) == ([], None, "no such flow")
    assert answer(queue.behind, "--direction", "10.0.0.0/8>")["flows"] == clean["flows"]


@pytest.mark.acceptance
def test_an_expression_chooses_flows_too(queue: Queue, clean: dict[str, Any]) -> None:
    """As --host does, on a file, between two captures and from standard input."""
    host = clean["flows"][0]["key"].split(" > ")[1].split(":")[0]
    wanted = ("--filter", f"tcp and dst host {host}")
    for more in ((), ("--upstream", queue.before), ("--interval", "100ms")):
        found, same = answer(queue.behind, *more, *wanted), answer(queue.behind, *more, "--host", host)
        assert 0 < len(found["flows"]) < len(clean["flows"])
        assert found == same
    piped = command.wirelag("flows", "-", *wanted, "--format", "json", stdin=queue.behind.read_bytes()).stdout
    assert json.loads(piped)["flows"] == answer(queue.behind, *wanted)["flows"]
    port = clean["flows"][0]["key"].split(" > ")[0].split(":")[1]
    assert len(answer(queue.behind, "--filter", f"src port {port}")["flows"]) == 1
    assert answer(queue.behind, "--filter", f"dst port {port}")["reason"] == "no such flow"
    assert "filter" in wirelag("flows", queue.behind, "--filter", "tcp prt 1", code=2)


def test_groups_and_intervals(queue: Queue, clean: dict[str, Any]) -> None:
    found = answer(queue.behind, "--interval", "100ms", "--by", "server", "--sla", "mean<1s")
    assert len(found["intervals"]) == 5  # packets that wait at the end are sent in the last one
    assert sum(part["samples"] for part in found["intervals"]) == found["samples"]
    assert found["mean"] == pytest.approx(clean["mean"], rel=1e-3)
    assert len(found["flows"]) == len(clean["flows"])
    assert len(found["groups"]) == 20
    low, high = found["ci95"]["mean"]
    assert all(group["ci95"][1] - group["ci95"][0] >= 0.99 * (high - low) for group in found["groups"])
    assert sum(group["packets"] for group in found["groups"]) == sum(flow["packets"] for flow in found["flows"])
    assert [group["key"] for group in answer(queue.behind, "--by", "port")["groups"]] == ["5001"]
    assert [group["key"] for group in answer(queue.behind, "--by", "client")["groups"]] == ["10.0.0.1"]
    assert [group["key"] for group in answer(queue.behind, "--by", "subnet")["groups"]] == ["10.0.0.0/24"]


def test_little_memory(queue: Queue, clean: dict[str, Any]) -> None:
    """Evicted parts of a flow are joined again; sample and hold keeps few flows."""
    found = answer(queue.behind, "--memory", "64KiB")
    assert found["counts"]["evicted"] > 0
    assert any(note.startswith(f"{found['counts']['evicted']:,} flows were evicted") for note in found["notes"])
    assert [(flow["key"], flow["packets"]) for flow in found["flows"]] == [
        (flow["key"], flow["packets"]) for flow in clean["flows"]
    ]
    held = answer(queue.behind, "--hold", "0.01")
    assert 0 < len(held["flows"]) < len(clean["flows"]) / 4
    assert held["mean"] == clean["mean"]
    assert any("--hold" in note for note in held["notes"])


def test_formats(queue: Queue, clean: dict[str, Any], tmp_path: Path) -> None:
    table = wirelag("flows", queue.behind, "--most-flows", "2").splitlines()
    assert table[1].startswith("all")
    assert table[3].startswith(clean["flows"][0]["key"])
    assert f"and {len(clean['flows']) - 2:,} more flows" in table[5]
    rows = list(csv.DictReader(wirelag("flows", queue.behind, "--format", "csv").splitlines()))
    assert [row["scope"] for row in rows[:2]] == ["all", "flow"]
    assert [row["key"] for row in rows[1:]] == [flow["key"] for flow in clean["flows"]]
    file = tmp_path / "flows.parquet"
    wirelag("flows", queue.behind, "--format", "parquet", "--interval", "200ms", "--by", "server", "-o", file)
    frame = pl.read_parquet(file)
    assert dict(frame["scope"].value_counts().iter_rows()) == {
        "all": 1, "interval": 3, "group": 20, "flow": len(clean["flows"]),
    }  # fmt: skip
    lines = wirelag("flows", queue.behind, "--format", "jsonl", "--interval", "200ms").splitlines()
    assert [json.loads(line)["command"] for line in lines] == ["flows"] * 3
    assert "-o" in wirelag("flows", queue.behind, "--format", "parquet", code=2)


def test_agreements(queue: Queue) -> None:
    assert answer(queue.behind, "--sla", "mean<1ns", code=3)["sla"][0]["holds"] is False
    assert "holds" in wirelag("flows", queue.behind, "--sla", "mean<1s")
    whole = answer(queue.behind)["mean"] * 1.05
    for by in ("flow", "server"):
        words = (queue.behind, "--by", by, "--sla", f"mean<{whole * 1e9:.0f}ns")
        found = answer(*words, code=3)
        (verdict,) = found["sla"]
        slow = [row for row in found["flows" if by == "flow" else "groups"] if (row["mean"] or 0) >= whole]
        assert verdict["holds"]
        assert verdict["groups"]["failing"] == len(slow) > 0
        line = next(line for line in wirelag("flows", *words, code=3).splitlines() if line.startswith("mean<"))
        assert re.search(r"does not hold for [\d,]+ of [\d,]+ groups: .*; all together: holds, it is ", line)
        assert line.split("groups: ")[1].startswith(f"{slow[0]['key']} (")
    wirelag("flows", queue.behind, "--sla", f"mean<{whole * 1e9:.0f}ns")  # of all flows together
    assert "only the mean" in wirelag("flows", queue.behind, "--sla", "p99<1s", code=2)


def test_no_references(queue: Queue, tmp_path: Path) -> None:
    said = wirelag("flows", queue.before, code=2)
    assert "STAMP" in said
    assert "--reference capture --upstream FILE" in said
    rows = [(ns, wire, forged(data, "malformed") if is_reference(data) else data) for ns, wire, data in
            queue.records]  # fmt: skip
    assert "could be used" in wirelag("flows", write_records(tmp_path / "bad.pcap", queue.behind, rows), code=2)
    empty = write_records(tmp_path / "empty.pcap", queue.behind, [])
    assert "no reference packets" in wirelag("flows", empty, code=2)


def test_one_reference_measures_nothing(queue: Queue, tmp_path: Path) -> None:
    rows, seen = [], 0
    for ns, wire, data in queue.records:
        seen += is_reference(data)
        if not is_reference(data) or seen == 1:
            rows.append((ns, wire, data))
    found = answer(write_records(tmp_path / "one.pcap", queue.behind, rows))
    assert found["mean"] is None
    assert "reason" in found
    assert all(flow["mean"] is None and flow["ci95"] is None for flow in found["flows"])


@pytest.mark.acceptance
def test_both_directions_are_reported(queue: Queue, tmp_path: Path) -> None:
    """Packets in the opposite direction of the references never were in the queue."""
    rows: list[Record] = []
    for ns, wire, data in queue.records:
        rows.append((ns, wire, data))
        if not is_reference(data):
            turned = data[:26] + data[30:34] + data[26:30] + data[36:38] + data[34:36] + data[38:]
            rows.append((ns + 100, wire, turned))
    both = write_records(tmp_path / "both.pcap", queue.behind, rows)
    assert any("both directions" in note for note in answer(both)["notes"])
    found = answer(both, "--direction", "10.0.0.0/8>")
    assert found["notes"] == answer(queue.behind)["notes"]
    assert found["flows"] == answer(queue.behind)["flows"]


@pytest.mark.every(2)
@pytest.mark.parametrize("words", [[], ["--tunnels"], ["--interval", "1s"], ["--method", "linear", "--by", "port"]])
def test_other_captures(tmp_path: Path, words: list[str]) -> None:
    up, down = tmp_path / "up.pcap", tmp_path / "down.pcap.gz"
    wirelag("simulate", "--packets", "3000", "--points", "2", "--loss", "0.02", "--duplicate", "0.01", "--reorder",
            "0.02", "-o", up, "-o", down, "--quiet")  # fmt: skip
    for capture in (up, down, DATA / "loopback.pcap"):
        wirelag("flows", capture, *words, code=2)
    found = answer(down, "--upstream", up, *words)
    exact = json.loads(wirelag("oneway", up, down, "--format", "json"))
    assert found["mean"] == pytest.approx(exact["mean"], rel=0.2)
    cut = tmp_path / "cut.pcap"
    cut.write_bytes(up.read_bytes()[:5_000])
    answer(cut, "--upstream", up, "--direction", "10.0.0.0/8,2001:db8:1::/48>", *words)


def test_wrong_options(queue: Queue) -> None:
    for words in (
        ["--reference", "capture"],
        ["--reference", "stamp", "--upstream", queue.before],
        ["--reference", "both"],
        ["--upstream", queue.before, queue.behind],
        ["--method", "best"],
        ["--by", "colour"],
        ["--drain", "fast"],
        ["--hold", "0"],
        ["--memory", "1"],
        ["--overhead", "-101"],
        ["--mark", "64"],
        ["--reference", "marked"],
        ["--reference", "stamp", "--mark", "46"],
        ["--every", "0"],
        ["--upstream", "nowhere.pcap"],
    ):
        wirelag("flows", queue.behind, *words, code=2)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("2Gbps", 250_000_000), ("100 Mbit/s", 12_500_000), ("1e9", 125_000_000), ("2.5gbps", 312_500_000)],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_drain(text) == rate


@pytest.mark.parametrize("text", ["", "2", "GB", "2GB", "-1Gbps", "99Tbps", "nanbps", "1e99", "infbps"])
def test_invalid_rates(text: str) -> None:
    with pytest.raises(SettingError):
        parse_drain(text)
