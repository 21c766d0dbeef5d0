"""Strangers at the door of a collector: handshakes that never end, and the memory that they take."""

import http.client
import json
import socket
import ssl
import subprocess
import sys
import weakref
from collections import Counter, deque
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.support.effort import FULL
from tests.support.hostile import SEGMENTS, TOKEN, collector, opened, peak_bytes
from tests.support.transport_peers import make_certificate
from tests.support.waiting import PATIENCE_S
from wirelag.collector.certificates import made
from wirelag.collector.connections import (
    CONNECTION_BYTES,
    HANDSHAKES,
    MOST_GARBAGE,
    MOST_LEAVING,
    Door,
    Visitor,
    Visitors,
)
from wirelag.collector.settings import Settings

MIB = 1 << 20
FEW_FILES = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_NOFILE, (192, 192)); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def test_handshakes_that_never_end_shut_nobody_out(tmp_path: Path) -> None:
    """With 512 file descriptors, 560 connections without a handshake, and 112 MB of tracebacks."""
    made, key = make_certificate(tmp_path)
    words, few = ("--certificate", str(made), "--key", str(key)), (sys.executable, "-c", FEW_FILES)
    context = ssl.create_default_context(cafile=made)
    with collector(tmp_path, "tls", SEGMENTS, *words, prefix=few) as running, ExitStack() as lines:
        where = urlsplit(running.url)
        for _ in range(3):
            for _ in range(100):
                lines.enter_context(opened(running, ""))
            line = http.client.HTTPSConnection("127.0.0.1", where.port, timeout=PATIENCE_S, context=context)
            with closing(line):
                line.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
                assert line.getresponse().status == 200
    assert len(running.log) < 1000


@pytest.mark.acceptance
def test_handshakes_that_never_end_leave_no_memory(tmp_path: Path) -> None:
    """8,000 connections of a stranger in two seconds took 2.2 GB, for ever: each failed handshake left its buffer."""
    made, key = make_certificate(tmp_path)
    with collector(tmp_path, "left", SEGMENTS, "--certificate", str(made), "--key", str(key)) as running:
        before, lines = peak_bytes(running), deque[socket.socket]()
        for _ in range(8000):
            with suppress(ConnectionError):  # beyond its share
                lines.append(opened(running, "\x16\x03\x01"))
            if len(lines) > 300:
                lines.popleft().close()
        assert peak_bytes(running) - before < 400 * MIB
        for line in lines:
            line.close()


def test_nobody_is_admitted_until_handshakes_that_were_sent_off_are_closed() -> None:
    visitors = Visitors(1024, 2, 2, Counter())
    taken: list[Visitor] = []
    with Door.at(socket.create_server(("127.0.0.1", 0)), visitors) as door, ExitStack() as lines:

        def come(is_met: bool) -> None:
            lines.enter_context(socket.create_connection(door.getsockname()))
            visitor, peer = door.accept()
            assert isinstance(visitor, Visitor)
            taken.append(lines.enter_context(visitor))
            if is_met:
                visitors.met(peer)

        for _ in range(10):  # HTTP has begun: the server may still have work with them
            come(is_met=True)
        for number in range(MOST_LEAVING + 2):
            assert visitors.leaving == max(0, number - 2)
            come(is_met=False)
        with pytest.raises(BlockingIOError):
            come(is_met=False)
        taken[12].close()
        lines.enter_context(door.accept()[0])
        assert visitors.leaving == MOST_LEAVING


def test_what_failed_handshakes_leave_is_collected() -> None:
    visitors, left = Visitors(1024, 512, 2, Counter()), list[weakref.ref[Counter[str]]]()
    with Door.at(socket.create_server(("127.0.0.1", 0)), visitors) as door:
        for _ in range(MOST_GARBAGE + 1):
            with socket.create_connection(door.getsockname()), door.accept()[0]:
                cycle: Counter[Any] = Counter()
                cycle["itself"] = cycle  # type: ignore[assignment]
                left.append(weakref.ref(cycle))
                del cycle
    assert all(one() is None for one in left[:-1])


def test_a_connection_that_falls_silent_ends_soon() -> None:
    """An agent that was cut off reads its asks elsewhere: a connection that TCP keeps for minutes must not get them."""
    with (
        Door.at(socket.create_server(("127.0.0.1", 0)), Visitors(8, 3, 2, Counter())) as door,
        socket.create_connection(door.getsockname()),
        door.accept()[0] as line,
    ):
        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert 0 < line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 10_000


def test_visitors_are_bounded_and_the_oldest_stranger_goes() -> None:
    counted: Counter[str] = Counter()
    visitors = Visitors(8, 3, 2, counted)
    ends = [socket.socketpair() for _ in range(30)]

    def visitor(number: int, address: str) -> Visitor:
        made = Visitor(fileno=ends[number][0].detach())
        made.visitors, made.peer, made.address, made.since_s = visitors, (address, number), address, 0.0
        return made

    first = [visitor(number, "a") for number in range(3)]
    assert all(map(visitors.come, first))
    assert visitors.known(("a", 0), "P")
    late = [visitor(number, "a") for number in range(3, 6)]
    assert all(map(visitors.come, late))
    assert (len(visitors), visitors.strangers) == (4, 3)  # the one that is known stays
    assert ends[1][1].recv(1) == b""  # the oldest went
    others = [visitor(number, f"b{number}") for number in range(6, 12)]
    assert all(map(visitors.come, others))  # whoever comes gets in, at the cost of those who have most
    assert visitors.strangers == 4
    assert visitors.known(("b11", 11), "P")
    assert visitors.known(("b10", 10), "P") is False
    for one in (*first, *late, *others):
        one.close()
    assert len(visitors) == 0
    assert counted["strangers sent off"] == 7
    for _, end in ends:
        end.close()
    for end, _ in ends[12:]:
        end.close()


