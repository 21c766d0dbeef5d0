"""Packets of clients as a load balancer forwards them to servers, one of which is slow for a while.

`python -m tests.support.balancer_packets FILE` writes tests/data/balance.pcap.gz: four servers that answer after
20 ms, the second one after 100 ms from the third second to the ninth; connections last for a second. Two
milliseconds, the duration of the handshake, pass before the first request of a connection.
"""

import struct
import sys
from pathlib import Path

import numpy as np

from wirelag.balance.simulation import Farm, Outcome, Slowdown, simulate
from wirelag.capture.writer import CaptureWriter

SERVICE, PORT = "192.0.2.10", 80
MACS = [bytes([2, 0, 0, 0, 0, 11 + i]) for i in range(8)]
HERE = bytes([2, 0, 0, 0, 0, 1])
BEGIN_NS = 1_700_000_000 * 10**9
HANDSHAKE_S = 0.002
FARM = Farm(clients=12, service_s=0.02, shape=16, seconds=16, slowdowns=(Slowdown(1, 3, 9),), seed=1)
CONFIG = """\
[service]
address = "192.0.2.10"
ports = [80]
""" + "".join(
    f"""
[[backends]]
name = "web{i}"
address = "10.0.0.{10 + i}"
mac = "{MACS[i - 1].hex(":")}"
"""
    for i in range(1, 5)
)


def frames(outcome: Outcome) -> list[tuple[int, bytes]]:
    """Time and bytes of each packet, in order."""
    found, numbers = [], dict[int, int]()
    for sent in outcome.sent:
        number = numbers.get(sent.connection, 0)
        numbers[sent.connection] = number + (sent.kind == "request")
        flags, seq, ack, payload = {
            "syn": (2, 0, 0, b""),
            "request": (24, 1 + 100 * number, 1 + 500 * number, bytes(100)),
            "fin": (17, 1 + 100 * number, 1 + 500 * number, b""),
        }[sent.kind]
        time_s = sent.time_s - (HANDSHAKE_S if sent.kind == "syn" else 0)
        tcp = struct.pack("!HHIIBBHHH", 20_000 + sent.connection, PORT, seq, ack, 80, flags, 64_240, 0, 0) + payload
        client = bytes([198, 51, 100, 1 + sent.connection % 200])
        vip = bytes(map(int, SERVICE.split(".")))
        ip = struct.pack("!BBHHHBBH", 69, 0, 20 + len(tcp), number, 0x4000, 64, 6, 0) + client + vip
        found.append((BEGIN_NS + round(time_s * 1e9), MACS[sent.server] + HERE + b"\x08\x00" + ip + tcp))
    return sorted(found)


def write(path: Path, farm: Farm = FARM) -> None:
    """Write the packets of a farm's clients, with equal weights."""
    packets = frames(simulate(farm, "equal"))
    sizes = np.array([len(frame) for _, frame in packets])
    buffer = np.frombuffer(b"".join(frame for _, frame in packets), np.uint8)
    times_ns = np.array([time_ns for time_ns, _ in packets])
    with CaptureWriter(str(path), snaplen=66) as writer:
        writer.write(times_ns, buffer, np.cumsum(sizes) - sizes, np.minimum(sizes, 66), sizes)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
