"""The format of a topology, detected by content; the file name does not matter."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path
from typing import Final

from wirelag.capture.streams import open_stream
from wirelag.errors import WirelagError
from wirelag.network import formats_graphs, formats_json, formats_lines, formats_sndlib, ospf
from wirelag.network.formats_draft import Draft

_LARGEST: Final = 64 << 20  # bytes, decompressed
_TAR: Final = slice(257, 262)  # where an archive has `ustar`


def read_draft(source: str) -> Draft:
    """Read a file, a member of an archive, or the database of a running router."""
    if source.startswith(ospf.RUNNING):
        return draft_of(source, ospf.ask(source))
    return draft_of(source, _text(source, _content(source)))


def draft_of(name: str, text: str) -> Draft:
    """Read a topology from memory."""
    start = text[:4096].lstrip()
    if start.startswith(("{", "[")):
        return formats_json.read(name, text)
    if start.startswith("<"):
        return formats_graphs.read_xml(name, text)
    if start.startswith("?SNDlib"):
        return formats_sndlib.read_native(name, text)
    if re.match(r"NODES\s+\d", start):
        return formats_lines.read_repetita(name, text)
    if re.search(r"^[ \t]*graph\s*\[", text, re.MULTILINE):
        return formats_graphs.read_gml(name, text)
    return formats_lines.read(name, text)


def _content(source: str) -> bytes:
    """The decompressed bytes of a file, or of a member for `archive:member`."""
    archive, colon, member = source.rpartition(":")
    if colon and not Path(source).exists() and Path(archive).is_file():
        return _member(archive, member)
    content = _bytes(source)
    if content[_TAR] == b"ustar":
        raise WirelagError(f"{source}: this is an archive; name a file in it, as {source}:{_names(source, content)[0]}")
    return content


def _bytes(path: str) -> bytes:
    if path == "-" or Path(path).is_dir():
        raise WirelagError(f"{path}: a topology must be a file; name one")
    stream = open_stream(path)
    content = bytearray()
    buffer = memoryview(bytearray(1 << 18))
    try:
        while got := stream.readinto(buffer):
            content += buffer[:got]
            if len(content) > _LARGEST:
                raise WirelagError(f"{path}: more than {_LARGEST >> 20} MiB; this cannot be a topology")
    finally:
        stream.close()
    if stream.broken:
        raise WirelagError(f"{path}: {stream.broken}")
    return bytes(content)


def _names(archive: str, content: bytes) -> list[str]:
    """The files of an archive."""
    try:
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as opened:
            names = [member.name for member in opened if member.isreg()]
    except (tarfile.TarError, ValueError, OSError, EOFError) as error:
        raise WirelagError(f"{archive}: this archive is damaged ({error})") from None
    if not names:
        raise WirelagError(f"{archive}: there is no file in this archive")
    return names


def _member(archive: str, name: str) -> bytes:
    content = _bytes(archive)
    if content[_TAR] != b"ustar":
        raise WirelagError(f"{archive}: not an archive, so there is no {name} in it")
    names = _names(archive, content)
    if name not in names:
        raise WirelagError(f"{archive}: there is no {name} in it, but {len(names)} others, such as {names[0]}")
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as opened:
        file = opened.extractfile(name)
        return b"" if file is None else file.read(_LARGEST)


def _text(name: str, content: bytes) -> str:
    """Decode as UTF-8, or else as Latin-1, in which old maps were written."""
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", "replace")
    if b"\0" in content:
        raise WirelagError(f"{name}: not text, so it cannot be a topology")
    if not content.strip():
        raise WirelagError(f"{name}: the file is empty")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")
