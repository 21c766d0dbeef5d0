"""Uploads at given times, each in its own connection: cross_client.py ADDRESS PORT SECONDS PLAN.

PLAN is a JSON list of [second, bytes]. At the end of the time it prints how many flows there were, how many were
complete, and how many bytes were given to TCP.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

PIECE = bytes(64 << 10)


class Uploads:
    """All uploads, and what became of them."""

    def __init__(self, address: str, port: int) -> None:
        """To this server."""
        self.address, self.port = address, port
        self.complete = self.sent = 0

    async def upload(self, at_s: float, size: int) -> None:
        """Wait for its time, send it, wait for the response."""
        await asyncio.sleep(at_s)
        reader, writer = await asyncio.open_connection(self.address, self.port)
        writer.write(f"POST /1 HTTP/1.1\r\nHost: lab\r\nContent-Length: {size}\r\n\r\n".encode())
        left = size
        while left:
            piece = min(left, len(PIECE))
            writer.write(PIECE[:piece])
            await writer.drain()
            left -= piece
            self.sent += piece
        await reader.readuntil(b"\r\n\r\n")
        self.complete += 1
        writer.close()


async def main(address: str, port: str, seconds: str, plan: str) -> None:
    uploads = Uploads(address, int(port))
    flows = [asyncio.create_task(uploads.upload(at_s, size)) for at_s, size in json.loads(Path(plan).read_text())]
    await asyncio.wait(flows, timeout=float(seconds)) if flows else None
    print(json.dumps({"flows": len(flows), "complete": uploads.complete, "bytes": uploads.sent}), flush=True)
    for flow in flows:
        flow.cancel()
    await asyncio.gather(*flows, return_exceptions=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
