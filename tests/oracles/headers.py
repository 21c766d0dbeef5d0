"""The frame decoder in plain Python: one frame in, one row of a packet batch (or the reason for having none) out.

The independent twin of `kernels/headers.h`, and the tests' oracle for it. Both follow `docs/reference/columns.md`,
section by section, and not each other. Only clarity counts here, not speed.

Up to the transport header, offsets count from the frame's first byte: unreadable bytes are cut off the end of `data`,
never off its start.
"""

from typing import NamedTuple

from tests.oracles.hashing import G, endpoint, key, mix, step
from tests.oracles.rare_links import NoRowError, behind_nflog, behind_radiotap, behind_wifi, read

Columns = dict[str, int]

COLUMNS = (
    *("src_high", "src_low", "dst_high", "dst_low", "flow_key", "packet_id", "transaction"),
    *("wire_length", "payload_length", "seq", "ack", "tsval", "tsecr"),
    *("src_port", "dst_port", "window", "ip_id", "flags", "payload_offset"),
    *("protocol", "traffic_class", "kind", "message"),
)

IPV6, REVERSE, FRAGMENT, LATER, SHORT, TIMESTAMPS, SACK = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5, 1 << 6
TUNNEL, INNER, VLAN, MPLS, PPPOE, PREFIX_CUT, UNSIZED = 1 << 7, 1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13
OPTIONS = 1 << 14
OTHER, TCP, UDP, ICMP, DNS, NTP, QUIC, ESP, WIREGUARD, STAMP = range(10)

MAX_LAYERS = 8
MAX_EXTENSIONS = 8
MAX_TUNNELS = 4
MAX_GTP_EXTENSIONS = 4

EXTENSIONS_V4 = {51}
EXTENSIONS_V6 = {0, 43, 44, 51, 60, 135}
PORTED = {6, 17, 33, 132, 136}
ECHO = {1: {0, 8, 13, 14, 15, 16, 17, 18}, 58: {128, 129}}


class Found(NamedTuple):
    """Where an IP header should begin, the version announced by the layer below, and the flags of the layers passed."""

    at: int
    version: int
    flags: int = 0


class IP(NamedTuple):
    """An IP header and its extension headers. `end` is on the wire and may lie beyond the captured bytes."""

    start: int
    body: int  # after the IP header and the passed extension headers
    end: int
    src: int
    dst: int
    protocol: int
    traffic_class: int
    identification: int
    fragment: int  # offset in bytes, a multiple of 8, + 1 if more fragments follow
    flags: int


class Extensions(NamedTuple):
    """The changes made by extension headers."""

    body: int
    protocol: int
    identification: int
    fragment: int
    flags: int


def decode(
    frame: bytes,
    wire_length: int,
    link_type: int,
    *,
    tunnels: bool = False,
    fields: int = 15,
    prefix: int = 16,
    seed: int = 0,
) -> Columns | str:
    """The columns of the frame's row, or the reason for having none."""
    try:
        found = link(frame, link_type)
        ip = ip_header(frame, found, wire_length)
    except NoRowError as reason:
        return str(reason)
    columns = above_ip(frame[: ip.end], ip)
    passed = found.flags
    for _ in range(MAX_TUNNELS if tunnels else 0):
        if not columns["flags"] & TUNNEL:
            break
        frame = frame[: ip.end]
        try:
            found = tunnel(frame, ip, columns)
            ip = ip_header(frame, found, wire_length)
        except NoRowError:
            break
        columns = above_ip(frame[: ip.end], ip)
        passed |= found.flags | INNER
    columns["wire_length"] = wire_length
    columns["flags"] |= passed
    add_hashes(columns, frame[: ip.end], ip, fields, prefix, seed)
    columns["payload_offset"] &= 0xFFFF
    return columns


# From frame to IP packet


def link(data: bytes, link_type: int) -> Found:
    match link_type:
        case 1:
            return ethernet(data, 0)
        case 12 | 14 | 101 | 228 | 229:
            return by_nibble(data, 0, "malformed")
        case 0 | 108:
            return null(data)
        case 113:
            return ethertype(data, read(data, 14, 2), 16)
        case 276:
            return ethertype(data, read(data, 0, 20) >> 18 * 8, 20)
        case 9 | 50:
            return ppp(data, 0)
        case 204:
            return ppp(data, 1)
        case 51:
            return pppoe(data, 0)
        case 104:
            return ethertype(data, read(data, 2, 2), 4)
        case 105 | 127:
            at = behind_wifi(data, behind_radiotap(data) if link_type == 127 else 0)
            return ethertype(data, read(data, at, 2), at + 2)
        case 239:
            return by_nibble(data, behind_nflog(data), "malformed")
        case _:
            raise NoRowError("link_type")


