"""Points that exchange files: written and read synopses give the results of memory; damage is always reported."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from tests.oracles.join import Packet
from tests.support.effort import examples
from tests.support.two_points import SCENARIOS, SECOND_NS, batch_of, captured, points
from wirelag.capture.synopsis_file import MAGIC, SynopsisFile, SynopsisWriter, is_synopsis_file
from wirelag.codec import pack, unpack
from wirelag.errors import WirelagError
from wirelag.estimators.finecomb import Finecomb
from wirelag.estimators.join import Join
from wirelag.estimators.lda import Lda
from wirelag.estimators.rda import Rda
from wirelag.packets.batch import PacketBatch
from wirelag.packets.grouping import Grouping
from wirelag.packets.intervals import Delimiters
from wirelag.packets.packet_id import PacketId
from wirelag.protocol.terms import About, Terms, agree, answered, asked, cut_of, records_of
from wirelag.synopses.cache import Cached
from wirelag.synopses.crossing import Crossing
from wirelag.twopoint.spans import ALL, Cut, Pair, cuts, paired_by_clock, paired_by_delimiters

AnyEstimator = Lda | Finecomb | Rda
ESTIMATORS: dict[str, AnyEstimator] = {
    "lda": Lda(64, (0, 2), tail=100),
    "finecomb": Finecomb(128, stash=64, tail=100, seed=4),
    "rda": Rda(buckets=900, tail=100),
    "rda in little memory": Rda(buckets=900, tail=100, memory=32 * 200, seed=2**63 + 1),
}
DELIMITERS = Delimiters(SECOND_NS, 4)


@pytest.fixture(scope="module")
def capture(tmp_path_factory: pytest.TempPathFactory) -> tuple[PacketBatch, PacketBatch]:
    return captured(SCENARIOS["everything"], tmp_path_factory.mktemp("exchange"))


def bound(estimator: AnyEstimator, cut: Cut) -> Cut:
    """As it travels: RDA's cache becomes a fixed number of buckets."""
    if not isinstance(estimator, Rda):
        return cut
    return Cut(cut.interval, {tag: estimator.bind(cached) for tag, cached in cut.synopses.items()})


def write(path: Path, terms: Terms, made: list[Cut], keys: Mapping[int, str] | None = None) -> None:
    with SynopsisWriter(str(path), About("synopses", terms, ("capture.pcap",), -7)) as writer:
        for cut in made:
            for record in records_of(cut, keys or {}):
                writer.write(record)
        writer.counted = {"packets": sum(cut.synopses[ALL].packets for cut in made)}
    assert path.stat().st_size == writer.bytes


def read(path: Path, tags: dict[str, int] | None = None) -> list[Cut]:
    file = SynopsisFile(str(path))
    parts = groupby(file, lambda record: (record["start_ns"], record["end_ns"]))
    made = [cut_of(file.about.terms.estimator, records, {} if tags is None else tags) for _, records in parts]
    assert not file.warnings
    return made


def cross(estimator: AnyEstimator, up: Any, down: Any) -> Crossing:
    return estimator.cross_bound(up, down)[0] if isinstance(estimator, Rda) else estimator.cross(up, down)


def told(crossing: Crossing) -> dict[str, Any]:
    plain = {name: getattr(crossing, name) for name in Crossing.__dataclass_fields__}
    plain |= {f"tail_{name}": getattr(crossing.tail, name).tolist() for name in ("sent_ns", "delays_ns", "weights")}
    for name in ("tail", "single_up", "single_down"):
        del plain[name]
    return plain


# ---- from one place to another ----


