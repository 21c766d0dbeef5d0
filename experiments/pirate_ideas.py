"""Pirate, figure 10: each idea alone, at several depths of the pipeline. Needs root.

The request-to-request delay of causal pairs comes from the client's log; all others see the client's packets.
`gap` has the paper's threshold, 0.6 of the true latency. `modes, literal` is Algorithm 2 to the letter: no significance
rule, an absolute epsilon. Both kinds of `modes` have the heuristics of appendix D; pirate_heuristics.py turns them off.
"""

import numpy as np
import polars as pl
from pirate_lab import LITERAL, QUICK_S, Recorded, latencies_ns, need_root, percent, recorded, scored, signed
from traces import arguments, show

from lab.clients import Load
from lab.scenarios import Scenario
from lab.servers import Httpd

THRESHOLD = 0.6  # share of the true latency
DEPTHS = (4, 8, 16)
METHODS = ("gap", LITERAL, "modes", "ack", "window", "auto")
PATTERNS = ("sliding", "batch", "pages")


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    for depth in DEPTHS[:1] if quick else DEPTHS:
        for pattern in PATTERNS[:2] if quick else PATTERNS:
            size = "constant:10000" if pattern == "pages" else "constant:500"
            server = (
                Httpd(f"exponential:{1250 * depth}") if pattern == "sliding" else Httpd("exponential:2000", "serial")
            )
            scenario = Scenario("ideas", server, Load(pattern, depth, response=size))
            with recorded(scenario, QUICK_S if quick else None) as record:
                show_methods(f"10: {pattern}, {depth} in flight", record, depth if pattern == "sliding" else 0)


def show_methods(title: str, record: Recorded, depth: int) -> None:
    """The error of each; with a sliding window also the delay of causal pairs."""
    rows: list[tuple[object, ...]] = []
    if depth:
        rows.append(("request to request", "-", signed(causal_error(record.truth, depth)), "-", "-"))
    gap_ns = int(THRESHOLD * float(np.mean(latencies_ns(record.truth))))
    for method in METHODS:
        one = scored(record, method, gap_ns)
        rows.append((method, one.epochs, signed(one.median), percent(one.close), percent(one.abstained)))
    show(title, ("", "epochs", "median error, %", "within 15%, %", "abstained, %"), rows)


def causal_error(truth: pl.DataFrame, depth: int) -> float:
    """The median connection: a response makes room for the request `depth` after its own."""
    errors = []
    for part in truth.partition_by("flow_key"):
        asked_ns = np.sort(part["t_request_ns"].to_numpy())
        errors.append(float(np.mean(asked_ns[depth:] - asked_ns[:-depth])) / float(np.mean(latencies_ns(part))) - 1)
    return float(np.median(errors))


if __name__ == "__main__":
    main()