def by_nibble(data: bytes, at: int, otherwise: str) -> Found:
    version = read(data, at, 1) >> 4
    if version not in (4, 6):
        raise NoRowError(otherwise)
    return Found(at, version)


def null(data: bytes) -> Found:
    family = read(data, 0, 4)
    if family > 0xFFFF:
        family = int.from_bytes(data[:4], "little")
    if family == 2:
        return Found(4, 4)
    if family in (10, 24, 28, 30):
        return Found(4, 6)
    raise NoRowError("not_ip")


class Passed(NamedTuple):
    """The layers passed before one IP header, which are bounded together."""

    tags: int = 0
    snap: bool = False
    rare: bool = False  # metadata or a pseudowire, after which tags are counted anew

    def one_more_tag(self) -> "Passed":
        if self.tags == MAX_LAYERS:
            raise NoRowError("layers")
        return self._replace(tags=self.tags + 1)


NOTHING = Passed()


def ethernet(data: bytes, at: int) -> Found:
    return ethertype(data, read(data, at + 12, 2), at + 14)


def ethertype(data: bytes, value: int, at: int, passed: Passed = NOTHING) -> Found:
    """Continue at `at` with what the ethertype `value` announces there."""
    flags = 0
    while True:
        match value:
            case 0x0800:
                return Found(at, 4, flags)
            case 0x86DD:
                return Found(at, 6, flags)
            case 0x8100 | 0x88A8 | 0x9100:
                passed = passed.one_more_tag()
                flags |= VLAN
                value = read(data, at + 2, 2)
                at += 4
            case 0x8909 if not passed.rare:
                value = read(data, at + 6, 2)
                if read(data, at, 2) != 0x0101:
                    raise NoRowError("not_ip")
                at += 8
                passed = Passed(rare=True)
            case 0x8847 | 0x8848:
                return with_flags(mpls(data, at, passed), flags)
            case 0x8864:
                return with_flags(pppoe(data, at, passed), flags)
            case _ if value < 0x0600 and not passed.snap and data[at : at + 6] == b"\xaa\xaa\3\0\0\0":
                if len(data) < at + 8:
                    raise NoRowError("not_ip")
                passed = passed._replace(snap=True)
                value = read(data, at + 6, 2)
                at += 8
            case _:
                raise NoRowError("not_ip")


def with_flags(found: Found, flags: int) -> Found:
    return found._replace(flags=found.flags | flags)


def mpls(data: bytes, at: int, passed: Passed = NOTHING) -> Found:
    """Labels, and then an IP packet or, in a pseudowire, an Ethernet frame, perhaps behind a control word."""
    bottom = False
    while not bottom:
        passed = passed.one_more_tag()
        bottom = read(data, at, 4) & 0x100 != 0
        at += 4
    if read(data, at, 1) >> 4 not in (4, 6):
        starts = (at + 4, at) if data[at : at + 2] == bytes(2) else (at,)
        frame = next((start for start in starts if is_frame(data, start)), None)
        if frame is None or passed.rare:
            raise NoRowError("not_ip")
        return with_flags(ethertype(data, read(data, frame + 12, 2), frame + 14, Passed(rare=True)), MPLS)
    return with_flags(by_nibble(data, at, "not_ip"), MPLS)


def is_frame(data: bytes, at: int) -> bool:
    """Whether this looks like an Ethernet frame that leads to an IP packet."""
    if len(data) < at + 15:
        return False
    kind, first = read(data, at + 12, 2), data[at + 14]
    return kind in (0x8100, 0x88A8, 0x9100, 0x8847, 0x8864) or (kind, first >> 4) in ((0x0800, 4), (0x86DD, 6))


def pppoe(data: bytes, at: int, passed: Passed = NOTHING) -> Found:
    read(data, at, 6)
    return with_flags(ppp_protocol(data, at + 6, passed), PPPOE)


