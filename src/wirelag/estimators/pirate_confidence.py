"""The confidence of an epoch of `pirate`: of the answers with this confidence, that share is within 25% of the truth.

Law: what an epoch shows puts it on one ground; the ground decides what is answered, and its confidence is the share of
right answers among epochs on it, counted on captures of many projects and in the lab (experiments/pirate_confidence.py
and .tsv). A ground below the floor gives no answer. Integer only: the same in user space and for epochs from the
kernel. docs/reference/pirate.md, "Confidence".

A *wait* lasts from the first packet of a request to the first acknowledgement of its response. It is an upper bound:
the acknowledgement may have been delayed, or have waited for the next request. So the median counts, not the mean,
unless both are alike; and where it equals the round trip of the handshake nothing can have been added: unless a wait
is shorter than that (a client whose radio sleeps delays both), or parts of the response came later.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wirelag.synopses.epochs import METHODS, REASONS

Array = npt.NDArray[Any]

FLOOR: Final = 50  # percent: below it an epoch is silent
KEPT: Final = 12  # waits
TIMED, EXACT, FAR, LARGE_OPENING = 2, 8, 32, 64  # of the column traits
MANY: Final = 16  # responses
MOST: Final = 4  # waits whose median tells something
FAR_NS: Final = 10_000_000  # a round trip from which on a client's own delays are small
COARSE_NS: Final = 10_000_000  # where epochs begin and end at multiples of this, clocks are coarse, or invented
ROUND_NS: Final = 2_000  # by which such times may be off: programs write fractions
LATE_NS: Final = 20_000_000  # an acknowledgement alone, this late, may have been delayed on purpose
TICKS_NS: Final = np.array([0, 10**3, 10**4, 10**5, 10**6, 2 * 10**6, 4 * 10**6, 10**7, 10**8], np.int64)
AUTO, SYN, BLIND = (METHODS.index(name) for name in ("auto", "syn", "blind"))
DOUBTFUL: Final = REASONS.index("doubtful")
_NONE: Final = np.iinfo(np.int64).max


class Ground(NamedTuple):
    """What an answer rests on."""

    name: str
    confidence: int  # percent
    says: str


GROUNDS: Final = (
    Ground("counted", 98, "bytes count requests and responses, and timestamps date them"),
    Ground("counted_only", 99, "bytes count requests and responses, without dates or fewer than 16"),
    Ground("timed", 99, "timestamps date at least 16 responses, one in flight"),
    Ground("timed_several", 97, "timestamps date at least 16 responses, several in flight"),
    Ground("agrees", 97, "timestamps date the responses, and most waits agree"),
    Ground("agrees_late", 86, "the same, but acknowledgements came alone and late"),
    Ground("network", 97, "all waits equal the round trip of the handshake"),
    Ground("network_most", 92, "the median of at least 4 waits equals the round trip of the handshake"),
    Ground("network_near", 90, "waits nearly equal the round trip of the handshake, or there are fewer than requests"),
    Ground("network_riding", 71, "waits that ended with the next request equal the round trip of the handshake"),
    Ground("weak", 26, "none of these"),
    Ground("blind", 99, "sizes and times of packets only, one in flight"),
    Ground("blind_several", 99, "sizes and times of packets only, several in flight"),
    Ground("gap", 24, "the method gap"),
    Ground("modes", 35, "the method modes"),
    Ground("ack", 46, "the method ack"),
    Ground("window", 57, "the method window"),
    Ground("syn", 60, "the round trip of the handshake instead of a response"),
)
PLACES: Final = {ground.name: place for place, ground in enumerate(GROUNDS)}
CONFIDENCES: Final = np.array([ground.confidence for ground in GROUNDS])


def judged(rows: Array) -> Array:
    """Epochs as meters give them, with an answer and its confidence, or without one and with the reason."""
    place, sum_ns, count = grounds(rows)
    confidence = CONFIDENCES[place]
    chosen = (rows["method"] != AUTO) & (rows["method"] != BLIND)  # asked for by name: never silent for doubt
    answered = (count > 0) & (chosen | (confidence >= FLOOR))
    silent = (rows["reason"] == 0) & ~answered
    changed = answered & ((sum_ns != rows["sum_ns"]) | (count != rows["count"]))
    rows = rows.copy()
    for name in ("batch_sum_ns", "batch_count", "think_sum_ns", "think_count"):
        rows[name][silent | changed] = 0
    rows["in_flight"][changed] = 1
    rows["reason"] = np.where(answered, 0, np.where(silent, DOUBTFUL, rows["reason"]))
    rows["sum_ns"], rows["count"] = np.where(answered, sum_ns, 0), np.where(answered, count, 0)
    rows["confidence"] = np.where(answered, confidence, 0)
    return rows


def grounds(rows: Array) -> tuple[Array, Array, Array]:
    """The ground of each epoch, and what it answers: a sum of latencies and their number."""
    waits_ns, kept, rides = waits_of(rows)
    middle_ns = median(waits_ns, kept)
    total_ns = np.where(waits_ns == _NONE, 0, waits_ns).sum(1)
    told, count, network_ns = rows["reason"] == 0, rows["count"], rows["network_ns"]
    timed, exact, far = ((rows["traits"] & bit) > 0 for bit in (TIMED, EXACT, FAR))
    off_ns = [(rows[name] + ROUND_NS) % COARSE_NS for name in ("start_ns", "end_ns")]
    coarse = np.maximum(*off_ns) <= 2 * ROUND_NS
    shown = _shown(rows, waits_ns, kept, middle_ns)
    several = rows["in_flight"] > 1
    late = 5 * ((waits_ns != _NONE) & ~rides & (waits_ns > LATE_NS)).sum(1) > kept
    agrees = (kept > 0) & (4 * np.abs(rows["sum_ns"] - middle_ns * count) <= middle_ns * count)
    tight = 4 * total_ns <= 5 * middle_ns * kept
    alone = 2 * (rides & (waits_ns != _NONE)).sum(1) <= kept
    one_each = (rows["requests"] > 0) & (3 * rows["requests"] <= 4 * rows["turns"])
    any_wait = (kept > 0) & (middle_ns > 0)
    near = any_wait & ~far & ~coarse & (network_ns >= FAR_NS) & ~_sooner(rows, waits_ns).any(1)
    near &= 4 * middle_ns <= 5 * network_ns
    close = near & (8 * middle_ns <= 9 * network_ns)
    in_turn = (rows["requests"] <= 2 * rows["turns"]) & (rows["doubts"] <= rows["requests"])
    in_turn &= rows["more"] <= rows["turns"]
    prompt = tight & (rows["riding"] >> KEPT == 0)  # no response had a part that came later than its wait says
    once = rows["lost"] == 0  # a packet that was sent again cost time, and not every wait shows it
    dated = told & ~exact & timed & (count >= MANY)
    by_count = told & (exact | dated)
    before = told & ~several & (2 * rows["sum_ns"] > 3 * (rows["end_ns"] - rows["start_ns"]))
    conditions = (
        ("weak", before),
        ("weak", dated & ~(shown & _possible(rows, waits_ns, kept, rides, middle_ns))),
        ("counted", by_count & exact & timed & (count >= MANY)),
        ("counted_only", by_count & exact),
        ("timed", by_count & ~several),
        ("timed_several", by_count),
        ("agrees", told & timed & agrees & shown & ~late),
        ("agrees_late", told & timed & agrees & shown & ~near),
        ("network", close & alone & prompt & one_each),
        ("network_most", close & alone & in_turn & (kept >= MOST)),
        ("network_near", near & alone & prompt & (rows["requests"] >= rows["turns"]) & (one_each | once)),
        ("network_riding", near & ~alone & prompt & one_each & once),
    )
    auto = rows["method"] == AUTO
    place = np.full(len(rows), PLACES["weak"])
    for name, holds in reversed(conditions):
        place[holds] = PLACES[name]
    by_wait = auto & (place >= PLACES["agrees"]) & any_wait & ((place < PLACES["weak"]) | ~told)
    others = {name: PLACES[name] for name in METHODS if name in PLACES}
    for name, of_method in others.items():
        place[rows["method"] == METHODS.index(name)] = of_method
    place[(rows["method"] == BLIND) & several] = PLACES["blind_several"]
    typical_ns = np.where(place == PLACES["network"], total_ns // np.maximum(kept, 1), middle_ns)
    sum_ns = np.where(by_wait, typical_ns * rows["turns"], rows["sum_ns"])
    return place, sum_ns, np.where(by_wait, rows["turns"], count)


def _possible(rows: Array, waits_ns: Array, kept: Array, rides: Array, middle_ns: Array) -> Array:
    """Whether what timestamps date can be responses to the requests that were counted.

    Several requests in one packet (HTTP/2) hide how many are in flight: responses then come sooner than a round trip.
    A request in parts, or packets that are no requests (control frames, the end of a handshake), seem to be several in
    flight. Below a tick of the server's clock, a wait that ends with the next request may be the client's own time.
    """
    sum_ns, count, requests, turns = rows["sum_ns"], rows["count"], rows["requests"], rows["turns"]
    sooner = _sooner(rows, waits_ns).sum(1)
    hidden = (sooner >= 2) & (8 * sooner > kept)
    in_turn = 8 * requests <= 9 * turns
    one_by_one = in_turn & ~hidden & (2 * sum_ns <= 3 * middle_ns * count)
    triggered = np.where(4 * rows["more"] >= turns, 4, 32) * rows["doubts"] <= requests
    in_flights = ~in_turn & triggered
    below_tick = (sum_ns < TICKS_NS[rows["tick"]] * count) & (2 * rides.sum(1) > kept)
    return np.asarray(np.where(rows["in_flight"] > 1, one_by_one | in_flights, ~hidden & ~below_tick))


def _shown(rows: Array, waits_ns: Array, kept: Array, middle_ns: Array) -> Array:
    """Whether the number in flight is known, though several requests may be hidden in a large opening packet.

    The next response after such an opening comes soon; in a network that takes half of the usual wait, too soon.
    """
    one = (kept >= 8) & ~_sooner(rows, waits_ns).any(1) & (2 * rows["network_ns"] >= middle_ns)
    return np.asarray(one | ((rows["traits"] & LARGE_OPENING) == 0))


def _sooner(rows: Array, waits_ns: Array) -> Array:
    """Which waits are shorter than the round trip of the handshake, by more than an eighth of it."""
    return np.asarray(waits_ns <= (7 * rows["network_ns"][:, None] - 1) // 8)


def waits_of(rows: Array) -> tuple[Array, Array, Array]:
    """The last waits of each epoch in ns (none: the largest number), their number, and which ended by a request."""
    codes = np.empty((len(rows), KEPT), np.int64)
    for place in range(KEPT):
        word = rows["waits"] if place < 8 else rows["waits_before"].astype(np.uint64)
        codes[:, place] = (word >> np.uint64(8 * (place % 8)) & np.uint64(255)).astype(np.int64)
    octave = np.maximum(codes >> 3, 1) - 1
    steps = np.where(codes < 8, codes, 8 + (codes & 7))
    kept = np.minimum(rows["turns"], KEPT)
    there = np.arange(KEPT) < kept[:, None]
    rides = (rows["riding"][:, None] >> np.arange(KEPT) & 1) > 0
    return np.where(there, (2 * steps + 1 << octave) * 512, _NONE), kept, rides & there


def median(waits_ns: Array, kept: Array) -> Array:
    """The middle of the waits of each row, or the mean of the two in the middle; 0 without any."""
    ordered = np.sort(waits_ns, axis=1)
    row = np.arange(len(ordered))
    low, high = (ordered[row, np.maximum(kept - 1 + more, 0) // 2] for more in (0, 1))
    return np.where(kept > 0, low // 2 + high // 2, 0)
