"""Captures on servers that others run: nginx over HTTP, OpenSSH over SFTP."""

import getpass
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import wirelag
from tests.support import needs
from tests.support.fleets import Here, rotated, simulated
from tests.support.ports import free_port
from tests.support.waiting import until
from wirelag.capture.remote import matching
from wirelag.errors import WirelagError
from wirelag.measure.fleet import Fleet


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A rotated set."""
    return rotated(simulated(tmp_path_factory.mktemp("served") / "whole.pcap", 6000), 3)


@contextmanager
def running(program: str, *words: str, port: int) -> Iterator[None]:
    found = needs.find(program)
    assert found is not None
    process = subprocess.Popen([found, *words], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        assert process.poll() is None, f"{program} ended"
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(answers, program)
        yield
    finally:
        process.terminate()
        process.wait()


def check(address: str, files: list[Path]) -> None:
    """A pattern of names; the answer is that of files here, but for their names."""
    names = matching(f"{address}/tap.pcap*")
    assert names == [f"{address}/{path.name}" for path in files]
    there = json.dumps(wirelag.rtt(names, by="server", on=Fleet(Here(), task_size="256KiB")).to_dict())
    here = json.dumps(wirelag.rtt([str(path) for path in files], by="server").to_dict())
    assert there.replace(address, str(files[0].parent)) == here
    with pytest.raises(WirelagError, match=r"none\.pcap: there is no such file"):
        wirelag.rtt(f"{address}/none.pcap")


@pytest.mark.skipif(bool(needs.absent("nginx")), reason=needs.absent("nginx"))
def test_http(files: list[Path], tmp_path: Path) -> None:
    pytest.importorskip("aiohttp", reason=needs.needs("aiohttp", "pip install aiohttp"))
    port, kinds = free_port(), ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    (tmp_path / "conf").write_text(f"""
        daemon off; pid {tmp_path}/pid; error_log stderr; worker_processes 1; events {{}}
        {f"user {getpass.getuser()};" if not os.geteuid() else ""}
        http {{ access_log off; {" ".join(f"{kind}_temp_path {tmp_path}/{kind};" for kind in kinds)}
        server {{ listen 127.0.0.1:{port}; root {files[0].parent}; autoindex on; }} }}
    """)
    with running("nginx", "-c", str(tmp_path / "conf"), "-e", "stderr", port=port):
        check(f"http://127.0.0.1:{port}", files)


@pytest.mark.skipif(bool(needs.absent("sshd", "ssh-keygen")), reason=needs.absent("sshd", "ssh-keygen"))
def test_sftp(files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("paramiko", reason=needs.needs("paramiko", "pip install paramiko"))
    (tmp_path / ".ssh").mkdir()
    for key in (tmp_path / "host", tmp_path / ".ssh" / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    port = free_port()
    (tmp_path / "conf").write_text(f"""
        ListenAddress 127.0.0.1:{port}
        HostKey {tmp_path}/host
        AuthorizedKeysFile {tmp_path}/.ssh/id_ed25519.pub
        StrictModes no
        UsePAM no
        PidFile none
        Subsystem sftp internal-sftp
    """)
    if not os.geteuid():
        Path("/run/sshd").mkdir(exist_ok=True)  # which it demands for its separation of privileges
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with running("sshd", "-D", "-e", "-f", str(tmp_path / "conf"), port=port):
        check(f"sftp://{getpass.getuser()}@127.0.0.1:{port}{files[0].parent}", files)
