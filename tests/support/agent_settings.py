"""An agent's settings as a file, the errors in them, and the output of `wirelag agent`."""

from pathlib import Path

import pytest

from tests.support.command import wirelag
from wirelag.agent.config import Config
from wirelag.agent.settings import SCHEMA
from wirelag.errors import WirelagError


def config_of(text: str, folder: Path) -> Config:
    path = folder / "agent.toml"
    path.write_text(text)
    return Config.of(SCHEMA.load(str(path)))


def problem_of(text: str, folder: Path) -> str:
    with pytest.raises(WirelagError) as caught:
        config_of(text, folder)
    line = str(caught.value)
    assert "\n" not in line
    return line.removeprefix(f"{folder}/")


def run(*arguments: str) -> tuple[int, str]:
    ran = wirelag("agent", *arguments, code=None, together=True)
    return ran.returncode, ran.stdout
