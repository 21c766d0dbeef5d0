"""Captures elsewhere whose files know less than those of an object store: as fsspec's sftp gives them."""

import io
import os
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from tests.support.fleets import simulated
from wirelag.capture.pcap import CaptureFile
from wirelag.capture.remote import matching, open_remote, size_of
from wirelag.errors import WirelagError


class File(io.FileIO):
    """No size, and `seek` returns nothing."""

    def seek(self, offset: int, whence: int = 0) -> None:  # type: ignore[override]
        super().seek(offset, whence)


class Hosted(LocalFileSystem):
    """Paths of one host, whose name is no part of them."""

    protocol = "hosted"

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).removeprefix("hosted://here")

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> File:
        return File(path)


def test_files_of_a_host_are_found_and_read(tmp_path: Path) -> None:
    fsspec.register_implementation("hosted", Hosted, clobber=True)
    whole = simulated(tmp_path / "b.pcap", 500)
    (tmp_path / "a.pcap").write_bytes(whole.read_bytes())
    names = [f"hosted://here{tmp_path}/{name}.pcap" for name in "ab"]
    assert matching(f"hosted://here{tmp_path}/*.pcap") == names
    assert size_of(names[0]) == whole.stat().st_size
    with open_remote(names[0]) as file:
        assert (file.size, file.seek(-5, io.SEEK_END)) == (whole.stat().st_size, whole.stat().st_size - 5)
    assert sum(len(batch) for batch in CaptureFile(names[1])) == 500


def test_what_a_web_server_says_is_passed_on(tmp_path: Path) -> None:
    """Not "no such file" whatever happens, as fsspec has it."""

    class Forbidding(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

        def send_head(self) -> None:
            self.send_error(403 if "secret" in self.path else 404)

    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(WirelagError, match=r"a\.pcap: there is no such file"):
            open_remote(f"{address}/a.pcap")
        with pytest.raises(WirelagError, match=r"secret\.pcap: cannot be opened \(403, message='Forbidden'"):
            open_remote(f"{address}/secret.pcap")
        server.shutdown()
    with pytest.raises(WirelagError, match=r"a\.pcap: cannot be opened \(Cannot connect to host 127.0.0.1"):
        open_remote(f"{address}/a.pcap")


def test_a_server_that_gives_no_parts_of_files_is_named(tmp_path: Path) -> None:
    """Python's own server of files: what to do instead is said."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    (tmp_path / "a.pcap").touch()
    os.truncate(tmp_path / "a.pcap", 32 << 20)  # more than one block
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with open_remote(f"http://127.0.0.1:{server.server_port}/a.pcap") as file:
            file.seek(20 << 20)
            with pytest.raises(OSError, match=r"its server does not give parts of files \(HTTP ranges\)"):
                file.read(100)
        server.shutdown()
