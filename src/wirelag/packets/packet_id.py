"""What a packet id is made of."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PacketId:
    """The parts of a packet id. All vantage points must use the same, or ids cannot be compared.

    `prefix` bytes of the payload (0 to 64) and the fields that no hop changes. Address translation changes `flow`.
    """

    flow: bool = True
    length: bool = True
    ip_id: bool = True
    transport: bool = True
    prefix: int = 16
    seed: int = 0

    @property
    def fields(self) -> int:
        """The fields as bits for the kernel."""
        return self.flow | self.length << 1 | self.ip_id << 2 | self.transport << 3
