"""The live system under load while parts die: no interval that both agents saw is missing or counted twice."""

import os
import time
from itertools import product
from pathlib import Path

import pytest

from tests.support.in_lab import IN_LAB
from tests.support.live_system import (
    LENGTH_NS,
    LOSS,
    SECRET,
    SEGMENT,
    TOKEN,
    Load,
    System,
    Truth,
    burning,
    recorded,
    stalled,
)
from wirelag.collector.sqlite import SqliteStore

OUTAGE_S = float(os.environ.get("WIRELAG_OUTAGE_S", "30"))
ROUNDS = int(os.environ.get("WIRELAG_ROUNDS", "5"))
SECOND_NS = 10**9
EDGE = 2  # packets that two captures may stamp on different sides of an edge


def kill_agent(system: System, turn: int) -> None:
    host = ("client", "server1")[turn % 2]
    began_ns = time.time_ns()
    system.kill(host)
    time.sleep(1.3)  # the time it stays dead
    system.start(host)
    system.dead.append((began_ns, time.time_ns()))


def kill_collector(system: System, turn: int) -> None:
    system.kill("collector")
    time.sleep(1.0)
    system.start("collector")


def kill_broker(system: System, turn: int) -> None:
    system.kill("broker")
    time.sleep(1.0)
    system.start("broker")


def cut_off(system: System, turn: int) -> None:
    links = (["to-client"], ["to-server1"], ["to-client", "to-server1"])[turn % 3]
    for link in links:
        system.network.ip("point", f"link set {link} down")
    time.sleep(OUTAGE_S)
    for link in links:
        system.network.ip("point", f"link set {link} up")


def is_true(system: System, truth: Truth, since_ns: int) -> tuple[int, int]:
    """Check that every interval is right or marked as unknown; return the numbers of exact and of unseen ones."""
    exact = unseen = 0
    reports = system.reports()
    for start_ns in sorted(truth.sent)[2:-4]:
        if start_ns < since_ns:
            continue
        sent, lost = truth.sent[start_ns], truth.lost[start_ns]
        report = reports.get(start_ns)
        if system.alive(start_ns):
            assert report is not None
            assert (report["missed"], report["covered"]) == (0, 1)
        if report is None:
            unseen += 1
        elif report["covered"] < 1:  # seen by one of them, or in part: unknown, never zero
            unseen += report["covered"] == 0
            assert (report["lost"], report["loss"]) == (None, None)
            assert report["covered"] > 0 or report["mean"] is None
            assert report["reason"]
        else:
            assert abs(report["sent"] - sent) <= EDGE
            if system.alive(start_ns, SECOND_NS):
                assert report["lost"] is not None, report["reason"]
            if report["lost"] is not None:
                assert abs(report["lost"] - lost) <= EDGE, (report, around(truth, start_ns))
                assert report["mean"] == pytest.approx(truth.mean_s[start_ns], rel=0.01)
                exact += 1
    return exact, unseen


def around(truth: Truth, start_ns: int) -> list[tuple[int, int]]:
    """Packets sent and lost in an interval, and before and after it."""
    places = range(start_ns - 2 * LENGTH_NS, start_ns + 3 * LENGTH_NS, LENGTH_NS)
    return [(truth.sent.get(place, 0), truth.lost.get(place, 0)) for place in places]


FIRES = {"agent": kill_agent, "collector": kill_collector, "broker": kill_broker, "network": cut_off}
CASES = [(way, what) for way in ("http", "nats") for what in FIRES if (way, what) != ("http", "broker")]


@IN_LAB
@pytest.mark.acceptance
@pytest.mark.parametrize(("way", "what"), CASES, ids=["-".join(case) for case in CASES])
def test_no_interval_that_both_saw_is_missing_or_counted_twice(way: str, what: str, tmp_path: Path) -> None:
    with (
        burning(tmp_path, way == "nats") as system,
        recorded(system.network, tmp_path) as end,
        Load(system.network),
    ):
        since_ns = time.time_ns() + SECOND_NS
        time.sleep(2)
        system.caught_up(since_ns)
        recovered = []
        for turn in range(ROUNDS):
            FIRES[what](system, turn)
            time.sleep(3)
            recovered.append(system.caught_up(since_ns))
        time.sleep(2)
        system.caught_up(since_ns)
        truth = end()
        exact, unseen = is_true(system, truth, since_ns)
        counted = system.json("/api/v1/status")["counted"]
    print(f"{way} {what}: {exact} intervals exact, {unseen} unseen, caught up in {[round(s, 1) for s in recovered]} s")
    assert exact >= 4 * ROUNDS
    assert counted.get("internal errors", 0) == 0
    assert sum(truth.lost.values()) > LOSS / 2 * sum(truth.sent.values())
    logs = system.logs()
    assert "Traceback" not in logs
    for secret in (TOKEN, SECRET, SECRET.partition(":")[2]):
        assert secret not in logs


@IN_LAB
@pytest.mark.acceptance
@pytest.mark.parametrize(("host", "estimator"), list(product(("server1", "client"), ("rda", "lda"))))
def test_an_agent_that_drops_a_tenth_does_not_change_the_loss(host: str, estimator: str, tmp_path: Path) -> None:
    """Its ring is small and its reader pauses: the kernel drops packets, and the path is not blamed."""
    with burning(tmp_path, by_nats=False, estimator=estimator) as system:
        system.kill(host)
        system.ring = "256KiB"
        system.start(host)
        with (
            recorded(system.network, tmp_path) as end,
            Load(system.network),
            stalled(system.running[host], 0.13, 0.73),
        ):
            since_ns = time.time_ns() + SECOND_NS
            time.sleep(20)
            system.caught_up(since_ns)
        truth = end()
        reports = system.reports()
    store = SqliteStore(str(tmp_path / "store.db"))
    kept = {row.start_ns: row.tally for row in store.rows(SEGMENT, None, LENGTH_NS, (0, 2**62), 10_000)}
    store.close()
    sent = lost = told = told_of = unseen = within = count = 0.0
    for start_ns in sorted(truth.sent)[4:-6]:
        report = reports[start_ns]
        assert report["lost"] is not None, report["reason"]
        low, high = report["ci95"]["loss"]
        share, grain = truth.lost[start_ns] / truth.sent[start_ns], EDGE / truth.sent[start_ns]
        count, within = count + 1, within + (low - grain <= share <= high + grain)
        sent, lost = sent + truth.sent[start_ns], lost + truth.lost[start_ns]
        told, told_of = told + kept[start_ns].lost, told_of + kept[start_ns].loss_sent
        unseen = unseen + sum(report["unseen"].values())
    print(
        f"{host} {estimator}: {unseen / sent:.1%} unseen; loss {lost / sent:.2%}, told {told / told_of:.2%}; "
        f"{within:.0f} of {count:.0f} intervals hold it"
    )
    assert unseen > 0.05 * sent
    assert within >= 0.9 * count
    assert told / told_of == pytest.approx(lost / sent, abs=0.003)
