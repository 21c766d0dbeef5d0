"""Rows as a file of Parquet."""

from pathlib import Path

import polars as pl
import pytest

import wirelag
from tests.support.simulated_captures import write_simulation
from wirelag.measure import rtt
from wirelag.render import output


def test_parquet_is_written_as_rows_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same rows as a data frame has, which is never made: groups may be a million."""
    write_simulation(wirelag.simulate(wirelag.Scenario(packets=2000, seed=3)), tmp_path / "one.pcap")
    monkeypatch.setattr(rtt, "ROWS_AT_ONCE", 3)
    monkeypatch.setattr(output, "ROW_GROUP", 7)
    result = wirelag.rtt(str(tmp_path / "one.pcap"), by="flow")
    expected = result.to_polars()
    monkeypatch.setattr(type(result), "to_polars", None)
    output.write_result(result, "parquet", str(tmp_path / "rows.parquet"))
    assert expected.height > 9
    assert pl.read_parquet(tmp_path / "rows.parquet").equals(expected)
