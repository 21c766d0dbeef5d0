"""Pirate, figure 13: `modes` with and without each heuristic of appendix D. Needs root.

The ACK rule: pure ACKs are left out. The MTU rule: a gap after a full packet cannot be the gap between batches. To turn
the first off, pure ACKs lose their TCP headers, so that they count as any other packet; to turn the second off, no
packet is as long as a full one. Retransmissions, and estimates below the round trip of the handshake, are always left
out. `literal` is Algorithm 2 to the letter: no significance rule, an absolute epsilon. Large responses cause pure ACKs,
large requests full packets.
"""

import numpy as np
import numpy.typing as npt
from pirate_lab import QUICK_S, Recorded, answers, need_root, percent, recorded, signed
from traces import arguments, show

from lab.clients import Load
from lab.scenarios import FAR, SCENARIOS, Scenario
from lab.score import score
from lab.servers import Httpd
from tests.oracles.pirate_modes import FULL_LENGTH
from wirelag.capture.files import Capture
from wirelag.estimators.pirate import Pirate
from wirelag.packets.batch import Kind, PacketBatch, TcpFlag
from wirelag.packets.roles import Roles

CASES = {
    "responses of 20 kB, W = 1": SCENARIOS["w1-20k"],
    "requests of 60 kB, W = 1, 10 ms RTT": Scenario("w1-post-60k", Httpd("exponential:2000"), Load(post=60_000), FAR),
    "pages, W = 4": SCENARIOS["pages-equal"],
}
SWITCHES = {"both": (True, True), "no ACK rule": (False, True), "no MTU rule": (True, False), "neither": (False, False)}
ESTIMATORS = {"modes": Pirate("modes"), "literal": Pirate("modes", literal=True)}
Rows = npt.NDArray[np.int64]
STARTS_OR_ENDS = np.uint8(TcpFlag.SYN | TcpFlag.FIN | TcpFlag.RST)


def main() -> None:
    quick = arguments(__doc__).quick
    need_root()
    for name, scenario in list(CASES.items())[: 2 if quick else None]:
        with recorded(scenario, QUICK_S if quick else None) as record:
            show_switches(name, record)


def show_switches(name: str, record: Recorded) -> None:
    """The error of `modes` for each setting of the two switches."""
    packets = client_packets(record)
    rows = []
    for method, estimator in ESTIMATORS.items():
        for switches, (acks, mtu) in SWITCHES.items():
            meter = estimator.meter("tap")
            meter.observe(without_rules(packets, acks, mtu))
            one = score(record.truth, answers(meter.finish()))
            shares = (signed(one.median), percent(one.close), percent(one.abstained))
            rows.append((f"{method}, {switches}", one.epochs, *shares))
    counts = f"{len(pure_acks(packets))} pure ACKs and {len(full_packets(packets))} full packets of {len(packets)}"
    show(f"13: {name}: {counts}", ("", "epochs", "median error, %", "within 15%, %", "abstained, %"), rows)


def client_packets(record: Recorded) -> PacketBatch:
    """The client's packets."""
    roles = Roles()
    return PacketBatch.concatenate([batch[roles.from_client(batch)] for batch in Capture([str(record.capture)])])


def pure_acks(packets: PacketBatch) -> Rows:
    """All but the first of a flow, which is the handshake's and gives the network's share."""
    is_pure = (packets.kind == Kind.TCP) & (packets.payload_length == 0) & (packets.message & STARTS_OR_ENDS == 0)
    rows = np.flatnonzero(is_pure)
    _, first = np.unique(packets.flow_key[rows], return_index=True)
    return np.delete(rows, first)


def full_packets(packets: PacketBatch) -> Rows:
    return np.flatnonzero(packets.wire_length >= FULL_LENGTH)


def without_rules(packets: PacketBatch, acks: bool, mtu: bool) -> PacketBatch:
    """The packets changed so that a disabled rule does not apply."""
    changed = packets[np.arange(len(packets))]  # a copy
    if not acks:
        changed.kind[pure_acks(packets)] = Kind.OTHER
    if not mtu:
        changed.wire_length[full_packets(packets)] = FULL_LENGTH - 1
    return changed


if __name__ == "__main__":
    main()
