"""Segments to STAMP reflectors: delays of both directions, loss by direction, and bounds of the clocks' offset."""

import random
import socket
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lab.network import Network
from lab.wire import Direction, Wire
from tests.support import ipfix
from tests.support.agent_receiver import AGENT, PORT, Receiver
from tests.support.agent_settings import config_of
from tests.support.command import WIRELAG
from tests.support.in_lab import IN_LAB
from tests.support.ipfix_programs import ABSENT, collected, dumped
from wirelag.agent.asking import Asking
from wirelag.agent.composing import encoded
from wirelag.agent.cutting import CutPart
from wirelag.agent.exporting import of_message
from wirelag.agent.forecast import forecast
from wirelag.agent.history import History
from wirelag.agent.reflecting import MOST_REQUESTS, REPEATS, SILENT, WAIT_NS, Session
from wirelag.collector.tally import Tally
from wirelag.collector.waterfall import waterfall
from wirelag.errors import WirelagError
from wirelag.estimators.lda import Lda
from wirelag.network.topology import Link, Topology
from wirelag.packets.interval import Interval
from wirelag.packets.stamp import UNSYNCHRONISED_PTP, error_estimate
from wirelag.packets.stamp_session import Reply
from wirelag.protocol.inside import ROUND_TRIP
from wirelag.protocol.messages import ClockReading, Message, Seen, ahead_of, decode, encode
from wirelag.protocol.results import Ends, Result, compared
from wirelag.protocol.session import Rounds
from wirelag.protocol.terms import Terms
from wirelag.render.ipfix import Exporter
from wirelag.twopoint.spans import ClassMeter

SECOND_NS = 10**9
BEGIN_NS = 1_700_000_000 * SECOND_NS
EVERY_NS = 20_000_000
MINE = ClockReading(True, 1000, "stated")


class Route:
    """A path and a reflector, as numbers: what is lost, how long each way takes, what the clock is ahead."""

    def __init__(self, seed: int, ahead_ns: int = 0, loss: float = 0.0, stateful: bool = True) -> None:
        self._rng, self.ahead_ns, self._loss, self._stateful = random.Random(seed), ahead_ns, loss, stateful
        self.count = 0
        self.estimate = UNSYNCHRONISED_PTP
        self.there: dict[int, int] = {}  # by number: delays of requests that arrived,
        self.back: dict[int, int] = {}  # and of replies

    def answer(self, number: int, sent_ns: int) -> tuple[Reply, int] | None:
        if self._rng.random() < self._loss:
            return None
        self.there[number] = there_ns = 1_000_000 + self._rng.randrange(500_000)
        got_ns = sent_ns + there_ns
        sequence = self.count if self._stateful else number
        self.count += 1
        if self._rng.random() < self._loss:
            return None
        self.back[number] = back_ns = 3_000_000 + self._rng.randrange(500_000)
        left_ns = got_ns + 10_000
        ahead_ns = self.ahead_ns
        reply = Reply(sequence, number, sent_ns, got_ns + ahead_ns, left_ns + ahead_ns, self.estimate, 255)
        return reply, left_ns + back_ns


