"""What the balancer measures: the same as the meter of captures, on the same packets, bit for bit."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path

import numpy as np
import pytest

from tests.oracles.pirate_modes import ClientPacket
from tests.support.balancer_program import ACK, FIN, MS, OWN, PSH, REDIRECT, ROUTER, RST, SYN, VIP, Packet, Run
from tests.support.captures import ipv4, pcap, tcp, timestamps
from tests.support.client_connections import IP_ID, TCP, TIMESTAMPS
from tests.support.effort import scaled
from tests.support.pirate_connections import CONNECTIONS, connection, shifted, tampered
from wirelag.capture.files import Capture
from wirelag.ebpf.balance_maps import BYTES_EACH, CONNECTION, MEASURES, OPENING, TAKEN
from wirelag.ebpf.dataplane import Dataplane
from wirelag.ebpf.pirate import RECORDS, KernelPirate
from wirelag.estimators.pirate import Method, Pirate
from wirelag.synopses.epochs import EPOCH, METHODS, Epochs

S = 10**9
EPOCH_NS, FEWEST = 10**8, 4  # those of the program in tests
Frames = Sequence[tuple[int, bytes]]


def usual(row: ClientPacket) -> bytes:
    """Options as Linux has them."""
    mss = b"\2\4" + row.mss.to_bytes(2, "big") if row.tcp_flags & SYN and row.mss else b""
    return mss + (timestamps(row.tsval, row.tsecr) if row.has & TIMESTAMPS else b"")


def framed(row: ClientPacket, port: int, ttl: int, options: Callable[[ClientPacket], bytes] = usual) -> bytes:
    """A row as a frame to the service."""
    payload = bytes(min(row.payload, 3000))
    body = tcp(payload, ports=(port, 80), seq=row.seq, ack=row.ack, flags=row.tcp_flags, options=options(row))
    ident = row.ip_id if row.has & IP_ID else 0
    packet = ipv4(body, 6, ident=ident, ttl=ttl, src=b"\x0a\x02\x00\x01", dst=ip_address(VIP).packed)
    return OWN + ROUTER + b"\x08\x00" + packet


def talk(name: str, rng: random.Random, share: float) -> list[ClientPacket]:
    """TCP packets of a connection, some of them changed, lost, repeated or swapped; a RST ends its last epoch."""
    rows = [row for row in tampered(connection(name)[: scaled(2000, 300)], rng, share) if row.has & TCP]
    rows = shifted(rows, 1000 * S + rng.randrange(S))
    rows = [row for row in rows if 900 * S < row.time_ns < 2000 * S]
    return [*rows, rows[-1]._replace(time_ns=rows[-1].time_ns + 60 * S, tcp_flags=RST, payload=0)]


def inside(run: Run, frames: Frames) -> Counter[str]:
    """What the program counts for these packets."""
    run.counts()
    for time_ns, frame in frames:
        run.now_ns = time_ns
        assert run.program.run(frame).result == REDIRECT
    peeked = run.balancer.peek()["a"]
    found = run.counts()["a"]
    assert peeked == replace(found, connections=0, closing=0), "a look takes nothing from the reading"
    return Counter(sum_ns=found.sum_ns, count=found.count, abstained=found.abstained, requests=found.requests)


def outside(method: Method, frames: Frames, folder: Path) -> Counter[str]:
    """What the meter of captures finds in them."""
    path = folder / "frames.pcap"
    path.write_bytes(pcap([(time_ns, frame, len(frame)) for time_ns, frame in frames], magic=0xA1B23C4D))
    table = Pirate(method, epoch_ns=EPOCH_NS, fewest=FEWEST).kernel(METHODS.index(method), 1 << 20)
    for batch in Capture([str(path)]):
        table.observe_batch(batch, True, False)
    rows = np.zeros(table.epochs, EPOCH)
    table.take(rows.view("<u8").reshape(len(rows), -1))
    rows = Epochs(rows).possible().rows
    return Counter(
        sum_ns=int(rows["sum_ns"].sum()),
        count=int(rows["count"].sum()),
        abstained=int(np.count_nonzero(rows["count"] == 0)),
        requests=int(rows["requests"].sum()),
    )


def seen(rows: Sequence[ClientPacket]) -> Sequence[ClientPacket]:
    """The packets that are measured: all from a SYN on; without one, all but the first, which only opens."""
    return rows if rows[0].tcp_flags & (SYN | ACK) == SYN else rows[1:]


@pytest.mark.parametrize("method", ["auto", "modes"])
def test_latencies_are_those_of_the_meter_in_user_space(
    make: Callable[..., Run], tmp_path: Path, method: Method
) -> None:
    """Connections of all sorts; half of them are tampered with, some are joined in the middle."""
    run, rng = make(measures=method), random.Random(7)
    run.serve("a")
    answered = 0
    for number, name in enumerate(list(CONNECTIONS) * scaled(4, 1)):
        ttl, rows = rng.choice((64, 60)), talk(name, rng, rng.choice((0.0, 0.01)))
        if rng.random() < 0.2:
            rows = rows[rng.randrange(2, 20) :]  # joined in the middle
        frames = [(row.time_ns, framed(row, 20000 + number, ttl)) for row in rows]
        found, wanted = inside(run, frames), outside(method, frames[len(rows) - len(seen(rows)) :], tmp_path)
        assert found == wanted, name
        answered += found["count"]
    assert answered > 1000
    assert not run.faults().keys() - {"unknown"}


def records(run: Run) -> list[bytes]:
    """The records of its connections, in order."""
    keys = run.plane.maps["groups"].memory().view("<u8")
    found = run.plane.maps["connections"].memory().view(CONNECTION)["flow"][keys > TAKEN]
    return sorted(record.tobytes() for record in found)


def test_records_are_those_of_the_meter_in_the_kernel(make: Callable[..., Run]) -> None:
    """Whatever a record has of the SYN is there, used or not: all its bytes are equal."""
    run, rng = make(measures="auto"), random.Random(9)
    run.serve("a")
    estimator = Pirate("auto", memory=1 << 20, epoch_ns=EPOCH_NS, fewest=FEWEST)
    with KernelPirate(estimator, replayed=True, all_are_clients=True) as meter:
        for number, name in enumerate(CONNECTIONS):
            ttl, rows = rng.choice((64, 60)), talk(name, rng, 0.0)[: rng.randrange(3, 60)]
            for row in rows if rows[0].tcp_flags & SYN else ():
                frame = framed(row, 20000 + number, ttl)
                meter.replay(frame, row.time_ns)
                run.now_ns = row.time_ns
                run.program.run(frame)
        slots = meter._groups
        keys, flows = slots[:, :64].copy().view(np.uint64), slots[:, 128:].reshape(len(slots), 8, RECORDS["auto"])
        wanted = sorted(record.tobytes() for record in flows[keys > 0])
    assert records(run) == wanted
    assert len(wanted) > 20


def odd(rng: random.Random) -> Callable[[ClientPacket], bytes]:
    """The same options in another order, among others, or with a wrong end."""

    def options(row: ClientPacket) -> bytes:
        wanted = []
        if row.tcp_flags & SYN and row.mss:
            wanted.append(b"\2\4" + row.mss.to_bytes(2, "big"))
        if row.has & TIMESTAMPS:
            wanted.append(timestamps(row.tsval, row.tsecr)[2:])
        others = [b"\1", b"\1\1", b"\4\2", b"\3\3\7", b"\5\x0a" + bytes(8), b"\x22\2"]
        parts = wanted + rng.sample(others, 2)
        rng.shuffle(parts)
        found = b"".join(parts)
        room = 40 - len(found)
        return found + rng.choice((b"", b"\0", b"\1\x08", b"\x08\x30\1\2"))[:room]

    return options


def test_options_are_read_in_any_order(make: Callable[..., Run]) -> None:
    """Wherever the MSS and the timestamps are, the record is the same."""
    run, rng, ports = make(measures="auto"), random.Random(8), range(20000, 20100)
    run.serve("a")
    rows = [row for row in connection("one")[:40] if row.has & TCP]
    assert rows[0].tcp_flags & SYN
    assert rows[0].mss
    assert rows[5].has & TIMESTAMPS
    for row in rows:
        run.now_ns = 1000 * S + row.time_ns - rows[0].time_ns
        for port in ports:
            run.program.run(framed(row, port, 64, odd(rng) if port > ports[0] else usual))
    assert len(set(records(run))) == 1
    assert not run.faults()


def test_a_connection_that_waited_is_joined_in_the_middle(make: Callable[..., Run]) -> None:
    """Too many were new at once: when it is confirmed, packets after its SYN have gone unmeasured."""
    run = make(measures="auto")
    run.settings["most_new"] = 0
    run.serve("a")
    run.send(Packet(1000, SYN, 0))
    run.send(Packet(1000, ACK, 0, seq=1, ack=1))
    assert run.faults() == {"limited": 1}
    run.settings["most_new"] = 10
    for number in range(40):
        run.now_ns += 5 * MS
        run.send(Packet(1000, seq=1 + 10 * number, ack=1 + 500 * number))
    run.send(Packet(1000, FIN | ACK, 0, seq=401, ack=1 + 500 * 40))
    counts = run.counts()["a"]
    assert counts.count == 0
    assert counts.abstained > 0
    assert counts.requests == 40


def test_the_other_method_begins_anew(make: Callable[..., Run]) -> None:
    """A takeover may change the method: connections stay, and their records are not read as those of the other."""
    run = make(measures="modes")
    run.serve("a", "b")
    homes = {port: run.connect(port) for port in range(1000, 1040)}
    for number in range(10):
        run.now_ns += 5 * MS
        for port in homes:
            run.send(Packet(port, ACK | PSH, seq=1 + 10 * number, ack=1 + 500 * number))
    assert set(run.plane.maps["connections"].memory().view(CONNECTION)["method"].tolist()) == {0, MEASURES["modes"]}
    run.counts()
    shared = {name: one for name, one in run.plane.maps.items() if name != ".rodata"}
    constants = {"replayed": 1, "measures": MEASURES["auto"]}
    with Dataplane("balance", shared=shared, constants=constants) as plane:
        run.program = plane.programs["wl_balance"]
        assert {port: run.send(Packet(port, seq=101, ack=5001)) for port in homes} == homes
        assert len(set(records(run))) == 1, "all saw the same packets since"
        joined = run.plane.maps["connections"].memory().view(CONNECTION)
        assert set(joined["method"].tolist()) == {0, MEASURES["auto"]}
        for number in range(40):
            run.now_ns += 5 * MS
            for port in homes:
                run.send(Packet(port, seq=111 + 10 * number, ack=5501 + 500 * number))
    counts = run.counts().values()
    assert sum(one.requests for one in counts) == 41 * len(homes)
    assert sum(one.count for one in counts) == 0, "what was outstanding is not known"
    assert sum(one.abstained for one in counts) >= len(homes)


def test_memory_of_a_connection() -> None:
    assert CONNECTION["flow"].itemsize == max(RECORDS.values())
    assert (CONNECTION.itemsize, OPENING.itemsize) == (280, 8 * 24)
    assert BYTES_EACH == 8 + 280 + 4 * 24 == 384
