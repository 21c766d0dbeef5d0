"""How hard tests try. `make test` takes a quarter of what `make acceptance` takes of examples, seeds and frames.

Examples are drawn from fixed seeds, and none has a deadline: how long one takes depends on what else the machine does.
"""

import os

from hypothesis import settings

FULL = bool(os.environ.get("WIRELAG_ACCEPTANCE"))
ALONE = (
    FULL  # `make acceptance` runs one test at a time on an idle machine: there, and only there, times may be asserted
)

settings.register_profile("ci", max_examples=25, deadline=None, derandomize=True)
settings.register_profile("acceptance", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("acceptance" if FULL else "ci")


def scaled(full: int, least: int = 1) -> int:
    """This many in `make acceptance`; a quarter, but at least `least`, in `make test`."""
    return full if FULL else max(full // 4, least)


def examples(full: int, **others: object) -> settings:
    """Settings of a property that Hypothesis tries: `full` examples in `make acceptance`."""
    return settings(max_examples=scaled(full, 5), **others)  # type: ignore[arg-type]
