"""Pairs: response times of HTTP/1 in real captures beside tshark's `http.time`, and why some differ.

Usage: python experiments/pairs_tshark.py FOLDER... Every capture below the folders is read by tshark, which parses
HTTP, and by `pairs`, which sees only sizes, flags and times. A response agrees if `pairs` has an exchange of its
connection with the same time from request to response, and the same end, within 2 us.
"""

import argparse
import ipaddress
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from wirelag.capture.pcap import CaptureFile
from wirelag.errors import WirelagError
from wirelag.measure.response_heard import ResponseSettings
from wirelag.measure.response_method import ResponseMeter
from wirelag.packets.batch import Array
from wirelag.synopses.request_response import FLAGS

NEAR_NS = 2_000
FIELDS = (
    *("frame.number", "frame.time_epoch", "http.time", "http.response.code", "tcp.len", "tcp.flags.fin"),
    *("frame.len", "frame.cap_len"),
    *("ip.src", "ipv6.src", "tcp.srcport", "ip.dst", "ipv6.dst", "tcp.dstport"),
)
EQUAL = "equal: from the request's last packet to the response's"
FIRST = "equal: to the response's first packet, which is cut, so that tshark reads no further"


class Response(NamedTuple):
    """What tshark says of one HTTP response, and of the packet at which it ends."""

    number: int
    end_ns: int
    time_ns: int
    code: int
    size: int
    fin: bool
    is_cut: bool  # not all of the packet was captured
    connection: tuple[str, int, str, int]  # client, server


def responses(path: Path) -> list[Response]:
    """The responses for which tshark knows the request."""
    words = ["tshark", "-n", "-r", str(path), "-Y", "http.response && http.time && tcp", "-T", "fields"]
    words += ["-E", "occurrence=l", *(word for field in FIELDS for word in ("-e", field))]
    ran = subprocess.run(words, capture_output=True, text=True, check=False)
    return [one for line in ran.stdout.splitlines() if (one := response(line.split("\t"))) is not None]


def response(words: list[str]) -> Response | None:
    """One line of tshark's."""
    if len(words) != len(FIELDS):
        return None
    number, when, taken, code, size, fin, on_wire, captured, *ends = words
    server, client = ends[0] or ends[1], ends[3] or ends[4]
    if not (server and client and ends[2] and ends[5]):
        return None
    connection = client, int(ends[5]), server, int(ends[2])
    return Response(
        int(number),
        _ns(when),
        _ns(taken),
        int(code or 0),
        int(size or 0),
        fin in ("1", "True"),
        int(captured) < int(on_wire),
        connection,
    )


def _ns(seconds: str) -> int:
    whole, _, part = seconds.partition(".")
    ns = int(whole.lstrip("-") or 0) * 10**9 + int((part + "0" * 9)[:9])
    return -ns if whole.startswith("-") else ns


def exchanges(path: Path) -> Array:
    """Every exchange of a capture."""
    meter = ResponseMeter(ResponseSettings(method="pairs"), at_end=True)
    for packets in CaptureFile(str(path)):
        meter.observe(packets)
    return meter.finish().exchanges.rows


def by_connection(rows: Array) -> dict[tuple[str, int, str, int], list[Array]]:
    """Exchanges of each connection."""
    found: dict[tuple[str, int, str, int], list[Array]] = {}
    for row in rows:
        words = [int(word) for word in row["ends"]]
        key = _address(*words[:2]), words[4] >> 32 & 0xFFFF, _address(*words[2:4]), words[4] >> 16 & 0xFFFF
        found.setdefault(key, []).append(row)
    return found


def _address(high: int, low: int) -> str:
    if high == 0 and low >> 32 == 0xFFFF:
        return str(ipaddress.IPv4Address(low & 0xFFFFFFFF))
    return str(ipaddress.IPv6Address(high << 64 | low))


def verdict(one: Response, mine: list[Array]) -> str:
    """Whether an exchange agrees, or the kind of the difference."""

    def agrees(row: Array, end: str) -> bool:
        end_ns = int(row[end])
        return near(end_ns, one.end_ns) and near(end_ns - int(row["request_ns"]), one.time_ns)

    if any(agrees(row, "last_ns") for row in mine):
        return EQUAL
    if one.is_cut and any(agrees(row, "first_ns") for row in mine):
        return FIRST
    if 100 <= one.code < 200:
        return "an interim response (1xx): the exchange goes on until the final one"
    asked_ns = one.end_ns - one.time_ns
    asked = [row for row in mine if near(int(row["request_ns"]), asked_ns)]
    if one.fin and not one.size and asked:
        return "the response has no length and ends with a FIN of its own, after the last byte"
    around = [row for row in mine if row["begin_ns"] <= one.end_ns <= row["last_ns"] + NEAR_NS]
    if any(row["flags"] & FLAGS["pipelined"] for row in around):
        return "requests and responses overlap: a batch"
    if around:
        return "cut packets, of which tshark times another one" if one.is_cut else "pairs sees a longer exchange"
    return "pairs sees a shorter exchange" if asked else "no exchange"


def near(one_ns: int, other_ns: int) -> bool:
    return abs(one_ns - other_ns) <= NEAR_NS


def captures(folders: list[Path]) -> Iterator[Path]:
    for folder in folders:
        yield from sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else [folder]


def compare(path: Path) -> list[tuple[Response, str]]:
    """The verdict on each of tshark's responses in a capture; none if it is not one."""
    try:
        theirs = responses(path)
        ours = by_connection(exchanges(path)) if theirs else {}
    except WirelagError:
        return []
    return [(one, verdict(one, ours.get(one.connection, []))) for one in theirs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="+", type=Path)
    parser.add_argument("--packets", action="store_true", help="also list every response that differs")
    arguments = parser.parse_args()
    total: Counter[str] = Counter()
    for path in captures(arguments.folder):
        found = compare(path)
        kinds = Counter(kind for _, kind in found)
        total += kinds
        if found:
            print(f"{kinds[EQUAL] + kinds[FIRST]:6,} of {len(found):6,}  {path.name}")
        for one, kind in found if arguments.packets else ():
            if kind not in (EQUAL, FIRST):
                print(f"        packet {one.number}: {kind}")
    count = sum(total.values())
    if not count:
        sys.exit("tshark found no HTTP response in these captures")
    print(f"\n{'responses':>10}  {'share':>7}  kind")
    for kind, n in total.most_common():
        print(f"{n:10,}  {n / count:7.2%}  {kind}")


if __name__ == "__main__":
    main()
