"""What is said of exchanges afterwards, flow by flow."""

import numpy as np
import pytest

from wirelag.synopses.epochs import EPOCH, Epochs
from wirelag.synopses.request_response import EXCHANGE, STREAM, Exchanges

MS = 1_000_000


def alternating(count: int, took_ms: float, idle_ms: float, sizes: tuple[int, int]) -> Exchanges:
    """A TCP flow: the server's bytes come some time after the client's, and these some time after the server's."""
    rows = np.zeros(count, EXCHANGE)
    rows["request_ns"] = rows["begin_ns"] = np.arange(count) * int((took_ms + idle_ms) * MS)
    rows["first_ns"] = rows["last_ns"] = rows["request_ns"] + int(took_ms * MS)
    rows["idle_ns"] = int(idle_ms * MS)
    rows["request_bytes"], rows["response_bytes"] = sizes
    rows["ends"] = (0, 1, 0, 2, 5000 << 32 | 2906 << 16 | 6)
    return Exchanges(rows)


@pytest.mark.parametrize(
    ("count", "took_ms", "idle_ms", "sizes", "is_stream"),
    [
        (4, 5000, 1.2, (4, 4), True),
        (3, 5000, 1.2, (4, 4), False),
        (40, 5000, 1.2, (300, 900), False),  # long polls
        (40, 5000, 100, (4, 4), False),  # a client that takes its time
        (40, 5, 0.01, (64, 64), False),  # an echo
    ],
    ids=["heartbeats", "too few", "long polls", "pauses", "echo"],
)
def test_a_server_that_asks_now_and_then(
    count: int, took_ms: float, idle_ms: float, sizes: tuple[int, int], is_stream: bool
) -> None:
    marked = alternating(count, took_ms, idle_ms, sizes).told_by(Epochs(np.zeros(0, EPOCH)))
    assert set(marked.rows["flags"].tolist()) == {STREAM if is_stream else 0}
    assert len(marked.single) == (0 if is_stream else count)
