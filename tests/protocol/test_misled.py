"""Fakes: an undecoded difference is never called decoded, and misled points are asked for everything."""

from typing import Any

import numpy as np
import pytest

from tests.oracles import rateless
from tests.oracles.rda import Difference
from tests.support.agent_messages import Path, pair
from tests.support.reconciliations import SHORT
from tests.support.settled_rounds import both, is_true, talk
from wirelag import _kernels
from wirelag.protocol import reconcile
from wirelag.protocol.results import Rank
from wirelag.synopses.symbols import less, symbols_of

BITS = 4  # bits of a check: one fake in sixteen passes


@pytest.mark.parametrize(("differing", "symbols"), [(17, 8), (33, 16), (49, 64)])
def test_a_decoded_result_is_right_though_fakes_pass(differing: int, symbols: int) -> None:
    """Counts that are 1 modulo 16, and too few symbols: the rest looks like one number in the first of them."""
    rng, complete, wrong = np.random.default_rng(1), 0, 0
    for seed in range(1000):
        numbers = rng.integers(0, 1 << 44, differing, dtype=np.uint64)
        cells = less(np.zeros(symbols, np.uint64), symbols_of(numbers, 0, symbols, seed)).reshape(-1, 3)
        cells[:, 1] &= np.uint64((1 << BITS) - 1)
        decoder = _kernels.RatelessDecoder(seed, BITS, 4)
        done = decoder.add(cells.reshape(-1))
        found = set(decoder.found()[0].tolist())
        wrong += bool(found - set(numbers.tolist()))
        complete += done
        assert not done or found == set(numbers.tolist())
        if seed < 50:
            twin = rateless.Decoder(seed, BITS, 4)
            for ids, check, count in cells.tolist():
                twin.add(Difference(ids, check, count))
            assert not twin.is_complete() or {x for x, _ in twin.found} == set(numbers.tolist())
    assert wrong > 10  # otherwise the test shows nothing
    assert complete > 10 or symbols < differing


def test_a_point_asked_about_unknown_packets_is_then_asked_for_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Misled:
        """Removes a number that no point has seen, and reports completion."""

        def __init__(self, seed: int) -> None:
            pass

        def add_words(self, up: Any, down: Any, number_bits: int, check_bits: int) -> bool:
            return True

        def found(self) -> tuple[Any, Any]:
            return np.array([12345], np.uint64), np.array([1], np.int64)

    monkeypatch.setattr(reconcile, "decoder", Misled)
    path = Path.made(4, 500, 3, loss=0.02)
    agents = pair(path, SHORT)
    settled = [one for one in talk(agents).take(both(agents, 6)).best.values() if one.rank == Rank.SETTLED]
    assert len(settled) >= 4
    for one in settled:
        is_true(one, path)
