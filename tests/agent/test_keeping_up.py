"""What an agent says when it falls behind, loses intervals, or its spool is full: once, and once when it is over."""

from wirelag.agent.keeping_up import BEHIND_S, QUIET_S, KeepingUp, Load

SECOND_NS = 10**9


def test_it_tells_once_that_it_is_behind_and_once_that_it_caught_up() -> None:
    keeping, told = KeepingUp(SECOND_NS), list[tuple[int, str]]()
    for now in range(600):
        waited_s = 0.3 * now if now < 300 else max(0.0, 90.0 - 2 * (now - 300))
        told += [(now, line) for line in keeping.look(Load(waited_s, 10 * now, 0, 0, True), now)]
    assert [line for _, line in told] == [
        "behind: the oldest of 340 messages has waited for 10 s; the disk or the way to the collector is too slow, or "
        "it catches up after an outage",
        "has caught up after 5.15 min",
    ]
    assert told[0][0] * 0.3 > BEHIND_S >= (told[0][0] - 1) * 0.3


def test_long_intervals_may_wait_longer() -> None:
    keeping = KeepingUp(60 * SECOND_NS)
    assert not keeping.look(Load(299, 5, 0, 0, True), 0)
    assert keeping.look(Load(301, 5, 0, 0, True), 1)


def test_an_outage_is_told_by_others() -> None:
    keeping = KeepingUp(SECOND_NS)
    assert not keeping.look(Load(3600, 9000, 0, 0, False), 0)
    assert keeping.look(Load(3600, 9000, 0, 0, True), 1)[0].startswith("behind: the oldest of 9,000 messages")


def test_losses_are_told_once_with_their_number() -> None:
    """4 lines a second while a spool was full; not one when a queue dropped parts."""
    keeping, told = KeepingUp(SECOND_NS), list[tuple[int, str]]()
    for now in range(700):
        lost, dropped = min(max(0, now - 10), 50), 4 * min(max(0, now - 100), 400)
        told += [(now, line) for line in keeping.look(Load(0, 0, lost, dropped, True), now)]
    assert told == [
        (11, "the disk is too slow for 1 intervals: they are lost"),
        (101, "the spool is full: the oldest messages are dropped, 4 so far; the newest are kept"),
        (60 + int(QUIET_S), "the disk keeps up again; 50 were lost in all"),
        (500 + int(QUIET_S), "the spool has room again; 1,600 were lost in all"),
    ]
