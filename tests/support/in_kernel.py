"""The mark of tests that load programs into the kernel."""

import pytest

from tests.support import needs
from wirelag.ebpf.dataplane import Dataplane
from wirelag.errors import WirelagError

LONG_NS = 10**15  # an interval that only the test ends


def _lacking() -> str:
    try:
        Dataplane("headers").close()
    except WirelagError as error:
        return needs.ebpf(error)
    return ""


LACKING = _lacking()
IN_KERNEL = pytest.mark.skipif(bool(LACKING), reason=LACKING or "programs can be loaded")
