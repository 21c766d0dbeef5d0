"""STAMP: packets as the RFC has them, a reflector and a sender as two programs, and what they find out."""

import contextlib
import hmac
import ipaddress
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import needs
from tests.support.command import WIRELAG, wirelag
from tests.support.places import SCHEMAS
from wirelag.measure.stamp import mean_bounds, result_of
from wirelag.packets.stamp import UNSYNCHRONISED_PTP
from wirelag.packets.stamp_session import read_reply, read_request, reply, request
from wirelag.transport.stamp import Exchange, Reflector, Sent

KEY = bytes(range(65, 97))
NOW_NS = 1_790_000_000_123_456_789
SCHEMA = json.loads((SCHEMAS / "stamp.json").read_text())
TO_1900 = 2_208_988_800


def test_bytes_are_those_of_the_standard() -> None:
    """RFC 8762, figures 2 and 5, put together by hand."""
    asked = request(7, NOW_NS, UNSYNCHRONISED_PTP, session=0xABCD)
    assert asked == struct.pack(">IIIHH28x", 7, NOW_NS // 10**9, NOW_NS % 10**9, 0x4001, 0xABCD)
    answered = reply(asked, 3, NOW_NS + 1000, NOW_NS + 3000, 0xC587, ttl=254)
    at = [(ns // 10**9, ns % 10**9) for ns in (NOW_NS + 3000, NOW_NS + 1000, NOW_NS)]
    expected = struct.pack(">IIIHHII", 3, *at[0], 0xC587, 0xABCD, *at[1])
    assert answered == expected + struct.pack(">IIIHxxBxxx", 7, *at[2], 0x4001, 254)
    found = read_reply(answered, NOW_NS)
    assert found is not None
    assert (found.sequence, found.request, found.ttl) == (3, 7, 254)
    assert (found.sent_ns, found.received_ns, found.replied_ns) == (NOW_NS, NOW_NS + 1000, NOW_NS + 3000)


def test_a_sender_of_twamp_light_gets_its_own_timestamps() -> None:
    """14 bytes and padding, with NTP's timestamp; so is the reply, of at least 44 bytes."""
    fraction = (NOW_NS % 10**9 << 32) // 10**9
    asked = struct.pack(">IIIH", 9, NOW_NS // 10**9 + TO_1900, fraction, 0x0001)
    for more in (b"", bytes(27), bytes(100)):
        answered = reply(asked + more, 0, NOW_NS + 5000, NOW_NS + 9000, UNSYNCHRONISED_PTP, ttl=255)
        assert len(answered) == max(44, 14 + len(more))
        assert struct.unpack_from(">II", answered, 4)[0] == NOW_NS // 10**9 + TO_1900
        assert answered[12:14] == b"\x00\x01"  # the Z bit is not set
        found = read_reply(answered, NOW_NS)
        assert found is not None
        assert abs(found.replied_ns - NOW_NS - 9000) <= 1
        assert abs(found.received_ns - NOW_NS - 5000) <= 1


def test_authenticated_bytes_are_those_of_the_standard() -> None:
    """RFC 8762, figures 3 and 6: fields by hand, the HMAC by openssl."""
    asked = request(7, NOW_NS, UNSYNCHRONISED_PTP, session=0xABCD, key=KEY)
    at = [(ns // 10**9, ns % 10**9) for ns in (NOW_NS + 3000, NOW_NS + 1000, NOW_NS)]
    fields = struct.pack(">I12xIIHH68x", 7, *at[2], 0x4001, 0xABCD)
    assert asked == fields + sealed(fields)
    answered = reply(asked, 3, NOW_NS + 1000, NOW_NS + 3000, 0xC587, ttl=254, key=KEY)
    fields = struct.pack(">I12xIIHH4xII8x", 3, *at[0], 0xC587, 0xABCD, *at[1])
    fields += struct.pack(">I12xIIH6xB15x", 7, *at[2], 0x4001, 254)
    assert answered == fields + sealed(fields)
    found = read_reply(answered, NOW_NS, KEY)
    assert found is not None
    assert (found.sequence, found.request, found.ttl) == (3, 7, 254)
    assert (found.sent_ns, found.received_ns, found.replied_ns) == (NOW_NS, NOW_NS + 1000, NOW_NS + 3000)
    for i in range(112):
        changed = bytearray(answered)
        changed[i] ^= 1
        assert read_reply(bytes(changed), NOW_NS, KEY) is None
    assert read_request(asked, NOW_NS, b"another") is None
    assert read_request(asked[:100], NOW_NS, KEY) is None


def sealed(fields: bytes) -> bytes:
    if needs.absent("openssl"):
        return hmac.digest(KEY, fields, "sha256")[:16]
    words = ["openssl", "dgst", "-sha256", "-mac", "HMAC", "-macopt", f"hexkey:{KEY.hex()}", "-binary"]
    return subprocess.run(words, input=fields, capture_output=True, check=True).stdout[:16]


def test_two_programs_with_a_key(tmp_path: Path) -> None:
    """Replies come with the same key alone; the rest is counted."""
    right, wrong = tmp_path / "right.key", tmp_path / "wrong.key"
    right.write_bytes(KEY + b"\n")
    wrong.write_bytes(b"another")
    with reflecting("127.0.0.1:0", "--key-file", str(right)) as (program, port):
        words = (f"127.0.0.1:{port}", "--every", "1ms", "--count")
        assert sent(*words, 5, "--key-file", right, "--length", 200)["received"] == 5
        text = wirelag("stamp", "send", *words, 5, "--key-file", right, "--format", "openmetrics").stdout
        assert f'wirelag_stamp_received{{key="127.0.0.1 port {port}"}} 5' in text
        assert "wirelag_stamp_offset_low_seconds" in text
        assert sent(*words, 3, "--key-file", wrong, "--wait", "50ms")["received"] == 0
        assert sent(*words, 2, "--wait", "50ms")["received"] == 0
        program.send_signal(signal.SIGTERM)
        assert program.communicate()[1].strip() == "10 answered, 5 not authentic"
    wrong.write_bytes(b" \n")
    assert "is empty; put a key there" in wirelag("stamp", "send", "::1", "--key-file", wrong, code=2).stderr


def test_unknown_tlvs_are_flagged() -> None:
    """RFC 8972, section 4: padding comes back as it is, other types with U, one that does not end with M."""
    padding, location = struct.pack(">BBH4x", 0, 1, 4), struct.pack(">BBH4x", 0, 2, 4)
    endless = struct.pack(">BBH", 0, 5, 400)
    answered = reply(request(1, NOW_NS, UNSYNCHRONISED_PTP) + padding + location + endless, 0, NOW_NS, NOW_NS, 1, 64)
    assert answered[44:52] == padding
    assert answered[52:60] == b"\x80" + location[1:]
    assert answered[60:] == b"\x40" + endless[1:]
    assert len(request(1, NOW_NS, UNSYNCHRONISED_PTP, length=60)) == 60


@given(st.binary(max_size=120), st.integers(0, 2**62))
def test_any_bytes_are_read_or_refused(data: bytes, near_ns: int) -> None:
    read_reply(data, near_ns)
    asked = read_request(data, near_ns)
    assert (asked is None) == (len(data) < 14 or (data[12] & 0x40 > 0 and int.from_bytes(data[8:12]) >= 10**9))
    if asked is not None:
        assert len(reply(data, 1, near_ns, near_ns, 1, 64)) == max(44, len(data))
        assert abs(asked.sent_ns - near_ns) <= 10**9 << 31


@contextlib.contextmanager
def reflecting(*words: str, before: tuple[str, ...] = ()) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A reflector as a program, and its port."""
    program = subprocess.Popen(
        [*before, *WIRELAG, "stamp", "reflect", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert program.stdout is not None
        yield program, int(program.stdout.readline().split()[-1])
    finally:
        program.send_signal(signal.SIGTERM)
        program.communicate()


def sent(*words: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(wirelag("stamp", "send", *words, "--format", "json").stdout)
    jsonschema.validate(found, SCHEMA)
    return found


def test_two_programs() -> None:
    with reflecting("127.0.0.1:0") as (program, port):
        found = sent(f"127.0.0.1:{port}", "--count", 20, "--every", "1ms")
        assert (found["sent"], found["received"], found["lost_forward"]) == (20, 20, 0)
        assert 0 < found["min"] <= found["quantiles"]["0.5"] <= found["max"]
        assert found["offset"]["low"] <= 0 <= found["offset"]["high"]  # they share a clock
        for way in ("forward", "backward"):
            assert 0 <= found[way]["high"] <= found["max"]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.sendto(b"short", ("127.0.0.1", port))
            other.sendto(request(0, NOW_NS, UNSYNCHRONISED_PTP), ("127.0.0.1", port))
            assert len(other.recv(100)) == 44
        assert program.poll() is None
        program.send_signal(signal.SIGTERM)
        assert program.communicate()[1].strip() == "21 answered, 1 malformed"
        assert program.returncode == 0


@pytest.mark.skipif(os.geteuid() != 0, reason=needs.ROOT)
@pytest.mark.skipif(bool(needs.absent("ip")), reason=needs.absent("ip"))
def test_two_hosts() -> None:
    """Each is a namespace: packets cross a wire, and networks that are not allowed get no answer."""
    names = [f"stamp{side}{os.getpid()}" for side in "ab"]
    try:
        for name in names:
            ip("netns", "add", name)
        ip("-n", names[0], "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", names[1])
        for place, name in enumerate(names, 1):
            ip("-n", name, "addr", "add", f"192.0.2.{place}/30", "dev", "wire")
            ip("-n", name, "link", "set", "wire", "up")
        here, there = (("ip", "netns", "exec", name) for name in names)
        with reflecting("192.0.2.2:0", "--allow", "192.0.2.0/24", before=there) as (_, port):
            words = (f"192.0.2.2:{port}", "--count", "20", "--every", "1ms", "--length", "100", "--format", "json")
            found = json.loads(subprocess.check_output([*here, *WIRELAG, "stamp", "send", *words]))
            assert found["received"] == 20
            assert found["offset"]["low"] <= 0 <= found["offset"]["high"]
        ip("-n", names[0], "route", "add", "198.51.100.0/24", "via", "192.0.2.2")
        ip("-n", names[1], "route", "add", "prohibit", "198.51.100.0/24")  # as a firewall says it (ICMP)
        subprocess.run([*there, "sysctl", "-qw", "net.ipv4.ip_forward=1"], check=True)
        command = [*here, *WIRELAG, "stamp", "send", "198.51.100.1", "--count", "3", "--every", "1ms", "--wait", "50ms"]
        refused = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "198.51.100.1 port 862: nothing answers there (cannot be reached (No route to host))" in refused.stderr
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def test_only_allowed_networks_get_an_answer() -> None:
    reflector = Reflector("127.0.0.1", 0, [ipaddress.ip_network("10.0.0.0/8")])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(request(0, NOW_NS, UNSYNCHRONISED_PTP), ("127.0.0.1", reflector.port))
        reflector.answer()
        sender.setblocking(False)
        with pytest.raises(BlockingIOError):
            sender.recv(100)
    reflector.close()
    assert reflector.counts == {"refused": 1}


def test_reflectors_do_not_answer_each_other() -> None:
    """As found: after one packet with the address of another reflector they did so without end."""
    one, other = Reflector("127.0.0.1", 0), Reflector("127.0.0.1", 0)
    for each in (one, other):
        each._socket.settimeout(10)
    for asked in (request(0, NOW_NS, 0x4001), struct.pack(">IQH", 9, NOW_NS, 1)):  # ours, and TWAMP Light's
        other._socket.sendto(asked, ("127.0.0.1", one.port))
        for each in (one, other, one):  # the time in the first is forged, what the second repeats is not
            each.answer()
    for each in (one, other):
        each.close()
    assert (one.counts, other.counts) == ({"answered": 2, "malformed": 2}, {"answered": 2})


class Losing(Reflector):
    """A reflector behind a wire that loses some packets in each direction."""

    def answer(self) -> None:
        data, sender = self._socket.recvfrom(2000)
        number = int.from_bytes(data[:4])
        if number % 5 == 4:
            return  # lost on the way there
        at = self._sessions.pop((sender, 0), 0)
        self._sessions[(sender, 0)] = at + 1
        if number % 5 == 2 and number < 20:
            return  # lost on the way back
        self._socket.sendto(reply(data, at, NOW_NS, NOW_NS + 10, 0x4001, 64), sender)


def test_loss_in_each_direction_is_told_apart() -> None:
    reflector = Losing("127.0.0.1", 0, [ipaddress.ip_network("127.0.0.0/8")])

    def work() -> None:
        with contextlib.suppress(OSError):
            for _ in range(31):
                reflector.answer()

    thread = threading.Thread(target=work)
    thread.start()
    found = sent(f"127.0.0.1:{reflector.port}", "--count", 31, "--every", "1ms", "--wait", "300ms")
    thread.join()
    reflector.close()
    assert (found["lost"], found["lost_forward"], found["lost_backward"]) == (10, 6, 4)


def test_a_reflector_that_began_anew_does_not_tell_where_packets_were_lost() -> None:
    """Its numbers start at 0 again at the sixth: it was restarted, or forged packets used up its sessions."""
    at = [(number, number if number < 5 else number - 5) for number in range(10) if number != 7]
    replies = [read_reply(reply(request(n, NOW_NS, 0x4001), own, NOW_NS, NOW_NS, 1, 64), NOW_NS) for n, own in at]
    result = result_of(Sent(10, [Exchange(one, NOW_NS) for one in replies if one is not None], 0, 0), "x")
    assert (result.lost, result.to_dict()["lost_forward"], result.to_dict()["lost_backward"]) == (1, None, None)
    assert "began anew" in result.notes[0]


def exchange(number: int, there: int, back: int, offset: int) -> Exchange:
    """An exchange with these delays, where the reflector's clock is ahead by `offset` and it takes 50 ns."""
    at = NOW_NS + number * 1000
    one = read_reply(
        reply(request(number, at, 0x4001), number, at + there + offset, at + there + 50 + offset, 0x4001, 64), at
    )
    assert one is not None
    return Exchange(one, at + there + 50 + back)


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 500)), min_size=1, max_size=30), st.integers(-400, 400))
def test_bounds_of_the_offset_hold(delays: list[tuple[int, int]], offset: int) -> None:
    exchanges = [exchange(i, there, back, offset) for i, (there, back) in enumerate(delays)]
    result = result_of(Sent(len(delays), exchanges, 0, 0), "x")
    assert result.offset is not None
    slack = 1e-12
    assert result.offset[0] - slack <= offset / 1e9 <= result.offset[1] + slack
    assert [round(trip * 1e9) for trip in result.trips] == [there + back for there, back in delays]
    plain = result.to_dict()
    for way, place in (("forward", 0), ("backward", 1)):
        truth = sum(one[place] for one in delays) / len(delays) / 1e9
        assert plain[way]["low"] - slack <= truth <= plain[way]["high"] + slack


def test_neighbours_that_are_alike_tell_less() -> None:
    apart, alike = [float(i % 2) for i in range(100)], [float(i // 50) for i in range(100)]
    bounds = mean_bounds(apart)
    assert bounds is not None
    assert bounds[0] < 0.5 < bounds[1]
    assert mean_bounds(alike) is None
    assert mean_bounds([1.0] * 9) is None
    assert mean_bounds([1.0] * 10) == (1.0, 1.0)


def test_tshark_agrees(tmp_path: Path) -> None:
    """Its dissector of TWAMP, which has the same bytes but for the session's identifier."""
    if needs.absent("tshark"):
        pytest.skip(needs.absent("tshark"))
    asked = request(7, NOW_NS, 0x0001)
    payloads = [(1000, 862, asked), (862, 1000, reply(asked, 3, NOW_NS + 10**6, NOW_NS + 2 * 10**6, 0x0001, ttl=254))]
    file = tmp_path / "stamp.pcap"
    with file.open("wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65_535, 101))
        for source, destination, data in payloads:
            udp = struct.pack(">HHHH", source, destination, 8 + len(data), 0) + data
            packet = struct.pack(">BBHHHBBH4s4s", 69, 0, 20 + len(udp), 0, 0, 64, 17, 0, b"\x7f\0\0\1", b"\x7f\0\0\1")
            out.write(struct.pack("<IIII", 0, 0, 20 + len(udp), 20 + len(udp)) + packet + udp)
    names = ("seq_number", "sender_seq_number", "sender_ttl", "timestamp", "receive_timestamp", "sender_timestamp")
    fields = [word for name in names for word in ("-e", f"twamp.test.{name}")]
    command = ["tshark", "-r", str(file), "-d", "udp.port==862,twamp.test", "-T", "fields", *fields]
    said = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "TZ": "UTC"}).stdout
    answer = said.splitlines()[1].split("\t")
    assert answer[:3] == ["3", "7", "254"]
    assert [text.partition(".")[2][:6] for text in answer[3:]] == ["125456", "124456", "123456"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("ask", "127.0.0.1"), "'ask' is not one of send, reflect"),
        (("send", "127.0.0.1:99999"), "is not HOST or HOST:PORT"),
        (("send", "127.0.0.1", "--every", "1us"), "--every: must be at least 1 ms"),
        (("send", "127.0.0.1", "--length", "20"), "--length"),
        (("reflect", "127.0.0.1:0", "--allow", "x"), "--allow: 'x' does not appear to be"),
        (
            ("reflect", "203.0.113.7:0"),
            "203.0.113.7 port 0: cannot listen there (Cannot assign requested address); choose",
        ),
        (("send", "127.0.0.1:1", "--count", "2", "--every", "1ms", "--wait", "50ms"), "nothing answers there"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], says: str) -> None:
    assert says in wirelag("stamp", *words, code=2).stderr


@pytest.mark.skipif(shutil.which("setpriv") is None, reason=needs.program("setpriv"))
def test_the_standard_port_needs_a_privilege() -> None:
    if int(Path("/proc/sys/net/ipv4/ip_unprivileged_port_start").read_text()) <= 862:
        pytest.skip("this host lets everybody listen at port 862")
    plain = ["setpriv", "--bounding-set", "-net_bind_service"] if os.geteuid() == 0 else []
    ran = subprocess.run([*plain, *WIRELAG, "stamp", "reflect", "127.0.0.1"], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (
        2,
        "wirelag: 127.0.0.1 port 862: ports below 1024 need root or CAP_NET_BIND_SERVICE; choose another one, such as "
        "127.0.0.1:8862\n",
    )
