"""Seeds for the fuzzers: the shared captures and the tests' frames. Usage: seeds.py CORPUS_FOLDER."""

import hashlib
import random
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.support.captures import LINK_TYPES, capture_paths, packets, pcap, plain_bytes, random_frame
from tests.support.messages import MESSAGES, taken_apart
from tests.support.ring_blocks import packed_block
from wirelag.protocol.messages import encode

LARGEST = 20_000  # bytes of a seed; larger captures give their first packets
LINKS = [0, 1, 1, 1, 9, 12, 14, 50, 51, 101, 104, 108, 113, 204, 228, 229, 276, 105, 127, 239, 147]  # as in frame.c


HEAD = (
    b"POST /v1/messages HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x y\r\n"
    b"Content-Type: application/vnd.wirelag.message\r\nContent-Length: 4\r\n"
    b"Wirelag-Run: 1\r\nWirelag-Ask: 3-4\r\n\r\nWLAG"
)


def save(folder: Path, data: bytes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


def frame_seed(link_type: int, frame: bytes, number: int) -> bytes:
    """The parameters that frame.c reads first, then the frame."""
    return struct.pack("<BBBBQI", LINKS.index(link_type), 30 + number % 2, 16, 1, 0, len(frame)) + frame


def main(corpus: Path) -> None:
    rng = random.Random(0)
    for number in range(2000):
        link_type, frame = random_frame(rng, (1, 1, *LINK_TYPES))
        save(corpus / "frame", frame_seed(link_type, frame, number))
        if number % 20 == 0:
            save(corpus / "capture", pcap([(number, frame, len(frame))], link_type=link_type))
            save(corpus / "ring", packed_block([frame[:600]], size=4096, tag=number % 40 // 20 or None))
    save(corpus / "message", HEAD)
    for message in MESSAGES.values():
        save(corpus / "message", taken_apart(encode(message))[0].replace(rb"\u00e4", b"a"))
    for path in capture_paths("rtt", "hidden", "twopoint", "malformed"):
        data = plain_bytes(path)
        save(corpus / "capture", data[:LARGEST])
        for number, packet in enumerate(packets(data[:LARGEST])):
            if packet.link_type in LINK_TYPES and number % 10 == 0:
                save(corpus / "frame", frame_seed(packet.link_type, packet.frame[:2000], number))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
