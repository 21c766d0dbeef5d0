"""Compare: how often `wirelag compare` reports a change of an unchanged network: pairs of captures of the same network.

The captures are simulated. A connection's delay never changes here, so its samples are perfectly correlated: the worst
case for intervals that count each sample as independent. With random groups, intervals come from the differences
between groups of connections and between times (certainty.py).
"""

import argparse
from dataclasses import replace

from wirelag.capture.files import Capture
from wirelag.capture.writer import CaptureWriter
from wirelag.estimators.match import Match
from wirelag.measure.comparison import compare
from wirelag.report import Report
from wirelag.sim import Scenario, simulate
from wirelag.synopses.samples import Samples, facts

CHANGED = ("slower", "faster")


def reports(seed: int, matchers: tuple[str, ...], path: str) -> dict[str, Report]:
    """Reports of one capture's samples, with intervals from random groups and with intervals of independent samples."""
    simulation = simulate(Scenario(packets=20_000, seed=seed, servers=1))
    with CaptureWriter(path) as writer:
        for frames in simulation.frames():
            writer.write(frames.time_ns, frames.buffer, frames.offset, frames.captured, frames.wire)
    meter = Match(matchers).meter("tap")
    total = Samples()
    for packets in Capture([path]):
        found = meter.match(packets)
        total.add(found.legs, found.delays_ns)
        total.spread.add(packets.flow_key, packets.time_ns, found.rows, found.legs, found.delays_ns)
    honest = replace(total.report("match", "round_trip"), details={})
    delays = total.distribution()
    delays.certainty = None
    return {"crowds": honest, "each sample": replace(honest, **facts(delays))}


def main() -> None:
    """Print how many pairs were reported as changed."""
    import tempfile

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="8 pairs instead of 40")
    pairs = 8 if parser.parse_args().quick else 40
    print(f"{'matched':<12} {'intervals from':<14} called changed, of {pairs} pairs")
    for matchers in (("tcp", "dns"), ("handshake",)):
        called = {"crowds": 0, "each sample": 0}
        with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
            for pair in range(pairs):
                before, after = (reports(100 + 2 * pair + i, matchers, file.name) for i in range(2))
                for kind in called:
                    verdict = compare(before[kind].to_json("rtt"), after[kind].to_json("rtt")).to_json()["total"]
                    called[kind] += verdict["verdict"] in CHANGED
        for kind, count in called.items():
            print(f"{','.join(matchers):<12} {kind:<14} {count}")


if __name__ == "__main__":
    main()
