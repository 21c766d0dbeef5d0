"""What the collector sends by itself: metrics by remote write and OpenTelemetry (OTLP over HTTP), intervals by IPFIX.

Laws. Metrics are what /metrics has at that moment. All their counts are cumulative: what could not be sent is not sent
again, because the next time has all of it. Intervals are sent once, when they are settled; those that could not be sent
wait, the newest 100,000 of them. A receiver that does not answer delays nothing but the next attempt.
"""

from __future__ import annotations

import asyncio
import ssl
import time
import urllib.error
import urllib.request
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final

from wirelag.collector.metrics import Metrics
from wirelag.collector.receivers import Receivers
from wirelag.errors import WirelagError
from wirelag.render import otlp, remote_write
from wirelag.render.ipfix import Exporter
from wirelag.transport import Address
from wirelag.transport.notices import Notices

Settled = deque[tuple[str, dict[str, Any]]]  # segments and their reports, as the API has them
PATIENCE_S: Final = 10.0
MOST_WAITING: Final = 100_000  # intervals
_MOST_SAID: Final = 300  # characters of a refusal


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: a secret must not go elsewhere."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Push:
    """Sends without end."""

    def __init__(
        self,
        receivers: Receivers,
        metrics: Metrics,
        measured: Callable[[], tuple[Any, ...]],
        instance: str,
        settled: Settled,
    ) -> None:
        """`measured`: what families are made from; `instance`: this collector; `settled`: intervals since the last."""
        self._settled, self._exporter = settled, Exporter()
        if receivers.ipfix is not None:
            self._exporter.domain = receivers.ipfix.domain
        self._to, self._metrics, self._measured, self._instance = receivers, metrics, measured, instance
        self._began_ns = time.time_ns()

    async def run(self, counted: Counter[str], notices: Notices) -> None:
        """Send regularly, until cancelled."""
        for what in ("remote write", "otlp", "ipfix"):
            if getattr(self._to, what.replace(" ", "_")) is not None:
                counted[f"{what} failed"] += 0  # Prometheus sees no increase of what was not there before
        sends = ("remote write", self._remote_write), ("otlp", self._otlp), ("ipfix", self._ipfix)
        while True:
            for what, send in sends:
                try:
                    counted[f"{what} requests"] += await asyncio.to_thread(send, self._measured())
                except Exception as error:  # whatever it is, the next attempt may succeed
                    counted[f"{what} failed"] += 1
                    notices.say("metrics not sent", what, f"{error}; the next attempt has everything")
            await asyncio.sleep(self._to.every_ns / 1e9)

    def _remote_write(self, given: tuple[Any, ...]) -> int:
        if (address := self._to.remote_write) is None:
            return 0
        labels = {"job": "wirelag", "instance": self._instance}
        bodies = remote_write.to_remote_write(self._metrics.families(*given), labels, time.time_ns() // 10**6)
        for body in bodies:
            _post(address, body, remote_write.HEADERS)
        return len(bodies)

    def _otlp(self, given: tuple[Any, ...]) -> int:
        if (address := self._to.otlp) is None:
            return 0
        resource = {"service.name": "wirelag", "service.instance.id": self._instance}
        families, natives = self._metrics.families(*given), self._metrics.natives()
        _post(address, otlp.to_otlp(families, natives, resource, self._began_ns, time.time_ns()), otlp.HEADERS)
        return 1

    def _ipfix(self, _: tuple[Any, ...]) -> int:
        """Send what has been settled; over UDP as one session, over a connection as a session each time."""
        waiting = list(self._settled)
        if (target := self._to.ipfix) is None or not waiting:
            return 0
        if target.scheme != "ipfix+udp":
            self._exporter.sequence = 0

        def messages(most: int) -> Iterable[bytes]:
            self._exporter.most = most
            return self._exporter.segments(waiting, self._instance)

        target.send(messages)
        for sent in waiting:  # others may have come, and pushed these out
            if self._settled[0] is sent:
                self._settled.popleft()
        return 1


def settled_since() -> Settled:
    """Where intervals wait."""
    return deque(maxlen=MOST_WAITING)


def _post(address: Address, body: bytes, headers: Mapping[str, str]) -> None:
    given = {"User-Agent": "wirelag", **headers}
    if address.secret:
        given["Authorization"] = f"Bearer {address.secret}"
    request = urllib.request.Request(address.url, body, given, method="POST")
    context = address.context()
    opener = urllib.request.build_opener(_Stay, *([] if context is None else [_secured(context)]))
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            answer.read(_MOST_SAID)
    except urllib.error.HTTPError as error:
        said = ""
        with suppress(OSError), error:
            said = " ".join(error.read(_MOST_SAID).decode(errors="replace").split())
        raise WirelagError(f"{address.shown}: refuses metrics (status {error.code}{': ' * bool(said)}{said})") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise WirelagError(f"{address.shown}: cannot send metrics ({reason})") from None


def _secured(context: ssl.SSLContext) -> urllib.request.HTTPSHandler:
    return urllib.request.HTTPSHandler(context=context)
