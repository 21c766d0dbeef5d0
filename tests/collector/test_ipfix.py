"""Intervals of segments that the collector sends by IPFIX, as a plain reader, nfdump and libfixbuf read them."""

import re
import socket
import struct
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support import ipfix, needs
from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, recent, send, settled
from tests.support.command import wirelag
from tests.support.ipfix_programs import ABSENT, collected
from wirelag.render.ipfix import Exporter

pytest.importorskip("starlette", reason=needs.LIVE)


def _is_told(segment: str, record: ipfix.Record, report: dict[str, Any]) -> None:
    """Compare a record with a report."""
    assert record[83, 0].decode() == segment
    assert int.from_bytes(record[2, 0]) == report["received"]
    assert ((133, 0) in record) == (report["lost"] is not None)
    if report["lost"] is not None:
        assert int.from_bytes(record[133, 0]) == round(report["lost"])
    for element, name in ((530, "mean"), (531, "min"), (532, "max")):
        known = report[name] is not None and report["mean"] >= 0
        assert ((element, 0) in record) == known
        assert not known or int.from_bytes(record[element, 0]) == round(report[name] * 1e6)
    assert ((533, 0) in record) == (report["used"] == report["received"] > 0)
    if "mean" in report["ci95"]:
        low, high = (struct.unpack(">d", record[element, 0])[0] / 1e6 for element in (337, 336))
        assert [low, high] == pytest.approx(report["ci95"]["mean"])


def test_records_of_segments(tmp_path: Path) -> None:
    """With and without loss, delays, and their interval; a long name; templates come each time."""
    whole: dict[str, Any] = {
        "start": 1.7e9,
        "end": 1.7e9 + 1,
        "received": 10,
        "lost": 2.0,
        "used": 10,
        "mean": 2e-3,
        "min": 1e-3,
    }
    whole |= {"max": 3e-3, "ci95": {"mean": (1.5e-3, 2.5e-3)}}
    partly = whole | {"lost": None, "used": 5, "min": None, "max": None, "ci95": {}}
    empty = partly | {"received": 0, "used": 0, "mean": None}
    sent = [("A>B", whole), ("B[A>C]", partly), ("x" * 200, empty), ("A>B", whole | {"start": 1.7e9 + 1})]
    exporter, reader = Exporter(7, most=400), ipfix.Reader()
    found = [message for _ in range(2) for message in exporter.segments(sent, "host:8321")]
    for message in found:
        assert len(message) <= 400
        reader.read(message)
    assert len(reader.about) == 2
    for record, (name, report) in zip(reader.records, sent * 2, strict=True):
        _is_told(name, record, report)
    if lacking := needs.absent("ipfixDump"):
        pytest.skip(lacking)
    _is_dumped(tmp_path, found, 10, {"A>B": 4, "B[A>C]": 2})


def _is_dumped(tmp_path: Path, messages: list[bytes], records: int, segments: dict[str, int]) -> None:
    """libfixbuf's reader finds all records, and the names of segments."""
    file = tmp_path / "segments.ipfix"
    file.write_bytes(b"".join(messages))
    said = subprocess.run(["ipfixDump", "--in", file], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"{records} Data Records", said)
    assert {name: said.count(f") {name}\n") for name in segments} == segments


@pytest.mark.acceptance
def test_every_interval_is_sent_once(tmp_path: Path) -> None:
    """Three intervals of a segment: counts and delays are those of the API; other programs read them."""
    datagrams: list[bytes] = []
    reader = ipfix.Reader()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as inbox:
        inbox.bind(("127.0.0.1", 0))
        inbox.settimeout(20)
        settings = tmp_path / "collector.toml"
        url = f"ipfix+udp://127.0.0.1:{inbox.getsockname()[1]}?domain=9"
        settings.write_text(f'segments = ["A>B"]\n[push]\nipfix = "{url}"\nevery = "1s"\n')
        with Running(tmp_path, str(settings)) as running:
            path = recent(3, 1000, 5)
            send(running.url, pair(path, RDA), 4, settled(running, path, 3))
            while len(reader.records) < 3:
                datagrams.append(inbox.recv(65_536))
                reader.read(datagrams[-1])
            reports = {round(one["start"] * 1e3): one for one in running.reports() if one["settled"]}
            assert running.counted()["ipfix failed"] == 0
    assert {about[149, 0] for about in reader.about} == {(9).to_bytes(4)}
    starts = [int.from_bytes(record[152, 0]) for record in reader.records]
    assert len(set(starts)) == len(starts)
    for start, record in zip(starts, reader.records, strict=True):
        report = reports[start]
        _is_told("A>B", record, report)
    if ABSENT:
        pytest.skip(ABSENT)
    _is_dumped(tmp_path, datagrams, len(starts) + len(reader.about), {"A>B": len(starts)})
    rows = collected(datagrams, tmp_path / "nfdump", len(reader.about))
    assert sorted(int(row["ipkt"]) for row in rows) == sorted(reports[start]["received"] for start in starts)


@pytest.mark.parametrize(
    ("push", "says"),
    [
        ('ipfix = "udp://x"', "push.ipfix: 'udp://x' is not a collector of flows"),
        ('every = "1s"', "push.otlp: is missing, and so are push.remote_write and push.ipfix"),
    ],
)
def test_what_is_refused(push: str, says: str, tmp_path: Path) -> None:
    settings = tmp_path / "collector.toml"
    settings.write_text(f"[push]\n{push}\n")
    assert says in wirelag("collect", settings, "--check", code=2).stderr
