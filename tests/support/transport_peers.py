"""Agents and collectors for the tests of the transport, with real servers, brokers and certificates."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import needs
from tests.support.places import ROOT
from tests.support.ports import free_port as free_port
from tests.support.waiting import PATIENCE_S
from wirelag.estimators.lda import Lda
from wirelag.packets.interval import Interval
from wirelag.protocol.messages import Message, decode, encode
from wirelag.protocol.terms import Terms
from wirelag.transport import Address, Inbox, Refused, Sender, Unreachable, sender

pytest.importorskip("starlette", reason=needs.LIVE)
pytest.importorskip("nats", reason=needs.LIVE)

import uvicorn
from starlette.applications import Starlette

from wirelag.transport.http_inbox import HttpInbox
from wirelag.transport.nats import NatsInbox

POINT = "edge 1:eth0/ä.*>"
TOKEN = "s3cret-of-the-collector"
PASSWORD = "p4ssword-of-the-broker"
SECOND_NS = 10**9


def message(number: int, point: str = POINT) -> Message:
    interval = Interval(number * SECOND_NS, (number + 1) * SECOND_NS)
    return Message("status", point, None, interval, Terms(Lda(), interval_ns=SECOND_NS), sent_ns=number)


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * PATIENCE_S))


async def soon(what: Awaitable[Any]) -> Any:
    return await asyncio.wait_for(what, PATIENCE_S)


@contextmanager
def program(*command: str, ready: str) -> Iterator[subprocess.Popen[str]]:
    """A program, once it has printed that it is ready; it is stopped at the end."""
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                break
        else:
            raise OSError(f"{command[0]} does not start: {''.join(said)}")
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and no other host, and its key."""
    if needs.absent("openssl"):
        pytest.skip(needs.absent("openssl"))
    made, key = folder / "certificate.pem", folder / "key.pem"
    made_of = f"-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {key} -out {made} -days 1"
    who = ["-subj", "/CN=wirelag test", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run(["openssl", "req", "-x509", *made_of.split(), *who], check=True, capture_output=True)
    return made, key


def make_client(folder: Path, ca: tuple[Path, Path], name: str, *others: str, signs: bool = False) -> tuple[Path, Path]:
    """A certificate for the point `name`, and `others` by their DNS names, signed by this CA, and its key."""
    made, key = folder / f"{name}.pem", folder / f"{name}.key"
    made_of = f"-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout {key} -out {made} -days 1"
    who = ["-subj", f"/CN={name}", *(word for one in others for word in ("-addext", f"subjectAltName=DNS:{one}"))]
    sign = ["-CA", str(ca[0]), "-CAkey", str(ca[1]), "-addext", f"basicConstraints=critical,CA:{str(signs).upper()}"]
    subprocess.run(["openssl", "req", "-x509", *made_of.split(), *who, *sign], check=True, capture_output=True)
    return made, key


# ---- servers ----


class Server(uvicorn.Server):
    """A server that leaves signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def https(
    inbox: HttpInbox, certificate: tuple[Path, Path] | None = None, port: int | None = None
) -> AsyncIterator[str]:
    """A collector's server; returns its URL."""
    keys: dict[str, Any] = {"ssl_certfile": certificate[0], "ssl_keyfile": certificate[1]} if certificate else {}
    server = Server(uvicorn.Config(Starlette(routes=inbox.routes()), port=port or 0, log_level="error", **keys))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0)
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"{'https' if certificate else 'http'}://127.0.0.1:{port}"
    finally:
        await inbox.close()
        server.should_exit = True
        await serving


@contextmanager
def broker(
    folder: Path, port: int, certificate: tuple[Path, Path] | None = None, more: str = "", most: str = "100GB"
) -> Iterator[subprocess.Popen[str]]:
    """A NATS server with JetStream and a user, and with TLS if there is a certificate; `most`: its room."""
    found = needs.find("nats-server")
    if found is None:
        pytest.skip(needs.program("nats-server"))
    tls = f'tls {{ cert_file: "{certificate[0]}", key_file: "{certificate[1]}" }}' if certificate else ""
    configuration = folder / "nats.conf"
    configuration.write_text(
        f'listen: "127.0.0.1:{port}"\njetstream {{ store_dir: "{folder}/store", max_file_store: {most} }}\n'
        + f"{tls}\n{more}\n"
        + ("" if "authorization" in more else f"authorization {{ user: wirelag, password: {PASSWORD!r} }}\n")
    )
    with program(found, "-c", str(configuration), ready="Server is ready") as process:
        yield process


Connected = tuple[Callable[[], Sender], Inbox]
Start = Callable[[Path, tuple[Path, Path]], AbstractAsyncContextManager[Connected]]


@asynccontextmanager
async def over_https(folder: Path, certificate: tuple[Path, Path]) -> AsyncIterator[Connected]:
    inbox = HttpInbox({TOKEN: None})
    async with https(inbox, certificate) as url:
        yield lambda: sender(Address(url, TOKEN, ca=str(certificate[0])), POINT), inbox


@asynccontextmanager
async def over_nats(folder: Path, certificate: tuple[Path, Path]) -> AsyncIterator[Connected]:
    port = free_port()
    with broker(folder, port, certificate):
        address = Address(f"tls://127.0.0.1:{port}", f"wirelag:{PASSWORD}", ca=str(certificate[0]))
        inbox = NatsInbox(address)
        try:
            yield lambda: sender(address, POINT), inbox
        finally:
            await inbox.close()


TRANSPORTS: dict[str, Start] = {"https": over_https, "nats": over_nats}
every_transport = pytest.mark.parametrize("start", TRANSPORTS.values(), ids=TRANSPORTS)


async def send_patiently(way: Sender, data: bytes, key: str) -> None:
    """Send until it succeeds: a broker has no streams before its collector exists."""
    while True:
        with suppress(Unreachable):
            return await way.send(data, key)
        await asyncio.sleep(0.01)


async def taking(inbox: Inbox, into: list[int], enough: int) -> None:
    """Take messages until there are enough different ones."""
    async for data, acknowledge in inbox.messages():
        into.append(decode(data).sent_ns)
        await acknowledge()
        if len(set(into)) >= enough:
            return


async def taken_while(sending: Awaitable[Any], inbox: Inbox, into: list[int]) -> None:
    """Take messages until these are sent; what is sent again is taken again."""
    taker = asyncio.create_task(taking(inbox, into, 10**9))
    await soon(sending)
    taker.cancel()
    await asyncio.gather(taker, return_exceptions=True)


async def fails(way: Sender, number: int = 1) -> str:
    with pytest.raises((Unreachable, Refused)) as error:
        await way.send(encode(message(number)), message(number).key)
    await way.close()
    text = f"{type(error.value).__name__}: {error.value}"
    assert TOKEN not in text
    assert PASSWORD not in text
    assert "\n" not in text
    return text


# ---- a process to kill ----


def serve_https(port: str, certificate: str, key: str, log: str) -> None:
    """Take messages, and log their numbers before they are acknowledged."""

    async def take(inbox: HttpInbox, file: Any) -> None:
        async for data, acknowledge in inbox.messages():
            print(decode(data).sent_ns, file=file, flush=True)
            await acknowledge()

    async def work() -> None:
        inbox = HttpInbox({TOKEN: None})
        with open(log, "a") as file:
            taker = asyncio.create_task(take(inbox, file))
            async with https(inbox, (Path(certificate), Path(key)), int(port)):
                print("ready", flush=True)
                await taker

    asyncio.run(work())


if __name__ == "__main__":
    serve_https(*sys.argv[1:])