def in_pairs(made: Mapping[str, list[Cut]], interval_ns: int | None) -> list[Pair]:
    ups, downs = made["upstream"], made["downstream"]
    if interval_ns is not None:
        return list(paired_by_clock(ups, downs))
    return [Pair(up.interval, up.synopses, down.synopses) for up, down in zip(ups, downs, strict=True)]


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
@pytest.mark.parametrize("interval_ns", [None, 2 * SECOND_NS])
def test_files_give_the_results_of_memory(
    capture: tuple[PacketBatch, PacketBatch], estimator: AnyEstimator, interval_ns: int | None, tmp_path: Path
) -> None:
    made: dict[str, list[Cut]] = {}
    for point, batch in zip(estimator.points, capture, strict=True):
        made[point] = [bound(estimator, cut) for cut in cuts(estimator, point, [batch], interval_ns)]
        write(tmp_path / point, Terms(estimator, interval_ns=interval_ns), made[point])
        assert [cut.interval for cut in read(tmp_path / point)] == [cut.interval for cut in made[point]]
    kept = in_pairs(made, interval_ns)
    travelled = in_pairs({point: read(tmp_path / point) for point in made}, interval_ns)
    assert len(kept) == 1 if interval_ns is None else len(kept) > 3
    for one, other in zip(kept, travelled, strict=True):
        if ALL in one.up and ALL in one.down:
            assert told(cross(estimator, one.up[ALL], one.down[ALL])) == told(
                cross(estimator, other.up[ALL], other.down[ALL])
            )


def test_names_of_intervals_and_classes_travel(capture: tuple[PacketBatch, PacketBatch], tmp_path: Path) -> None:
    estimator, grouping, tags = Lda(64, (0, 2), tail=100), Grouping("client"), {}
    kept, travelled = [], []
    for point, batch in zip(estimator.points, capture, strict=True):
        kept.append(list(cuts(estimator, point, [batch], None, DELIMITERS, grouping)))
        write(tmp_path / point, Terms(estimator, delimiters=DELIMITERS, by="client"), kept[-1], grouping.keys)
        travelled.append(read(tmp_path / point, tags))
    assert len(tags) > 1
    renamed = {ALL: ALL} | {tag: tags[key] for tag, key in grouping.keys.items() if key in tags}
    before, after = (paired_by_delimiters(*made, estimator.added) for made in (kept, travelled))
    assert len(before) > 3
    for one, other in zip(before, after, strict=True):
        assert (one.interval, one.interval.name, one.open_ended) == (
            other.interval,
            other.interval.name,
            other.open_ended,
        )
        for tag in {*one.up} & {*one.down}:
            crossing = estimator.cross(other.up[renamed[tag]], other.down[renamed[tag]])
            assert told(estimator.cross(one.up[tag], one.down[tag])) == told(crossing)


def test_a_file_describes_itself(tmp_path: Path) -> None:
    path = tmp_path / "synopses"
    about = About("synopses", Terms(Lda(seed=5), PacketId(prefix=3), None, DELIMITERS, "dscp", "a"), ("x", "y"), 12)
    with SynopsisWriter(str(path), about) as writer:
        writer.counted = {"skipped": {"arp": 3}}
    file = SynopsisFile(str(path))
    assert list(file) == []
    assert file.about == about
    assert file.counted == {"end": 0, "skipped": {"arp": 3}}
    assert not file.warnings
    assert is_synopsis_file(str(path))
    assert not is_synopsis_file(__file__)
    assert not is_synopsis_file(str(tmp_path / "none"))


# ---- the second round ----


def exact_through_files(estimator: Rda, up: Cached, down: Cached) -> None:
    synopses = estimator.bind(up), estimator.bind(down)
    pair = Pair(Cut(*WHERE).interval, {ALL: synopses[0]}, {ALL: synopses[1]})
    first, decoded = estimator.cross_bound(*synopses)
    if not decoded.complete:
        assert first.only_upstream is None
        return
    exact = Join(seed=estimator.seed).cross(up, down)
    if not len(decoded.numbers):
        assert list(asked(pair, estimator, {})) == []
        second = first
    else:
        (ask,) = (unpack(pack(record)) for record in asked(pair, estimator, {}))
        answers = [unpack(pack(answered(cached, ask))) for cached in (up, down)]
        mine, theirs = (Cached.from_fields(answer, estimator.seed) for answer in answers)
        second, _ = estimator.cross_bound(*synopses, mine, theirs)
    for name in ("sent", "received", "used", "sum_ns", "only_upstream", "only_downstream", "duplicated", "ambiguous"):
        assert getattr(second, name) == getattr(exact, name), name