def ppp(data: bytes, at: int) -> Found:
    if data[at : at + 2] == b"\xff\x03":
        at += 2
    return ppp_protocol(data, at)


def ppp_protocol(data: bytes, at: int, passed: Passed = NOTHING) -> Found:
    size = 1 if read(data, at, 1) & 1 else 2
    protocol = read(data, at, size)
    at += size
    match protocol:
        case 0x0021:
            return Found(at, 4)
        case 0x0057:
            return Found(at, 6)
        case 0x0281 | 0x0283:
            return mpls(data, at, passed)
        case _:
            raise NoRowError("not_ip")


def ip_header(data: bytes, found: Found, wire_length: int) -> IP:
    header = ipv4 if found.version == 4 else ipv6
    return header(data, found.at, wire_length)


def ipv4(data: bytes, at: int, wire_length: int) -> IP:
    read(data, at, 20)
    size = 4 * (data[at] & 0xF)
    if data[at] >> 4 != 4 or size < 20:
        raise NoRowError("malformed")
    read(data, at, size)

    flags = 0
    length = read(data, at + 2, 2)
    if length == 0:
        flags |= UNSIZED
        length = max(wire_length - at, size)
    elif length < size:
        raise NoRowError("malformed")

    word = read(data, at + 6, 2)
    fragment = 8 * (word & 0x1FFF) + (word >> 13 & 1)
    flags |= fragment_flags(fragment)
    above = extensions(data[: at + length], at + size, data[at + 9], EXTENSIONS_V4, flags)
    return IP(
        start=at,
        body=above.body,
        end=at + length,
        src=0xFFFF << 32 | read(data, at + 12, 4),
        dst=0xFFFF << 32 | read(data, at + 16, 4),
        protocol=above.protocol,
        traffic_class=data[at + 1],
        identification=read(data, at + 4, 2),
        fragment=fragment,
        flags=above.flags,
    )


def ipv6(data: bytes, at: int, wire_length: int) -> IP:
    read(data, at, 40)
    if data[at] >> 4 != 6:
        raise NoRowError("malformed")

    flags = IPV6
    length = 40 + read(data, at + 4, 2)
    if length == 40 and data[at + 6] != 59:
        flags |= UNSIZED
        length = max(wire_length - at, 40)

    above = extensions(data[: at + length], at + 40, data[at + 6], EXTENSIONS_V6, flags)
    return IP(
        start=at,
        body=above.body,
        end=at + length,
        src=read(data, at + 8, 16),
        dst=read(data, at + 24, 16),
        protocol=above.protocol,
        traffic_class=read(data, at, 2) >> 4 & 0xFF,
        identification=above.identification,
        fragment=above.fragment,
        flags=above.flags,
    )


def fragment_flags(fragment: int) -> int:
    return (FRAGMENT if fragment else 0) | (LATER if fragment > 1 else 0)


def extensions(data: bytes, at: int, protocol: int, known: set[int], flags: int) -> Extensions:
    """Pass the extension headers in `known`; `data` ends with the IP payload. Only the first fragment header counts."""
    identification = fragment = passed = 0
    fragment_seen = False
    while protocol in known and not flags & LATER:
        size = extension_size(data, at, protocol)
        if passed == MAX_EXTENSIONS or at + size > len(data):
            flags |= SHORT
            break
        if protocol == 44 and not fragment_seen:
            fragment_seen = True
            word = read(data, at + 2, 2)
            fragment = word & 0xFFF9
            flags |= fragment_flags(fragment)
            identification = read(data, at + 4, 4)
        if protocol in {0, 60}:
            flags |= OPTIONS
        protocol = data[at]
        at += size
        passed += 1
    return Extensions(at, protocol, identification, fragment, flags)


def extension_size(data: bytes, at: int, protocol: int) -> int:
    """Never below 8: this many bytes must be captured even if the length byte is not."""
    if protocol == 44 or at + 8 > len(data):
        return 8
    return 8 + data[at + 1] * (4 if protocol == 51 else 8)


# Above the IP header


