"""Certificates of clients with a real collector: whom they let in, and for which points they speak."""

import json
import signal
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests.support.agent_messages import pair
from tests.support.collector_process import RDA, Running, recent
from tests.support.transport_peers import make_certificate, make_client, run
from wirelag.errors import WirelagError
from wirelag.protocol.messages import encode
from wirelag.transport import Address, Sender, Unreachable, sender

ADMIN = "the-token-for-everything"
OF_A, OF_B = (agent.messages(0, 1)[0] for agent in pair(recent(2, 10, 1), RDA))


class Place:
    """A collector with a CA of clients; certificates of A, of B, and of one that names no point."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("server", "ca", "other"):
            (folder / name).mkdir()
        self.server, self.ca = make_certificate(folder / "server"), make_certificate(folder / "ca")
        self.a, self.b = make_client(folder, self.ca, "A"), make_client(folder, self.ca, "host-of-b", "B")
        self.log, self.trusted = folder / "audit.jsonl", folder / "trusted.pem"
        self.trusted.write_bytes(self.ca[0].read_bytes())
        (folder / "tokens").write_text(f"{ADMIN}\n")
        files = f'certificate = "{self.server[0]}"\nkey = "{self.server[1]}"\nclient_ca = "{self.trusted}"\n'
        rest = f'token_file = "{folder / "tokens"}"\naudit = "{self.log}"\nsegments = ["A>B"]\n'
        (folder / "collector.toml").write_text(files + rest)

    def start(self) -> Running:
        return Running(self.folder, str(self.folder / "collector.toml"))

    def sender(self, url: str, point: str, shown: tuple[Path, Path] | None) -> Sender:
        files = (None, None) if shown is None else (str(shown[0]), str(shown[1]))
        address = Address(url, ADMIN, ca=str(self.server[0]), certificate=files[0], key=files[1])
        return sender(address, point)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def refusal(line: Sender, message: object) -> str:
    """Why a message is refused; empty if it is stored."""
    try:
        await line.send(encode(message), message.key)  # type: ignore[arg-type, attr-defined]
    except Unreachable as error:
        return str(error).partition(": ")[2]
    return ""


def test_a_certificate_speaks_only_for_the_points_that_it_names(place: Place) -> None:
    async def work(url: str) -> list[str]:
        found = []
        for shown, message in ((place.a, OF_A), (place.b, OF_B), (place.a, OF_B), (place.b, OF_A), (None, OF_A)):
            line = place.sender(url, message.point, shown)
            found.append(await refusal(line, message))
            await line.close()
        ca = place.sender(url, "A", make_client(place.folder / "server", place.ca, "A", signs=True))
        found.append(await refusal(ca, OF_A))
        await ca.close()
        stranger = place.sender(url, "A", make_client(place.folder / "other", place.server, "A"))
        found.append(await refusal(stranger, OF_A))
        await stranger.close()
        return found

    async def asks(url: str) -> int:
        from wirelag.transport.http import _Line, _Trust

        address = Address(url, ADMIN, ca=str(place.server[0]), certificate=str(place.a[0]), key=str(place.a[1]))
        line = _Line(address, _Trust(address))
        status, _, _ = line.next_ask("/v1/asks/B?after=")
        line.close()
        return status

    with place.start() as running:
        said: list[str] = []
        status: list[int] = []

        async def both() -> None:
            said.extend(await work(running.url))
            status.append(await asks(running.url))

        run(both())
        assert running.end(signal.SIGTERM) == 0
    refused = "does not accept the certificate (the certificate belongs to another point: it names {}); check "
    assert said[:2] == ["", ""]
    assert said[2] == refused.format("A") + "collector.certificate"
    assert said[3] == refused.format("B, host-of-b") + "collector.certificate"
    assert said[5] == refused.format("none, or may sign others (CA:TRUE)") + "collector.certificate"
    hint = "; if it demands client certificates, check collector.certificate, its CA and its dates"
    assert said[4].endswith(hint)
    assert said[6].endswith(hint)
    assert status == [403]
    lines = [json.loads(line) for line in place.log.read_text().splitlines()]
    sent = Counter(line["sent"] for line in lines if line["what"] == "refused")
    assert sent == {"a certificate of another point": 4, "no certificate that is accepted": 2}
    assert "127.0.0.1: refused, it sent no certificate of client_ca" in running.log


def test_a_ca_that_was_replaced_admits_nobody_not_even_on_an_open_connection(place: Place) -> None:
    """An agent whose certificate is renewed goes on without a restart."""
    old, new = place.a, make_client(place.folder / "other", make_certificate(place.folder / "other"), "A")

    async def work(running: Running) -> None:
        line = place.sender(running.url, "A", old)
        assert await refusal(line, OF_A) == ""
        place.trusted.write_bytes((place.folder / "other" / "certificate.pem").read_bytes())
        running.process.send_signal(signal.SIGHUP)
        running.read_log("settings were read again")
        assert await refusal(line, OF_A) != "", "neither on the open connection, nor by its session"
        fresh = place.sender(running.url, "A", old)
        assert await refusal(fresh, OF_A) != ""
        for mine, renewed in zip(old, new, strict=True):
            mine.write_bytes(renewed.read_bytes())
        assert await refusal(line, OF_A) == "", "the renewed one is shown"
        for one in (line, fresh):
            await one.close()

    with place.start() as running:
        run(work(running))
        place.trusted.write_text("half a certifi")
        running.process.send_signal(signal.SIGHUP)
        running.read_log("cannot be used as client_ca")
        assert running.end(signal.SIGTERM) == 0


def revocation_list(place: Place, *revoked: Path) -> bytes:
    """The CA's list, with these certificates."""
    folder = place.folder / "ca"
    (folder / "index").write_text("")
    (folder / "ca.cnf").write_text(f"[ca]\ndefault_ca = one\n[one]\ndatabase = {folder}/index\ndefault_md = sha256\n")
    words = [
        "openssl",
        "ca",
        "-config",
        str(folder / "ca.cnf"),
        "-cert",
        str(place.ca[0]),
        "-keyfile",
        str(place.ca[1]),
    ]
    for certificate in revoked:
        subprocess.run([*words, "-revoke", str(certificate)], check=True, capture_output=True)
    return subprocess.run([*words, "-gencrl", "-crldays", "1"], check=True, capture_output=True).stdout


def test_a_certificate_that_was_revoked_admits_nobody(place: Place) -> None:
    """A list behind the CA in its file, after a reload: the others go on, and a second list sets it right."""
    of_ca = place.ca[0].read_bytes()

    async def work(running: Running) -> None:
        lines = place.sender(running.url, "A", place.a), place.sender(running.url, "B", place.b)
        for revoked, admitted in (([], "AB"), ([place.a[0]], "B"), ([], "AB")):
            place.trusted.write_bytes(of_ca + revocation_list(place, *revoked))
            running.process.send_signal(signal.SIGHUP)
            running.read_log("settings were read again")
            found = [await refusal(line, one) for line, one in zip(lines, (OF_A, OF_B), strict=True)]
            assert "".join(name for name, why in zip("AB", found, strict=True) if not why) == admitted
        for line in lines:
            await line.close()

    with place.start() as running:
        run(work(running))


def test_a_certificate_fits_its_key(place: Place) -> None:
    with pytest.raises(WirelagError, match="no certificate that fits"):
        Address("https://127.0.0.1:1", certificate=str(place.a[0]), key=str(place.b[1])).context()
    with pytest.raises(WirelagError, match="works with https:// and tls:// only"):
        Address("http://127.0.0.1:1", certificate=str(place.a[0]), key=str(place.a[1]))
