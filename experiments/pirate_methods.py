"""Pirate: every method on every scenario of the lab: the error of its estimates against what the client saw.

Errors are signed, of the mean of each epoch of each flow (500 ms or more), against the client's log. Needs root.

    python experiments/pirate_methods.py [--quick] [--held-back] [--seed N] [NAME...]
    python experiments/pirate_methods.py --asked [--seed N] [NAME...]

With --held-back, service times and sizes differ from those on which parameters were chosen. With --asked, only `auto`
runs, on the scenarios with required figures (tests/support/response_figures.py), and each is said to hold or not; that
takes 18 minutes, needs an idle machine, and ends with 1 if one does not hold.
"""

import argparse
import sys
import time

from pirate_lab import (
    LITERAL,
    QUICK_S,
    SEED,
    answered,
    answers,
    estimator_of,
    need_root,
    percent,
    reasons,
    recorded,
    scored_batches,
    signed,
)
from traces import show

from lab.clients import RedisBenchmark, Wrk
from lab.scenarios import SCENARIOS, Scenario, held_back, missing
from lab.score import Score, score
from lab.servers import UDP
from tests.support.response_figures import MOST_BUSY, as_required, busy, required

METHODS = ("auto", "window", "ack", "modes", LITERAL, "gap", "blind")
QUICK = ("w1-exponential", "w4-parallel-lan", "think-tenth")
RIGHT, WRONG = 0.9, 0.5  # shares of estimates within 15%: a method that holds, and one that misleads
ANSWERS = 0.5  # share of epochs from which on a method does not abstain

Row = tuple[object, ...]


def main() -> None:
    chosen = arguments()
    need_root()
    if chosen.asked:
        asked(chosen.names or [name for name in SCENARIOS if required(name)], chosen.seed)
        return
    names = chosen.names or (QUICK if chosen.quick else [name for name, one in SCENARIOS.items() if truthful(one)])
    found: dict[str, dict[str, Score]] = {}
    why: dict[str, str] = {}
    batch: dict[str, Score] = {}
    for name in names:
        if lacking := missing(SCENARIOS[name]):
            print(f"{name}: skipped, it {lacking}")
            continue
        scenario = held_back(SCENARIOS[name]) if chosen.held_back else SCENARIOS[name]
        with recorded(scenario, QUICK_S if chosen.quick else None, chosen.seed) as record:
            hidden = scenario.tunnels or scenario.server.protocol == UDP
            for method in METHODS:
                if hidden and method in ("window", "ack"):
                    continue
                epochs = answered(record.capture, estimator_of(method))
                found.setdefault(name, {})[method] = score(record.truth, answers(epochs))
                if method == "auto":
                    why[name] = reasons(epochs)
            if "batch" in name:
                batch[name] = scored_batches(record)
    show("auto: epochs, %", HEADER, [(name, *row(one["auto"]), why[name]) for name, one in found.items()])
    if batch:
        show("auto, completion of batches: epochs, %", HEADER[:-1], [(name, *row(one)) for name, one in batch.items()])
    header = ("scenario", *METHODS)
    show("signed median, %", header, [(name, *cells(one, "median")) for name, one in found.items()])
    show("within 15%, % of answered", header, [(name, *cells(one, "close")) for name, one in found.items()])
    show("abstained, % of epochs", header, [(name, *cells(one, "abstained")) for name, one in found.items()])
    show("scenarios", ("method", "right", "abstains", "misleads", "of"), [verdict(m, found) for m in METHODS])
    show_all(found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three scenarios of two seconds")
    parser.add_argument("--asked", action="store_true", help="`auto` alone, beside the required figures")
    parser.add_argument("--held-back", action="store_true", help="other service times and sizes")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("names", nargs="*", metavar="NAME", help="scenarios; default: all")
    chosen = parser.parse_args()
    if unknown := [name for name in chosen.names if name not in SCENARIOS]:
        parser.error(f"no such scenario: {', '.join(unknown)}")
    return chosen


def asked(names: list[str], seed: int) -> None:
    """Run `auto` on scenarios, and say of each whether it has the required figures."""
    began, rows = time.monotonic(), []
    if (share := busy()) > MOST_BUSY:
        print(f"others use {share:.0%} of the processors: clients will read late, and latencies seem too short")
    for name in names:
        if lacking := missing(SCENARIOS[name]):
            print(f"{name}: skipped, it {lacking}")
            continue
        with recorded(SCENARIOS[name], None, seed) as record:
            epochs = answered(record.capture, estimator_of("auto"))
            figures = (*row(score(record.truth, answers(epochs))), reasons(epochs))
        holds = as_required(name, dict(zip(HEADER[1:], map(str, figures), strict=True)))
        rows.append((name, "yes" if holds else "NO", *figures, required(name)))
        print(f"{name}: {'holds' if holds else 'does not hold'}", file=sys.stderr)
    show("auto: epochs, %", (HEADER[0], "holds", *HEADER[1:], "required"), rows)
    missed = [str(one[0]) for one in rows if one[1] == "NO"]
    print(f"{len(rows) - len(missed)} of {len(rows)} hold, in {time.monotonic() - began:.0f} s")
    if missed:
        sys.exit(f"these do not: {', '.join(missed)}")


def truthful(scenario: Scenario) -> bool:
    """Whether there is a truth for each request: not of clients that write several at once, and do not log them."""
    return scenario.client.logs or not isinstance(scenario.client, Wrk | RedisBenchmark)


HEADER = ("scenario", "epochs", "median", "within 15%", "abstained", "off by > 50%", "abstained because")


def row(one: Score) -> Row:
    """Shares in percent; those of errors are of the epochs with an estimate."""
    return one.epochs, signed(one.median), percent(one.close), percent(one.abstained), percent(one.far_off)


def cells(by_method: dict[str, Score], what: str) -> list[str]:
    """One number per method; empty if the method needs TCP headers and they are hidden."""
    form = signed if what == "median" else percent
    return [form(getattr(by_method[m], what)) if m in by_method else "-" for m in METHODS]


def verdict(method: str, found: dict[str, dict[str, Score]]) -> Row:
    """In how many scenarios it is right, abstains, or is silently wrong."""
    mine = [one[method] for one in found.values() if method in one]
    answering = [one for one in mine if one.abstained < ANSWERS]
    right = sum(one.close >= RIGHT for one in answering)
    misleads = sum(one.close < WRONG for one in answering)
    return method, right, len(mine) - len(answering), misleads, len(mine)


def show_all(found: dict[str, dict[str, Score]]) -> None:
    """Over all scenarios, each epoch with equal weight."""
    rows = []
    for method in METHODS:
        mine = [one[method] for one in found.values() if method in one]
        answered_of = [one.epochs * (1 - one.abstained) if one.epochs else 0 for one in mine]
        far = sum(one.far_off * n for one, n in zip(mine, answered_of, strict=True) if n)
        close = sum(one.close * n for one, n in zip(mine, answered_of, strict=True) if n)
        total = sum(answered_of)
        shares = (close / total, far / total) if total else (float("nan"), float("nan"))
        rows.append((method, round(total), sum(one.epochs for one in mine), *map(percent, shares)))
    show("over all scenarios", ("method", "answered", "epochs", "within 15%", "off by > 50%"), rows)


if __name__ == "__main__":
    main()
