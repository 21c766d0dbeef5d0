"""The JSON of `wirelag oneway` follows its schema, for every method and input."""

import json
import struct
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.support import command
from tests.support.places import SCHEMAS

SCHEMA = SCHEMAS / "oneway.json"
METHODS = ("join", "lda", "finecomb", "rda", "rda --rateless", "rda --buckets 30", "rda --memory 8KiB")
OPTIONAL = {
    "share",
    "lost_low",
    "lost_high",
    "usable_rows",
    "unlike_rows",
    "repaired_rows",
    "tries",
    "decoded",
    "difference",
    "symbols",
    "contradicted",
}
DIRECTION = "10.0.0.0/8,2001:db8:1::/48>"


def wirelag(*words: str, code: int = 0) -> str:
    return command.wirelag(*words, code=code).stdout


@pytest.fixture(scope="module")
def validator() -> jsonschema.Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


@pytest.fixture(scope="module")
def points(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("oneway")
    names = [str(folder / name) for name in ("up.pcap", "down.pcap")]
    trouble = ("--loss", "0.02", "--reorder", "0.01", "--duplicate", "0.005")
    wirelag("simulate", "--packets", "6000", "--points", "2", *trouble, "-o", names[0], "-o", names[1], "--quiet")
    return names


def answer(validator: jsonschema.Draft202012Validator, *words: str, code: int = 0) -> dict[str, Any]:
    found = json.loads(wirelag("oneway", *words, "--format", "json", code=code))
    validator.validate(found)
    assert isinstance(found, dict)
    return found


@pytest.mark.every(4)
@pytest.mark.parametrize("method", METHODS)
def test_every_method(validator: jsonschema.Draft202012Validator, points: list[str], method: str) -> None:
    words = [*points, "--estimator", *method.split()]
    assert answer(validator, *words)["used"] > 0
    found = answer(validator, *words, "--interval", "20s", "--by", "prefix", "--above", "1ms", "--sla", "mean<1h")
    assert len(found["intervals"]) > 1
    assert len(found["groups"]) > 1
    assert found["sla"][0]["holds"] is True


def test_negative_delays_and_violated_agreements(validator: jsonschema.Draft202012Validator, points: list[str]) -> None:
    found = answer(validator, *points, "--offset", "1h", "--sla", "mean<1ms", "--interval", "2h")
    assert found["mean"] < 0 < found["negative"] == found["used"]
    answer(validator, *points, "--sla", "p99<1ns", code=3)


def test_clocks(validator: jsonschema.Draft202012Validator, tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("a.pcap", "b.pcap")]
    clock = ("--clock-offset", "2000s", "--clock-skew", "50")
    wirelag("simulate", "--packets", "20000", "--points", "2", *clock, "-o", names[0], "-o", names[1], "--quiet")
    assert answer(validator, *names)["clock"]["method"] == "offset+skew"
    assert answer(validator, *names, "--clock", "none")["clock"]["method"] == "none"
    assert answer(validator, *names, "--offset", "2000s")["clock"]["method"] == "given"


def later(source: str, target: str, by_ns: int) -> None:
    """The same capture, with all times later."""
    data, place, written = Path(source).read_bytes(), 24, []
    while place < len(data):
        seconds, ns, length, wire = struct.unpack_from("<IIII", data, place)
        seconds, ns = divmod(seconds * 10**9 + ns + by_ns, 10**9)
        written.append(struct.pack("<IIII", seconds, ns, length, wire) + data[place + 16 : place + 16 + length])
        place += 16 + length
    Path(target).write_bytes(data[:24] + b"".join(written))


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["join", "lda", "rda"])
def test_three_captures(validator: jsonschema.Draft202012Validator, tmp_path: Path, method: str) -> None:
    names = [str(tmp_path / name) for name in ("a.pcap", "b.pcap", "c.pcap")]
    one_way = ("--points", "2", "--direction", "client")
    wirelag("simulate", "--packets", "4000", *one_way, "-o", names[0], "-o", names[1], "--quiet")
    later(names[1], names[2], 3_000_000)
    found = answer(validator, *names, "--estimator", method, "--interval", "20s")
    assert len(found["segments"]) == 2
    assert found["segments"][1]["mean"] == pytest.approx(0.003)
    assert found["mean"] == pytest.approx(sum(part["mean"] for part in found["segments"]))


@pytest.mark.every(2)
@pytest.mark.parametrize("method", ["lda", "finecomb", "rda", "rda --buckets 30"])
def test_files(validator: jsonschema.Draft202012Validator, points: list[str], tmp_path: Path, method: str) -> None:
    for length in ([], ["--interval", "10s", "--by", "destination"]):
        files = [str(tmp_path / name) for name in ("up.syn", "down.syn")]
        for capture, file in zip(points, files, strict=True):
            words = ("--estimator", *method.split(), *length, "--direction", DIRECTION, "-o", file)
            wirelag("cut", capture, *words)
        found = answer(validator, *files, *length[:2])
        assert found["left_out"] == {}


def test_it_is_strict(validator: jsonschema.Draft202012Validator, points: list[str]) -> None:
    for method in METHODS:
        whole = answer(validator, *points, "--estimator", *method.split(), "--interval", "30s")
        for name in whole.keys() - {
            "share",
            "usable_rows",
            "unlike_rows",
            "repaired_rows",
            "tries",
            "decoded",
            "difference",
            "symbols",
        }:
            assert not validator.is_valid({key: value for key, value in whole.items() if key != name}), name
        assert not validator.is_valid(whole | {"more": 1})
        assert not validator.is_valid(whole | {"lost": "few"})
        assert not validator.is_valid(whole | {"left_out": {"backward": 1}})
        other = {"lda": "decoded", "finecomb": "decoded", "join": "usable_rows", "rda": "usable_rows"}
        assert not validator.is_valid(whole | {other[whole["estimator"]]: True})
        changed = [whole["intervals"][0] | {"more": 1}]
        assert not validator.is_valid(whole | {"intervals": changed})
