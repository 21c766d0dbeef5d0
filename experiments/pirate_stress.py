"""Pirate, figures 11, 12: loss, reordering, and a server under load. Needs root.

The paper's loss and reordering are between client and vantage point; lost responses are retransmitted by a server that
the point does not see, so both are shown.
"""

import numpy as np
from pirate_lab import QUICK_S, compared, latencies_ns, need_root, percent, recorded, scored, signed
from traces import arguments, show

from lab.clients import Load
from lab.scenarios import LOSSY, REORDERING, Scenario
from lab.servers import Httpd
from lab.wire import Direction, Wire

METHODS = ("auto", "modes")
LOSS_UP = Wire(Direction(5000, loss=0.01), Direction(5000))
WIRES = {"1% lost on the way up": LOSS_UP, "1% lost each way": LOSSY, "25% reordered": REORDERING}
SERVICES_US = (400, 2000)
UTILISATIONS = (0.3, 0.6, 0.9)
CONNECTIONS = 20


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    show_wires(quick)
    for service_us in SERVICES_US[1:] if quick else SERVICES_US:
        show_load(service_us, UTILISATIONS[1:2] if quick else UTILISATIONS, QUICK_S if quick else None)


def show_wires(quick: bool) -> None:
    """10 ms of round trip, exponential service of 2 ms."""
    rows = []
    for name, wire in WIRES.items():
        for in_flight in (1,) if quick else (1, 4):
            scenario = Scenario("stress", Httpd("exponential:2000"), Load(in_flight=in_flight), wire)
            with recorded(scenario, QUICK_S if quick else None) as record:
                for method in METHODS:
                    one = scored(record, method)
                    cells = one.epochs, signed(one.median), percent(one.close), percent(one.abstained)
                    rows.append((f"{method}, W = {in_flight}, {name}", *cells, percent(one.far_off)))
    show("11: loss and reordering", HEADER, rows)


HEADER = ("", "epochs", "median error, %", "within 15%, %", "abstained, %", "off by > 50%, %")


def show_load(service_us: int, utilisations: tuple[float, ...], seconds: float | None) -> None:
    """One worker for all connections; the longer clients think, the less it has to do."""
    rows = []
    for utilisation in utilisations:
        think = f"exponential:{CONNECTIONS * service_us / utilisation:.0f}"
        client = Load(think=think, think_share=1)
        scenario = Scenario("load", Httpd(f"exponential:{service_us}", "worker"), client, connections=CONNECTIONS)
        with recorded(scenario, seconds) as record:
            epochs, truth = compared(record), record.truth
            span_s = float(truth["t_response_ns"].to_numpy().max() - truth["t_request_ns"].to_numpy().min()) / 1e9
            off, rate = epochs["error"].to_numpy(), len(truth) / span_s
            cells = float(np.mean(latencies_ns(truth))) / 1e6, float(np.mean(epochs["mean_ns"].to_numpy())) / 1e6
            close = percent(float(np.mean(np.abs(off) <= 0.15)))
            name = f"{utilisation:g} asked, {rate * service_us / 1e6:.2f} reached"
            rows.append((name, f"{rate:.0f}", *cells, signed(float(np.median(off))), close))
    header = ("utilisation", "requests/s", "true, ms", "auto, ms", "median error, %", "within 15%, %")
    show(f"12: load, service of {service_us} us", header, rows)


if __name__ == "__main__":
    main()
