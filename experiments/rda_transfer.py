"""RDA and FineComb, figure 14: how long synopses and missing timestamps take to reach the other side.

A sender and an inbox on loopback, as in agents and collectors: encode, HTTP, store nothing, decode. The paper's two
servers are a switch apart; its figures are plots without numbers: the first grows modestly with the number of buckets,
the second linearly with the number of records.
"""

import asyncio
import socket
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import uvicorn
from starlette.applications import Starlette
from traces import arguments, show

from wirelag.estimators.rda import Rda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.reconcile import answer_symbols
from wirelag.protocol.terms import Terms
from wirelag.synopses.cache import Cached
from wirelag.synopses.symbols import numbers_of
from wirelag.transport import Address, sender
from wirelag.transport.http_inbox import HttpInbox

SECOND_NS = 10**9
START_NS = 1_700_000_000 * SECOND_NS
INTERVAL = Interval(START_NS, START_NS + SECOND_NS)
PLACE = {"start_ns": INTERVAL.start_ns, "end_ns": INTERVAL.end_ns, "name": None, "class": None}
SIZES = (100, 1000, 5000, 10_000, 20_000)
PACKETS = 100_000
LOW = np.uint64(2**32 - 1)


def kept() -> Cached:
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 1 << 44, PACKETS, np.uint64)
    return Cached(ids, START_NS + np.sort(rng.integers(0, SECOND_NS, PACKETS)), packets=PACKETS)


def synopsis(estimator: Rda, size: int, cached: Cached) -> Message:
    bound = replace(estimator, buckets=size).bind(cached)
    record = PLACE | bound.to_fields()
    return Message("synopsis", "A", "A>B", INTERVAL, Terms(estimator, interval_ns=SECOND_NS), records=(record,))


def question(estimator: Rda, size: int, cached: Cached) -> Message:
    record = PLACE | {"wanted": numbers_of(cached.ids)[:size] & LOW, "difference": size, "cache_level": 0}
    return Message("ask", "A", "A>B", INTERVAL, Terms(estimator, interval_ns=SECOND_NS), records=(record,))


async def measured(runs: int) -> tuple[list[tuple[object, ...]], list[tuple[object, ...]]]:
    """Rows of both tables."""
    inbox = HttpInbox({"a-token-of-some-length": None})
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(Starlette(routes=inbox.routes()), log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}"
    line = sender(Address(url, "a-token-of-some-length"), "A")
    arrived: asyncio.Queue[Message] = asyncio.Queue()

    async def receive() -> None:
        async for data, acknowledge in inbox.messages():
            arrived.put_nowait(decode(data))
            await acknowledge()

    async def sent(made: Callable[[], Message]) -> tuple[float, int]:
        """Median ms until it was decoded there, and its bytes."""
        took, size = [], 0
        for _ in range(runs):
            began = time.perf_counter()
            message = made()
            data = encode(message)
            await asyncio.gather(line.send(data, message.key), arrived.get())
            took.append(1e3 * (time.perf_counter() - began))
            size = len(data)
        return float(np.median(took)), size

    receiving = asyncio.create_task(receive())
    cached, rows, records = kept(), [], []
    for size in SIZES:
        cells: list[object] = [str(size)]
        for estimator in (Rda(short=True, rows=32, tail=64), Rda(tail=64)):
            message = synopsis(estimator, size, cached)
            ms, length = await sent(lambda message=message: message)  # type: ignore[misc]
            cells += [f"{ms:.1f}", str(length)]
        rows.append(tuple(cells))
        ask = question(Rda(short=True, rows=32, tail=64), size, cached)

        def answer(ask: Message = ask) -> Message:
            """Read the question, look up the packets, and reply with their times."""
            read = decode(encode(ask))
            assert isinstance(read.terms.estimator, Rda)
            record = PLACE | answer_symbols(read.terms.estimator, cached, read.records[0])
            return Message("times", "A", "A>B", INTERVAL, read.terms, records=(record,))

        ms, length = await sent(answer)
        records.append(
            (str(size), f"{ms:.1f}", str(length + len(encode(ask))), f"{(length + len(encode(ask))) / size:.1f}")
        )
    await line.close()
    server.should_exit = True
    await inbox.close()
    receiving.cancel()
    await serving
    return rows, records


if __name__ == "__main__":
    options = arguments(__doc__)
    synopses, times = asyncio.run(measured(3 if options.quick else 30))
    header = ("symbols or buckets", "symbols, ms", "bytes", "buckets, ms", "bytes, buckets")
    show("14a: ms to send a synopsis; paper: grows modestly", header, synopses)
    show("14b: ms to ask for times and get them; paper: linear", ("packets", "ms", "bytes", "bytes each"), times)
