"""The mark of tests that build networks: they need root, namespaces and their tools."""

import os
import subprocess

import pytest

from tests.support import needs

TOOLS = ("ip", "bridge", "nsenter", "unshare", "sysctl", "ethtool", "tcpdump", "make", "cc")


def _lacking() -> str:
    """Why the lab cannot be built here; empty if it can."""
    if os.geteuid():
        return needs.ROOT
    if lacking := needs.absent(*TOOLS):
        return lacking
    allowed = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, check=False)
    return "" if allowed.returncode == 0 else needs.needs("network namespaces")


LACKING = _lacking()
IN_LAB = pytest.mark.skipif(bool(LACKING), reason=LACKING or "the lab can be built")
