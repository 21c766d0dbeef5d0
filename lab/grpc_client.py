"""A gRPC client: grpc_client.py ADDRESS PORT CONNECTIONS IN_FLIGHT BYTES SECONDS LOG.

Each connection keeps IN_FLIGHT calls in flight, each on its own stream. The log has the format of load.c.
"""

from __future__ import annotations

import asyncio
import struct
import sys
import time
from pathlib import Path

import grpc

ENTRY = struct.Struct("<qqIHH8x")


async def main(to: str, connections: int, in_flight: int, size: int, seconds: float, log: Path) -> None:
    """Run all connections and write the log."""
    entries: list[bytes] = []
    offset_ns = time.time_ns() - time.monotonic_ns()
    end_ns = time.monotonic_ns() + int(seconds * 1e9)

    async def stream(call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]) -> None:
        done = 0
        while time.monotonic_ns() < end_ns:
            asked_ns = time.monotonic_ns()
            answer = await call(str(size).encode())
            port = int.from_bytes(answer[:2], "big")
            entries.append(ENTRY.pack(asked_ns, time.monotonic_ns(), done, port, in_flight))
            done += 1

    async def connection() -> None:
        options = (("grpc.use_local_subchannel_pool", 1),)  # a connection of its own
        async with grpc.aio.insecure_channel(to, options) as channel:
            call = channel.unary_unary("/lab.Echo/Call")
            await asyncio.gather(*(stream(call) for _ in range(in_flight)))

    await asyncio.wait_for(asyncio.gather(*(connection() for _ in range(connections))), seconds + 120)
    log.write_bytes(struct.pack("<q", offset_ns) + b"".join(entries))


if __name__ == "__main__":
    _, address, port, connections, in_flight, size, seconds, log = sys.argv
    asyncio.run(main(f"{address}:{port}", int(connections), int(in_flight), int(size), float(seconds), Path(log)))
