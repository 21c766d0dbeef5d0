"""Captures of servers that are seen in both directions beside servers and flows that are not."""

import random
from pathlib import Path

from tests.support.captures import ethernet, ipv4, pcap, tcp, udp
from tests.support.client_loops import BEGIN_NS, MS, Loop, run

CLIENT, SERVER = b"\x0a\0\0\1", b"\x0a\1\0\1"
HTTP, STREAM = 80, 5555
SYN, ACK, PUSH = 0x02, 0x10, 0x18
Frames = list[tuple[int, bytes]]


def _framed(body: bytes, protocol: int, from_client: bool) -> bytes:
    src, dst = (CLIENT, SERVER) if from_client else (SERVER, CLIENT)
    return ethernet(ipv4(body, protocol, src=src, dst=dst))


def exchanges(port: int, count: int, took_ms: int, server_port: int = HTTP, every_ms: int = 50) -> Frames:
    """A TCP connection in both directions: a request every so often, and a response that took so long."""
    made: Frames = []
    sent = {True: 1000, False: 5000}

    def send(ms: float, from_client: bool, size: int = 0, flags: int = ACK) -> None:
        ports = (port, server_port) if from_client else (server_port, port)
        ack = 0 if flags == SYN else sent[not from_client]
        body = tcp(b"x" * size, ports=ports, seq=sent[from_client], ack=ack, flags=flags)
        made.append((BEGIN_NS + round(ms * MS), _framed(body, 6, from_client)))
        sent[from_client] += size + (flags & SYN > 0)

    begin = port % 40
    send(begin, True, flags=SYN)
    send(begin + 1, False, flags=SYN | ACK)
    send(begin + 2, True)
    for turn in range(count):
        at = begin + 10 + turn * every_ms
        send(at, True, 100, PUSH)
        send(at + took_ms, False, 400, PUSH)
        send(at + took_ms + 1, True)
    return made


def stream(port: int, seconds: float, server_port: int = STREAM, seed: int = 1) -> Frames:
    """Datagrams in both directions at random times: none is a request, and none a response."""
    rng = random.Random(seed)
    made: Frames = []
    for from_client in (True, False):
        now_ns, ports = BEGIN_NS, (port, server_port) if from_client else (server_port, port)
        while now_ns < BEGIN_NS + seconds * 1e9:
            now_ns += round(rng.expovariate(1 / (8 * MS)))
            made.append((now_ns, _framed(udp(b"y" * 160, ports), 17, from_client)))
    return made


def in_step(port: int, seconds: float, after_ms: float, every_ms: float = 20, server_port: int = STREAM) -> Frames:
    """Datagrams of a size at a steady pace, and others as many milliseconds after each: they always take turns."""
    made: Frames = []
    for i in range(int(1000 * seconds / every_ms)):
        for from_client, late in ((True, 0.0), (False, after_ms)):
            ports = (port, server_port) if from_client else (server_port, port)
            at_ns = BEGIN_NS + round((i * every_ms + late) * MS)
            made.append((at_ns, _framed(udp(b"y" * 160, ports), 17, from_client)))
    return made


def from_client_only(loop: Loop, seed: int, port: int, server_port: int = HTTP) -> Frames:
    """The packets that the client of a loop sent; TCP if it has a handshake."""
    made: Frames = []
    for packet in run(loop, seed)[0]:
        payload, ports = bytes(packet.payload), (port, server_port)
        segment = tcp(payload, ports=ports, seq=packet.seq, ack=packet.ack, flags=packet.tcp_flags)
        body, protocol = (segment, 6) if packet.has else (udp(payload, ports), 17)
        made.append((packet.time_ns, _framed(body, protocol, True)))
    return made


def write(path: Path, *flows: Frames) -> Path:
    """All frames in order of time."""
    records = sorted((frame for flow in flows for frame in flow), key=lambda record: record[0])
    path.write_bytes(pcap([(ns, frame, len(frame)) for ns, frame in records], magic=0xA1B23C4D))
    return path
