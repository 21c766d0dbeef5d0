"""Forgetting an agent that was removed: its status, and the series of segments that only agents have named.

Results stay. What has the same name and sends again is a new agent.
"""

from __future__ import annotations

import http.client
import json
import ssl
from contextlib import closing, nullcontext
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from wirelag.collector.settings import Settings
from wirelag.collector.store import is_postgres
from wirelag.collector.tokens import ADMIN
from wirelag.errors import WirelagError

if TYPE_CHECKING:
    from wirelag.collector.loop import Collector

_LOCAL: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_PATIENCE_S: Final = 30.0


def forget(collector: Collector, point: str) -> bool:
    """Forget an agent, in the worker; False if it is not known."""
    store = collector.store
    if not collector.agents.forget(point):
        return False
    collector.presence.forget(point)
    collector.no_longer(collector.rounds.forget(point))
    store.begin()
    try:
        store.drop_agent(point)
        store.commit()
    except BaseException:
        store.rollback()
        raise
    collector.counted["agents forgotten"] += 1
    collector.notices.say("agents heard or not", f"{point} forgotten", f"{point} was forgotten, as asked")
    return True


def tell_to_forget(settings: Settings, point: str) -> str:
    """Tell the collector of these settings to forget an agent, or change its store if it does not run."""
    from wirelag.collector.stores import alone

    try:
        with nullcontext() if is_postgres(settings.store) else alone(settings.store):
            found = _in_store(settings.store, point)
    except WirelagError as error:
        if "another collector" not in str(error):
            raise
        found = _asked(settings, point)
    if not found:
        raise WirelagError(f"{point}: no such agent; the API lists those that are known (/api/v1/agents)")
    return f"{point} is forgotten; its results stay"


def _in_store(path: str, point: str) -> bool:
    if is_postgres(path):
        return _in_database(path, point)
    from wirelag.collector.sqlite import SqliteStore
    from wirelag.collector.sqlite_file import version_of

    if version_of(path) is None:
        return False
    with closing(SqliteStore(path)) as store:
        found = point in store.agents()
        store.begin()
        store.drop_agent(point)
        store.commit()
    return found


def _in_database(url: str, point: str) -> bool:
    """Forget it there: collectors that run follow."""
    from wirelag.collector.postgres import PostgresStore

    with closing(PostgresStore(url, session="wirelag-forget")) as store:
        found = point in store.agents() or point in store.agents(others=True)
        store.begin()
        store.drop_agent(point)
        store.commit()
    return found


def _asked(settings: Settings, point: str) -> bool:
    """Ask the collector that runs, by its API."""
    where = f"{settings.host}:{settings.port}"
    if not settings.port:
        raise WirelagError(
            "listen: names no port, so the collector cannot be asked; use DELETE /api/v1/agents?point=NAME"
        )
    token = next((token for token, scope in (settings.tokens or {}).items() if scope == ADMIN), None)
    if settings.tokens is not None and token is None:
        raise WirelagError("token_file: no token has the scope admin, which forgetting an agent needs; add one")
    headers = {"Host": "localhost"} | ({"Authorization": f"Bearer {token}"} if token else {})
    host, line = _LOCAL.get(settings.host, settings.host), None
    try:
        line = http.client.HTTPConnection(host, settings.port, timeout=_PATIENCE_S)
        if settings.certificate is not None:
            context = ssl.create_default_context(cafile=settings.certificate)
            context.check_hostname = False  # the collector is known by its own certificate, whatever it is called
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            line = http.client.HTTPSConnection(host, settings.port, timeout=_PATIENCE_S, context=context)
        line.request("DELETE", f"/api/v1/agents?point={quote(point, safe='')}", headers=headers)
        reply = line.getresponse()
        body = reply.read()
    except (OSError, http.client.HTTPException) as error:
        raise WirelagError(f"{where}: the collector does not answer ({error})") from None
    finally:
        if line is not None:
            line.close()
    if reply.status not in (200, 404):
        said = json.loads(body).get("error", "") if body.startswith(b"{") else ""
        raise WirelagError(f"{where}: the collector refuses (status {reply.status}: {said})")
    return reply.status == 200
