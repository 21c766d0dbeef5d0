"""What a collector reads of a request: nothing whose cost a client could multiply, and of a stranger one request."""

import http.client
import socket
from collections.abc import Iterator
from contextlib import suppress

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import messages as naive
from tests.support.byte_edits import EDITS, edited
from tests.support.collector_process import Running
from tests.support.hostile import OF_EVIL, TOKEN, collector, opened
from tests.support.waiting import PATIENCE_S
from wirelag import _kernels
from wirelag.collector.requests import MOST_LINES, Frugal
from wirelag.transport.http import MEDIA_TYPE

MIB = 1 << 20
HEALTHY = b"GET /-/healthy HTTP/1.1\r\nHost: c\r\n\r\n"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with collector(tmp_path_factory.mktemp("requests"), "c") as found:
        yield found


def replies(running: Running, data: bytes) -> bytes:
    """All that comes back before the collector ends the connection; it is told that no more will come."""
    with opened(running, "") as line:
        with suppress(OSError):  # it may be closed before all is sent
            line.sendall(data)
            line.shutdown(socket.SHUT_WR)
        found = b""
        with suppress(ConnectionResetError):
            while part := line.recv(1 << 16):
                found += part
        return found


def statuses(data: bytes) -> list[bytes]:
    return [line.split()[1] for line in data.split(b"\r\n") if line.startswith(b"HTTP/1.1 ")]


def test_a_stranger_has_one_request(running: Running) -> None:
    """On 32 connections requests one behind the other, and bodies without end, shut everyone out for a minute."""
    found = replies(running, HEALTHY * 5)
    assert statuses(found) == [b"200"]
    assert b"\r\nconnection: close\r\n" in found
    line = http.client.HTTPConnection("127.0.0.1", int(running.url.rpartition(":")[2]), timeout=PATIENCE_S)
    for token, stays in (("no-token-of-this-collector", False), (TOKEN, True), (TOKEN, True)):
        line.request("GET", "/api/v1/status", headers={"Authorization": f"Bearer {token}"})
        answer = line.getresponse()
        assert answer.read()
        assert (answer.getheader("connection") is None, answer.status) == ((True, 200) if stays else (False, 401))
    line.close()
    for path in (b"/", b"/-/ready", b"/api/v1/status"):
        sent, more = 0, b"GET " + path + b" HTTP/1.1\r\nHost: c\r\nContent-Length: 999999999\r\n\r\n"
        with opened(running, "") as begun, suppress(ConnectionError):
            while sent < 256 * MIB:
                begun.sendall(more)
                sent, more = sent + len(more), bytes(MIB)
        assert sent < 32 * MIB  # what fits into buffers


@pytest.mark.parametrize("token", [None, OF_EVIL, TOKEN])
def test_no_chunk_is_parsed(running: Running, token: str | None) -> None:
    """A chunk of one byte costs its sender six, and the collector 10 us: 256 KiB took a second of its only loop."""
    who = f"Authorization: Bearer {token}\r\nContent-Type: {MEDIA_TYPE}\r\n" if token else ""
    for method, path in (
        ("GET", "/"),
        ("GET", "/-/healthy"),
        ("POST", "/login"),
        ("POST", "/v1/messages"),
        ("GET", "/v1/asks/C"),
        ("GET", "/api/v1/events"),
    ):
        for spelling in ("Transfer-Encoding: chunked", "transfer-encoding:\tCHUNKED", "Transfer-Encoding:\r\n chunked"):
            head = f"{method} {path} HTTP/1.1\r\nHost: c\r\n{who}{spelling}\r\n\r\n".encode()
            assert statuses(replies(running, head + b"1\r\nA\r\n" * 1000)) == [b"411"]
    assert running.counted()["requests refused"] >= 18


