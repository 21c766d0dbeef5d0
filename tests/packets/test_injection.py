"""Injection of references: the kernel equals its twin, the rate follows the load, the share is never exceeded."""

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.oracles.injection import Injector
from tests.support.effort import examples
from wirelag import _kernels
from wirelag.packets.injection import Injection
from wirelag.sim.queue import DROP_TAIL

LINK = 250_000_000
KINDS = ("1-in-n", "1-in-tau", "both", "adaptive")


def twin(injection: Injection, times_ns: list[int], sizes: list[int]) -> tuple[list[tuple[int, int]], int]:
    """Each reference's sending time and the packet before it, and the number left out."""
    injector, found = Injector(injection), []
    for i, (time_ns, size) in enumerate(zip(times_ns, sizes, strict=True)):
        found += [(sent_ns, i - 1) for sent_ns in injector.due(time_ns)]
        injector.packet(time_ns, size)
    found += [(sent_ns, len(times_ns) - 1) for sent_ns in injector.due()]
    return found, injector.refused


def kernel(injection: Injection, times_ns: list[int], sizes: list[int]) -> tuple[list[tuple[int, int]], int]:
    times, lengths = np.array(times_ns, np.int64), np.array(sizes, np.uint32)
    _, sent, _, behind, refused = _kernels.queue_pass(times, lengths, LINK, 1 << 16, DROP_TAIL, injection.rule)
    return list(zip(sent.tolist(), behind.tolist(), strict=True)), refused


def live(injection: Injection, times_ns: list[int], sizes: list[int], every: int) -> tuple[list[int], int]:
    """The sending times by which an agent decides: it hears of packets in batches, and looks at its clock between."""
    injector, found = _kernels.Injector(injection.rule), []
    for i in range(0, len(times_ns), every):
        batch = np.array(times_ns[i : i + every], np.int64)
        found += injector.observe(batch, np.array(sizes[i : i + every], np.uint32)).tolist()
        found += injector.due(int(batch[-1])).tolist()
    return found, injector.refused


def steady(utilisation: float, count: int, size: int = 1_000) -> tuple[list[int], list[int]]:
    gap_ns = size * 1e9 / LINK / utilisation
    return [int(i * gap_ns) for i in range(count)], [size] * count


def n_of(found: list[tuple[int, int]]) -> int:
    """The final number of packets per reference."""
    return found[-1][1] - found[-2][1]


# ---- the twin ----

gaps = st.lists(st.sampled_from([0, 1, 160, 999, 1_000, 1_001, 6_000, 100_000, 10**7, 3 * 10**9]), max_size=300)


