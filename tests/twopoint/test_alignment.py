"""What two captures have in common: simulated, built and real captures with known truth."""

import csv
from pathlib import Path

import numpy as np
import pytest

import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag import _kernels
from wirelag.errors import WirelagError
from wirelag.packets.address import to_address
from wirelag.packets.addresses import Direction
from wirelag.packets.batch import COLUMNS, Flag, PacketBatch
from wirelag.sim import Scenario, Simulation, simulate
from wirelag.stats.modes import explain_clusters
from wirelag.twopoint import sketch
from wirelag.twopoint.alignment import Alignment, align
from wirelag.twopoint.sketch import Sighting, common

START_NS = 1_700_000_000 * 10**9
NAMES = ("A", "B")
Made = tuple[Simulation, list[PacketBatch], list[PacketBatch]]
CLIENT, SERVER = 0xFFFF0A000001, 0xFFFFC0000201  # 10.0.0.1 and 192.0.2.1


def packets(
    ids: np.ndarray,
    time_ns: np.ndarray,
    source: int | np.ndarray = CLIENT,
    destination: int | np.ndarray = SERVER,
    payload: int | np.ndarray = 100,
) -> PacketBatch:
    """A batch built by hand, in order of time."""
    order = np.argsort(time_ns, kind="stable")
    columns = {name: np.zeros((len(ids), width) if width > 1 else len(ids), dtype) for name, dtype, width in COLUMNS}
    columns["packet_id"][:] = ids
    columns["time_ns"][:] = time_ns
    columns["src"][:, 1] = source
    columns["dst"][:, 1] = destination
    columns["payload_length"][:] = payload
    columns["number"][:] = np.arange(1, len(ids) + 1)
    return PacketBatch({name: column[order] for name, column in columns.items()})


def see(batches: list[PacketBatch], capacity: int = sketch.CAPACITY) -> Sighting:
    seen = Sighting(capacity)
    for batch in batches:
        seen.observe(batch)
    return seen


def read(path: Path) -> list[PacketBatch]:
    return list(wirelag.read(str(path)))


def selected(alignment: Alignment, point: str, batches: list[PacketBatch]) -> PacketBatch:
    return PacketBatch.concatenate([alignment.select(point, batch) for batch in batches])  # type: ignore[arg-type]


def ids(seed: int, count: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2**64, count, np.uint64)


def sent(seed: int, count: int, span_ns: int = 60 * 10**9) -> np.ndarray:
    return START_NS + np.sort(np.random.default_rng(seed).integers(0, span_ns, count))


def delays(seed: int, count: int, jitter_ns: float = 2e5) -> np.ndarray:
    return (10**6 + np.random.default_rng(seed).exponential(jitter_ns, count)).astype(np.int64)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Made]:
    directory = tmp_path_factory.mktemp("alignment")
    scenarios = {
        "plain": Scenario(packets=20_000, seed=1, points=2, loss=0.02, duplicate=0.01, reorder=0.01),
        "away": Scenario(packets=20_000, seed=2, points=2, clock_offset_ns=2_000 * 10**9, clock_skew_ppm=50),
        "client": Scenario(packets=20_000, seed=3, points=2, direction="client", loss=0.02),
    }
    found = {}
    for name, scenario in scenarios.items():
        simulation = simulate(scenario)
        paths = directory / f"{name}-up.pcap", directory / f"{name}-down.pcap"
        write_simulation(simulation, *paths)
        found[name] = simulation, read(paths[0]), read(paths[1])
    return found


def test_the_sample_equals_that_of_a_cache() -> None:
    """The law of caches, packet by packet."""
    all_ids = np.concatenate([ids(1, 3_000), ids(1, 500)])
    coins = _kernels.coins(all_ids, 7, 1)
    level, kept = 0, []
    for i, coin in enumerate(coins.tolist()):
        zeros = 64 - coin.bit_length()
        while zeros >= level and len(kept) >= 100:
            level += 1
            kept = [row for row in kept if 64 - int(coins[row]).bit_length() >= level]
        if zeros >= level:
            kept.append(i)
    for size in (1, 97, 3_500):
        seen = Sighting(100, seed=7)
        batch = packets(all_ids, np.arange(3_500))
        for start in range(0, 3_500, size):
            seen.observe(batch[start : start + size])
        seen.settle()
        assert (seen.level, seen.numbers.tolist()) == (level, [row + 1 for row in kept])
    assert (seen.packets, seen.span_ns) == (3_500, (0, 3_499))
    assert len(seen.pairs) == 1


