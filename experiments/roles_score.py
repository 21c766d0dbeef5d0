"""Roles: who the client is in real captures without their SYNs, beside what the SYNs said.

Usage: python experiments/roles_score.py [--join] FOLDER... From every capture below the folders, SYNs and what else
belongs to handshakes are removed, and with --join also the first half of its packets; then only conversations that had
begun before count. A conversation counts if it is TCP, has 10 packets or more left, and its SYNs agree. It is right if
all its packets are; `ports alone` takes the class of ports (below 1024, below 32768, others), and is wrong where they
are alike.
"""

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
import numpy.typing as npt
from traces import show

from wirelag.capture.files import Capture
from wirelag.errors import WirelagError
from wirelag.packets.batch import Flag, Kind, PacketBatch, TcpFlag
from wirelag.packets.roles import Roles, ahead

FEWEST = 10

Bools = npt.NDArray[np.bool_]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--join", action="store_true", help="also remove the first half of each capture")
    parser.add_argument("folders", nargs="+", metavar="FOLDER", type=Path)
    chosen = parser.parse_args()
    total: Counter[str] = Counter()
    paths = sorted(path for folder in chosen.folders for path in folder.rglob("*") if path.is_file())
    for path in paths:
        try:
            packets = PacketBatch.concatenate(list(Capture([str(path)])))
        except WirelagError:
            continue  # not a capture
        total += score(packets, chosen.join)
        total["captures"] += 1
    shares = (f"{total[name] / max(1, total['conversations']):.1%}" for name in ("by ports", "right"))
    header = ("captures", "conversations", "right, ports alone", "right", "of these a guess")
    row = (total["captures"], total["conversations"], *shares, f"{total['guessed right']} of {total['guessed']}")
    show("who is the client", header, [row])


def score(packets: PacketBatch, join: bool = False) -> Counter[str]:
    """Conversations of a capture: all, right by ports alone, right; and those that are a guess."""
    packets = packets[np.flatnonzero(~packets.has(Flag.LATER))]
    truth = told_by_syns(packets)
    kept = without_handshakes(packets, truth)
    if join:
        half = len(packets) // 2
        kept, early = kept[kept >= half], set(packets.flow_key[:half].tolist())
        truth = {key: client for key, client in truth.items() if key in early}
    left = packets[kept]
    roles = Roles()
    roles.study(left[: ahead(left, left.time_ns[0])] if len(left) else left)
    found = roles.from_client(left)
    keys, flow, counts = np.unique(left.flow_key, return_inverse=True, return_counts=True)
    backwards, by_ports = left.has(Flag.REVERSE), class_of(left.dst_port) < class_of(left.src_port)
    alike = class_of(left.dst_port) == class_of(left.src_port)
    result: Counter[str] = Counter()
    for i in np.flatnonzero(counts >= FEWEST):
        if (client := truth.get(int(keys[i]))) is None:
            continue
        rows = np.flatnonzero(flow.reshape(-1) == i)
        from_client = backwards[rows] == client
        right, guess = bool((found[rows] == from_client).all()), roles.is_guess(left[rows[:1]])
        result["conversations"] += 1
        result["right"] += right
        result["by ports"] += bool((by_ports[rows] == from_client).all() and not alike[rows].any())
        result["guessed"] += guess
        result["guessed right"] += guess and right
    return result


def told_by_syns(packets: PacketBatch) -> dict[int, bool]:
    """By conversation: whether the client's packets have the flag REVERSE; without those whose SYNs disagree."""
    said: dict[int, set[bool]] = {}
    for i in np.flatnonzero(packets.of_kind(Kind.TCP) & ((packets.message & TcpFlag.SYN) != 0)).tolist():
        by_server = bool(packets.message[i] & TcpFlag.ACK)
        said.setdefault(int(packets.flow_key[i]), set()).add(bool(packets.has(Flag.REVERSE)[i]) != by_server)
    return {key: clients.pop() for key, clients in said.items() if len(clients) == 1}


def without_handshakes(packets: PacketBatch, truth: dict[int, bool]) -> npt.NDArray[np.intp]:
    """Rows without SYNs, and without the client's empty packet after them."""
    syns = packets.of_kind(Kind.TCP) & ((packets.message & TcpFlag.SYN) != 0)
    rest = np.flatnonzero(~syns)
    keys, first = np.unique(packets.flow_key[rest], return_index=True)
    for key, row in zip(keys.tolist(), rest[first].tolist(), strict=True):
        if truth.get(key) == bool(packets.has(Flag.REVERSE)[row]) and not packets.payload_length[row]:
            syns[row] = True
    return np.flatnonzero(~syns)


def class_of(ports: npt.NDArray[np.uint16]) -> npt.NDArray[np.int64]:
    """Well-known, registered, dynamic or none."""
    return np.where(ports > 0, (ports >= 1024).astype(np.int64) + (ports >= 32768), 2)


if __name__ == "__main__":
    main()
