"""`wirelag agent --check` asks the collector: its name, TLS, the token, and whether the point is an end."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import needs
from tests.support.agent_settings import run
from tests.support.collector_process import Running
from tests.support.transport_peers import PASSWORD, broker, free_port, make_certificate
from tests.support.waiting import until

FOR_ALL, FOR_EDGE1 = "the-token-of-everybody", "the-token-of-edge1-only"


@contextmanager
def collector(folder: Path, *words: str) -> Iterator[tuple[Running, tuple[str, ...]]]:
    """A collector with TLS and tokens, and how an agent reaches it."""
    certificate, key = make_certificate(folder)
    (folder / "tokens").write_text(f"{FOR_ALL}\n{FOR_EDGE1} edge1\n")
    (folder / "token").write_text(FOR_EDGE1)
    given = ("--certificate", str(certificate), "--key", str(key), "--token-file", str(folder / "tokens"))
    with Running(folder, *given, *words, token=FOR_ALL) as running:
        yield running, ("--collector", running.url, "--ca", str(certificate), "--token-file", str(folder / "token"))


def check(folder: Path, *words: str, point: str = "edge1") -> tuple[int, str]:
    code, said = run("--check", "--point", point, "-r", "some.pcap", "--spool", str(folder / "spool"), *words)
    return code, " ".join(said.split())


def test_it_says_what_the_collector_says(tmp_path: Path) -> None:
    with collector(tmp_path, "--segment", "edge1>edge2", "--segment", "edge0>edge1") as (_, reached):
        code, said = check(tmp_path, *reached, "--segment", "edge1>edge2")
        assert code == 0
        assert "and accepts the token of edge1" in said
        assert "segment edge1>edge2: this point is its upstream end" in said
        code, said = check(tmp_path, *reached)
        assert (code, "this point is an end of edge1>edge2, edge0>edge1" in said) == (0, True)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("a-token-that-nobody-knows")
    with collector(tmp_path, "--segment", "edge1>edge2") as (running, reached):
        port = running.url.rpartition(":")[2]
        wrong = {
            "the token belongs to another point, edge1": ((*reached,), "edge9"),
            "does not accept the token (the token is missing or wrong); check the file of --token-file": (
                (*reached, "--token-file", str(tmp_path / "wrong")),
                "edge1",
            ),
            "use the collector's name from its certificate": (
                (*reached, "--collector", f"https://localhost:{port}"),
                "edge1",
            ),
            "its certificate is not trusted": ((*reached[:2], *reached[4:]), "edge1"),
            "segment edge1>edge3: edge1 is not one of its ends at the collector, or it does not measure it; it "
            "measures of this point: edge1>edge2": ((*reached, "--segment", "edge1>edge3"), "edge1"),
            "unknown host": ((*reached, "--collector", "https://no-such-host.invalid:1"), "edge1"),
            "cannot be reached (Connection refused)": (
                (*reached, "--collector", f"https://127.0.0.1:{free_port()}"),
                "edge1",
            ),
        }
        for line, (words, point) in wrong.items():
            code, said = check(tmp_path, *words, point=point)
            assert (code, line in said) == (2, True), said
        (tmp_path / "token").write_text(FOR_ALL)
        code, said = check(tmp_path, *reached, point="edge9")
        assert (code, "edge9 is no end of a segment at the collector" in said) == (2, True)


def test_a_collector_to_which_agents_name_segments(tmp_path: Path) -> None:
    with collector(tmp_path) as (_, reached):
        code, said = check(tmp_path, *reached, "--segment", "edge0>>edge1")
        assert (code, "segment edge0>>edge1: this point is its downstream end" in said) == (0, True)
        code, said = check(tmp_path, *reached, "--segment", "edge2>edge3")
        assert (code, "edge1 is not one of its ends" in said) == (2, True)


def test_something_else_that_answers_is_no_collector(tmp_path: Path) -> None:
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "http.server", "--bind", "127.0.0.1", str(port)],
        cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    try:
        until(lambda: "refused" not in check(tmp_path, "--collector", f"http://127.0.0.1:{port}")[1], "a server")
        code, said = check(tmp_path, "--collector", f"http://127.0.0.1:{port}")
        assert (code, "does not answer as a collector does" in said) == (2, True)
    finally:
        server.send_signal(signal.SIGTERM)
        server.communicate()


def test_a_broker(tmp_path: Path) -> None:
    """The agent needs the stream that the collector makes."""
    port = free_port()
    (tmp_path / "secret").write_text(f"wirelag:{PASSWORD}")
    (tmp_path / "wrong").write_text("wirelag:wrong")
    url = f"nats://127.0.0.1:{port}"
    if needs.find("nats-server") is None:
        pytest.skip(needs.program("nats-server"))
    reached = ("--collector", url, "--token-file", str(tmp_path / "secret"))
    with broker(tmp_path, port):
        code, said = check(tmp_path, *reached)
        assert (code, "the broker has no wirelag stream yet; start the collector" in said) == (2, True), said
        with Running(tmp_path, "--nats", url, "--nats-secret", str(tmp_path / "secret")):
            until(lambda: check(tmp_path, *reached)[0] == 0, "a stream")
        code, said = check(tmp_path, *reached[:3], str(tmp_path / "wrong"))
        assert (code, "Authorization Violation" in said) == (2, True), said