def test_copies_pair_with_copies() -> None:
    up = see([packets(np.array([5, 6, 5, 7, 7, 8], np.uint64), np.arange(6))])
    down = see([packets(np.array([6, 5, 5, 7, 9], np.uint64), np.arange(5))])
    for seen in (up, down):
        seen.settle()
    here, there, single = common(up, down)
    assert (here.tolist(), there.tolist(), single.tolist()) == ([0, 1, 2], [1, 0, 2], [False, True, False])


def test_more_pairs_than_fit_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sketch, "MOST_PAIRS", 64)
    time, delay, clients = sent(1, 8_000), delays(2, 8_000), np.arange(8_000) % 500 + CLIENT
    forth = packets(ids(3, 8_000), time, clients)
    there = packets(ids(3, 8_000), time + delay, clients)
    up, down = see([forth]), see([there])
    alignment = align(up, down, names=NAMES)
    assert len(up.pairs) <= 64
    assert up.pairs.scale > 1
    assert len(alignment.select("upstream", forth)) > 7_900


@pytest.mark.every(2)
@pytest.mark.parametrize("case", ["plain", "away", "client"])
@pytest.mark.parametrize("capacity", [1 << 17, 1 << 10])
def test_simulated_directions(case: str, capacity: int, made: dict[str, Made]) -> None:
    simulation, up, down = made[case]
    alignment = align(see(up, capacity), see(down, capacity), names=NAMES)
    truth = simulation.truth.filter(simulation.truth["direction"] == "forward")
    first, second = selected(alignment, "upstream", up), selected(alignment, "downstream", down)
    if capacity >= 20_000:
        # All except losses before the first or after the last common packet.
        assert len(truth) - len(first) == alignment.left_out["upstream"].outside <= 3
        numbers = truth["upstream_number"].to_numpy()
        assert np.isin(first.number, numbers).all()
    assert len(first) == pytest.approx(len(truth), rel=0.1 if capacity < 20_000 else 1e-3)
    left = alignment.left_out["upstream"]
    assert len(first) + left.backward + left.elsewhere + left.outside == sum(map(len, up))
    here, there, _ = _common(first, second)
    known = dict(truth.select("upstream_number", "delay_ns").iter_rows())
    delay = second.time_ns[there] - first.time_ns[here]
    expected = np.array([known.get(int(number)) or 0 for number in first.number[here]])
    if case == "away":
        bound = alignment.clock.offset_bound_ns
        assert bound is not None
        # Delays here last for 50 ms: 1,200 in each direction, whose smallest differ by some percent.
        error = abs(float((delay - expected).mean()))
        assert error < bound
        assert error < 0.03 * expected.mean() or capacity < 20_000
    else:
        assert np.mean(delay == expected) > 0.999  # except for copies of which different ones were lost
    assert (alignment.clock.method == "none") == (case != "away"), alignment.notes


