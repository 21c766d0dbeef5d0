"""Loss bits of QUIC in packets of one point: which packets have them, and what each direction of a connection shows.

Short headers are rows of kind QUIC, and on other ports those of flows that showed a long header before. The bits are
0x10 (Q) and 0x08 (L) of the first byte. Memory: 2^16 directions; more are counted, and not measured.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.estimators.loss_bits import Loss, LossBits, Rest, downstream, together
from wirelag.packets.batch import Flag, Kind
from wirelag.units import many

if TYPE_CHECKING:
    from wirelag.packets.batch import PacketBatch

MOST: Final = 1 << 16
ENOUGH: Final = 1024  # packets in which Q shows its blocks
LONG, FORM, SHORT, Q, L = 0x80, 0xC0, 0x40, 0x10, 0x08
PLACES: Final = ("upstream", "downstream", "end_to_end")


class QuicLoss:
    """Directions of connections of QUIC, and their loss bits."""

    def __init__(self, every_port: bool = False, block: int | None = None) -> None:
        self._every_port, self._block = every_port, block
        self._known: set[int] = set()  # flows that showed a long header
        self.directions: dict[tuple[int, bool], tuple[str, LossBits]] = {}
        self.packets = 0  # with a short header
        self.too_many = 0  # of them, in directions beyond `MOST`

    def observe(self, batch: PacketBatch) -> None:
        """Look at the packets of a batch."""
        quic = batch.of_kind(Kind.QUIC)
        is_long = quic & (batch.message & np.uint8(LONG) != 0)
        rows = np.flatnonzero((quic & ~is_long) | (batch.of_kind(Kind.UDP) & (batch.message & np.uint8(FORM) == SHORT)))
        if not len(rows) and not is_long.any():
            return
        rows = rows[self._is_quic(batch, rows, np.flatnonzero(is_long))]
        self.packets += len(rows)
        keys, back = batch.flow_key[rows], batch.has(Flag.REVERSE)[rows]
        order = np.lexsort((back, keys))  # stable: packets of one direction stay in their order
        rows, keys, back = rows[order], keys[order], back[order]
        message = batch.message[rows]
        square, marks = (message & np.uint8(Q)) != 0, (message & np.uint8(L)) != 0
        changes = np.flatnonzero((keys[1:] != keys[:-1]) | (back[1:] != back[:-1])) + 1
        for start, end in zip([0, *changes.tolist()], [*changes.tolist(), len(rows)], strict=True):
            if start < end:
                bits = self._direction(batch, int(rows[start]), (int(keys[start]), bool(back[start])))
                if bits is None:
                    self.too_many += end - start
                else:
                    bits.observe(square[start:end], marks[start:end])

    def _is_quic(self, batch: PacketBatch, rows: Any, long_rows: Any) -> Any:
        """Which of these rows are QUIC: by their port, or since their flow showed a long header before."""
        keys, kinds = batch.flow_key[rows], batch.kind[rows]
        firsts: dict[int, int] = {}  # flows that show one in this batch, and where
        for row, key in zip(long_rows.tolist(), batch.flow_key[long_rows].tolist(), strict=True):
            firsts.setdefault(key, row)
        wanted = (kinds == np.uint8(Kind.QUIC)) | self._every_port
        for i in np.flatnonzero(~wanted).tolist():
            key = int(keys[i])
            wanted[i] = key in self._known or firsts.get(key, len(batch)) < rows[i]
        if len(self._known) < MOST:
            self._known.update(firsts)
        return wanted

    def _direction(self, batch: PacketBatch, row: int, key: tuple[int, bool]) -> LossBits | None:
        if key not in self.directions:
            if len(self.directions) >= MOST:
                return None
            ends = (
                f"{f'[{address}]' if address.version == 6 else address}:{int(port)}"
                for address, port in (
                    (batch.address(batch.src, row), batch.src_port[row]),
                    (batch.address(batch.dst, row), batch.dst_port[row]),
                )
            )
            self.directions[key] = " > ".join(ends), LossBits(self._block)
        return self.directions[key][1]

    def to_dict(self) -> dict[str, Any]:
        """What all directions show, and each that carries the bits, those with the most loss first."""
        every = [bits for _, bits in self.directions.values()]
        for bits in every:
            bits.settle()
        carrying = [(name, bits) for name, bits in self.directions.values() if bits.carries]
        flows = [{"key": name, **_figures(bits.upstream(), bits.end_to_end(), [bits])} for name, bits in carrying]
        whole: dict[str, Any] = {"packets": self.packets, "directions": len(every), "too_many": self.too_many}
        whole |= {"encrypted": sum(bits.is_random for bits in every), "carrying": len(carrying)}
        whole["other"] = sum(map(_is_strange, every))
        if carrying:
            parts = [bits for _, bits in carrying]
            before, path = together(one.upstream() for one in parts), together(one.end_to_end() for one in parts)
            whole["all"] = _figures(before, path, parts)
        return whole | {"flows": sorted(flows, key=lambda flow: -flow["end_to_end"])}

    def notes(self) -> list[str]:
        """What the figures rest on; nothing if there is no QUIC."""
        every = [bits for _, bits in self.directions.values()]
        if not every:
            return []
        carrying, encrypted = sum(bits.carries for bits in every), sum(bits.is_random for bits in every)
        said = f"{many(len(every), 'direction')} of QUIC: {carrying:,} with loss bits, {encrypted:,} without"
        strange = sum(_is_strange(bits) for bits in every)
        if strange:
            said += f", {strange:,} whose bits mean something else"
        if short := len(every) - carrying - encrypted - strange:
            said += f", {short:,} too short to tell"
        notes = [said]
        if carrying:
            notes.append("loss before the point is counted; loss on the whole path is what senders noticed")
        if self.too_many:
            notes.append(f"{many(self.too_many, 'packet')} of QUIC are of more than {MOST:,} directions, and not read")
        return notes


def _is_strange(bits: LossBits) -> bool:
    """Whether Q is neither a coin nor a signal, though enough packets came for one."""
    return bits.packets >= ENOUGH and not bits.is_random and not bits.carries


def _figures(upstream: Loss, end_to_end: Loss, parts: list[LossBits]) -> dict[str, Any]:
    """Losses with their intervals, and what they rest on."""
    losses: dict[str, Loss | Rest] = dict(
        zip(PLACES, (upstream, downstream(upstream, end_to_end), end_to_end), strict=True)
    )
    lengths = {bits.length for bits in parts}
    return {
        "packets": sum(bits.packets for bits in parts),
        "block": lengths.pop() if len(lengths) == 1 else None,
        "blocks": sum(bits.whole.blocks for bits in parts),
        "lost": sum((bits.length or 0) * bits.whole.blocks - bits.whole.packets for bits in parts),
        "marked": sum(bits.marked for bits in parts),
        **{place: min(max(loss.share, 0.0), 1.0) for place, loss in losses.items()},
        "ci95": {place: list(loss.ci95) for place, loss in losses.items() if loss.ci95 is not None},
    }