def above_ip(data: bytes, ip: IP) -> Columns:
    """The columns of one IP packet, without the hashes; `data` ends with its IP payload."""
    columns = dict.fromkeys(COLUMNS, 0)
    columns["src_high"], columns["src_low"] = divmod(ip.src, 1 << 64)
    columns["dst_high"], columns["dst_low"] = divmod(ip.dst, 1 << 64)
    columns["ip_id"] = ip.identification & 0xFFFF
    columns["protocol"] = ip.protocol
    columns["traffic_class"] = ip.traffic_class
    columns["payload_length"] = ip.end - ip.body
    if not ip.flags & (LATER | SHORT):
        columns |= transport(data[ip.body :], ip)
    if columns["kind"] == TCP and columns["message"] & 0x02:  # SYN
        columns["transaction"] += data[ip.start + (7 if ip.flags & IPV6 else 8)] << 16  # hop limit
    columns["flags"] |= ip.flags
    if is_carrier(columns):
        columns["flags"] |= TUNNEL
    return columns


def transport(body: bytes, ip: IP) -> Columns:
    """The columns that differ from those of a packet of kind OTHER. `body` is the captured part of the IP payload."""
    columns: Columns = {}
    if ip.protocol in PORTED:
        if len(body) < 4:
            return {"flags": SHORT}
        columns = {"src_port": read(body, 0, 2), "dst_port": read(body, 2, 2)}
    room = ip.end - ip.body
    match ip.protocol:
        case 6:
            columns |= tcp(body, room)
        case 17:
            columns |= udp(body, room)
        case 1 | 58:
            columns |= icmp(body, room, ip.protocol)
        case 50:
            columns |= esp(body, room)
    if "payload_offset" in columns:
        columns["payload_offset"] += ip.body
    return columns


def tcp(body: bytes, room: int) -> Columns:
    if len(body) < 20:
        return {"flags": SHORT}
    size = 4 * (body[12] >> 4)
    if not 20 <= size <= room:
        return {"flags": SHORT}
    return {
        "kind": TCP,
        "message": body[13],
        "seq": read(body, 4, 4),
        "ack": read(body, 8, 4),
        "window": read(body, 14, 2),
        "payload_offset": size,
        "payload_length": room - size,
    } | tcp_options(body[20:size], syn=bool(body[13] & 0x02))


def tcp_options(options: bytes, syn: bool) -> Columns:
    columns = {"flags": 0}
    at = 0
    while at < len(options) and options[at] != 0:
        if options[at] == 1:
            at += 1
            continue
        length = options[at + 1] if at + 1 < len(options) else 0
        if length < 2 or at + length > len(options):
            break
        if options[at] == 5:
            columns["flags"] |= SACK
            if length >= 10 and not syn and not columns.get("transaction"):
                columns["transaction"] = read(options, at + 2, 8)
        if options[at] == 2 and length == 4 and syn and not columns.get("transaction"):
            columns["transaction"] = read(options, at + 2, 2)
        if options[at] == 8 and length == 10 and not columns["flags"] & TIMESTAMPS:
            columns["flags"] |= TIMESTAMPS
            columns["tsval"] = read(options, at + 2, 4)
            columns["tsecr"] = read(options, at + 6, 4)
        at += length
    return columns


def udp(body: bytes, room: int) -> Columns:
    if len(body) < 8:
        return {"flags": SHORT}
    length = read(body, 4, 2)
    payload_length = min(room, length) - 8 if length >= 8 else room - 8
    payload = body[8 : 8 + payload_length]
    ports = {read(body, 0, 2), read(body, 2, 2)}
    return {"payload_offset": 8, "payload_length": payload_length} | application(payload, payload_length, ports)


