"""Fixtures of several modules here."""

import os
from collections.abc import Iterator

import pytest

from tests.support import needs
from tests.support.balancer_program import make
from wirelag.ebpf.dataplane import UnavailableError
from wirelag.ebpf.lda import KernelLda
from wirelag.estimators.lda import Lda
from wirelag.packets.packet_id import PacketId

__all__ = ["make"]


@pytest.fixture(scope="module")
def one_cpu() -> Iterator[None]:
    """Run programs on one CPU; skip where they cannot run."""
    try:
        KernelLda(Lda(), None, 10**9, packet_id=PacketId()).close()
    except UnavailableError as error:
        pytest.skip(needs.ebpf(error))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)
