"""What `wirelag doctor` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wirelag.measure.doctor import Check


def table(checks: Sequence[Check]) -> list[str]:
    """A line for each check; below one that fails, what it is for and the line that mends it."""
    states, names = (max(len(getattr(one, column)) for one in checks) for column in ("state", "name"))
    lines = []
    for one in checks:
        lines.append(f"{one.state:<{states}}  {one.name:<{names}}  {one.found}")
        if one.state != "yes":
            lines.append(f"    needed for: {one.needed_for}")
            lines += [f"    to mend it: {one.fix}"] if one.fix else []
    able, all_ = sum(one.state == "yes" for one in checks), len(checks)
    return [*lines, "everything works here" if able == all_ else f"{able} of {all_} work without limits"]
