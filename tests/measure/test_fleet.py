"""A question that is divided into tasks has the answer of one machine."""

import json
from pathlib import Path
from typing import Any

import pytest

import wirelag
from tests.support.fleets import Here, independent, records, rotated, simulated
from tests.support.simulated_captures import write_simulation
from wirelag.cli.progress import _BytesBar
from wirelag.errors import WirelagError
from wirelag.measure.fleet import Fleet
from wirelag.measure.looking import Look, look, related
from wirelag.measure.pieces import Piece, Read, pieces
from wirelag.measure.result import Result

SIZE = "256KiB"  # of a task


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return simulated(tmp_path_factory.mktemp("fleet") / "site.pcap", 12_000)


def text(result: Result) -> str:
    return json.dumps(result.to_dict())


def asked(question: str, *sources: Any, **how: Any) -> tuple[str, Result]:
    """The answer of one machine, and the result of tasks; the answers must be equal, byte for byte."""
    ask = getattr(wirelag, question)
    many = ask(*sources, on=Fleet(Here(), task_size=SIZE), **how)
    return text(ask(*sources, **how)), many


RTT = [
    {},
    {"by": "server", "interval": "500ms", "top": 7},
    {"by": "flow", "leg": "both", "interval": "1s", "sla": ["both.p99<90ms", "p50<1ms"]},
    {"by": "subnet", "leg": "mixed", "above": "20ms", "sort": "max"},
    {"match": "tcp-timestamps", "filter": "tcp", "retransmitted": "first"},
    {"filter": wirelag.Filter.parse(start="+300ms", end="+1500ms"), "leg": "client", "by": "client"},
    {"memory": "16KiB", "by": "port"},
]


@pytest.mark.parametrize("how", RTT)
@pytest.mark.every(7)
def test_round_trips_of_independent_captures(whole: Path, how: dict[str, Any]) -> None:
    one, many = asked("rtt", [str(path) for path in independent(whole, 3)], **how)
    assert text(many) == one


@pytest.mark.parametrize("how", RTT[:6])
@pytest.mark.every(6)
def test_round_trips_of_one_capture_in_parts(whole: Path, how: dict[str, Any]) -> None:
    one, many = asked("rtt", str(whole), **how)
    assert text(many) == one
    assert "of them continue another" in many.notes[-1]


def test_parts_are_told_though_a_filter_leaves_nothing_before_them(whole: Path) -> None:
    result = wirelag.rtt(str(whole), filter="port 1", on=Fleet(Here(), task_size=SIZE))
    assert result.notes[-1].endswith("of them continue another, and no packets before them were asked for")


def test_packets_that_cannot_be_decoded_have_one_order(whole: Path, tmp_path: Path) -> None:
    """As the kernel counts them, not as their names begin; of parts, and of several captures."""
    head, every = records(whole)
    arp, cut = (one[:28] + bytes(kind) + one[30:] for one, kind in ((every[0], b"\x08\x06"), (every[1], b"\x08\x00")))
    cut = cut[:8] + (20).to_bytes(4, "little") + cut[12:36]  # of the frame only 20 bytes are there
    paths = [tmp_path / name for name in ("one.pcap", "other.pcap")]
    for path in paths:
        path.write_bytes(head + cut + arp + b"".join(every))
    for source in (str(paths[0]), [str(path) for path in paths]):
        one, many = asked("rtt", source, force=True)
        assert text(many) == one
        assert list(many.report.skipped) == ["not_ip", "cut"]  # type: ignore[attr-defined]


def test_round_trips_across_the_edges_of_a_rotated_set(whole: Path) -> None:
    files = [str(path) for path in rotated(whole, 7)]
    one, many = asked("rtt", files, by="server", interval="500ms")
    assert text(many) == one
    apart = sum(wirelag.rtt(file).report.samples for file in files)
    assert apart < many.report.samples  # type: ignore[attr-defined]  # what crosses an edge is missing there


@pytest.mark.parametrize("question", ["info", "response"])
def test_info_and_response(whole: Path, question: str) -> None:
    for files in (independent(whole, 2), rotated(whole, 3)):
        one, many = asked(question, [str(path) for path in files])
        assert text(many) == one