def application(payload: bytes, payload_length: int, ports: set[int]) -> Columns:
    """Classify a UDP payload; the first match counts."""
    captured = len(payload)
    first = payload[0] if payload else 0

    if ports & {53, 5353, 5355} and captured >= 12:
        return {"kind": DNS, "message": payload[2], "transaction": read(payload, 0, 2)}

    mode = first & 7
    if 123 in ports and captured >= 48 and 1 <= mode <= 5:
        # A response repeats the request's transmit timestamp as its origin timestamp.
        return {"kind": NTP, "message": mode, "transaction": read(payload, 24 if mode in (2, 4) else 40, 8)}

    if 862 in ports and captured >= 14:
        return {
            "kind": STAMP,
            "message": payload[12],
            "transaction": read(payload, 4, 8),
            "seq": read(payload, 0, 4),
        }

    if 4500 in ports and captured >= 8 and any(payload[:4]):
        return {"kind": ESP, "transaction": read(payload, 0, 4), "seq": read(payload, 4, 4)}

    if captured >= 16 and first in (1, 2, 3, 4) and not any(payload[1:4]) and wireguard_fits(first, payload_length):
        return wireguard(payload)

    if captured >= 7 and first >= 0x80 and is_quic_version(read(payload, 1, 4)) and payload[5] <= 20:
        size = min(payload[5], 8)
        connection = read(payload, 6, size) if captured >= 6 + size else 0
        return {"kind": QUIC, "message": first, "transaction": connection}

    if ports & {443, 4433} and first >> 6 == 0b01 and captured >= 9:
        return {"kind": QUIC, "message": first, "transaction": read(payload, 1, 8)}

    return {"kind": UDP, "message": first, "transaction": read(payload, 1, 8) if captured >= 9 else 0}


def wireguard_fits(message: int, length: int) -> bool:
    if message == 4:
        return length >= 32 and (length % 16 == 0 or length >= 1280)
    return length == {1: 148, 2: 92, 3: 64}[message]


def wireguard(payload: bytes) -> Columns:
    at_4, at_8 = (int.from_bytes(payload[at : at + 4], "little") for at in (4, 8))
    message = payload[0]
    sender, receiver = {1: (at_4, 0), 2: (at_4, at_8), 3: (0, at_4), 4: (0, at_4)}[message]
    return {
        "kind": WIREGUARD,
        "message": message,
        "transaction": receiver + (sender << 32),
        "seq": at_8 if message == 4 else 0,
    }


def is_quic_version(version: int) -> bool:
    return (
        version in (0, 1, 0x6B3343CF, 0x709A50C4)
        or version >> 8 in (0xFF0000, 0xFACEB0, 0xF0F0F0, 0xF0F0F1)
        or version >> 16 in (0x5130, 0x5430, 0x5043, 0xABCD)
        or version & 0x0F0F0F0F == 0x0A0A0A0A
    )


def icmp(body: bytes, room: int, protocol: int) -> Columns:
    if len(body) < 8:
        return {"flags": SHORT}
    columns = {"kind": ICMP, "message": body[0], "payload_offset": 8, "payload_length": room - 8}
    if body[0] in ECHO[protocol]:
        columns |= {"transaction": read(body, 4, 2), "seq": read(body, 6, 2)}
    return columns


def esp(body: bytes, room: int) -> Columns:
    if len(body) < 8:
        return {"flags": SHORT}
    return {
        "kind": ESP,
        "transaction": read(body, 0, 4),
        "seq": read(body, 4, 4),
        "payload_offset": 8,
        "payload_length": room - 8,
    }


# Tunnels


def is_carrier(columns: Columns) -> bool:
    """Decided by protocol and ports alone: a carrier remains one even if the packet inside cannot be reached."""
    if columns["flags"] & (LATER | SHORT):
        return False
    src_port, dst_port = columns["src_port"], columns["dst_port"]
    over_udp = dst_port in (4789, 6081) or 2152 in (src_port, dst_port)
    return columns["protocol"] in (4, 41, 47) or (columns["protocol"] == 17 and over_udp)


def tunnel(data: bytes, ip: IP, columns: Columns) -> Found:
    """Where the inner packet begins; the reason for having none does not matter."""
    if ip.protocol in (4, 41):
        return by_nibble(data, ip.body, "malformed")
    if ip.protocol == 47:
        return gre(data, ip.body)
    match columns["dst_port"]:
        case 4789:
            return vxlan(data, ip.body + 8)
        case 6081:
            return geneve(data, ip.body + 8)
        case _:
            return gtp_u(data, ip.body + 8)


def gre(data: bytes, at: int) -> Found:
    flags, value = read(data, at, 2), read(data, at + 2, 2)
    version = flags & 7
    at += 4
    if version == 1 and value == 0x880B:
        at += 4 + (4 if flags & 0x1000 else 0) + (4 if flags & 0x0080 else 0)
        return ppp(data, at)
    if version != 0 or flags & 0x4000:
        raise NoRowError("not_ip")
    at += sum(4 for bit in (0x8000, 0x2000, 0x1000) if flags & bit)
    match value:
        case 0x6558:
            return ethernet(data, at)
        case 0x88BE:  # ERSPAN: type II has a sequence number and a header, type I neither
            return ethernet(data, at + 8 if flags & 0x1000 else at)
        case _:
            return ethertype(data, value, at)


