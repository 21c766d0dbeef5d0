"""What the tests share: the folder of real captures, a bpffs, and programs that may be missing."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.support.effort  # noqa: F401  (chooses Hypothesis' profile before any test is read)
from lab.mounts import private_bpffs
from tests.support.captures import SHARED_DATA


def pytest_configure() -> None:
    """Mounts of our own come before threads do, which would stay with those of the machine."""
    with contextlib.suppress(OSError):
        private_bpffs()


@pytest.fixture(scope="session")
def bpffs() -> Path:
    """A bpffs of this process alone; tests that need it skip where there can be none."""
    try:
        return private_bpffs()
    except OSError as error:
        pytest.skip(f"no bpffs of our own: {error}")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real captures; tests that need it skip where it is not."""
    if SHARED_DATA is None:
        pytest.skip("no shared/data beside the repository, and WIRELAG_SHARED_DATA names none")
    return SHARED_DATA


@pytest.fixture(scope="session")
def tool() -> Callable[[str], str]:
    """`tool(name)` gives the path of a program, or skips the test that needs it."""

    def find(name: str) -> str:
        path = shutil.which(name)
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find
