"""The confidence of epochs: equal to its twin, equal to what was counted, and kept by captures that misled before."""

import importlib
import os
import random
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from tests.oracles import pirate_confidence as oracle
from tests.support.places import ROOT
from wirelag.capture.files import Capture
from wirelag.estimators.pirate import Pirate
from wirelag.estimators.pirate_confidence import FLOOR, GROUNDS, judged
from wirelag.packets.batch import PacketBatch
from wirelag.packets.roles import Roles
from wirelag.synopses.epochs import EPOCH, Epochs, ends_text

MS = 1_000_000
SHARES = {ground.name: ground.confidence for ground in GROUNDS}
TRAILING = 1 << 12  # in the column riding: a part of a response that came late
CHANGED = ("sum_ns", "count", "reason", "confidence", "in_flight", "batch_sum_ns", "think_count")
WILD = Path(os.environ.get("WIRELAG_SHARED_DATA") or ROOT.parent / "shared" / "data") / "wild"


def code(wait_ns: int) -> int:
    """The byte of a wait."""
    wait = wait_ns >> 10
    octave = wait.bit_length() - 1
    return wait if wait < 8 else 8 * (octave - 2) + (wait >> (octave - 3)) % 8


def epoch(waits_ms: list[float], riding: int = 0, network_ms: float = 0, **values: int) -> dict[str, int]:
    """An epoch of `auto` that the kernel did not answer, with these waits, newest first."""
    words = bytes(code(int(wait * MS)) for wait in waits_ms).ljust(12, b"\0")
    named = dict.fromkeys(EPOCH.names or (), 0) | {"method": 5, "reason": 1, "in_flight": 1, "end_ns": 501 * MS}
    named |= {"waits": int.from_bytes(words[:8], "little"), "waits_before": int.from_bytes(words[8:], "little")}
    named |= {"riding": riding, "turns": len(waits_ms), "requests": len(waits_ms)}
    return named | {"network_ns": int(network_ms * MS) or -1} | values


def judge(*epochs: dict[str, int]) -> list[dict[str, int]]:
    rows = np.zeros(len(epochs), EPOCH)
    for row, one in zip(rows, epochs, strict=True):
        for name, value in one.items():
            row[name] = value
    return [dict(zip(EPOCH.names or (), row.tolist(), strict=True)) for row in judged(rows)]


def test_it_equals_its_twin() -> None:
    rng = random.Random(4)
    epochs = []
    for _ in range(8000):
        base = rng.choice([0.1, 1, 9, 25, 200])
        waits = [
            base * rng.choice([1, 1, 1, 1.02, 1.2, 2, 10, 0])
            for _ in range(rng.choice([0, 1, 2, 3, 3, 3, 4, 5, 8, 12]))
        ]
        told = rng.random() < 0.5
        count = rng.choice([1, 4, 15, 16, 40])
        values = {"method": rng.choice([5, 5, 5, 5, 6, 1, 4]), "reason": 0 if told else rng.randrange(1, 11)}
        values |= {"sum_ns": int(base * rng.uniform(0.7, 1.4) * MS) * count, "count": count} if told else {}
        values |= {
            "traits": rng.randrange(128),
            "end_ns": rng.choice([500, 501, 505]) * MS + rng.choice([-2001, -2000, 0, 2000, 2001]),
            "in_flight": rng.choice([1, 1, 4]),
            "tick": rng.randrange(9),
            "more": rng.choice([0, 1, 2, 3, 9]),
            "doubts": rng.randrange(4),
            "lost": rng.choice([0, 0, 1]),
        }
        values |= {"requests": rng.randrange(20), "batch_sum_ns": 5, "think_count": 3}
        network = base * rng.choice([0, 0.3, 0.81, 1, 1, 1.24, 3])
        epochs.append(epoch(waits, rng.randrange(1 << 12) + TRAILING * rng.choice([0, 0, 0, 1, 15]), network, **values))
    grounds = {oracle.ground(one)[0] for one in epochs}
    assert grounds >= {g.name for g in GROUNDS} - {"gap", "ack", "window"}
    for one, said in zip(epochs, judge(*epochs), strict=True):
        expected = one | oracle.judge(one, SHARES)
        assert {name: said[name] for name in CHANGED} == {name: expected[name] for name in CHANGED}, one


def test_waits_that_equal_the_handshake_are_answered() -> None:
    (said,) = judge(epoch([25.2, 24.9], network_ms=25))
    assert said["reason"] == 0
    assert said["confidence"] >= 70
    assert said["sum_ns"] / said["count"] == pytest.approx(25 * MS, rel=0.07)