@examples(200)
@given(
    gaps=gaps,
    kind=st.sampled_from(KINDS),
    n=st.integers(1, 40),
    tau_ns=st.sampled_from([1_000_000, 50_000_000]),
    wait_ns=st.sampled_from([0, 1_000, 20_000]),
    share=st.sampled_from([0.00001, 0.005, 0.5, 1]),
    alpha=st.sampled_from([0.01, 0.5, 1]),
    seed=st.integers(0, 99),
)
def test_the_kernel_equals_its_twin(
    gaps: list[int], kind: str, n: int, tau_ns: int, wait_ns: int, share: float, alpha: float, seed: int
) -> None:
    injection = Injection(
        LINK, kind, n=n, tau_ns=tau_ns, n_least=2, n_most=20, wait_ns=wait_ns, most_share=share, alpha=alpha
    )  # type: ignore[arg-type]
    times_ns = np.cumsum([0, *gaps]).tolist()
    sizes = np.random.default_rng(seed).integers(0, 65_536, len(times_ns)).tolist()
    found = kernel(injection, times_ns, sizes)
    assert found == twin(injection, times_ns, sizes)
    # An agent decides the same, but for what is still pending when the simulator ends.
    for every in (1, 7, 1000):
        sent, refused = live(injection, times_ns, sizes, every)
        assert refused == found[1]
        assert sent == [sent_ns for sent_ns, _ in found[0] if sent_ns <= times_ns[-1]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kernel_equals_its_twin_on_bursts(kind: str) -> None:
    rng = np.random.default_rng(5)
    times_ns = np.cumsum(rng.pareto(1.2, 50_000) * 1_500).astype(np.int64).tolist()
    sizes = rng.choice([40, 576, 1500], 50_000).tolist()
    injection = Injection(LINK, kind)  # type: ignore[arg-type]
    found = kernel(injection, times_ns, sizes)
    assert found == twin(injection, times_ns, sizes)
    assert len(found[0]) > 50


# ---- the rule ----


@pytest.mark.parametrize("utilisation", [0.3, 0.6, 0.65, 0.7, 0.8, 0.84, 0.9])
def test_the_rate_lies_on_the_ellipse(utilisation: float) -> None:
    found, _ = twin(Injection(LINK, most_share=1), *steady(utilisation, 30_000))
    place = min(max((utilisation - 0.6) / 0.25, 0), 1)
    rate = sqrt(1 - place**2) * (1 / 10 - 1 / 300) + 1 / 300
    # at most one packet more: a reference follows the packet that makes it due
    assert 1 / rate - 0.01 <= n_of(found) <= 1 / rate + 1.01


def test_a_mean_of_ratios_would_see_only_bursts() -> None:
    # 1,000 packets at the full rate, then a silence that makes it 40%: below busy_least, so one in ten.
    times_ns, at_ns = [], 0
    for i in range(60_000):
        times_ns.append(at_ns)
        at_ns += 4_000 if i % 1_000 else 1_000 * 6_000
    found, _ = twin(Injection(LINK, most_share=1, alpha=0.001), times_ns, [1_000] * len(times_ns))
    assert n_of(found) == 10


def test_a_reference_waits_behind_its_packet() -> None:
    found, _ = twin(Injection(LINK, "1-in-n", n=5, most_share=1), [0, 10, 20, 30, 40, 50, 5_000], [40] * 7)
    assert found == [(1_040, 5)]


def test_time_makes_references_due_without_packets() -> None:
    found, refused = twin(Injection(LINK, "1-in-tau", tau_ns=1_000_000), [0, 3_500_000], [40, 40])
    assert (found, refused) == ([(1_000_000, 0), (2_000_000, 0), (3_000_000, 0)], 0)
    both, _ = twin(Injection(LINK, "both", n=2, tau_ns=1_000_000), [0, 500_000, 1_600_000], [40] * 3)
    assert both == [(501_000, 1), (1_500_000, 1)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0.0005, 0.005])
def test_the_share_is_never_exceeded(kind: str, share: float) -> None:
    injection = Injection(LINK, kind, n=2, tau_ns=20_000, n_least=2, most_share=share)  # type: ignore[arg-type]
    times_ns, sizes = steady(0.5, 40_000, 200)
    found, _ = kernel(injection, times_ns, sizes)
    sent = np.array([sent_ns for sent_ns, _ in found])
    spent = np.arange(1, len(sent) + 1) * injection.size
    assert len(sent) > 10
    assert (spent <= share * LINK * sent / 1e9 + 1e-6).all()
    assert spent[-1] > 0.9 * share * LINK * sent[-1] / 1e9


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": "poisson"},
        {"n": 0},
        {"n_most": 5},
        {"busy_least": 0.9},
        {"alpha": 0},
        {"most_share": 0},
        {"tau_ns": 1},
        {"wait_ns": -1},
        {"size": 0},
        {"depth_ns": 2 * 10**9},
        {"link_bytes_per_s": 0},
    ],
)
def test_impossible_rules_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        Injection(**({"link_bytes_per_s": LINK} | wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize("place", range(11))
def test_the_kernel_refuses_impossible_numbers(place: int) -> None:
    rule = list(Injection(LINK).rule)
    rule[place] = 0 if place in (4, 7) else 1 << 31 if place == 10 else (1 << 63) - 1
    times, sizes = np.zeros(1, np.int64), np.ones(1, np.uint32)
    with pytest.raises((ValueError, TypeError, RuntimeError)):
        _kernels.queue_pass(times, sizes, LINK, 10, DROP_TAIL, tuple(rule))  # type: ignore[arg-type]
