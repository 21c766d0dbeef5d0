"""The JSON API of the collector, and its event stream. openapi.py describes the responses."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from wirelag import __version__
from wirelag.collector.block import Block
from wirelag.collector.following import TopologyChange
from wirelag.collector.forget import forget
from wirelag.collector.listeners import News
from wirelag.collector.loop import Collector
from wirelag.collector.metrics import InUse
from wirelag.collector.openapi import document, values_of
from wirelag.collector.overview import Overview
from wirelag.collector.store import HOUR_NS, MINUTE_NS, SUMMED, Kept, Row
from wirelag.collector.tally import Tally
from wirelag.collector.thinning import thinned
from wirelag.errors import WirelagError
from wirelag.protocol.results import Ends, Rank, named_ends
from wirelag.render.metric_families import MEDIA_TYPE, to_protobuf

if TYPE_CHECKING:
    from wirelag.network.topology import Topology

ALIVE_S: Final = 15.0  # interval of keepalives to idle listeners
USUAL: Final = 1000  # reports by default
MOST_THINNED: Final = 20_000  # that are added up: two weeks of minutes
LEAST_PRESSED: Final = 4096  # bytes of a reply that is compressed
MOST_SUMMED: Final = 4000  # intervals from which a path is added up
USUAL_CHANGES: Final = 20
FOREVER_NS: Final = 2**62
NO_TOPOLOGY: Final = "no topology is configured, or none was read yet: start the collector with --topology"

Handler = Callable[[dict[str, Any]], Awaitable[Response]]
Measured = tuple[list[dict[str, Any]], dict[str, int], int, dict[str, InUse], Iterable[str], list[Ends]]


class Api:
    """Serves requests from a collector's state."""

    def __init__(self, collector: Collector, topology: Topology | None, slow: float, overview: Overview) -> None:
        self._of, self._fixed, self.slow, self.overview = collector, topology, slow, overview

    @property
    def _topology(self) -> Topology | None:
        """The current topology, if it is followed."""
        following = self._of.following
        return self._fixed if following is None else following.topology

    def routes(self) -> list[BaseRoute]:
        """The routes of the collector's application."""
        agents = self._checked("/api/v1/agents", self._agents)
        forgotten = self._checked("DELETE /api/v1/agents", self._forget)

        async def of_agents(request: Request) -> Response:
            return await (forgotten if request.method == "DELETE" else agents)(request)

        return [
            Route("/openapi.json", self._document),
            Route("/metrics", self._metrics),
            Route("/-/healthy", self._healthy),
            Route("/-/ready", self._ready),
            Route("/api/v1/agents", of_agents, methods=["GET", "DELETE"]),  # one: `Allow` must name both
            *(
                Route(f"/api/v1/{name}", self._checked(f"/api/v1/{name}", handler))
                for name, handler in (
                    ("overview", self._overview),
                    ("segments", self._segments),
                    ("reports", self._reports),
                    ("status", self._status),
                    ("path", self._path),
                    ("topology", self._network),
                    ("events", self._events),
                )
            ),
        ]

    def _checked(self, path: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            try:
                values = values_of(path, request.query_params.multi_items())
            except ValueError as error:
                return wrong(400, str(error))
            response = await self._safely(path, handler(values))
            if "gzip" in request.headers.get("accept-encoding", "") and _is_long(response):
                return await asyncio.to_thread(_pressed, response)
            return response

        return answer

    async def _safely(self, path: str, answer: Awaitable[Response]) -> Response:
        try:
            return await answer
        except WirelagError as error:
            return wrong(404, str(error))
        except self._of.store.errors as error:
            self._of.upkeep.doubt(error)
            return wrong(503, "the collector cannot read its store now; its log says why")
        except Exception as error:  # lose one response rather than the collector
            self._of.counted["internal errors"] += 1
            self._of.notices.say(
                "failed replies", path, f"{path} failed ({type(error).__name__}: {error}); please report it"
            )
            return wrong(500, "the collector failed to answer; its log says why")

    async def _document(self, request: Request) -> Response:
        return JSONResponse(document())

    async def _healthy(self, request: Request) -> Response:
        health = self._of.health
        return Response(health.text(), 200 if health.healthy else 503, media_type="text/plain")

    async def _ready(self, request: Request) -> Response:
        health = self._of.health
        return Response(health.text(), 200 if health.ready else 503, media_type="text/plain")

    async def _metrics(self, request: Request) -> Response:
        wants = request.headers.get("accept", "")  # Prometheus asks for this form if native histograms are enabled
        return await self._safely("/metrics", self._exposition("application/vnd.google.protobuf" in wants))

    async def _exposition(self, native: bool) -> Response:
        metrics, given = self._of.metrics, self.measured()
        # With many segments and points it takes tenths of a second: messages must not wait for it.
        if native:
            data = await asyncio.to_thread(lambda: to_protobuf(metrics.families(*given), metrics.natives()))
            return Response(data, media_type=MEDIA_TYPE)
        text, kind = await asyncio.to_thread(metrics.text, *given)
        return Response(text, media_type=kind)

    def measured(self) -> Measured:
        """What metrics are made from."""
        of = self._of
        agents, size = of.agents.all(of.clock(), of.steady()), of.store.file_bytes
        return agents, self.counted(), size, of.in_use(), of.health.problems, of.rounds.segments

    def counted(self) -> dict[str, int]:
        """Messages by outcome, from all components."""
        counted = dict(self._of.counted) | dict(self._of.rounds.counted)
        for inbox in self._of.inboxes:
            for why, count in inbox.counts.items():
                counted[f"{inbox.scheme} {why}"] = count
        return counted

    # ---- responses ----

    async def _overview(self, values: dict[str, Any]) -> Response:
        # With a thousand segments it takes tenths of a second: messages must not wait for it.
        return Response(await asyncio.to_thread(self.overview.text), media_type="application/json")

    async def _segments(self, values: dict[str, Any]) -> Response:
        ends = {one.segment: one for one in self._of.rounds.segments}
        classes: dict[str, list[str]] = {name: [] for name in ends}
        for name, key in await asyncio.to_thread(self._of.store.series):
            if self._of.is_shared and name not in ends:  # another collector's
                ends |= {one.segment: one for one in [named_ends(name)] if one is not None}
            classes.setdefault(name, [])
            if key is not None:
                classes[name].append(key)
        found = [
            {
                "segment": name,
                "upstream": ends[name].upstream if name in ends else None,
                "downstream": ends[name].downstream if name in ends else None,
                "classes": keys,
                "latest": await self._last(name, self._of.recent.latest, Rank.UNSEEN),
                "settled": await self._last(name, self._of.recent.settled, Rank.ALONE),
            }
            for name, keys in sorted(classes.items())
            if values.get("segment", name) == name
        ]
        return JSONResponse({"now": self._of.clock() / 1e9, "segments": found})

    async def _last(self, segment: str, known: dict[str, Kept], least: Rank) -> dict[str, Any] | None:
        if segment in known:
            return known[segment].report
        if (told := self._of.elsewhere(segment, least >= Rank.ALONE)) is not None:
            return told
        lengths = await asyncio.to_thread(self._of.store.lengths_ns, segment, None)
        rows = await self._singles(segment, None, lengths, (0, FOREVER_NS), 3)
        return next((row.to_json() for row in reversed(rows) if row.rank >= least), None)

    async def _reports(self, values: dict[str, Any]) -> Response:
        segment, key, resolution = values["segment"], values.get("class"), values.get("resolution", "interval")
        lengths = await asyncio.to_thread(self._of.store.lengths_ns, segment, key)
        if not lengths and segment not in {one.segment for one in self._of.rounds.segments}:
            raise WirelagError(f"unknown segment {segment}" + (f", class {key}" if key else ""))
        points = values.get("points")
        usual = USUAL if points is None else MOST_THINNED
        length_ns, times_ns, most = _length(lengths, resolution), _times(values), int(values.get("limit", usual))
        rows: list[Row] = []
        single = _singles(lengths) if resolution == "interval" else [] if length_ns is None else [length_ns]
        if points is not None and len(single) == 1:
            block = await asyncio.to_thread(self._of.store.block, segment, key, single[0], times_ns, most)
            rows = await asyncio.to_thread(thinned, block, segment, key, single[0], int(points))
            length_ns = rows[-1].length_ns if rows else length_ns
        elif resolution == "interval":
            rows = await self._singles(segment, key, lengths, times_ns, most)
            length_ns = rows[-1].length_ns if rows else length_ns
        elif length_ns is not None:
            rows = await self._rows(segment, key, length_ns, times_ns, most)
        if points is not None and len(single) > 1 and rows:  # lengths have changed over time
            block = Block.of((row.start_ns, row.rank, row.tally) for row in rows)
            if len(block) > int(points):
                rows = await asyncio.to_thread(thinned, block, segment, key, rows[-1].length_ns, int(points))
            length_ns = rows[-1].length_ns
        gaps = [
            [(one.start_ns + one.length_ns) / 1e9, other.start_ns / 1e9]
            for one, other in pairwise(rows)
            if other.start_ns - one.start_ns >= 2 * one.length_ns  # if packets cut, lengths differ a little
        ]
        plain = {"segment": segment, "class": key, "resolution": resolution, "gaps": gaps}
        plain["length"] = None if length_ns is None else length_ns / 1e9
        # A long response takes tenths of a second: messages must not wait for it.
        return await asyncio.to_thread(lambda: JSONResponse(plain | {"reports": [row.to_json() for row in rows]}))

    async def _agents(self, values: dict[str, Any]) -> Response:
        now_ns = self._of.clock()
        return JSONResponse({"now": now_ns / 1e9, "agents": self._of.agents.all(now_ns, self._of.steady())})

    async def _forget(self, values: dict[str, Any]) -> Response:
        point = values["point"]
        if not await self._of.in_worker(forget, self._of, point):
            raise WirelagError(f"unknown agent {point}")
        return JSONResponse({"forgotten": point})

    async def _status(self, values: dict[str, Any]) -> Response:
        return JSONResponse(
            {
                "version": __version__,
                "now": self._of.clock() / 1e9,
                "store_bytes": self._of.store.file_bytes,
                "retain": self._of.store.retention.to_json(),
                "topology": None if self._topology is None else self._topology.name,
                "routers": [] if self._topology is None else list(self._topology.routers),
                "counted": self.counted(),
            }
        )

    async def _path(self, values: dict[str, Any]) -> Response:
        topology, following = self._topology, self._of.following
        if topology is None:
            raise WirelagError(NO_TOPOLOGY)
        from wirelag.collector.waterfall import waterfall

        now_ns = self._of.clock()
        changed = 0 if following is None else following.changed_ns / 1e9  # before that, packets took other paths
        times_ns = _times({"from": max(now_ns / 1e9 - 300, changed)} | values)
        tallies = []
        for segment in sorted({name for name, _ in await asyncio.to_thread(self._of.store.series)}):
            lengths = await asyncio.to_thread(self._of.store.lengths_ns, segment, None)
            most_ns = (min(times_ns[1], now_ns) - times_ns[0]) // MOST_SUMMED
            if any(length < most_ns for length in lengths if length not in SUMMED):
                lengths = [length for length in SUMMED if length in lengths and length >= most_ns] or lengths[-1:]
            rows = await self._singles(segment, None, lengths, times_ns, MOST_SUMMED)
            tallies.append((segment, await asyncio.to_thread(_summed, rows)))
        ends, upgraded = (values["source"], values["target"]), () if following is None else following.upgraded
        return JSONResponse(await asyncio.to_thread(waterfall, topology, tallies, *ends, self.slow, upgraded))

    async def _network(self, values: dict[str, Any]) -> Response:
        topology, following = self._topology, self._of.following
        if topology is None:
            raise WirelagError(NO_TOPOLOGY)
        if following is None:
            plain = {"topology": topology.name, "problem": None, "routers": list(topology.routers),
                     "links": topology.to_json()["links"], "upgraded": [], "segments": []}  # fmt: skip
        else:
            plain = following.to_json()
        most = int(values.get("limit", USUAL_CHANGES))
        changes = await asyncio.to_thread(self._of.store.changes, _times(values), most)
        head = {"now": self._of.clock() / 1e9, "follows": following is not None}
        return JSONResponse(head | plain | {"changes": changes})

    async def _events(self, values: dict[str, Any]) -> Response:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self._stream(values.get("segment")), media_type="text/event-stream", headers=headers)

    async def _stream(self, segment: str | None) -> AsyncIterator[str]:
        """News of one segment, or of all; changes of the network in any case."""
        yield ": wirelag\n\n"
        listening = aiter(self._of.listeners.listen())
        waiting: asyncio.Future[News] | None = None
        try:
            while True:
                waiting = waiting or asyncio.ensure_future(anext(listening))
                done, _ = await asyncio.wait([waiting], timeout=ALIVE_S)
                if not done:
                    yield ": nothing new\n\n"
                    continue
                try:
                    said = waiting.result()
                except StopAsyncIteration:
                    return
                waiting = None
                if isinstance(said, TopologyChange):
                    yield f"event: topology\ndata: {json.dumps(said.to_json())}\n\n"
                    continue
                about = [one for one in said if segment in (None, one.segment)]
                plain = [{"segment": one.segment, "report": one.report} for one in about]
                if plain:
                    yield f"event: reports\ndata: {json.dumps(plain)}\n\n"
        finally:
            if waiting is not None:
                waiting.cancel()

    async def _singles(
        self, segment: str, key: str | None, lengths_ns: list[int], times_ns: tuple[int, int], most: int
    ) -> list[Row]:
        """Intervals as cut by agents, in order of time; lengths may have changed over time."""
        rows = [
            row for length in _singles(lengths_ns) for row in await self._rows(segment, key, length, times_ns, most)
        ]
        return sorted(rows, key=lambda row: row.start_ns)[-most:]

    async def _rows(
        self, segment: str, key: str | None, length_ns: int, times_ns: tuple[int, int], most: int
    ) -> list[Row]:
        return await asyncio.to_thread(self._of.store.rows, segment, key, length_ns, times_ns, most)


