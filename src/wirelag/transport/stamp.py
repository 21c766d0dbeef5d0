"""STAMP over UDP: a reflector that answers test packets, and a sender that asks (RFC 8762).

Packets are timed when the kernel receives them, and just before they are sent. The reflector answers only what is a
request, from networks that it may answer, and never with more bytes than the standard's 44 or the request's. With a
key, what has no HMAC of it is not answered.
"""

from __future__ import annotations

import ipaddress
import select
import signal
import socket
import struct
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from wirelag.errors import SettingError, WirelagError
from wirelag.packets.stamp import PORT, UNSYNCHRONISED_PTP, error_estimate
from wirelag.packets.stamp_session import Reply, read_reply, read_request, reply, request
from wirelag.transport import reason

MOST_SESSIONS: Final = 4096  # that a reflector numbers replies of; the one that was quiet longest is forgotten
MOST_BYTES: Final = 9_000
MOST_AT_ONCE: Final = 64  # replies read in one go
SO_TIMESTAMPNS, IP_TTL, IP_RECVTTL = 35, 2, 12
_ANCILLARY: Final = 256
Net = ipaddress.IPv4Network | ipaddress.IPv6Network


def estimate_now() -> int:
    """The error estimate of this host's clock."""
    from wirelag.capture.host_clock import kernel_reading

    clock = kernel_reading()
    return error_estimate(clock.error_ns) if clock.synchronised else UNSYNCHRONISED_PTP


def _opened(host: str, port: int, connect: bool) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        opened = socket.socket(family, kind, protocol)
        try:
            opened.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
            if family == socket.AF_INET:
                opened.setsockopt(socket.IPPROTO_IP, IP_RECVTTL, 1)
                opened.setsockopt(socket.IPPROTO_IP, socket.IP_TTL, 255)
            else:
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVHOPLIMIT, 1)
                opened.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_UNICAST_HOPS, 255)
            opened.connect(address) if connect else opened.bind(address)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise WirelagError(f"{host} port {port}: {reason(error) if connect else _unheard(error, host, port)}") from None
    return opened


def _unheard(error: OSError, host: str, port: int) -> str:
    """Why a reflector cannot listen, and the way out."""
    if isinstance(error, socket.gaierror):
        return reason(error)
    where = f"[{host}]" if ":" in host else host
    if isinstance(error, PermissionError):
        return f"ports below 1024 need root or CAP_NET_BIND_SERVICE; choose another one, such as {where}:{port + 8000}"
    return f"cannot listen there ({error.strerror}); choose another address, or another port as {where}:PORT"


def host_and_port(text: str) -> tuple[str, int]:
    """An address as people write it; IPv6 with a port needs brackets."""
    host, colon, port = text.rpartition(":")
    if not colon or (text.count(":") > 1 and not host.endswith("]")):
        host, port = text, str(PORT)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise WirelagError(f"{text!r} is not HOST or HOST:PORT")
    return host, int(port)


def key_of(path: str) -> bytes:
    """The key in a file: its bytes, without white space around them."""
    try:
        with open(path, "rb") as file:
            key = file.read().strip()
    except OSError as error:
        raise WirelagError(
            f"{path}: cannot read ({error.strerror}); name the file of the key with --key-file"
        ) from None
    if not key:
        raise WirelagError(f"{path}: is empty; put a key there, such as the output of: openssl rand -hex 32")
    return key


def networks_of(texts: Sequence[str]) -> list[Net]:
    """Networks, as people write them."""
    try:
        return [ipaddress.ip_network(text, strict=False) for text in texts]
    except ValueError as error:
        raise SettingError("allow", f"{error}; write 10.0.0.0/8") from None


class _Received(NamedTuple):
    data: bytes
    time_ns: int
    ttl: int
    sender: Any


def _receive(opened: socket.socket) -> _Received:
    data, ancillary, _, sender = opened.recvmsg(MOST_BYTES, _ANCILLARY)
    time_ns, ttl = time.time_ns(), 255
    for level, kind, value in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, SO_TIMESTAMPNS):
            seconds, ns = struct.unpack("@ll", value[: struct.calcsize("@ll")])
            time_ns = seconds * 10**9 + ns
        elif (level, kind) in ((socket.IPPROTO_IP, IP_TTL), (socket.IPPROTO_IPV6, socket.IPV6_HOPLIMIT)):
            ttl = int.from_bytes(value[:4], "little" if struct.pack("=H", 1)[0] else "big") & 0xFF
    return _Received(data, time_ns, ttl, sender)