def _common(up: PacketBatch, down: PacketBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    seen = [see([batch], 1 << 20) for batch in (up, down)]
    for one in seen:
        one.settle()
    return common(*seen)


def test_one_clock_and_one_direction_gives_the_batch_itself() -> None:
    time = sent(1, 1_000)
    up, down = packets(ids(1, 1_000), time), packets(ids(1, 1_000), time + delays(1, 1_000))
    alignment = align(see([up]), see([down]), names=NAMES)
    assert alignment.select("upstream", up) is up
    assert alignment.select("downstream", down) is down
    assert (alignment.common_packets, alignment.notes) == (1_000, [])
    assert (alignment.backward, alignment.elsewhere, alignment.outside) == (0, 0, 0)


def test_packets_that_never_pass_the_other_point_are_not_lost() -> None:
    time, delay = sent(1, 1_000), delays(1, 1_000)
    neighbour = packets(ids(2, 500), sent(2, 500), CLIENT, CLIENT + 7)
    up = PacketBatch.concatenate([packets(ids(1, 1_000), time), neighbour])
    down = packets(ids(1, 1_000)[:990], (time + delay)[:990])
    alignment = align(see([up]), see([down]), names=NAMES)
    alignment.select("upstream", up)
    assert (alignment.elsewhere, alignment.outside) == (500, 10)


def test_an_address_pair_that_lost_everything() -> None:
    """Other packets of these hosts arrive; packets to a host that is never seen downstream went elsewhere."""
    rng = np.random.default_rng(1)
    parts_up, parts_down = [], []
    for client in range(60):
        time, own = sent(client, 40), ids(client, 40)
        arrive = rng.random(40) < 0.7
        parts_up.append(packets(own, time, CLIENT + client))
        parts_down.append(packets(own[arrive], (time + delays(client, 40))[arrive], CLIENT + client))
    parts_up.append(packets(ids(100, 2), START_NS + np.array([20, 30]) * 10**9, CLIENT, SERVER + 1))
    parts_up.append(packets(ids(102, 20), sent(8, 20), CLIENT + 1, SERVER + 1))
    for client in (2, 3):  # the second server is known to be downstream
        parts_up.append(packets(ids(103 + client, 20), sent(9, 20), CLIENT + client, SERVER + 1))
        parts_down.append(packets(ids(103 + client, 20), sent(9, 20) + 10**6, CLIENT + client, SERVER + 1))
    alignment = align(see(parts_up), see(parts_down), names=NAMES)
    assert len(alignment.select("upstream", parts_up[60])) == 2
    assert len(alignment.select("upstream", parts_up[61])) == 20
    unknown = packets(ids(110, 20), sent(10, 20), CLIENT + 1, SERVER + 2)
    alignment = align(see([*parts_up, unknown]), see(parts_down), names=NAMES)
    assert len(alignment.select("upstream", unknown)) == 0
    assert alignment.left_out["upstream"].elsewhere == 20


def test_captures_that_begin_and_end_at_different_times() -> None:
    time, own = sent(1, 6_000), ids(1, 6_000)
    up = packets(own[1_000:], time[1_000:])
    down = packets(own[:5_000], (time + delays(1, 6_000))[:5_000])
    alignment = align(see([up]), see([down]), names=NAMES)
    assert len(alignment.select("upstream", up)) == len(alignment.select("downstream", down)) == 4_000
    assert [alignment.left_out[point].outside for point in ("upstream", "downstream")] == [1_000, 1_000]
    begins, ends = sorted(alignment.notes)
    assert begins.startswith("A begins ")
    assert begins.endswith(" s after B: 1,000 packets of B from that time are left out, not counted as lost")
    assert ends.startswith("B ends ")


def test_one_packet_before_the_other_capture_begins() -> None:
    time, own = sent(1, 2_000), ids(1, 2_000)
    time[0] -= 60 * 10**9
    down = packets(own[1:], (time + delays(1, 2_000))[1:])
    (note,) = align(see([packets(own, time)]), see([down]), names=NAMES).notes
    assert note == "B begins 60.1 s after A: 1 packet of A from that time is left out, not counted as lost"


def conversation(offset_ns: int) -> tuple[PacketBatch, PacketBatch]:
    """Both directions between two hosts; B's clock is ahead by the offset."""
    time, back = sent(1, 2_000), sent(2, 2_000)
    forth = packets(ids(1, 2_000), time), packets(ids(1, 2_000), time + delays(1, 2_000) + offset_ns)
    there, here = back + offset_ns, back + delays(2, 2_000)
    reply = tuple(packets(ids(2, 2_000), when, SERVER, CLIENT) for when in (here, there))
    return PacketBatch.concatenate([forth[0], reply[0]]), PacketBatch.concatenate([forth[1], reply[1]])


@pytest.mark.parametrize("offset_ns", [0, 5 * 10**9, -5 * 10**9, -(10**13)])
def test_conversations_show_the_direction_for_any_clocks(offset_ns: int) -> None:
    up, down = conversation(offset_ns)
    for first, second, source, sign in ((up, down, CLIENT, 1), (down, up, SERVER, -1)):
        alignment = align(see([first]), see([second]), names=NAMES)
        forward = alignment.select("upstream", first)
        assert len(forward) == 2_000
        assert set(forward.src[:, 1].tolist()) == {source}
        assert alignment.clock.offset_ns == pytest.approx(sign * offset_ns, abs=1e5)
        assert alignment.left_out["upstream"].backward == 2_000


def test_known_clocks() -> None:
    up, down = conversation(5 * 10**9)
    alignment = align(see([up]), see([down]), names=NAMES, clock=5 * 10**9)
    assert alignment.clock.method == "given"
    corrected = alignment.select("downstream", down)
    assert (corrected.time_ns - alignment.select("upstream", up).time_ns).min() >= 10**6 - 1
    assert down.time_ns.min() >= START_NS + 5 * 10**9  # the batch itself is unchanged
    alignment = align(see([up]), see([down]), names=NAMES, clock="none")
    assert alignment.clock.method == "none"


def test_explicit_direction() -> None:
    up, down = conversation(0)
    wrong = Direction.parse("192.0.2.0/24>")
    with pytest.raises(WirelagError, match=r"2,000 of 2,000 common packets that --direction names travel from B to A"):
        align(see([up]), see([down]), names=NAMES, direction=wrong)
    alignment = align(see([up]), see([down]), names=NAMES, direction=wrong, clock="none")
    assert set(alignment.select("upstream", up).src[:, 1].tolist()) == {SERVER}
    assert alignment.clock.method == "none"
    said = "2,000 of 2,000 common packets were seen in B before A: negative delays; is --direction right?"
    assert alignment.notes == [said]
    with pytest.raises(WirelagError, match="nothing that A and B have in common travels"):
        align(see([up]), see([down]), names=NAMES, direction=Direction.parse("10.9.9.9>"))


@pytest.mark.every(2)
@pytest.mark.parametrize("offset_ns", [0, 40 * 10**6, -40 * 10**6, 2000 * 10**9])
def test_a_needless_direction_changes_nothing_and_a_wrong_one_is_refused(offset_ns: int) -> None:
    """Packets of both directions were taken for one, and the clock "corrected" by their delays."""
    up, down = conversation(offset_ns)
    found = align(see([up]), see([down]), names=NAMES)
    for needless in ("10.0.0.0/8>192.0.2.0/24", "0.0.0.0/0>", "0.0.0.0/0>0.0.0.0/0", "10.0.0.0/8,192.0.2.0/24>"):
        given = align(see([up]), see([down]), names=NAMES, direction=Direction.parse(needless))
        assert given.clock == found.clock
        assert given.common_packets == found.common_packets
        for point, batch in (("upstream", up), ("downstream", down)):
            assert (given.select(point, batch).time_ns == found.select(point, batch).time_ns).all()  # type: ignore[arg-type]
    with pytest.raises(WirelagError, match="leave --direction out, or swap"):
        align(see([up]), see([down]), names=NAMES, direction=Direction.parse("192.0.2.0/24>10.0.0.0/8"))


def test_notations_of_directions() -> None:
    batch = packets(ids(1, 3), np.arange(3), np.array([CLIENT, SERVER, CLIENT + 1]), np.array([SERVER, CLIENT, SERVER]))
    for text, rows in (
        ("10.0.0.1>", [1, 0, 0]),
        (">192.0.2.1", [1, 0, 1]),
        ("10.0.0.0/8>192.0.2.0/24", [1, 0, 1]),
        ("2001:db8::/32,192.0.2.1>10.0.0.1", [0, 1, 0]),
        ("::/0>", [1, 1, 1]),
    ):
        assert Direction.parse(text).rows(batch).tolist() == [bool(row) for row in rows], text
    for text in ("", ">", "10.0.0.1", "a>b", "10.0.0.1>10.0.0.2>10.0.0.3"):
        with pytest.raises(ValueError, match="is not a"):
            Direction.parse(text)


def test_swapped_captures_are_refused() -> None:
    time = sent(1, 1_000)
    early, late = packets(ids(1, 1_000), time), packets(ids(1, 1_000), time + delays(1, 1_000))
    with pytest.raises(WirelagError, match=r"A and B .* are seen in B first, by 1.1. ms: swap the captures"):
        align(see([late]), see([early]), names=NAMES)
    # With a clock that is behind, the long tail of delays is on the upper side.
    behind = packets(ids(1, 1_000), time + delays(1, 1_000) - 10**9)
    alignment = align(see([early]), see([behind]), names=NAMES)
    assert alignment.clock.method == "minimum"


def test_nothing_in_common_is_explained() -> None:
    one, other = packets(ids(1, 1_000), sent(1, 1_000)), packets(ids(2, 1_000), sent(2, 1_000))
    with pytest.raises(WirelagError, match=r"A and B have no packets in common: .*--nat.*different traffic$"):
        align(see([one]), see([other]), names=NAMES)
    other.packet_id[:3] = one.packet_id[:3]
    other.flags[:] = Flag.PREFIX_CUT
    with pytest.raises(WirelagError, match=r"hardly any packets \(3 of 1,000\) in common: .*--prefix 0"):
        align(see([one]), see([other]), names=NAMES)
    with pytest.raises(WirelagError, match="one capture twice"):
        align(see([one]), see([one]), names=NAMES)
    with pytest.raises(WirelagError, match="B holds no packets"):
        align(see([one]), see([]), names=NAMES)


def test_different_snap_lengths_are_noted() -> None:
    time = sent(1, 1_000)
    up, down = packets(ids(1, 1_000), time), packets(ids(1, 1_000), time + delays(1, 1_000))
    down.flags[::4] = Flag.PREFIX_CUT
    down.packet_id[::4] += np.uint64(1)
    (note,) = align(see([up]), see([down]), names=NAMES).notes
    assert "0% of A and 25% of B" in note
    assert "--prefix 0" in note


def test_segmentation_offload_is_noted() -> None:
    time, own = sent(1, 1_000), ids(1, 1_000)
    large = np.arange(1_000) % 2 == 0
    up = packets(own, time, payload=np.where(large, 4_380, 100))
    pieces = packets(ids(5, 1_500), np.repeat(time[large], 3) + 10**6, payload=1_460)
    down = PacketBatch.concatenate([packets(own[~large], (time + delays(1, 1_000))[~large]), pieces])
    (note,) = align(see([up]), see([down]), names=NAMES).notes
    assert "segments of up to 4,380 bytes in A are" in note
    assert "of up to 1,460 in B" in note
    assert "ethtool -K" in note


def test_address_translation() -> None:
    up, down = conversation(0)
    down.src[:, 1] = np.where(down.src[:, 1] == CLIENT, 0xFFFFCB007105, down.src[:, 1])
    down.dst[:, 1] = np.where(down.dst[:, 1] == CLIENT, 0xFFFFCB007105, down.dst[:, 1])
    alignment = align(see([up]), see([down]), names=NAMES, nat=True)
    assert len(alignment.select("upstream", up)) == len(alignment.select("downstream", down)) == 2_000
    assert alignment.left_out["downstream"].backward == 2_000


TWO_POINT = {
    "mptcpanalyzer-0.3.2": [
        ("client_1_tcp_only.pcap.gz", "server_1_tcp_only.pcap.gz", 1_400),
        ("client_2_filtered.pcapng.gz", "server_2_filtered.pcapng.gz", 1_852),
        ("node0filtered.pcapng.gz", "node1filtered.pcapng.gz", 6_360),
    ],
    "smart-home-firewall/dlink-cam/no-firewall": [
        ("wlan2.4.pcap.gz", "wan.pcap.gz", 1_300),
        ("wlan2.4.pcap.gz", "wlan5.0.pcap.gz", 1_158),
    ],
    "smart-home-firewall/dlink-cam/my-firewall": [
        ("wlan2.4.pcap.gz", "wan.pcap.gz", 978),
        ("wlan2.4.pcap.gz", "wlan5.0.pcap.gz", 918),
    ],
    "smart-home-firewall/tplink-plug/no-firewall": [
        ("wlan2.4.pcap", "wan.pcap", 350),
        ("wlan2.4.pcap", "wlan5.0.pcap", 26),
    ],
    "smart-home-firewall/tplink-plug/my-firewall": [
        ("wlan2.4.pcap", "wan.pcap", 300),
        ("wlan2.4.pcap", "wlan5.0.pcap", 28),
    ],
    "deterministic6g_data": [
        ("downstream-nocross-10pkt_per_sec.pcap", "upstream-nocross-10pkt_per_sec.pcap", 1_000),
    ],
}


@pytest.mark.every(2)
@pytest.mark.parametrize(
    ("room", "one", "other", "least"), [(r, *row) for r, rows in TWO_POINT.items() for row in rows]
)
def test_real_captures_are_on_one_clock(shared_data: Path, room: str, one: str, other: str, least: int) -> None:
    up, down = (read(shared_data / "twopoint" / room / name) for name in (one, other))
    alignment = align(see(up), see(down), names=(one, other))
    assert alignment.clock.method == "none", alignment.notes
    assert least <= alignment.common_packets <= 1.05 * least + 20
    first, second = selected(alignment, "upstream", up), selected(alignment, "downstream", down)
    here, there, _ = _common(first, second)
    assert len(here) == alignment.common_packets
    assert (second.time_ns[there] > first.time_ns[here]).all()


def test_real_captures_in_the_wrong_order(shared_data: Path) -> None:
    room = shared_data / "twopoint" / "deterministic6g_data"
    names = ("upstream-nocross-10pkt_per_sec.pcap", "downstream-nocross-10pkt_per_sec.pcap")
    with pytest.raises(WirelagError, match="swap the captures"):
        align(*(see(read(room / name)) for name in names), names=names)


def test_real_delays_in_groups(shared_data: Path) -> None:
    """The emulated delay ends after about 44 s."""
    room = shared_data / "twopoint" / "mptcpanalyzer-0.3.2"
    up, down = (PacketBatch.concatenate(read(room / f"{name}_2_filtered.pcapng.gz")) for name in ("client", "server"))
    here, there, _ = _common(up, down)
    difference = down.time_ns[there] - up.time_ns[here]
    forward = difference > 0
    fast, slow = explain_clusters(up.time_ns[here][forward], difference[forward])
    assert (fast.count, slow.count) == (112, 1_740)
    assert fast.first_ns > up.time_ns[0] + 45 * 10**9
    assert fast.largest_ns < 150_000
    assert slow.smallest_ns > 10**6


def reference_rows(path: Path) -> list[list[str]]:
    lines = [line for line in path.read_text().splitlines() if not line.startswith(("#", "fileA"))]
    return list(csv.reader(lines, delimiter="\t"))


def test_reference_delays(shared_data: Path) -> None:
    """Delays that were computed without wirelag; quantile q is the element floor(q n) of the sorted ones."""
    room = shared_data / "twopoint"
    known: dict[tuple[str, str], dict[tuple[str, str], np.ndarray]] = {}
    checked = 0
    for row in reference_rows(room / "REFERENCE_owd_ns.tsv"):
        one, other, _, _, source, destination, matched, _, median, p95, *_ = row
        if (one, other) not in known:
            up, down = (PacketBatch.concatenate(read(room / name)) for name in (one, other))
            here, there, _ = _common(up, down)
            difference = down.time_ns[there] - up.time_ns[here]
            ends = np.concatenate([up.src, up.dst], axis=1)[here]
            distinct, place = np.unique(ends, axis=0, return_inverse=True)
            known[one, other] = {}
            for i, (a, b, c, d) in enumerate(distinct.tolist()):
                pair = str(to_address(a, b)), str(to_address(c, d))
                known[one, other][pair] = np.sort(difference[place.reshape(-1) == i])
        found = known[one, other][source, destination]
        if source == "192.168.1.135" and destination == "192.168.1.222":
            continue  # UDP sent three times with IP id 0: the reference leaves copies out, we pair copy with copy
        assert len(found) == int(matched)
        assert found[len(found) // 2] == pytest.approx(int(median), rel=1e-3)
        assert found[int(0.95 * len(found))] == pytest.approx(int(p95), rel=1e-3)
        checked += 1
    assert checked == 50
