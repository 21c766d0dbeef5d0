"""Any sequence of faults: what a collector has acknowledged is in its store, once, and as it would be without them."""

import errno
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.support import needs
from tests.support.effort import FULL
from tests.support.faulty_collector import SECOND_NS, FaultyCollector, compiled

YEARS_NS = 3 * 365 * 86400 * SECOND_NS
SOME = st.tuples(st.sampled_from("AB"), st.integers(1, 12))  # messages of a point


class Faults(RuleBasedStateMachine):
    """Messages, faults and kills in any order; at the end all faults are over."""

    system: FaultyCollector
    done: ClassVar[Counter[str]] = Counter()  # in all examples

    @initialize(seed=st.integers(0, 99))
    def begin(self, seed: int) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="wirelag-faults-"))
        library = compiled(self.folder)
        assert library is not None
        self.system = FaultyCollector(self.folder, library, seed)
        self.system.send("A", 12)
        self.system.send("B", 9)

    def _then(self, fault: str, some: tuple[str, int]) -> None:
        """Send a few messages with a fault, since faults without work show little."""
        self.done[fault] += 1
        self.system.send(*some)

    @rule(some=SOME)
    def no_fault(self, some: tuple[str, int]) -> None:
        self._then("none", some)

    @rule(place=st.integers(0, 99), some=SOME)
    def a_message_comes_again(self, place: int, some: tuple[str, int]) -> None:
        self.system.send_again(place)
        self._then("again", some)

    @rule(error=st.sampled_from([0, errno.EIO, errno.ENOSPC]), some=SOME)
    def flushes_fail(self, error: int, some: tuple[str, int]) -> None:
        self.system.set(flush=error)
        self._then("flush", some)

    @rule(error=st.sampled_from([0, errno.EIO, errno.ENOSPC]), some=SOME)
    def writes_fail(self, error: int, some: tuple[str, int]) -> None:
        self.system.set(write=error)
        self._then("write", some)

    @rule(step_ns=st.sampled_from([0, 30 * SECOND_NS, -30 * SECOND_NS, 3600 * SECOND_NS, -3600 * SECOND_NS, YEARS_NS]))
    def the_clock_is_set(self, step_ns: int) -> None:
        self.system.set(clock_ns=step_ns)
        self._then("clock", ("A", 1))

    @rule(few=st.booleans(), some=SOME)
    def files_run_out(self, few: bool, some: tuple[str, int]) -> None:
        if few:
            self.system.few_files()
        else:
            self.system.many_files()
        self._then("files", some)

    @rule(some=SOME, after_ms=st.integers(0, 40))
    def kill(self, some: tuple[str, int], after_ms: int) -> None:
        self.done["kill"] += 1
        self.system.send(*some, after_ms / 1e3)

    @rule(where=st.floats(0, 1), bit=st.integers(0, 7), in_header=st.booleans(), few=st.booleans(), some=SOME)
    def a_bit_flips(self, where: float, bit: int, in_header: bool, few: bool, some: tuple[str, int]) -> None:
        """While it is found, file descriptors may run out."""
        self.system.flip(where, bit, in_header)
        if few:
            self.system.few_files()
        self._then("flip", some)

    def teardown(self) -> None:
        try:
            if hasattr(self, "system"):
                self.system.heal()
        finally:
            if hasattr(self, "system"):
                self.system.end()
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.mark.first
@pytest.mark.skipif(bool(needs.absent("cc")), reason=needs.absent("cc"))
@pytest.mark.parametrize("most", [pytest.param(5), pytest.param(60, marks=pytest.mark.acceptance)])
def test_nothing_acknowledged_is_lost_whatever_fails(most: int) -> None:
    """In `make test` few and short examples, always the same ones."""
    Faults.done.clear()
    wanted = settings(
        max_examples=most,
        stateful_step_count=30 if FULL else 8,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),  # an example takes seconds: do not shrink it
    )
    run_state_machine_as_test(Faults, settings=wanted)  # type: ignore[no-untyped-call]
    assert Faults.done.keys() >= {"flush", "write", "clock", "files", "kill", "flip"}, Faults.done
    assert Faults.done.total() > 4 * most


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