class Reflector:
    """Answers test packets until it is closed. `counts`: packets by what became of them."""

    def __init__(self, host: str, port: int, allowed: Sequence[Net] = (), key: bytes | None = None) -> None:
        self._key = key
        self._socket = _opened(host, port, connect=False)
        self._allowed = tuple(allowed)
        self._sessions: OrderedDict[tuple[Any, int], int] = OrderedDict()
        self.port = int(self._socket.getsockname()[1])
        self.counts: Counter[str] = Counter()
        self._estimate = estimate_now()

    def answer(self) -> None:
        """Wait for a packet, and answer it if it may be answered."""
        got = _receive(self._socket)
        asked = read_request(got.data, got.time_ns, self._key)
        if self._allowed and not self._is_allowed(got.sender[0]):
            self.counts["refused"] += 1
        elif asked is None:
            self.counts["malformed" if self._key is None else "not authentic"] += 1
        else:
            key = got.sender, asked.session
            number = self._sessions.pop(key, 0)
            self._sessions[key] = number + 1
            if len(self._sessions) > MOST_SESSIONS:
                self._sessions.popitem(last=False)
            if self.counts["answered"] % 1000 == 999:
                self._estimate = estimate_now()
            made = reply(got.data, number, got.time_ns, time.time_ns(), self._estimate, got.ttl, self._key)
            self.counts["answered"] += 1  # before its sender can know, who may end this program then
            try:
                self._socket.sendto(made, got.sender)
            except OSError:  # no route back, or a full buffer
                self.counts.update(answered=-1, failed=1)

    def _is_allowed(self, sender: str) -> bool:
        address = ipaddress.ip_address(sender.partition("%")[0])
        mapped = getattr(address, "ipv4_mapped", None) or address
        return any(mapped in net for net in self._allowed)

    def run(self, ready: Callable[[], object] = bool) -> None:
        """Answer until SIGINT or SIGTERM; `ready` is called when these end it."""

        def stop(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGTERM, stop)
        try:
            ready()
            while True:
                self.answer()
        except KeyboardInterrupt:
            pass
        except OSError as error:
            raise WirelagError(f"port {self.port}: {reason(error)}") from None
        finally:
            signal.signal(signal.SIGTERM, before)
            self.close()

    def close(self) -> None:
        """Stop answering."""
        self._socket.close()


class Exchange(NamedTuple):
    """A reply, and when it came."""

    reply: Reply
    came_ns: int


class Asker:
    """A session with one reflector that goes on: nothing here waits, and nothing that the network says ends it."""

    def __init__(self, host: str, port: int, session: int, key: bytes | None = None) -> None:
        self._host, self._port, self._session, self._key = host, port, session, key
        self._socket: socket.socket | None = None
        self.strange = 0  # packets that are no replies
        self.refused = ""  # what the network said last

    def send(self, number: int, sent_ns: int, estimate: int) -> None:
        """Send a request; one that cannot be sent is lost."""
        try:
            if self._socket is None:
                self._socket = _opened(self._host, self._port, connect=True)
                self._socket.setblocking(False)
            self._socket.send(request(number, sent_ns, estimate, self._session, key=self._key))
        except (OSError, WirelagError) as error:
            self.refused = reason(error) if isinstance(error, OSError) else str(error)

    def replies(self) -> list[Exchange]:
        """The replies that have come, some of them at a time."""
        found: list[Exchange] = []
        for _ in range(MOST_AT_ONCE if self._socket is not None else 0):
            assert self._socket is not None
            try:
                got = _receive(self._socket)
            except BlockingIOError:
                break
            except OSError as error:
                self.refused = reason(error)
                continue
            one = read_reply(got.data, got.time_ns, self._key)
            if one is None:
                self.strange += 1
            else:
                found.append(Exchange(one, got.time_ns))
        return found

    def sockets(self) -> list[socket.socket]:
        """What to wait for."""
        return [] if self._socket is None else [self._socket]

    def close(self) -> None:
        """End the session."""
        if self._socket is not None:
            self._socket.close()


class Sent(NamedTuple):
    """What a session gave: how many requests were sent, and their replies."""

    requests: int
    exchanges: list[Exchange]
    duplicates: int
    strange: int  # packets that are no reply to a request of this session
    refused: str = ""  # what the network said last, such as that no program listens there


def ask(
    host: str,
    port: int,
    count: int,
    every_s: float,
    wait_s: float,
    length: int,
    session: int,
    key: bytes | None = None,
) -> Sent:
    """Send requests at this pace, and gather replies until `wait_s` after the last; ^C ends it early.

    What the network says of a packet (ICMP) ends nothing: anyone can forge it, and the next one may pass.
    """
    estimate, sent = estimate_now(), 0
    found: dict[int, Exchange] = {}
    duplicates = strange = 0
    refused = ""
    with _opened(host, port, connect=True) as opened:
        begin = time.monotonic()
        end = begin + (count - 1) * every_s + wait_s
        try:
            while len(found) < count:
                due = begin + sent * every_s if sent < count else end
                left_s = due - time.monotonic()
                if left_s > 0 and not select.select([opened], [], [], left_s)[0]:
                    continue
                if left_s <= 0:
                    if sent == count:
                        break
                    try:
                        opened.send(request(sent, time.time_ns(), estimate, session, length, key))
                    except OSError as error:  # also of the packet before
                        refused = reason(error)
                    sent += 1
                    continue
                try:
                    got = _receive(opened)
                except OSError as error:
                    refused = reason(error)
                    continue
                one = read_reply(got.data, got.time_ns, key)
                if one is None or one.request >= sent:
                    strange += 1
                elif one.request in found:
                    duplicates += 1
                else:
                    found[one.request] = Exchange(one, got.time_ns)
        except KeyboardInterrupt:
            pass
    return Sent(sent, [found[number] for number in sorted(found)], duplicates, strange, refused)