def vxlan(data: bytes, at: int) -> Found:
    if not read(data, at, 1) & 0x08:
        raise NoRowError("not_ip")
    return ethernet(data, at + 8)


def geneve(data: bytes, at: int) -> Found:
    first, value = read(data, at, 1), read(data, at + 2, 2)
    if first >> 6 != 0:
        raise NoRowError("not_ip")
    at += 8 + 4 * (first & 0x3F)
    return ethernet(data, at) if value == 0x6558 else ethertype(data, value, at)


def gtp_u(data: bytes, at: int) -> Found:
    first, message = read(data, at, 1), read(data, at + 1, 1)
    if first & 0xF0 != 0x30 or message != 255:
        raise NoRowError("not_ip")
    at += 8
    if first & 0x07:
        at += 4
    if first & 0x04:
        at = gtp_u_extensions(data, at)
    return by_nibble(data, at, "malformed")


def gtp_u_extensions(data: bytes, at: int) -> int:
    """The byte before `at` always shows whether another extension header follows."""
    passed = 0
    while read(data, at - 1, 1) != 0:
        size = 4 * read(data, at, 1)
        if size == 0 or passed == MAX_GTP_EXTENSIONS:
            raise NoRowError("not_ip")
        at += size
        passed += 1
    return at


# Hashes


def add_hashes(columns: Columns, data: bytes, ip: IP, fields: int, prefix: int, seed: int) -> None:
    """Set `flow_key` and `packet_id`, and the two flags that come with them; `data` ends with the IP payload."""
    src_port, dst_port = columns["src_port"], columns["dst_port"]
    if columns["kind"] == ICMP and columns["message"] in ECHO[ip.protocol]:
        src_port = dst_port = columns["transaction"]
    src = (columns["src_high"], columns["src_low"], src_port)
    dst = (columns["dst_high"], columns["dst_low"], dst_port)
    columns["flow_key"] = mix(endpoint(seed, *src) + endpoint(seed, *dst) + ip.protocol)
    if src > dst:
        columns["flags"] |= REVERSE

    # The column is reduced to 16 bits only after this.
    payload_at = columns["payload_offset"] if columns["kind"] != OTHER else ip.body
    wanted = min(prefix, columns["payload_length"])
    payload = data[payload_at : payload_at + wanted]
    if len(payload) < wanted:
        columns["flags"] |= PREFIX_CUT

    flow, length, ip_id, transport_fields = (bool(fields & 1 << bit) for bit in range(4))
    terms = [payload_term(seed, payload), network_term(ip, length, ip_id)]
    if flow:
        terms.append(endpoint(seed, *src) + 2 * endpoint(seed, *dst) + ip.protocol)
    if transport_fields:
        terms.append(transport_term(columns, data, ip, flow))
    columns["packet_id"] = mix(sum(terms)) if fields or prefix else 0


def network_term(ip: IP, length: bool, ip_id: bool) -> int:
    word = ip.protocol
    if length:
        word += (ip.end - ip.start) << 32
    if ip_id:
        word += (ip.identification << 8) + ip.fragment * G
    return key(1) * word


def transport_term(columns: Columns, data: bytes, ip: IP, flow: bool) -> int:
    if columns["kind"] == TCP:
        numbers = (columns["ack"] << 32) + columns["seq"]
        stamps = (columns["tsecr"] << 32) + columns["tsval"]
        rest = (columns["window"] << 8) + (columns["message"] & 0x3F)
        return key(2) * numbers + key(3) * stamps + key(4) * rest
    if columns["kind"] == ICMP:
        # Type and code are the first two bytes. The rest may hold the identifier, which a NAT rewrites like a port.
        rest = read(data, ip.body + 4, 4) if flow else 0
        return key(2) * (read(data, ip.body, 2) + (rest << 32))
    return 0


def payload_term(seed: int, payload: bytes) -> int:
    hashed = seed
    for i in range(0, len(payload), 8):
        hashed = step(hashed, int.from_bytes(payload[i : i + 8].ljust(8, b"\0"), "big"))
    return step(hashed, 0)