WHERE = next(iter(cuts(Join(), "upstream", [], None))).interval, {}


def cached(packets: list[Packet], level: int = 0, seed: int = 0) -> Cached:
    ids = np.array([packet_id for packet_id, _ in packets], np.uint64)
    return Cached(ids, np.array([time_ns for _, time_ns in packets], np.int64), 0, len(ids), seed).at_level(level)


@examples(100)
@given(points(), st.sampled_from([0, 0, 1]), st.sampled_from([2, 3, 4]), st.booleans())
def test_after_the_second_round_everything_is_exact(
    seen: tuple[list[Packet], list[Packet]], level: int, banks: int, check: bool
) -> None:
    """The hard case is copies at one point only of an id that both have: the other copies are not requested."""
    estimator = Rda(banks, 600, check, seed=3)
    exact_through_files(estimator, *(cached(packets, level, 3) for packets in seen))


def test_after_the_second_round_captures_are_exact(capture: tuple[PacketBatch, PacketBatch]) -> None:
    caches = [Cached(batch.packet_id, batch.time_ns, 0, len(batch)) for batch in capture]
    for level in (0, 2):
        exact_through_files(Rda(buckets=900), *(cache.at_level(level) for cache in caches))


# ---- incompatible files ----

OTHERS: list[tuple[str, Callable[[Terms], Terms]]] = [
    ("parameters.seed: 0 and 1", lambda terms: replace(terms, estimator=replace(terms.estimator, seed=1))),
    ("parameters.rows: 256 and 255", lambda terms: replace(terms, estimator=Lda(rows=255))),
    ("parameters.shifts", lambda terms: replace(terms, estimator=Lda(shifts=(0, 3)))),
    ("estimator: lda and rda", lambda terms: replace(terms, estimator=Rda())),
    ("packet_id.prefix: 16 and 0", lambda terms: replace(terms, packet_id=PacketId(prefix=0))),
    ("packet_id.flow: True and False", lambda terms: replace(terms, packet_id=PacketId(flow=False))),
    ("interval_ns: 1000000000 and 5", lambda terms: replace(terms, interval_ns=5)),
    ("interval_ns: 1000000000 and None", lambda terms: replace(terms, interval_ns=None)),
    ("delimiters.bits: None and 4", lambda terms: replace(terms, delimiters=DELIMITERS)),
    ("by: None and dscp", lambda terms: replace(terms, by="dscp")),
    ("direction: None and a", lambda terms: replace(terms, direction="a")),
]


@pytest.mark.parametrize(("apart", "change"), OTHERS, ids=[apart for apart, _ in OTHERS])
def test_differences_are_named(apart: str, change: Callable[[Terms], Terms], tmp_path: Path) -> None:
    terms = Terms(Lda(), interval_ns=SECOND_NS)
    write(tmp_path / "a", terms, [])
    write(tmp_path / "b", change(terms), [])
    abouts = {name: SynopsisFile(str(tmp_path / name)).about for name in ("a", "b")}
    with pytest.raises(WirelagError, match="a and b were cut in different ways") as error:
        agree(abouts)
    assert apart in str(error.value)
    assert agree({"a": abouts["a"], "again": abouts["a"]}) == terms


def packed(*records: Mapping[str, Any]) -> bytes:
    bodies = [pack(record) for record in records]
    return MAGIC + b"".join(len(body).to_bytes(4, "little") + body for body in bodies)


ABOUT = About("synopses", Terms(Lda()))