def run(network: Route, seconds: int, point: str = "A", link: bool = True) -> tuple[Session, list[Result]]:
    """A session of so long, and what a collector makes of its messages, which travel as bytes."""
    session = Session(point, "R", Terms(Lda(), interval_ns=SECOND_NS), BEGIN_NS, link)
    rounds = Rounds([], named_by_agents=True)
    messages: list[Message] = []
    now_ns = BEGIN_NS
    for _ in range(seconds * SECOND_NS // EVERY_NS):
        number = session.ask(now_ns)
        if (got := network.answer(number, now_ns)) is not None:
            session.take(*got)
        messages += session.settled(now_ns, MINE)
        now_ns += EVERY_NS
    messages += session.settled(now_ns + WAIT_NS, MINE)
    found = [one for message in messages for one in rounds.take(decode(encode(message)), 1)]
    return session, [one for one in found if isinstance(one, Result)]


@pytest.mark.parametrize("ahead_ns", [0, 3600 * SECOND_NS, -5 * SECOND_NS])
def test_both_directions_are_measured_whatever_the_clocks_say(ahead_ns: int) -> None:
    network = Route(1, ahead_ns)
    _, results = run(network, 4)
    assert [(one.segment, one.interval.start_ns) for one in results] == [
        (segment, BEGIN_NS + k * SECOND_NS) for k in range(4) for segment in ("A>R", "R>A")
    ]
    for one in results:
        assert (one.estimator, one.reason) == ("stamp", None)
        assert one.clock is not None
        assert (one.clock.synchronised, one.clock.source) == (True, "stamp")
        assert 1_900_000 <= one.clock.error_ns <= 2_600_000  # half of the shortest round trip
        truth = network.there if one.segment == "A>R" else network.back
        first = (one.interval.start_ns - BEGIN_NS) // EVERY_NS
        mean_ns = np.mean([truth[number] for number in range(first, first + 50)])
        crossing = one.crossings[None]
        assert (crossing.sent, crossing.received, one.losses[None].lost) == (50, 50, 0)
        assert crossing.mean_ns is not None
        assert abs(crossing.mean_ns - mean_ns) <= one.clock.error_ns
        if one.segment == "A>R":
            trip = one.crossings[ROUND_TRIP]
            whole = [network.there[number] + network.back[number] for number in range(first, first + 50)]
            assert trip.mean_ns == pytest.approx(np.mean(whole), abs=1)
            assert (trip.min_ns, trip.max_ns) == (min(whole), max(whole))


@pytest.mark.parametrize("seed", range(5))
def test_loss_is_told_by_direction(seed: int) -> None:
    """Within its bounds in each interval, and in sum, where the reflector numbers its replies."""
    network = Route(seed, loss=0.1)
    session, results = run(network, 20)
    told = {"A>R": 0.0, "R>A": 0.0}
    for one in results:
        first = (one.interval.start_ns - BEGIN_NS) // EVERY_NS
        numbers = range(first, first + 50)
        there = sum(number not in network.there for number in numbers)
        back = sum(number in network.there and number not in network.back for number in numbers)
        loss = one.losses[None]
        assert loss.lost is not None
        assert loss.low <= (there if one.segment == "A>R" else back) <= loss.high
        told[one.segment] += loss.lost
        if one.segment == "A>R":
            assert one.losses[ROUND_TRIP].lost == there + back
            assert one.crossings[None].received == 50 - loss.lost
    arrived = len(network.there)
    assert abs(told["A>R"] - (session.sent - arrived)) <= 3  # requests after the last reply may be lost either way
    assert sum(told.values()) == session.sent - len(network.back)


def test_a_reflector_that_repeats_numbers_tells_no_direction() -> None:
    _, results = run(Route(2, loss=0.1, stateful=False), 3)
    for one in results:
        assert (one.losses[None].lost, one.losses[None].reason) == (None, REPEATS)
    assert sum(one.losses[ROUND_TRIP].lost or 0 for one in results if one.segment == "A>R") > 10


def test_a_reflector_that_is_silent() -> None:
    _, results = run(Route(2, loss=1.0), 2)
    assert len(results) == 4
    for one in results:
        assert one.crossings[None].mean_ns is None
        assert one.crossings[None].reason == one.losses[None].reason == SILENT
    assert [one.losses[ROUND_TRIP].lost for one in results[::2]] == [50, 50]


@pytest.mark.parametrize("link", [True, False])
def test_a_path_consists_of_segments_to_a_reflector(link: bool) -> None:
    """Agents at A and B ask router R between them; further routers may lie in between."""
    arrow, between = (">", []) if link else (">>", ["X", "Y"])
    names = ["A", *between[:1], "R", *between[1:], "B"]
    links = tuple(Link(*ends, 1) for one, other in pairwise(names) for ends in ((one, other), (other, one)))
    topology = Topology(tuple(names), links, name="net")
    truth, tallies = 0.0, dict[str, Tally]()
    for point, target in (("A", f"A{arrow}R"), ("B", f"R{arrow}B")):
        network = Route(5, 10**9)
        for result in run(network, 4, point, link)[1]:
            tallies.setdefault(result.segment, Tally()).add(Tally.of(result, None))
        truth += float(np.mean(list((network.there if point == "A" else network.back).values()))) / 1e9
        assert target in tallies
    assert len(tallies) == 4
    found = waterfall(topology, tallies.items(), "A", "B", 1e-3)
    assert [one["segment"] for one in found["segments"]] == [f"A{arrow}R", f"R{arrow}B"]
    assert (found["missing"], found["notes"]) == (["R[X>Y]" if between else "R[A>B]"], [])
    low, high = found["ci95"]["mean"]
    assert low <= truth <= high
    assert found["mean"] == pytest.approx(truth, abs=2e-3)  # the sum, within half of a round trip each


def test_intervals_are_exported_with_their_delays() -> None:
    """As IPFIX: both segments, loss by direction, and no class."""
    session = Session("A", "R", Terms(Lda(), interval_ns=SECOND_NS), BEGIN_NS)
    session.ask(BEGIN_NS)
    session.take(Reply(0, 0, BEGIN_NS, BEGIN_NS + 4000, BEGIN_NS + 6000, UNSYNCHRONISED_PTP, 255), BEGIN_NS + 14000)
    messages = session.settled(BEGIN_NS + 3 * SECOND_NS, MINE)
    reader = ipfix.Reader()
    for message in Exporter(3).segments([of_message(one) for one in messages], "agent A"):
        reader.read(message)
    assert reader.about[0][300, 0].decode() == "wirelag agent A: one-way delays"
    assert [record[83, 0].decode() for record in reader.records] == ["A>R", "R>A"]
    for record in reader.records:
        assert [int.from_bytes(record[element, 0]) for element in (2, 133, 530, 531, 532, 533)] == [1, 0, 6, 6, 6, 6]
        assert int.from_bytes(record[152, 0]) == BEGIN_NS // 10**6


def test_what_clocks_state_narrows_the_bounds_or_contradicts_them() -> None:
    network = Route(3)
    network.estimate = error_estimate(50_000)
    session, results = run(network, 2)
    assert session.contradictions == 0
    assert all(one.clock is not None and one.clock.error_ns < 60_000 for one in results)
    network = Route(3, ahead_ns=10**8)  # 100 ms, and it says 50 us
    network.estimate = error_estimate(50_000)
    session, results = run(network, 2)
    assert session.contradictions == 2
    assert all(one.clock is not None and one.clock.error_ns > 1_900_000 for one in results)
    for one in results:
        assert one.crossings[None].mean_ns == pytest.approx(2.2e6, abs=1.5e6)


@pytest.mark.parametrize(
    ("stated", "bounds", "expected"),
    [
        (ClockReading(True, 1000, "chrony"), (-500, 700), ClockReading(True, 700, "stamp")),  # two-way times are closer
        (ClockReading(True, 1000, "chrony"), (-500, 7000), ClockReading(True, 1000, "chrony")),  # the clocks are
        (ClockReading(False, 0, "none"), (2000, 7000), ClockReading(True, 7000, "stamp")),  # nothing else is known
        (ClockReading(True, 1000, "chrony"), (2000, 7000), ClockReading(False, 7000, "stamp")),  # a contradiction
        (ClockReading(True, 1000, "chrony"), (-9000, -1001), ClockReading(False, 9000, "stamp")),
        (ClockReading(True, 1000, "chrony"), (5, -5), ClockReading(True, 1000, "chrony")),  # no bounds at all
        (ClockReading(True, 1000, "chrony"), (0, 1 << 62), ClockReading(True, 1000, "chrony")),
        (ClockReading(True, 1000, "chrony"), ("x", None), ClockReading(True, 1000, "chrony")),
    ],
)
def test_two_way_times_bound_the_clocks_of_agents(
    stated: ClockReading, bounds: tuple[Any, Any], expected: ClockReading
) -> None:
    record = {"ahead_low_ns": bounds[0], "ahead_high_ns": bounds[1]}
    terms = Terms(Lda(), interval_ns=SECOND_NS)
    plain = Message("synopsis", "B", "A>B", Interval(0, SECOND_NS), terms)
    assert compared(stated, [ahead_of(one) for one in (replace(plain, records=(record,)), plain)]) == expected
    assert compared(stated, [ahead_of(plain)]) == stated


def test_a_late_request_is_not_made_up_for(tmp_path: Path) -> None:
    """The next one is due a whole pause after it, however late it was. It was due at once."""
    asking = Asking(config_of(SETTINGS.format("1s", "R", "10s", ""), tmp_path), print, lambda: MINE)
    (one,) = asking._all
    now_s = time.monotonic()
    one.due = now_s - 25.0
    one.ask(UNSYNCHRONISED_PTP)
    assert one.due >= now_s + 10.0
    asking.close()


def test_a_reflector_beside_an_agent_bounds_its_clock(tmp_path: Path) -> None:
    """Both directions of the segment; synopses travel with the bounds, and results have them."""
    config = config_of(SETTINGS.format("1s", "B", "10ms", 'for = "clock"\n[[segments]]\nname = "A>B"'), tmp_path)
    (measured,) = config.measured
    asking = Asking(config, print, lambda: MINE)
    session = asking._all[0].session
    now_ns = BEGIN_NS
    session.ask(now_ns)
    ahead_ns = 10**8
    times = now_ns + 1000 + ahead_ns, now_ns + 2000 + ahead_ns
    session.take(Reply(0, 0, now_ns, *times, UNSYNCHRONISED_PTP, 255), now_ns + 5000)
    assert asking.ahead_ns("A>B", now_ns + 5000) is None
    session.settled(BEGIN_NS + 3 * SECOND_NS, MINE)
    assert asking.ahead_ns("A>B", now_ns + 5000) == (ahead_ns - 3000, ahead_ns + 1000)
    assert asking.ahead_ns("B>A", now_ns + 5000) == (-ahead_ns - 1000, -ahead_ns + 3000)
    later = asking.ahead_ns("A>>B", now_ns + 5000 + 2 * SECOND_NS)
    assert later == (ahead_ns - 3000 - 10**6, ahead_ns + 1000 + 10**6)  # clocks may drift apart
    for segment, at_ns in (("A>C", now_ns + 5000), (None, now_ns + 5000), ("A>B", now_ns + 100 * SECOND_NS)):
        assert asking.ahead_ns(segment, at_ns) is None
    rounds, found = Rounds([Ends("A>B", "A", "B")]), list[Result]()
    interval = Interval(BEGIN_NS, BEGIN_NS + SECOND_NS)
    for point, ahead in (("A", later), ("B", None)):
        cut = ClassMeter(measured.terms.two_point, "upstream", None).cut(interval)
        part = CutPart(measured, cut, {}, False, Seen(0, 0, SECOND_NS), ahead_ns=ahead)
        clock = ClockReading(True, 1000, "chrony")
        about = Message("synopsis", point, "A>B", interval, measured.terms, clock, part.seen, sent_ns=1)
        past = History(point, 0, 0)
        past.keep(part)
        message = decode(encoded(part, about, past)[0])
        found += [one for one in rounds.take(message, 1) if isinstance(one, Result)]
    assert found
    assert found[-1].clock == ClockReading(False, ahead_ns + 1000 + 10**6, "stamp")
    asking.close()


def test_replies_that_nobody_asked_for_and_lies_do_not_count() -> None:
    """Copies, other numbers, other times, and a time inside the reflector that is longer than the whole trip."""
    session = Session("A", "R", Terms(Lda(), interval_ns=SECOND_NS), BEGIN_NS)
    session.ask(BEGIN_NS)
    true = Reply(0, 0, BEGIN_NS, BEGIN_NS + 1000, BEGIN_NS + 2000, UNSYNCHRONISED_PTP, 255)
    came_ns = BEGIN_NS + 5000
    for wrong in (
        true._replace(request=7),
        true._replace(request=(1 << 32) - 1),
        true._replace(sent_ns=BEGIN_NS + 50),
    ):
        session.take(wrong, came_ns)
    session.take(true._replace(replied_ns=BEGIN_NS + 7000), came_ns)
    session.take(true._replace(replied_ns=BEGIN_NS), came_ns)
    assert (session.strange, session.incredible) == (3, 2)
    session.take(true, came_ns)
    session.take(true, came_ns)
    assert (session.strange, session.incredible) == (4, 2)
    messages = session.settled(BEGIN_NS + 3 * SECOND_NS, MINE)
    assert [(one.segment, one.seen.packets) for one in messages] == [("A>R", 1), ("R>A", 1)]
    assert not session.settled(BEGIN_NS + 9 * SECOND_NS, MINE)


def test_numbers_begin_anew_after_32_bits() -> None:
    session = Session("A", "R", Terms(Lda(), interval_ns=SECOND_NS), BEGIN_NS)
    session.sent = (1 << 32) - 1
    for now_ns in (BEGIN_NS, BEGIN_NS + EVERY_NS):
        number = session.ask(now_ns)
        times = now_ns, now_ns + 1000, now_ns + 2000
        session.take(Reply(number, number, *times, UNSYNCHRONISED_PTP, 255), now_ns + 4000)
    assert number == 0
    assert session.strange == 0
    assert session.settled(BEGIN_NS + 3 * SECOND_NS, MINE)[0].seen.packets == 2


def test_a_point_speaks_only_of_its_own_segments() -> None:
    """Nor does it tell of a segment without a name."""
    session = Session("A", "R", Terms(Lda(), interval_ns=SECOND_NS), BEGIN_NS)
    session.ask(BEGIN_NS)
    message = session.settled(BEGIN_NS + 3 * SECOND_NS, MINE)[0]
    rounds = Rounds([Ends("A>R", "A", "R"), Ends("B>R", "B", "R")], named_by_agents=True)
    for segment, counts in (("B>R", False), (None, False), ("C[A>B]", False), ("A>R", True)):
        found = rounds.take(replace(message, segment=segment), 1)
        assert any(isinstance(one, Result) for one in found) == counts


SETTINGS = """
point = "A"
interface = "lo"
interval = "{}"
[[reflectors]]
name = "{}"
to = "127.0.0.1"
every = "{}"
{}
"""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("1s", "A", "100ms", ""), "reflectors.A.name: A is this point, or named twice"),
        (("10m", "R", "10ms", ""), f"reflectors.R.every: is too short: at most {MOST_REQUESTS:,} requests"),
        (("1s", "R", "1ms", ""), "reflectors.R.every: 1ms is out of range"),
        (("1s", "R", "1s", 'key_file = "/nowhere"'), "reflectors.R.key_file: /nowhere: cannot read"),
    ],
)
def test_what_is_refused(given: tuple[str, ...], says: str, tmp_path: Path) -> None:
    with pytest.raises(WirelagError, match=says):
        config_of(SETTINGS.format(*given), tmp_path)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("", "A: captures no packet on lo"),
        ('for = "clock"\n[[segments]]\nname = "A>R"', "A: captures on lo, every packet"),
    ],
)
def test_check_says_whether_packets_are_captured(more: str, says: str, tmp_path: Path) -> None:
    lines = list(forecast(config_of(SETTINGS.format("1s", "R", "10ms", more), tmp_path)))
    assert lines[0] == says
    assert sum("captures" in line for line in lines) == 1


