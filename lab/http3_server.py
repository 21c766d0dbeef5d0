"""An HTTP/3 server by aioquic: http3_server.py ADDRESS PORT SERVICE_US SEED FOLDER. GET /BYTES returns that many bytes.

Service times are constant:US or exponential:US; requests are served in parallel.
A new certificate is made in the folder.
"""

from __future__ import annotations

import asyncio
import datetime
import random
import sys
from pathlib import Path

from aioquic.asyncio.protocol import QuicConnectionProtocol
from aioquic.asyncio.server import serve
from aioquic.h3.connection import H3_ALPN, H3Connection
from aioquic.h3.events import H3Event, HeadersReceived
from aioquic.quic.configuration import QuicConfiguration
from aioquic.quic.events import ProtocolNegotiated, QuicEvent
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Service:
    """Draws service times."""

    def __init__(self, distribution: str, seed: int) -> None:
        self._kind, mean_us = distribution.split(":")
        if self._kind not in ("constant", "exponential"):
            raise ValueError(f"not a distribution of this server: {distribution}")
        self._mean_s = float(mean_us) * 1e-6
        self._random = random.Random(seed)

    def seconds(self) -> float:
        """The next one."""
        return self._mean_s if self._kind == "constant" else self._random.expovariate(1 / self._mean_s)


class Protocol(QuicConnectionProtocol):
    """One connection."""

    service: Service
    _http: H3Connection | None = None

    def quic_event_received(self, event: QuicEvent) -> None:
        """Called by aioquic."""
        if isinstance(event, ProtocolNegotiated):
            self._http = H3Connection(self._quic)
        if self._http is not None:
            for received in self._http.handle_event(event):
                self._http_event(received)

    def _http_event(self, event: H3Event) -> None:
        if isinstance(event, HeadersReceived):
            size = int(dict(event.headers)[b":path"][1:])
            asyncio.get_running_loop().call_later(self.service.seconds(), self._answer, event.stream_id, size)

    def _answer(self, stream_id: int, size: int) -> None:
        assert self._http is not None
        self._http.send_headers(stream_id, [(b":status", b"200"), (b"content-length", str(size).encode())])
        self._http.send_data(stream_id, b"x" * size, end_stream=True)
        self.transmit()


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed certificate, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lab")])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    certificate_path, key_path = folder / "certificate.pem", folder / "key.pem"
    certificate_path.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return certificate_path, key_path


async def main(address: str, port: int, service: str, seed: int, folder: Path) -> None:
    """Serve until stopped."""
    configuration = QuicConfiguration(is_client=False, alpn_protocols=H3_ALPN)
    configuration.load_cert_chain(*certificate(folder))
    Protocol.service = Service(service, seed)
    await serve(address, port, configuration=configuration, create_protocol=Protocol)
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), Path(sys.argv[5])))