def test_requests_have_few_lines_before_their_body(running: Running) -> None:
    """Parsing 3,000 headers takes 15 ms, and so does each look for one of them."""
    many = b"GET /-/healthy HTTP/1.1\r\nHost: c\r\n" + b"a:b\r\n" * 3000
    assert statuses(replies(running, many + b"\r\n")) == [b"431"]
    assert statuses(replies(running, many)) == [b"431"]  # before the last has come
    assert statuses(replies(running, b"\x16\x03\x01" * 1000 + b"\r\n\r\n")) == [b"400"]
    few = b"GET /-/healthy HTTP/1.1\r\nHost: c\r\n" + b"a:b\r\n" * (MOST_LINES - 3)
    assert statuses(replies(running, few + b"\r\n")) == [b"200"]


def test_lines_of_a_body_do_not_count() -> None:
    line, body = Frugal(), b"\n" * 5000
    for _ in range(3):  # one request after the other on a connection
        line.receive_data(b"POST / HTTP/1.1\r\nHost: c\r\nContent-Length: 5000\r\n\r\n" + body[:100])
        assert isinstance(line.next_event(), h11.Request)
        line.receive_data(body[100:])
        while not isinstance(line.next_event(), h11.EndOfMessage):
            pass
        line.send(h11.Response(status_code=204, headers=[]))
        line.send(h11.EndOfMessage())
        line.start_next_cycle()


# ---- the short way of messages ----

USUAL = (
    b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n"
    b"Content-Type: application/vnd.wirelag.message\r\nContent-Length: 4\r\nWirelag-Run: 1\r\n\r\nWLAG"
)


def head_of(data: bytes) -> tuple[str, str, str, int] | None:
    found = _kernels.message_head(data, MEDIA_TYPE)
    assert found == naive.message_head(data, MEDIA_TYPE)
    return found


def test_a_message_as_agents_send_it_takes_the_short_way() -> None:
    assert head_of(USUAL) == ("x", "1", "", len(USUAL) - 4)
    asked = USUAL.replace(b"Wirelag-Run", b"WIRELAG-ASK: 3-4\r\nwirelag-run").replace(b"Bearer x", b"beareR a b")
    assert head_of(asked) == ("a b", "1", "3-4", len(asked) - 4)


@pytest.mark.parametrize(
    ("part", "instead"),
    [
        (b"POST", b"PUT"),
        (b"/v1/messages", b"/v1/messages?x=1"),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Host: a\r\n", b""),
        (b"Host: a", b"Host: a\r\nHost: b"),
        (b"Host: a", b"Host : a"),
        (b"Host: a", b"Host: a\r\n continued"),
        (b"Host: a", b"Host: a\0"),
        (b"Host: a", b"Host: a\nWirelag-Ask: 1"),
        (b"Wirelag-Run: 1", b"Transfer-Encoding: chunked"),
        (b"Wirelag-Run: 1", b"X-Forwarded-For: 192.0.2.1"),
        (b"Content-Length: 4", b"Content-Length: 5"),  # not all of it has come
        (b"Content-Length: 4", b"Content-Length: 3"),  # more than it
        (b"Content-Length: 4", b"Content-Length: +4"),
        (b"Content-Length: 4", b"Content-Length: 04"),
        (b"Content-Length: 4", b"Content-Length: 18446744073709551620"),  # 4, modulo 2^64
        (b"Content-Length: 4", b"X: 4"),
        (b"Bearer x", b"Basic x"),
        (b"Bearer x", b"Bearer"),
        (b"Bearer x", b"Bearer  x"),
        (b"Bearer x", b"Bearer x "),
        (b"Bearer x", b"Bearer \xe4"),
        (b"Authorization: Bearer x\r\n", b""),
        (b"vnd.wirelag.message", b"json"),
        (b"\r\n\r\n", b"\r\n"),
    ],
)
def test_what_is_not_exactly_like_that_takes_the_long_way(part: bytes, instead: bytes) -> None:
    assert part in USUAL
    assert head_of(USUAL.replace(part, instead)) is None


@given(st.lists(EDITS, max_size=3))
def test_any_request_is_read_as_the_plain_twin_reads_it(edits: list[tuple[int, int, bytes]]) -> None:
    words = b"\r\n", b": ", b" ", b"Host: b\r\n", b"\0", b"\xff", b"4", b"Wirelag-Ask: 1\r\n"
    head_of(edited(USUAL, edits, words))