@IN_LAB
@pytest.mark.acceptance
def test_an_agent_measures_to_a_reflector_in_another_namespace(tmp_path: Path) -> None:
    """Ours, with a key, behind a wire of 3 ms there and 1 ms back."""
    (tmp_path / "token").write_text("sesame")
    (tmp_path / "key").write_text("a key")
    (tmp_path / "agent.toml").write_text(
        f"""
point = "client"
interface = "eth0"
interval = "250ms"
[push]
ipfix = "ipfix+udp://127.0.0.1:4739"
[collector]
url = "http://10.5.0.11:{PORT}"
insecure = true
token_file = "{tmp_path}/token"
[spool]
folder = "{tmp_path}/spool"
[[reflectors]]
name = "router"
to = "10.5.0.11"
port = 8620
every = "10ms"
key_file = "{tmp_path}/key"
"""
    )
    with Network("reflect", wired=True) as network:
        Wire(up=Direction(delay_us=3000, loss=0.1), down=Direction(delay_us=1000)).start(network, tmp_path, 5)
        reflect = [*WIRELAG, "stamp", "reflect", "10.5.0.11:8620", "--key-file", str(tmp_path / "key")]
        network.start("server1", reflect, tmp_path / "reflector.txt").wait_for_line("reflecting at")
        with network.inside("client"):
            inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
            inbox.bind(("127.0.0.1", 4739))
        with inbox, Receiver(lambda: network.inside("server1")) as receiver:
            network.start("client", [*AGENT, str(tmp_path / "agent.toml")], tmp_path / "agent.txt")
            messages = receiver.wait(lambda m: sum(one.type == "crossing" for one in m) >= 12)
            reader, datagrams = ipfix.Reader(), list[bytes]()
            inbox.settimeout(20)
            while len(reader.records) < 8:
                datagrams.append(inbox.recv(65_536))
                reader.read(datagrams[-1])
    exported = {(record[83, 0].decode(), int.from_bytes(record[152, 0])): record for record in reader.records}
    rounds = Rounds([], named_by_agents=True)
    found = [one for m in messages if m.type == "crossing" for one in rounds.take(m, 1) if isinstance(one, Result)]
    lost = {segment: sum(one.losses[None].lost or 0 for one in found if one.segment == segment) for segment in ENDS}
    assert lost["client>router"] > 3 * lost["router>client"]
    for one in found:
        if (record := exported.get((one.segment, one.interval.start_ns // 10**6))) is not None:
            assert int.from_bytes(record[2, 0]) == one.crossings[None].received
            mean_ns = one.crossings[None].mean_ns
            assert mean_ns is None or int.from_bytes(record[530, 0]) == round(mean_ns / 1e3)
        if one.segment == "client>router" and one.crossings[ROUND_TRIP].received > 5:
            trip_ns = one.crossings[ROUND_TRIP].mean_ns
            assert trip_ns is not None
            assert 4 * 10**6 < trip_ns < 50 * 10**6
            assert one.clock is not None
            assert 0 < one.clock.error_ns < 30 * 10**6
    if ABSENT:
        pytest.skip(ABSENT)
    (tmp_path / "sent.ipfix").write_bytes(b"".join(datagrams))
    numbers = (2, 133, 530, 531, 532)
    ours = [[int.from_bytes(one[n, 0]) if (n, 0) in one else None for n in numbers] for one in reader.records]
    theirs = [[int(one[str(n)]) if str(n) in one else None for n in numbers] for one in dumped(tmp_path / "sent.ipfix")]
    assert theirs == ours
    rows = collected(datagrams, tmp_path / "nfdump", len(reader.about))
    assert [int(row["ipkt"]) for row in rows] == [packets for packets, *_ in ours]


ENDS = ("client>router", "router>client")


@IN_LAB
@pytest.mark.acceptance
def test_a_reflector_bounds_the_clocks_of_two_agents(tmp_path: Path) -> None:
    """One clock behind a wire of 3 ms there and 1 ms back; both agents say that theirs may be wrong by a second."""
    (tmp_path / "token").write_text("sesame")
    common = f"""
interface = "eth0"
interval = "250ms"
[collector]
url = "http://10.5.0.11:{PORT}"
insecure = true
token_file = "{tmp_path}/token"
[clock]
error = "1s"
[estimator]
name = "lda"
[[segments]]
name = "client>server1"
direction = "10.5.0.1>10.5.0.11"
packets = "references"
"""
    sends = """
[[references]]
to = "10.5.0.11"
every = "2ms"
link = "100Mbps"
share = "1%"
[[reflectors]]
name = "server1"
to = "10.5.0.11"
port = 8620
every = "10ms"
for = "clock"
"""
    for point, more in (("client", sends), ("server1", "")):
        head = f'point = "{point}"\nreceive_references = {str(not more).lower()}\n'
        spool = f'[spool]\nfolder = "{tmp_path}/spool-{point}"\n'
        (tmp_path / f"{point}.toml").write_text(head + common + more + spool)
    with Network("clocks", wired=True) as network:
        Wire(up=Direction(delay_us=3000), down=Direction(delay_us=1000)).start(network, tmp_path, 5)
        reflect = [*WIRELAG, "stamp", "reflect", "10.5.0.11:8620"]
        network.start("server1", reflect, tmp_path / "reflector.txt").wait_for_line("reflecting at")
        with Receiver(lambda: network.inside("server1")) as receiver:
            for point in ("server1", "client"):
                agent = network.start(point, [*AGENT, str(tmp_path / f"{point}.toml")], tmp_path / f"{point}.txt")
                agent.wait_for_line("listening at eth0")
            messages = receiver.wait(
                lambda m: sum(ahead_of(one) is not None for one in m) >= 6 and sum(x.point == "server1" for x in m) > 12
            )
    for message in messages:
        if (bounds := ahead_of(message)) is not None:
            assert message.point == "client"
            assert -50 * 10**6 < bounds[0] <= -(10**6) < 0 < 3 * 10**6 <= bounds[1] < 50 * 10**6
    rounds = Rounds([Ends("client>server1", "client", "server1")])
    found = [one for message in messages for one in rounds.take(message, 1) if isinstance(one, Result)]
    bounded = [one.clock for one in found if one.clock is not None and one.clock.source == "stamp"]
    assert bounded
    assert all(clock.synchronised and 3 * 10**6 <= clock.error_ns < 50 * 10**6 for clock in bounded)