def test_two_points_and_a_queue(tmp_path: Path) -> None:
    scenario = wirelag.Scenario(packets=4000, seed=2, points=2, loss=0.01)
    up, down = tmp_path / "up.pcap", tmp_path / "down.pcap"
    write_simulation(wirelag.simulate(scenario), up, down)
    for how in ({"interval": "500ms", "by": "prefix"}, {"estimator": "rda"}):
        one, many = asked("oneway", str(up), str(down), **how)
        assert text(many) == one
    one, many = asked("flows", str(down), upstream=str(up))
    assert text(many) == one


def test_the_page_and_the_slowest_frames_are_those_of_the_capture(whole: Path) -> None:
    one = wirelag.rtt(str(whole), top=9)
    many = wirelag.rtt(str(whole), top=9, on=Fleet(Here(), task_size=SIZE))
    assert one.slowest == many.slowest
    assert one.timeline is not None
    assert many.timeline is not None
    for leg in ("server", "client"):
        mine, theirs = ([(when, d.samples, d.sum_ns) for when, d in r.timeline.parts(leg)] for r in (one, many))  # type: ignore[union-attr]
        assert mine == theirs


def test_a_capture_that_cannot_be_read_costs_itself(whole: Path) -> None:
    files = independent(whole, 3)
    good = [str(path) for path in files[:2]]
    files[2].write_bytes(b"this is no capture at all, but text\n" * 9)
    many = wirelag.rtt([*good, str(files[2])], on=Fleet(Here()))
    (error,) = many.errors
    assert str(files[2]) in error
    expected = wirelag.rtt(good).to_dict() | {"errors": [error]}
    assert json.dumps(many.to_dict(), sort_keys=True) == json.dumps(expected, sort_keys=True)
    independent(whole, 3)
    with pytest.raises(WirelagError, match="no such file"):
        wirelag.rtt("/nowhere/a.pcap", on=Fleet(Here()))


def test_a_scheduler_that_goes_away_leaves_what_is_done(whole: Path, tmp_path: Path) -> None:
    state = str(tmp_path / "run.resume")
    first, second = Here(goes_after=3), Here()
    with pytest.raises(WirelagError, match=r"went away after 2 of \d+ tasks; .* --resume .*run\.resume"):
        wirelag.rtt(str(whole), on=Fleet(first, resume=state, task_size=SIZE))
    fleet = Fleet(second, resume=state, task_size=SIZE)
    assert text(wirelag.rtt(str(whole), on=fleet)) == text(wirelag.rtt(str(whole)))
    assert fleet.done_before == 3
    assert second.begun == fleet.tasks - 3
    changed = Fleet(Here(), resume=state, task_size=SIZE)
    wirelag.rtt(str(whole), on=changed, by="server")  # another question is another run
    assert changed.done_before == 1  # the look at the capture


def test_a_run_that_is_stopped_leaves_what_is_done(whole: Path, tmp_path: Path, capsys: Any) -> None:
    """^C: one line says how to go on; with nothing done, nothing is left."""
    said = []
    for done in (3, 0):
        fleet = Fleet(Here(done, KeyboardInterrupt()), task_size=SIZE, progress=_BytesBar().show)
        with pytest.raises(KeyboardInterrupt) as stopped:
            wirelag.rtt(str(whole), on=fleet)
        said.append(str(stopped.value))
    assert capsys.readouterr().err.endswith("\r\x1b[K")  # no bar stays behind
    path = Path(said[0].rpartition("--resume ")[2])
    assert said[0].startswith("stopped after 2 of ")
    assert said[1] == "stopped after 0 of 1 task"
    again = Fleet(Here(), task_size=SIZE, resume=str(path))
    assert text(wirelag.rtt(str(whole), on=again)) == text(wirelag.rtt(str(whole)))
    assert again.done_before == 3
    path.unlink()


