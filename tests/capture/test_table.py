"""Tables as CSV: polars is the reference, cell for cell."""

import random
import struct

import numpy as np

from wirelag.capture.table import Coded, Table

TEXTS = ["a", "", "a,b", 'a"b', "a\nb", "a\rb", " a ", "é", "null", "1", None]
KINDS = {"text": "String", "few, coded": "String", "count": "Int64", "port": "UInt16", "x": "Float64", "is": "Boolean"}


def numbers(rng: random.Random, count: int) -> list[float]:
    """Delays, edges of the notation, and any bits."""
    edges = [0.0, -0.0, 1e-5, -1e-5, 9.9e-5, 1e-4, 1e-6, 1e15, 1e16, 1.5e22, 5e-324, float("nan"), float("-inf"), 3]
    delays = [rng.random() * 10 ** rng.randint(-12, 20) for _ in range(count)]
    return edges + delays + [struct.unpack("d", rng.randbytes(8))[0] for _ in range(count)]


def test_csv_is_that_of_polars() -> None:
    rng = random.Random(2)
    floats: list[float | None] = [*numbers(rng, 3000), None]
    rows = len(floats)
    table = Table(
        KINDS,
        {
            "text": [rng.choice(TEXTS) for _ in range(rows)],
            "few, coded": Coded(TEXTS, np.array([rng.randrange(len(TEXTS)) for _ in range(rows)])),
            "count": [rng.choice([None, rng.randrange(-(2**63), 2**63)]) for _ in range(rows)],
            "port": np.arange(rows, dtype=np.uint16),
            "x": floats,
            "is": [rng.choice([True, False, None]) for _ in range(rows)],
        },
    )
    assert table.csv() == table.to_polars().write_csv()
    assert table.csv(head=False) == table.to_polars().write_csv(include_header=False)
    for ours, theirs in zip(table.rows(), table.to_polars().to_dicts(), strict=True):
        assert repr(ours | {"x": None}) == repr(theirs | {"x": None})


def test_tables_without_rows_keep_their_columns() -> None:
    table = Table(KINDS, dict.fromkeys(KINDS, ()))
    assert table.csv() == table.to_polars().write_csv()
    assert [str(kind) for kind in table.to_polars().dtypes] == list(KINDS.values())
