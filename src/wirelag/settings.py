"""Settings in TOML files: what is in one, or one line that says why it cannot be read."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from wirelag.errors import WirelagError


def read_toml(path: str) -> dict[str, Any]:
    """The plain values of a file."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise WirelagError(f"{path}: cannot read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise WirelagError(f"{path}: is not TOML ({error})") from None
