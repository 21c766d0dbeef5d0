"""The effort of tests: `make test` uses a twelfth of the examples, seeds and frames of `make acceptance`.

Examples have fixed seeds and no deadline, since their time depends on the load of the machine.
"""

import os

from hypothesis import settings

FULL = bool(os.environ.get("WIRELAG_ACCEPTANCE"))
ALONE = FULL  # `make acceptance` runs one test at a time on an idle machine: only there times may be asserted

settings.register_profile("ci", max_examples=8, deadline=None, derandomize=True)
settings.register_profile("acceptance", max_examples=100, deadline=None, derandomize=True)
settings.load_profile("acceptance" if FULL else "ci")


def scaled(full: int, least: int = 1) -> int:
    """This many in `make acceptance`; a twelfth, but at least `least`, in `make test`."""
    return full if FULL else max(full // 12, least)


def examples(full: int, **others: object) -> settings:
    """Settings of a Hypothesis property: `full` examples in `make acceptance`."""
    return settings(max_examples=scaled(full, 5), **others)  # type: ignore[arg-type]
