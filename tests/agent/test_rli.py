"""RLI over messages: the downstream agent alone produces a segment's results, with bounds."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.agent_settings import config_of, problem_of, run
from tests.support.rli_agent import INTERVAL_NS, LINEAR, NAMES, arrived, measured, message_of, parts_of, simulation
from tests.support.rli_packets import STREAM
from wirelag.collector.metrics import Metrics
from wirelag.collector.sqlite import SqliteStore
from wirelag.collector.tally import Tally
from wirelag.estimators.rli import Rli
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import PacketBatch
from wirelag.packets.stamp import SYNCHRONISED, error_estimate
from wirelag.protocol.messages import ClockReading, Message
from wirelag.protocol.results import Done, Ends, Rank, Result
from wirelag.protocol.session import Rounds
from wirelag.protocol.single_ended import NO_LOSS
from wirelag.protocol.terms import About, Terms
from wirelag.synopses.reference_summary import Interpolated

ENDS = Ends("A>B", "A", "B")
OURS, OTHERS = "10.1.0.0/16>", "10.2.0.0/16>"
AGENT = 'point = "B"\ninterface = "lo"\n[estimator]\nname = "rli"\n'
SEGMENT = '[[segments]]\nname = "A>B"\ndirection = "10.1.0.0/16>10.2.0.0/16"\n'


def results_of(messages: Sequence[Message], rounds: Rounds | None = None) -> list[Result]:
    rounds = rounds or Rounds([ENDS])
    found = [one for m in messages for one in rounds.take(m, m.interval.end_ns)]
    assert {key for one in found if isinstance(one, Done) for key in one.keys} >= {m.key for m in messages}
    return [one for one in found if isinstance(one, Result)]


def true_mean_ns() -> float:
    r = simulation().receiver()
    regular = r.is_reference == 0
    return float((r.time_ns - r.sent_ns)[regular].mean())


def test_batches_become_results_without_the_upstream_point() -> None:
    messages = [message_of(part) for part in parts_of(arrived(), measured())]
    results = results_of(messages)
    assert [r.interval for r in results] == [m.interval for m in messages]
    assert all((r.rank, r.complete, r.reason) == (Rank.SETTLED, True, None) for r in results)
    whole = Tally()
    for result in results:
        whole.add(Tally.of(result, None))
        assert result.losses[None].lost is None
    plain = whole.to_json(0, INTERVAL_NS * len(results), True)
    low, high = plain["ci95"]["mean"]
    clock_ns = 1e9 * plain["clock"]["error"]
    assert 20_000 + 1000 <= clock_ns <= 20_000 + 2 * 1000  # both points' errors; only the first byte was captured
    assert low <= true_mean_ns() / 1e9 <= high
    mean_ns = 1e9 * plain["mean"]
    assert (1e9 * (high - low) / 2 - clock_ns) < 0.5 * mean_ns  # the interval is narrow enough to be useful
    assert plain["sent"] is plain["lost"] is plain["loss"] is None
    assert plain["received"] <= (simulation().receiver().is_reference == 0).sum()
    assert plain["used"] > 0.9 * plain["received"]
    # Cutting does not change the packets' delays.
    meter = LINEAR.meter("downstream")
    meter.observe(arrived())
    flows = meter.cut(results[0].interval, last=False)
    assert (flows.timed, flows.sum_ns) == (whole.moments.used, whole.moments.sum_ns)
    assert plain["references"] == {"received": flows.counts["accepted"], "lost": 0}
    bound_ns = whole.moments.bound_ns(0.05)
    ends = flows.report().ci95["mean"]
    assert bound_ns == pytest.approx(1e9 * (ends[1] - ends[0]) / 2, rel=0.5)


def test_the_mean_of_a_message_is_that_of_the_method() -> None:
    (part,) = parts_of(arrived(), replace(measured(), terms=Terms(LINEAR, interval_ns=10**13)))
    (result,) = results_of([message_of(part)])
    report = part.cut.synopses[0].report()
    plain = Tally.of(replace(result, clock=ClockReading(True, 0)), None).to_json(0, 1, True)
    assert plain["mean"] == pytest.approx(report.mean, rel=0.02)  # packets without a delay resemble the others
    assert plain["std"] == pytest.approx(report.std)
    half = [(ends[1] - ends[0]) / 2 for ends in (plain["ci95"]["mean"], report.ci95["mean"])]
    assert half[0] == pytest.approx(half[1], rel=1e-3)


def test_sequence_numbers_show_lost_references() -> None:
    packets = arrived()
    references = np.flatnonzero(packets.flow_key == STREAM)
    gone = np.isin(np.arange(len(packets)), references[5:-5:7])
    results = results_of([message_of(part) for part in parts_of(packets[~gone], measured())])
    lost = [r.references[1] for r in results if r.references]
    assert sum(lost) == gone.sum()
    late = np.arange(len(packets))
    late[references[20]], late[references[21]] = late[references[21]], late[references[20]]  # overtaken, not lost
    swapped = packets[late]
    swapped = PacketBatch({name: getattr(swapped, name) for name in NAMES} | {"time_ns": packets.time_ns})
    results = results_of([message_of(part) for part in parts_of(swapped, measured())])
    assert sum(r.references[1] for r in results if r.references) == 0


def test_classes_are_the_largest_and_slowest_and_add_up() -> None:
    by, most = "client/24/48/8", 8
    messages = [message_of(part) for part in parts_of(arrived(), measured(by))]
    for message in messages:
        whole, *classes = (Interpolated.from_fields(record) for record in message.records)
        names = [record["class"] for record in message.records[1:]]
        assert len(names) == most + 1
        assert names[-1] == "other"
        assert message.records[0]["overflow"]
        for name in ("packets", "timed", "sum_ns"):
            assert sum(getattr(one, name) for one in classes) == getattr(whole, name)
        assert all(one.error_ns2 is None or one.error_ns2 >= (whole.error_ns2 or 0) * 0.99 for one in classes)
    results = results_of(messages)
    assert all(len(r.crossings) == most + 2 for r in results)
    tally = Tally.of(results[1], "other")
    assert tally.to_json(0, 1, True)["references"] is None
    many = [message_of(part) for part in parts_of(arrived(), measured("flow/24/48/2000"))]
    assert all(500 < len(message.records) <= 2002 for message in many)


def test_other_directions_are_left_out() -> None:
    packets = arrived()
    ours = Direction.parse(OURS).rows(packets)
    whole = results_of([message_of(part) for part in parts_of(packets, measured(way=OURS))])
    alone = results_of([message_of(part) for part in parts_of(packets[ours], measured())])
    assert [r.crossings[None].moments for r in whole] == [r.crossings[None].moments for r in alone]
    apart = replace(measured(way=OTHERS), references_way=Direction.parse(OURS))
    others = results_of([message_of(part) for part in parts_of(packets, apart)])
    assert sum(r.crossings[None].received for r in others) > 1000
    none = results_of([message_of(part) for part in parts_of(packets, measured(way=OTHERS))])
    assert {(r.rank, r.reason) for r in none} == {
        (Rank.UNSEEN, "no reference came: A sends none, or they get lost, or they go another way")
    }
    assert Tally.of(none[0], None).missed == 1


def test_a_sender_without_a_clock_bound_leaves_no_interval() -> None:
    results = results_of([message_of(part) for part in parts_of(arrived(None), measured())])
    plain = Tally.of(results[0], None).to_json(0, 1, True)
    assert plain["mean"] is not None
    assert "mean" not in plain["ci95"]
    assert not plain["clock"]["synchronised"]
    wide, narrow = (
        Tally.of(results_of([message_of(part) for part in parts_of(arrived(e), measured())])[0], None).clock_error_ns
        for e in (10**6, 1000)
    )
    assert wide >= 10**6 + 20_000 > narrow


def test_messages_out_of_order_repeated_and_from_the_wrong_end() -> None:
    messages = [message_of(part) for part in parts_of(arrived(), measured())]
    rounds = Rounds([ENDS, Ends("B>C", "B", "C")])
    once = results_of(messages, rounds)
    assert results_of(messages[::-1], rounds) == []
    assert rounds.counted["duplicates"] == len(messages)
    backwards = {r.interval: r for r in results_of(messages[::-1])}
    for result in once:
        other = backwards[result.interval]
        assert (other.crossings[None].moments, other.references) == (result.crossings[None].moments, result.references)
    upstream = [message_of(part, "A") for part in parts_of(arrived(), measured())]
    assert results_of(upstream) == []
    nameless = [replace(m, segment=None) for m in messages]
    assert {r.segment for r in results_of(nameless, Rounds([ENDS, Ends("B>C", "B", "C")]))} == {"A>B"}


@pytest.mark.parametrize(
    "wrong",
    [{"timed": 10**9}, {"packets": -1}, {"sum_ns": 1.5}, {"variance_ns2": math.nan}, {"error_ns2": -1.0},
     {"error_ns2": math.inf}, {"references": None}, {"sender_ns": -5}, {"sum_ns": True}, {"sum_ns": 1 << 200}],
)  # fmt: skip
def test_impossible_numbers_are_refused(wrong: dict[str, object]) -> None:
    message = message_of(parts_of(arrived(), measured())[0])
    with pytest.raises(ValueError, match=r"integer|variance|than were counted"):
        Interpolated.from_fields(message.records[0] | wrong)
    with pytest.raises(ValueError, match="one point measures alone"):
        About.from_fields(About("synopses", message.terms).to_fields())


def test_an_incomplete_message_says_nothing() -> None:
    message = message_of(parts_of(arrived(), measured("client/24/48/8"))[0])
    rounds = Rounds([ENDS])
    assert results_of([replace(message, records=message.records[1:]), replace(message, records=())], rounds) == []
    assert rounds.counted["not comparable"] == 2


def test_stored_results_and_metrics(tmp_path: Path) -> None:
    results = results_of([message_of(part) for part in parts_of(arrived(), measured())])
    store, metrics = SqliteStore(str(tmp_path / "db")), Metrics()
    store.begin()
    for result in results:
        tally = Tally.of(result, None)
        store.put("A>B", None, result.interval, result.rank, tally)
        metrics.settled("A>B", tally)
    store.commit()
    rows = store.rows("A>B", None, INTERVAL_NS, (0, 2**62), 100)
    assert [row.to_json() for row in rows] == [
        Tally.of(r, None).to_json(r.interval.start_ns, INTERVAL_NS, True) for r in results
    ]
    summed = Tally()
    for row in rows:
        summed.add(row.tally)
    assert summed.to_json(0, 1, True)["lost"] is None  # also without a single reason
    store.close()
    text = metrics.text([], {}, 0)[0].decode()
    assert f'wirelag_references_received_total{{segment="A>B"}} {float(summed.references_received)}' in text
    assert f'wirelag_interpolated_delay_seconds_count{{segment="A>B"}} {float(summed.moments.used)}' in text
    assert 'wirelag_segment_mean_ci95_seconds{bound="low",segment="A>B"}' in text
    for unknown in ("packets_sent_total{", "packets_lost_total{", "one_way_delay_seconds_count{"):
        assert f"wirelag_{unknown}" not in text
    assert NO_LOSS in str(rows[0].to_json()["reason"])


def test_settings(tmp_path: Path) -> None:
    down = config_of(AGENT + SEGMENT, tmp_path)
    assert down.measured[0].terms.estimator == Rli("busy", 16 << 20, most_flows=1 << 17)
    up = config_of(AGENT.replace('"B"', '"A"') + SEGMENT + '[[references]]\nto = "10.2.0.1"\n', tmp_path)
    assert (up.measured, up.referred) == ((), ("A>B",))
    (stream,) = up.references
    assert (stream.injection.kind, stream.injection.longest_ns, stream.injection.size) == ("adaptive", 2_000_000, 106)
    assert stream.among == (Direction.parse("10.1.0.0/16>10.2.0.0/16"),)
    assert up.watches
    assert not down.watches
    apart = config_of(AGENT + SEGMENT + 'references = "192.0.2.1>192.0.2.2"\n', tmp_path)
    assert apart.measured[0].references_way == Direction.parse("192.0.2.1>192.0.2.2")
    for text, problem in {
        AGENT: "segments.0.name (--segment): is missing",
        AGENT + '[[segments]]\nname = "A>B"\n': "segments.A>B.direction (--direction): is missing",
        AGENT + SEGMENT + 'packets = "references"\n': "segments.A>B.packets: rli measures the packets between",
        AGENT + SEGMENT + 'references = "x"\n': "segments.A>B.references: 'x' is not a direction",
        AGENT + 'method = "best"\n' + SEGMENT: "estimator.method: 'best' is not one of linear, left, busy",
        'by = "dscp"\n' + AGENT + SEGMENT: "by: rli distinguishes flows",
        AGENT + SEGMENT + '[m_set]\nby = "collector"\n': "m_set.by: measures only references",
        AGENT + SEGMENT + '[cut]\nat = "packets"\n': "cut.at: only lda is cut at packets",
    }.items():
        assert problem in problem_of(text, tmp_path)


def test_policies_of_references(tmp_path: Path) -> None:
    """Settings without a policy that state `every` do what they always did."""
    agent = AGENT.replace('"B"', '"A"') + SEGMENT + '[[references]]\nto = "10.2.0.1"\n'
    for more, kind, every_ns in (
        ('every = "20ms"\n', "1-in-tau", 20_000_000),
        ('policy = "adaptive"\nevery = "20ms"\n', "adaptive", 20_000_000),
        ('policy = "1-in-n"\nn = 30\n', "1-in-n", 0),
        ('policy = "both"\nn = 30\n', "both", 10_000_000),
    ):
        (stream,) = config_of(agent + more, tmp_path).references
        assert (stream.injection.kind, stream.injection.every_ns, stream.watches) == (kind, every_ns, True)
    (stream,) = config_of(agent + 'among = "10.9.0.0/16>"\n', tmp_path).references
    assert stream.among == (Direction.parse("10.9.0.0/16>"),)
    other = 'point = "A"\ninterface = "lo"\n[[references]]\nto = "2001:db8::1"\n'
    (stream,) = config_of(other, tmp_path).references
    assert (stream.injection.kind, stream.injection.size, stream.watches) == ("1-in-tau", 126, False)
    read = agent.replace('interface = "lo"', 'read = ["a.pcap"]')
    assert config_of(read, tmp_path).references[0].injection.kind == "1-in-tau"
    problem = problem_of(read + 'policy = "adaptive"\n', tmp_path)
    assert "references.0.policy: adaptive needs packets captured on an interface: use 1-in-tau" in problem


@pytest.mark.parametrize("by", ["flow", "prefix"])
def test_classes_have_a_grouping(by: str, tmp_path: Path) -> None:
    config = config_of(f'by = "{by}"\nmost_groups = 7\nipv4_prefix = 20\n' + AGENT + SEGMENT, tmp_path)
    grouping = config.measured[0].grouping()
    assert grouping is not None
    assert (grouping.by, grouping.ipv4_prefix, grouping.most) == (by, 20, 7)


def test_check_reports_the_settings(tmp_path: Path) -> None:
    path = tmp_path / "agent.toml"
    path.write_text(AGENT + SEGMENT)
    code, said = run(str(path), "--check")
    assert code == 0
    assert "packets 10.1.0.0/16>10.2.0.0/16 between references; only the loss of references is known" in said
    path.write_text(AGENT.replace('"B"', '"A"') + SEGMENT)
    code, said = run(str(path), "--check")
    assert code == 0
    assert "measured at its other end, between references; NO [[references]] are configured here" in said
    assert "measures nothing here: sends only its status" in said
    path.write_text(AGENT.replace('"B"', '"A"') + SEGMENT + '[[references]]\nto = "10.2.0.1"\n')
    code, said = run(str(path), "--check")
    assert code == 0
    assert "measures nothing here: captures packets to time its references" in said
    assert (
        "references to 10.2.0.1 for one in 10 packets captured here, up to one in 300 while the link is busy, and at "
        "least every 2 ms (adaptive); never more than 5 Mbps (0.005 of the link)" in said
    )


def test_the_first_byte_alone_bounds_an_error() -> None:
    for error_ns in (0, 1, 999, 10**6, 123_456_789, 10**12):
        estimate = error_estimate(error_ns)
        assert estimate >> 8 & SYNCHRONISED
        ns = (estimate & 255) * 10**9 / 2 ** (32 - (estimate >> 8 & 63))
        assert error_ns <= ns <= error_ns * 1.01 + 1