@pytest.mark.parametrize(
    ("waits_ms", "values"),
    [
        ([192, 88, 192], {}),  # the radio of the client sleeps: it delays the handshake, too, but not always
        ([190], {"more": 1, "riding": TRAILING}),  # the rest of the response came later
        ([190], {"requests": 3, "more": 2, "lost": 1}),  # a request was sent again: its wait is not among these
        ([230, 225], {"requests": 1}),  # not one for each request, and only nearly the same
    ],
    ids=["sooner", "trailing", "lost", "before"],
)
def test_the_round_trip_of_the_handshake_is_not_the_latency(waits_ms: list[float], values: dict[str, int]) -> None:
    """Each of these passed for it; without what is special it is answered."""
    (said,) = judge(epoch(waits_ms, network_ms=190, **values))
    assert said["count"] == 0
    (plain,) = judge(epoch([wait if wait >= 190 else 190 for wait in waits_ms], network_ms=190))
    assert plain["confidence"] >= 70


@pytest.mark.parametrize(
    ("waits_ms", "values"),
    [
        ([48, 0.4, 60], {}),  # acknowledged late, alone
        ([25.2, 24.9], {"traits": 32}),  # the client is far from the point
        ([12, 13, 12, 11], {"riding": 15}),  # a client that polls
        ([25.2, 24.9], {"end_ns": 40 * MS - 1000}),  # times that a program invented
    ],
    ids=["delayed", "far", "polls", "coarse clock"],
)
def test_other_waits_are_not(waits_ms: list[float], values: dict[str, int]) -> None:
    network = 0.3 if waits_ms[0] < 25 or len(waits_ms) > 2 else 25
    (said,) = judge(epoch(waits_ms, network_ms=network, **values))
    assert said["count"] == 0
    assert said["reason"] > 0


TIMED, LARGE_OPENING = 2, 64


@pytest.mark.parametrize(("network_ms", "is_told"), [(0.3, False), (6, True)], ids=["near", "far"])
def test_requests_may_be_hidden_in_a_large_opening(network_ms: float, is_told: bool) -> None:
    """Unless the way takes so long that the response to another request would have come too soon."""
    values = {"reason": 0, "count": 40, "sum_ns": 40 * 10 * MS, "traits": TIMED}
    plain, large = judge(
        epoch([10] * 12, network_ms=network_ms, **values),
        epoch([10] * 12, network_ms=network_ms, **values | {"traits": TIMED | LARGE_OPENING}),
    )
    assert plain["count"] == 40
    assert (large["count"] == 40) is is_told


def test_one_late_acknowledgement_does_not_count() -> None:
    (said,) = judge(epoch([24, 220, 25, 24.5, 25], network_ms=25))
    assert said["sum_ns"] / said["count"] == pytest.approx(25 * MS, rel=0.07)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The experiment that counts how often each ground is right."""
    monkeypatch.syspath_prepend(str(ROOT / "experiments"))
    return importlib.import_module("pirate_confidence")


def test_the_confidences_are_those_that_were_counted(counted: ModuleType) -> None:
    counts = counted.read_counts()
    assert counted.confidences(counts) == SHARES
    assert {c.source for c in counts} > {counted.LAB}
    assert len({c.source for c in counts}) > 20
    assert FLOOR == oracle.FLOOR


def test_projects_that_were_left_out_are_told_the_truth(counted: ModuleType) -> None:
    found = counted.left_out(counted.read_counts())
    epochs, near, far = (sum(row[i] for row in found if isinstance(row[i], int)) for i in (1, 2, 3))
    assert epochs > 1000
    assert far <= 0.05 * epochs
    assert near >= 0.8 * epochs


# Captures on which a delayed acknowledgement was taken for latency.
MISLEADING = {
    "zeek__zeek__testing__btest__Traces__postgresql__greenhouse-app.pcap.gz": 59060,
    "wireshark__wireshark__test__captures__opcua-encrypted-with-chunking.pcapng.gz": None,
    "OISF__suricata-verify__tests__smb2-06__20171220_smb_net_user.pcap.gz": None,
}


@pytest.mark.parametrize("name", MISLEADING)
def test_a_delayed_acknowledgement_is_not_latency(name: str) -> None:
    """True latencies are below 3 ms: nothing above is said with confidence."""
    if not (WILD / name).exists():
        pytest.skip("the shared captures are not there")
    epochs = auto(WILD / name)
    port = MISLEADING[name]
    checked = 0
    for ends, row in zip(epochs.ends.tolist(), epochs.rows, strict=True):
        if port is not None and ends[4] >> 32 != port:
            continue
        checked += 1
        sure = row["count"] > 0 and row["confidence"] >= 70
        assert not sure or row["sum_ns"] / row["count"] < 1.25 * MS, ends_text(ends, "flow")
    assert checked


def auto(path: Path) -> Epochs:
    packets = PacketBatch.concatenate(list(Capture([str(path)])))
    meter = Pirate().meter("tap")
    meter.observe(packets[np.flatnonzero(Roles().from_client(packets))])
    return meter.finish()