def wrong(status: int, line: str) -> Response:
    """An error as JSON."""
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
    return JSONResponse({"error": line}, status, headers)


def _is_long(response: Response) -> bool:
    return response.media_type == "application/json" and len(response.body) >= LEAST_PRESSED


def _pressed(response: Response) -> Response:
    """The same, compressed."""
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return Response(gzip.compress(response.body, 3), response.status_code, headers, response.media_type)


def _singles(lengths_ns: list[int]) -> list[int]:
    """The lengths of intervals as agents cut them."""
    return [length for length in lengths_ns if length not in SUMMED] or lengths_ns[:1]


def _length(lengths_ns: list[int], resolution: str) -> int | None:
    """The interval length for a resolution: if intervals are longer than a minute, minutes are intervals."""
    single = [length for length in lengths_ns if length not in SUMMED]
    if resolution == "interval":
        return next(iter(single or lengths_ns), None)
    wanted = MINUTE_NS if resolution == "minute" else HOUR_NS
    return wanted if wanted in lengths_ns else next((length for length in lengths_ns if length > wanted), None)


def _summed(rows: list[Row]) -> Tally:
    whole = Tally()
    for row in rows:
        whole.add(row.tally)
    return whole


def _times(values: dict[str, Any]) -> tuple[int, int]:
    start, end = values.get("from"), values.get("to")
    return (0 if start is None else round(start * 1e9)), (FOREVER_NS if end is None else round(end * 1e9))
