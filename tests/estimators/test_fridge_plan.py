"""How fridges share their memory: the plans of the twin."""

from hypothesis import given
from hypothesis import strategies as st

from tests.oracles import fridge_plan as naive
from tests.support.effort import examples
from wirelag import _kernels


@examples(60)
@given(
    st.sampled_from([1, 2, 3, 7, 8, 100, 1_365, 43_690]),
    st.sampled_from([0, 0, 0, 1, 2, 3, 8]),
    st.none() | st.floats(1e-3, 1e8),
    st.none() | st.dictionaries(st.integers(0, _kernels.BINS - 1), st.integers(1, 1 << 40), min_size=1, max_size=20),
)
def test_a_plan_is_that_of_the_twin(
    room: int, fridges: int, rate_per_s: float | None, held: dict[int, int] | None
) -> None:
    """The same floats to the last bit: else another plan would be chosen now and then."""
    weights = None
    if held is not None and rate_per_s is not None:
        weights = _kernels.words(_kernels.BINS)
        for place, weight in held.items():
            weights[place] = weight
    found = naive.Plan(*map(tuple, _kernels.plan_fridges(room, fridges, rate_per_s, weights)))
    assert found == naive.plan(room, fridges, rate_per_s, weights)
    if weights is not None and rate_per_s is not None:
        told = _kernels.fridge_inflation(*found, rate_per_s, weights)
        assert told == naive.inflation(found, naive.known(rate_per_s, weights))
