"""Shared fixtures: real captures, a bpffs, programs that may be missing; and a summary of skipped tests."""

import contextlib
import gc
import os
from collections import Counter
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from lab.mounts import private_bpffs
from tests.support import needs
from tests.support.captures import SHARED_DATA
from tests.support.effort import FULL  # sets Hypothesis' profile before any test is imported


def pytest_configure() -> None:
    """Create private mounts before threads, which would keep the mounts of the machine."""
    with contextlib.suppress(OSError):
        private_bpffs()
    os.environ["COLUMNS"] = ""  # parallel workers inherit the width of a terminal, and tables would have it


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests marked `first` begin first; `make test` keeps every n-th selected parameter of one marked `every(n)`."""
    items.sort(key=lambda item: item.get_closest_marker("first") is None)
    numbers: Counter[str] = Counter()
    left_out = []
    for item in items if not FULL else ():
        if mark := item.get_closest_marker("every"):
            function = item.nodeid.partition("[")[0]
            if numbers[function] % mark.args[0]:
                left_out.append(item)
            numbers[function] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [item for item in items if item not in gone]


def pytest_collection_finish() -> None:
    """Thousands of tests stay until the end: keep the garbage collector from scanning them repeatedly."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def bpffs() -> Path:
    """A private bpffs of this process; tests that need it skip where it cannot be mounted."""
    try:
        return private_bpffs()
    except OSError:
        pytest.skip(needs.needs("mounts of its own") if os.geteuid() == 0 else needs.ROOT)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures; tests that need it skip where it is missing."""
    if SHARED_DATA is None:
        pytest.skip(needs.SHARED_DATA)
    return SHARED_DATA


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """`tool(name)` returns the path of a program, or skips the test that needs it."""

    def find(name: str) -> str:
        path = needs.find(name)
        if path is None:
            pytest.skip(needs.program(name))
        return path

    return find


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
    yield
    skipped = terminalreporter.stats.get("skipped", [])
    if said := needs.paragraph(report.longrepr[2] for report in skipped):
        terminalreporter.write_line(said)
