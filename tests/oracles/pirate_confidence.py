"""The confidence of one epoch, in plain Python. The twin of `wirelag.estimators.pirate_confidence`.

Follows the section "Confidence" of `docs/reference/pirate.md`. An epoch is a mapping of the columns to numbers; the
shares of grounds are the code's: experiments/pirate_confidence.py has what they come from.
"""

from collections.abc import Mapping
from fractions import Fraction

TIMED, EXACT, FAR, LARGE_OPENING = 2, 8, 32, 64
ANSWERED, DOUBTFUL = 0, 16
NAMES = ("gap", "modes", "ack", "window", "syn", "auto", "blind")
FLOOR = 50


def wait_ns(byte: int) -> int:
    steps, octave = (byte, 0) if byte < 8 else (8 + byte % 8, byte // 8 - 1)
    return ((2 * steps + 1) << octave) * 512


def ground(epoch: Mapping[str, int]) -> tuple[str, int, int]:
    """The ground, and what it answers."""
    told = (epoch["sum_ns"], epoch["count"])
    name = NAMES[epoch["method"]]
    if name != "auto":
        return ("blind_several" if name == "blind" and epoch["in_flight"] > 1 else name, *told)
    k = min(epoch["turns"], 12)
    words = [*epoch["waits"].to_bytes(8, "little"), *epoch["waits_before"].to_bytes(4, "little")]
    waits = [wait_ns(byte) for byte in words[:k]]
    rides = [bool(epoch["riding"] >> i & 1) for i in range(k)]
    ordered = sorted(waits)
    m = ordered[(k - 1) // 2] // 2 + ordered[k // 2] // 2 if k else 0
    by_wait = (m * epoch["turns"], epoch["turns"])
    where = place(epoch, waits, rides, m)
    if where in ("counted", "counted_only", "timed", "timed_several"):
        return (where, *told)
    if where == "network":
        return (where, sum(waits) // k * epoch["turns"], epoch["turns"])
    if where == "weak" and (epoch["reason"] == ANSWERED or m == 0):
        return (where, *told)
    return (where, *by_wait)


def place(epoch: Mapping[str, int], waits: list[int], rides: list[bool], m: int) -> str:
    k, network_ns, traits = len(waits), epoch["network_ns"], epoch["traits"]
    timed, exact, far = (bool(traits & bit) for bit in (TIMED, EXACT, FAR))
    late = sum(wait > 20_000_000 and not riding for wait, riding in zip(waits, rides, strict=True)) * 5 > k
    agrees = k > 0 and 4 * abs(epoch["sum_ns"] - m * epoch["count"]) <= m * epoch["count"]
    is_coarse = all(is_round(epoch[name]) for name in ("start_ns", "end_ns"))
    near = k > 0 and m > 0 and not far and not is_coarse and network_ns >= 10_000_000
    near = near and min(waits) >= Fraction(7, 8) * network_ns and m <= Fraction(5, 4) * network_ns
    close = near and m <= Fraction(9, 8) * network_ns
    is_shown = shown(epoch, waits, m)
    alone, prompt = 2 * sum(rides) <= k, 4 * sum(waits) <= 5 * m * k and epoch["riding"] < 4096
    one_each = epoch["requests"] > 0 and epoch["requests"] <= Fraction(4, 3) * epoch["turns"]
    if epoch["reason"] == ANSWERED:
        if epoch["in_flight"] <= 1 and epoch["sum_ns"] > Fraction(3, 2) * (epoch["end_ns"] - epoch["start_ns"]):
            return "weak"
        if exact:
            return "counted" if timed and epoch["count"] >= 16 else "counted_only"
        if timed and epoch["count"] >= 16:
            if not (is_shown and possible(epoch, waits, rides, m)):
                return "weak"
            return "timed" if epoch["in_flight"] <= 1 else "timed_several"
        if timed and agrees and is_shown and not late:
            return "agrees"
        if timed and agrees and is_shown and not near:
            return "agrees_late"
    in_turn = epoch["requests"] <= 2 * epoch["turns"] and epoch["doubts"] <= epoch["requests"]
    in_turn = in_turn and epoch["more"] <= epoch["turns"]
    if close and alone and prompt and one_each:
        return "network"
    if close and alone and in_turn and k >= 4:
        return "network_most"
    if near and alone and prompt and epoch["requests"] >= epoch["turns"] and (one_each or epoch["lost"] == 0):
        return "network_near"
    if near and not alone and prompt and one_each and epoch["lost"] == 0:
        return "network_riding"
    return "weak"


def is_round(time_ns: int) -> bool:
    return abs(time_ns - 10_000_000 * round(Fraction(time_ns, 10_000_000))) <= 2_000


TICKS_NS = (0, 1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 10_000_000, 100_000_000)


def possible(epoch: Mapping[str, int], waits: list[int], rides: list[bool], m: int) -> bool:
    sooner = sum(Fraction(wait, epoch["network_ns"]) < Fraction(7, 8) for wait in waits if epoch["network_ns"] > 0)
    hidden = sooner >= 2 and sooner > Fraction(len(waits), 8)
    if epoch["in_flight"] <= 1:
        below_tick = epoch["sum_ns"] < TICKS_NS[epoch["tick"]] * epoch["count"]
        return not hidden and not (below_tick and sum(rides) > len(rides) / 2)
    if epoch["requests"] <= Fraction(9, 8) * epoch["turns"]:
        return not hidden and epoch["sum_ns"] <= Fraction(3, 2) * m * epoch["count"]
    few = 4 if epoch["more"] >= epoch["turns"] / 4 else 32
    return few * epoch["doubts"] <= epoch["requests"]


def shown(epoch: Mapping[str, int], waits: list[int], m: int) -> bool:
    if not epoch["traits"] & LARGE_OPENING:
        return True
    is_long_way = epoch["network_ns"] > 0 and 2 * epoch["network_ns"] >= m
    return is_long_way and len(waits) >= 8 and min(waits) >= Fraction(7, 8) * epoch["network_ns"]


def judge(epoch: Mapping[str, int], shares: Mapping[str, int]) -> dict[str, int]:
    """The columns that change."""
    where, sum_ns, count = ground(epoch)
    is_named = NAMES[epoch["method"]] not in ("auto", "blind")
    if count > 0 and (is_named or shares[where] >= FLOOR):
        changed = {"sum_ns": sum_ns, "count": count, "reason": ANSWERED, "confidence": shares[where]}
        is_same = (sum_ns, count) == (epoch["sum_ns"], epoch["count"])
        return changed if is_same else changed | NOTHING | {"in_flight": 1}
    silent = {"sum_ns": 0, "count": 0, "confidence": 0}
    return silent | {"reason": DOUBTFUL} | NOTHING if epoch["reason"] == ANSWERED else silent


NOTHING = dict.fromkeys(("batch_sum_ns", "batch_count", "think_sum_ns", "think_count"), 0)