def test_an_address_without_a_token_gets_few_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who shows a token is no burden; other addresses are free; time brings more."""
    monkeypatch.setattr("wirelag.collector.connections.HANDSHAKES", 3)
    monkeypatch.setattr("wirelag.collector.connections.HANDSHAKES_PER_S", 1e-3)
    counted: Counter[str] = Counter()
    visitors = Visitors(64, 32, 32, counted, tls=True)
    with Door.at(socket.create_server(("127.0.0.1", 0)), visitors) as door, ExitStack() as lines:
        door.setblocking(False)

        def come(source: str) -> tuple[str, int]:
            lines.enter_context(socket.create_connection(door.getsockname(), source_address=(source, 0)))
            visitor, peer = door.accept()
            lines.enter_context(visitor)
            return peer[0], peer[1]

        peers = [come("127.0.0.9") for _ in range(3)]
        with pytest.raises(BlockingIOError):
            come("127.0.0.9")
        assert (len(visitors), visitors.failed, counted["connections refused"]) == (3, 0, 1)
        come("127.0.0.8")
        assert visitors.known(peers[0], "P")
        come("127.0.0.9")
        with pytest.raises(BlockingIOError):
            come("127.0.0.9")
        monkeypatch.setattr("wirelag.collector.connections.time.monotonic", lambda: 1e9)
        come("127.0.0.9")


@pytest.mark.acceptance
def test_a_flood_of_handshakes_shuts_no_other_address_out(tmp_path: Path) -> None:
    """30,000 recorded hellos of one stranger kept newcomers out for 11 s; each cost the collector a signature."""
    certificate, key = make_certificate(tmp_path)
    context, coming, hello = ssl.create_default_context(cafile=certificate), ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(coming, hello, server_hostname="127.0.0.1").do_handshake()
    recorded, words = hello.read(), ("--certificate", str(certificate), "--key", str(key))
    with collector(tmp_path, "flood", SEGMENTS, *words) as running, ExitStack() as lines:
        port = urlsplit(running.url).port or 0
        for _ in range(3 * HANDSHAKES):
            with suppress(ConnectionError):
                line = socket.create_connection(("127.0.0.1", port), PATIENCE_S, source_address=("127.0.0.9", 0))
                lines.enter_context(line)
                line.sendall(recorded)
        asked = http.client.HTTPSConnection("127.0.0.1", port, timeout=PATIENCE_S, context=context)
        with closing(asked):
            asked.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {TOKEN}"})
            counted = json.loads(asked.getresponse().read())["counted"]
        assert counted["connections refused"] > HANDSHAKES


def test_a_handshake_is_not_repeated_on_a_connection(tmp_path: Path) -> None:
    """Renegotiation of TLS 1.2: OpenSSL 1.1.1 allows it to clients unless it is told not to, later ones do not."""
    certificate, key = make_certificate(tmp_path)
    context = made(Settings("127.0.0.1", 0, "", certificate=str(certificate), key=str(key)))
    assert context.options & ssl.OP_NO_RENEGOTIATION
    with socket.create_server(("127.0.0.1", 0)) as door:
        words = ("openssl", "s_client", "-tls1_2", "-connect", f"127.0.0.1:{door.getsockname()[1]}")
        client = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert client.stdin is not None
        plain, _ = door.accept()
        with context.wrap_socket(plain, server_side=True) as line:
            client.stdin.write(b"R\n")
            client.stdin.flush()
            with suppress(OSError):
                assert line.recv(1) == b""
        said = client.communicate(timeout=PATIENCE_S)[0].decode()
    assert "RENEGOTIATING" in said
    assert "no renegotiation" in said


def test_a_connection_with_tls_takes_little_memory(tmp_path: Path) -> None:
    """Points with right tokens that wait for asks on many connections: each had a buffer of 256 KiB."""
    made, key = make_certificate(tmp_path)
    context, count = ssl.create_default_context(cafile=made), 4000 if FULL else 100
    more = ("--certificate", str(made), "--key", str(key))
    with collector(tmp_path, "many", SEGMENTS, *more) as running, ExitStack() as lines:
        port = urlsplit(running.url).port or 0
        before = 0
        for number in range(count + 10):
            if number == 10:  # what is loaded with the first ones is the program's
                before = peak_bytes(running)
            plain = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
            line = lines.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            line.sendall(f"GET /v1/asks/C HTTP/1.1\r\nHost: c\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            assert b" 200 " in line.recv(1000)
        assert peak_bytes(running) - before < count * CONNECTION_BYTES
