"""Packets that delimit intervals: the twin on small cases that can be checked by hand."""

from tests.oracles import delimiters

SEED = 5


def marked(names: list[str]) -> dict[str, int]:
    """Ids in this order: names that begin with M are markers (of 4 bits)."""
    markers = (x for x in range(1, 10_000) if delimiters.is_marker(x, 4, SEED))
    others = (x for x in range(1, 10_000) if not delimiters.is_marker(x, 4, SEED))
    return {name: next(markers if name[0] == "M" else others) for name in names}


def test_one_packet_of_16_is_a_marker_of_4_bits() -> None:
    size = 20_000
    expected = size / 2**4
    markers = sum(delimiters.is_marker(x, 4, SEED) for x in range(size))
    assert abs(markers - expected) < 4 * expected**0.5


def test_markers_cut_when_the_interval_is_long_enough() -> None:
    ids = marked(["a", "M1", "b", "M2", "c", "M3", "M4", "d"])
    stream = list(zip(ids.values(), [0, 10, 50, 109, 120, 110, 130, 140], strict=True))
    assert delimiters.cutting_rows(stream, 100, 4, SEED) == [1, 5]  # M2 comes 1 ns too early, M4 90
    pieces = delimiters.by_markers(stream, 100, 4, SEED)
    assert [piece.name for piece in pieces] == [None, ids["M1"], ids["M3"]]
    assert [len(piece.packets) for piece in pieces] == [1, 4, 3]
    assert [piece.name for piece in delimiters.by_markers(stream[:1], 100, 4, SEED)] == [None]


def test_intervals_are_paired_between_cuts_that_both_points_made() -> None:
    """M2 was lost: downstream's interval continues, so upstream's two are one. Offset and delay do not matter."""
    ids = marked(["a", "M1", "b", "M2", "c", "M3", "d"])
    times = [0, 10, 50, 110, 150, 215, 220]
    sent = list(zip(ids.values(), times, strict=True))
    came = [(x, time_ns - 10**9) for x, time_ns in sent if x != ids["M2"]]
    upstream, downstream = (delimiters.by_markers(packets, 100, 4, SEED) for packets in (sent, came))
    assert [piece.name for piece in upstream] == [None, ids["M1"], ids["M2"], ids["M3"]]
    assert [piece.name for piece in downstream] == [None, ids["M1"], ids["M3"]]
    paired = delimiters.pair(upstream, downstream)
    edges = [(None, ids["M1"]), (ids["M1"], ids["M3"]), (ids["M3"], None)]
    assert [(interval.opened, interval.ended) for interval in paired] == edges
    assert [len(interval.upstream) for interval in paired] == [1, 4, 2]
    assert [len(interval.downstream) for interval in paired] == [1, 3, 2]


def test_an_ambiguous_cut_is_not_a_common_cut() -> None:
    def pieces(*names: int) -> list[delimiters.Piece]:
        return [delimiters.Piece(None), *(delimiters.Piece(name, [(name, 0)]) for name in names)]

    assert delimiters.common_cuts(pieces(1, 2, 3, 4), pieces(1, 3, 2, 4)) == [1, 3, 4]
    assert delimiters.common_cuts(pieces(1, 2, 1, 3), pieces(1, 2, 3)) == [2, 3]


def test_control_packets_cut_and_are_not_measured() -> None:
    one, two, four = (delimiters.Control(number) for number in (1, 2, 4))
    pieces = delimiters.by_control([(9, 0), one, (8, 1), (7, 2), two, four, (6, 3)])
    assert [piece.name for piece in pieces] == [None, 2**63 + 1, 2**63 + 2, 2**63 + 4]
    assert [piece.packets for piece in pieces] == [[(9, 0)], [(8, 1), (7, 2)], [], [(6, 3)]]
    assert delimiters.lost_controls([one, (8, 1), two, four]) == 1
    assert delimiters.lost_controls([(8, 1)]) == 0
