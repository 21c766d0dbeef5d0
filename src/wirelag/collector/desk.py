"""What is done about right and wrong tokens: connections are told apart, refusals counted and logged."""

from __future__ import annotations

from collections import Counter

from starlette.requests import Request

from wirelag.collector.connections import Visitors
from wirelag.transport.audit import Audit
from wirelag.transport.http_inbox import Caller
from wirelag.transport.notices import Notices


class Desk:
    """Told by the server of every request."""

    def __init__(self, visitors: Visitors, counted: Counter[str], notices: Notices, audit: Audit) -> None:
        self._visitors, self._counted, self._notices, self._audit = visitors, counted, notices, audit

    def opened(self, request: Request, scope: str) -> None:
        """Note a login at the page."""
        self._audit.say("login", source=_source(request), scope=scope)

    def admit(self, request: Request | Caller, point: str | None, reads: bool = False) -> bool:
        """Note a right token; False if its point, or the address of one that only `reads`, has too many connections."""
        peer = request.client
        admitted = self._visitors.known(None if peer is None else (peer.host, peer.port), point, reads)
        self._counted["connections refused"] += not admitted
        return admitted

    def is_strange(self, request: Request) -> bool:
        """Whether its connection has not shown a right token."""
        peer = request.client
        return peer is not None and self._visitors.is_strange((peer.host, peer.port))

    def unmet(self, source: str) -> None:
        """Count a connection that ended before TLS had begun, where clients must show certificates."""
        self._counted["refused: no certificate"] += 1
        self._audit.say("refused", source=source, sent="no certificate that is accepted")
        self._notices.say("refused certificates", source, f"{source}: refused, it sent no certificate of client_ca")

    def refused(self, request: Request | Caller, what: str = "a wrong token") -> None:
        """Count a refusal; log it with its source, unless no token was given: browsers ask like that at first."""
        kind = "a token of another scope" if what.startswith("a token of scope") else what
        self._counted[f"refused: {kind}"] += 1
        if what != "no token":
            source = _source(request)
            self._audit.say("refused", source=source, sent=what)
            self._notices.say("refused tokens", f"{source} {what}", f"{source}: refused, it sent {what}")


def _source(request: Request | Caller) -> str:
    return "unknown" if request.client is None else request.client.host