OPENINGS: dict[str, dict[str, Any]] = {
    "another version": ABOUT.to_fields() | {"version": 3},
    "no version": {"kind": "synopses"},
    "no kind": {name: value for name, value in ABOUT.to_fields().items() if name != "kind"},
    "an unknown estimator": ABOUT.to_fields() | {"estimator": "guess"},
    "an estimator that is none": ABOUT.to_fields() | {"estimator": []},
    "unknown packet ids": ABOUT.to_fields() | {"packet_id": {"colour": 1}},
    "parameters that are none": ABOUT.to_fields() | {"parameters": None},
    "a parameter less": ABOUT.to_fields() | {"parameters": {"rows": 1}},
    "names that are none": ABOUT.to_fields() | {"names": None},
    "delimiters that are none": ABOUT.to_fields() | {"delimiters": {"x": 1}},
}


@pytest.mark.parametrize("opening", OPENINGS.values(), ids=OPENINGS)
def test_an_unknown_opening_is_refused(opening: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "synopses"
    path.write_bytes(packed(opening))
    with pytest.raises(WirelagError, match="synopses: "):
        SynopsisFile(str(path))


def test_another_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "synopses"
    path.write_bytes(packed(OPENINGS["another version"]))
    with pytest.raises(WirelagError, match="version 3 of the format, this wirelag reads 2"):
        SynopsisFile(str(path))


@pytest.mark.parametrize("estimator", ESTIMATORS.values(), ids=ESTIMATORS)
def test_a_record_of_another_size_is_refused(estimator: AnyEstimator) -> None:
    """The format is right; fields that are missing, too short or not arrays are a ValueError."""
    (made,) = cuts(estimator, "upstream", [batch_of([(1, 2), (3, 4)])])
    (record,) = records_of(bound(estimator, made), {})
    assert estimator.synopsis(unpack(pack(record))).packets == 2
    for name in record.keys() - {"start_ns", "end_ns", "name", "class", "entries"}:
        number = name.endswith(("level", "packets"))
        for other in (None, "text", [1], -1 if number else np.arange(5)):
            with pytest.raises(ValueError, match=r"."):
                cut_of(estimator, [record | {name: other}], {})
        with pytest.raises(ValueError, match=r"."):
            cut_of(estimator, [{key: value for key, value in record.items() if key != name}], {})


# ---- damage ----


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "synopses"
    estimator = Finecomb(2, stash=2, tail=2)
    packets = [(x * x, SECOND_NS * x // 5) for x in range(10)]
    made = list(cuts(estimator, "upstream", [batch_of(packets)], SECOND_NS))
    write(path, Terms(estimator, interval_ns=SECOND_NS), made)
    return path.read_bytes()


def outcome(path: Path) -> tuple[list[dict[str, Any]], str]:
    """The part that was read, and the message about its end."""
    records = []
    try:
        file = SynopsisFile(str(path))
        for record in file:
            records.append({name: getattr(value, "tolist", lambda v=value: v)() for name, value in record.items()})
    except WirelagError as error:
        return records, str(error)
    return records, " ".join(file.warnings)


def damaged(whole: bytes) -> Iterator[bytes]:
    """Cut off, or one bit changed, at every third byte; tests of packing.py cover the inside of records."""
    for place in range(0, len(whole), 3):
        yield whole[:place]
        yield whole[:place] + bytes([whole[place] ^ 1 << place % 8]) + whole[place + 1 :]


def test_truncation_and_changes_are_reported(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "synopses"
    path.write_bytes(whole)
    records, said = outcome(path)
    assert (len(records), said) == (2, "")
    for data in damaged(whole):
        path.write_bytes(data)
        got, said = outcome(path)
        assert said
        assert got == records[: len(got)]


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60), front=st.sampled_from([b"", MAGIC, packed(ABOUT.to_fields())]))
def test_random_bytes_are_handled(tmp_path: Path, data: bytes, front: bytes) -> None:
    path = tmp_path / "synopses"
    path.write_bytes(front + data)
    assert outcome(path)[1]


def test_a_file_that_cannot_be_opened_is_reported(tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match="cannot read"):
        SynopsisFile(str(tmp_path / "none"))
    with pytest.raises(WirelagError, match="cannot write"):
        SynopsisWriter(str(tmp_path / "none" / "there"), ABOUT)
