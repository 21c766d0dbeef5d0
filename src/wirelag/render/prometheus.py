"""Metrics for Prometheus, served at an address: times in seconds, names by its conventions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wirelag.errors import MissingExtraError, WirelagError
from wirelag.stats.bins import MIDDLES_NS
from wirelag.stats.distribution import Distribution

if TYPE_CHECKING:
    from prometheus_client.core import Metric

BOUNDS_S: Final = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
_ENDS: Final = np.searchsorted(MIDDLES_NS, np.array(BOUNDS_S) * 1e9, side="right")


def buckets(delays: Distribution) -> list[tuple[str, float]]:
    """Cumulative counts of a histogram; bounds are exact to the width of a bin, 0.4%."""
    up_to = np.concatenate([[0], np.cumsum(delays.weights)])
    ends = np.searchsorted(delays.bins, _ENDS)  # where only bins that hold delays are kept, too
    counts = [(f"{bound:g}", float(up_to[end])) for bound, end in zip(BOUNDS_S, ends, strict=True)]
    return [*counts, ("+Inf", float(delays.weight))]


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of HOST:PORT, [HOST]:PORT, :PORT or PORT; the default host is loopback.

    >>> parse_address("9464")
    ('127.0.0.1', 9464)
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not port.isdecimal() or not 0 <= int(port) <= 65535:
        raise ValueError(f"{text!r} is not an address: write 127.0.0.1:9464, or only a port")
    return host or "127.0.0.1", int(port)


class Exporter:
    """Serves the metrics of `collect` at /metrics until it is closed. `collect` is called in another thread."""

    def __init__(self, address: str, collect: Callable[[], Iterable[Metric]]) -> None:
        host, port = parse_address(address)
        try:
            import prometheus_client as client
        except ImportError:
            raise MissingExtraError("--prometheus") from None
        registry = client.CollectorRegistry()
        registry.register(_Source(collect))
        client.ProcessCollector(registry=registry)
        try:
            self._server, self._thread = client.start_http_server(port, host, registry)
        except OSError as error:
            raise WirelagError(
                f"{address}: cannot listen ({error.strerror or error}); choose another address"
            ) from None
        self.port = int(self._server.server_port)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Source:
    def __init__(self, collect: Callable[[], Iterable[Any]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Any]:
        return self._collect()

    def describe(self) -> Iterable[Any]:
        """Describe nothing in advance: metrics depend on the traffic."""
        return ()
