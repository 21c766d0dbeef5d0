"""What the tests share: the folder of real captures, and programs that may be missing."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import tests.support.effort  # noqa: F401  (chooses Hypothesis' profile before any test is read)
from tests.support.captures import SHARED_DATA


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