def test_a_wrong_split_is_read_in_one_piece(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    from wirelag.capture.parts import Place
    from wirelag.measure import fleet

    def wrong(*how: Any) -> Look:
        found = look(*how)
        parts = list(found.parts)
        edge = Place(parts[1].begin.byte + 3)
        parts[0], parts[1] = replace(parts[0], end=edge), replace(parts[1], begin=edge)
        return replace(found, parts=tuple(parts))

    monkeypatch.setattr(fleet, "look", wrong)
    many = wirelag.rtt(str(whole), on=Fleet(Here(), task_size=SIZE))
    assert text(many) == text(wirelag.rtt(str(whole)))
    assert many.notes[-1] == "divided into 1 task"


def looks(*named: tuple[str, float, float | None], keys: tuple[int, ...] = ()) -> list[Look]:
    """Looks at captures: name, first second, and the last one if it is known."""
    import numpy as np

    every = []
    for name, first, last in named:
        until = int((first + 1) * 1e9)
        end = None if last is None else int(last * 1e9)
        every.append(Look(name, name, 100, int(first * 1e9), until, np.array(keys, np.uint64), last_ns=end))
    return every


def test_what_belongs_together() -> None:
    """A rotated set continues; files that begin at once and share connections are read as one; others are apart."""
    names = [("eth0-001", 0.0, None), ("eth1-001", 0.1, None), ("eth0-002", 60.0, None), ("eth1-002", 60.1, None)]
    found = related(looks(*names))
    assert [[one.name for one in chain] for chain in found.chains] == [
        ["eth0-001", "eth0-002"],
        ["eth1-001", "eth1-002"],
    ]
    shared = related(looks(("in", 0.0, None), ("out", 0.1, None), keys=(7,)))
    assert [[one.name for one in group] for group in shared.merged] == [["in", "out"]]
    edges = [("tap", 0.0, None), ("tap1", 1.0, None), ("tap2", 1.999, None), ("tap3", 2.999, None)]  # one second each
    (chain,) = related(looks(*edges, keys=(7,))).chains
    assert [one.name for one in chain] == ["tap", "tap1", "tap2", "tap3"]
    again = [("gate-1", 0.0, 1.0), ("gate-2", 1.0, 2.0), ("tap-1", 99.0, 100.0), ("tap-2", 100.0, 101.0)]
    apart = related(looks(*again, keys=(7,)))  # a connection that is there again tears no set apart
    assert [[one.name for one in chain] for chain in apart.chains] == [["gate-1", "gate-2"], ["tap-1", "tap-2"]]
    later = related(looks(("day-1", 0.0, 50.0), ("day-2", 80_000.0, 90_000.0)))
    assert [len(chain) for chain in later.chains] == [1, 1]


def test_pieces_are_of_similar_size() -> None:
    """The first read of a piece that continues another warms it up."""
    chain = looks(*((f"set-{i:03}", 60.0 * i, None) for i in range(9)))
    planned = pieces(chain, 300, split=True)
    assert [piece.size for piece in planned] == [300, 300, 300]
    assert [[read.warm for read in piece.reads] for piece in planned] == [
        [False] * 3,
        [True] + [False] * 3,
        [True] + [False] * 3,
    ]
    assert planned[1].reads[0] == Read("set-002", "set-002", warm=True)
    assert pieces(chain, 300, split=False) == [Piece(tuple(Read(one.path, one.name) for one in chain), True, 900)]


def test_connections_in_two_captures_that_were_read_apart_are_told(whole: Path) -> None:
    """Names that do not tell that one continues the other, and beginnings that share nothing."""
    first, second = rotated(whole, 2)
    other = second.rename(second.with_name("another.pcap"))
    many = wirelag.rtt([str(first), str(other)], on=Fleet(Here()))
    one = wirelag.rtt([str(first), str(other)])
    assert text(many) == text(one) or "share connections, but were measured apart" in many.warnings[0]


def test_what_tasks_cannot_return_is_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(wirelag.SettingError, match="measure without --on"):
        wirelag.rtt(str(whole), samples=True, on=Fleet(Here()))
    with pytest.raises(wirelag.SettingError, match="by their names"):
        wirelag.rtt(wirelag.read(str(whole)), on=Fleet(Here()))
    with pytest.raises(wirelag.SettingError, match="not local, dask://HOST:PORT"):
        wirelag.rtt(str(whole), on="spark://there")
