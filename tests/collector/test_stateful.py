"""Any sequence of faults: what a collector has acknowledged is in its store, once, and as it would be without them."""

import errno
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support import needs
from tests.support.effort import FULL
from tests.support.faulty_collector import SECOND_NS, FaultyCollector, compiled

YEARS_NS = 3 * 365 * 86400 * SECOND_NS
POINTS = st.sampled_from("AB")


class Faults(RuleBasedStateMachine):
    """Messages, faults and kills in any order; at the end all faults are over."""

    system: FaultyCollector

    @initialize(seed=st.integers(0, 99))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wirelag-faults-"))
        library = compiled(self.folder)
        assert library is not None
        self.system = FaultyCollector(self.folder, library, seed)

    @rule(point=POINTS, count=st.integers(1, 12))
    def send(self, point: str, count: int) -> None:
        self.system.send(point, count)

    @rule(place=st.integers(0, 99))
    def send_again(self, place: int) -> None:
        self.system.send_again(place)

    @rule(error=st.sampled_from([0, 0, errno.EIO, errno.ENOSPC]))
    def flushes_fail(self, error: int) -> None:
        self.system.set(flush=error)

    @rule(error=st.sampled_from([0, 0, errno.EIO, errno.ENOSPC]))
    def writes_fail(self, error: int) -> None:
        self.system.set(write=error)

    @rule(step_ns=st.sampled_from([0, 30 * SECOND_NS, -30 * SECOND_NS, 3600 * SECOND_NS, -3600 * SECOND_NS, YEARS_NS]))
    def the_clock_is_set(self, step_ns: int) -> None:
        self.system.set(clock_ns=step_ns)

    @rule(few=st.booleans())
    def files_run_out(self, few: bool) -> None:
        if few:
            self.system.few_files()
        else:
            self.system.many_files()

    @rule(point=POINTS, count=st.integers(1, 12), after_ms=st.integers(0, 40))
    def kill(self, point: str, count: int, after_ms: int) -> None:
        self.system.send(point, count, after_ms / 1e3)

    @rule(where=st.floats(0, 1), bit=st.integers(0, 7))
    def a_bit_flips(self, where: float, bit: int) -> None:
        self.system.flip(where, bit)

    def teardown(self) -> None:
        try:
            if hasattr(self, "system"):
                self.system.heal()
        finally:
            if hasattr(self, "system"):
                self.system.end()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.skipif(bool(needs.absent("cc")), reason=needs.absent("cc"))
@pytest.mark.parametrize("most", [pytest.param(1), pytest.param(60, marks=pytest.mark.acceptance)])
def test_nothing_acknowledged_is_lost_whatever_fails(most: int) -> None:
    wanted = settings(
        max_examples=most,
        stateful_step_count=30 if FULL else 12,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),  # an example takes seconds: do not shrink it
    )
    run_state_machine_as_test(Faults, settings=wanted)  # type: ignore[no-untyped-call]


@pytest.mark.skipif(bool(needs.absent("cc")), reason=needs.absent("cc"))
def test_the_faults_are_real(tmp_path: Path) -> None:
    """With each of them alone a message is not acknowledged; without them it is."""
    library = compiled(tmp_path)
    assert library is not None
    system = FaultyCollector(tmp_path, library, 1)
    try:
        for fault in ({"flush": errno.EIO}, {"write": errno.ENOSPC}, {"clock_ns": -3600 * SECOND_NS}):
            system.set(**fault)
            system.send("A", 1)
            system.send("B", 1)
            assert not system.acknowledged, fault
            system.set(0, 0, 0)
        system.send("A", 3)
        assert len(system.acknowledged) == 3
        system.kill()
        system.heal()
        assert len(system.acknowledged) == len(system.expected) * 2
    finally:
        system.end()
