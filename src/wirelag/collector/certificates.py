"""TLS of a collector: its certificate, and those of its clients, which name the points that they may speak for.

Laws. A client's certificate names points by its common name and its DNS names, letter for letter; with `client_ca` an
agent is heard only as a point that its certificate names, whatever its token. One that may sign others (CA:TRUE) names
none: its holder could make those of other points. New connections use what was renewed last: a CA that was removed
admits no client, not even one that resumes an earlier TLS connection. If the file of `client_ca` has a revocation
list (CRL), each client's certificate must be one that a current list of its CA does not name.
"""

from __future__ import annotations

import re
import ssl
from typing import TYPE_CHECKING, Final

from wirelag.errors import WirelagError
from wirelag.transport import unusable

if TYPE_CHECKING:
    from wirelag.collector.settings import Settings

# The extension basicConstraints with CA:TRUE, in DER; a match elsewhere would only refuse more.
_SIGNS: Final = re.compile(rb"\x06\x03\x55\x1d\x13(\x01\x01\xff)?\x04.\x30.\x01\x01\xff", re.DOTALL)


class Encryption:
    """`context` is for the server; it hands each connection to the context that was made last."""

    def __init__(self, settings: Settings) -> None:
        """Raise a WirelagError if the files cannot be used."""
        self._newest = made(settings)
        self.context = made(settings)
        self.context.sni_callback = self._hand_over  # called for every connection, also without a name

    def renew(self, settings: Settings) -> None:
        """Use the certificate and the CA of the settings from now on."""
        self._newest = made(settings)
        for name in (
            "verify_mode",
            "verify_flags",
            "minimum_version",
            "num_tickets",
        ):  # not taken from the newest context
            setattr(self.context, name, getattr(self._newest, name))

    def _hand_over(self, line: ssl.SSLObject | ssl.SSLSocket, name: str | None, context: ssl.SSLContext) -> None:
        line.context = self._newest


def made(settings: Settings) -> ssl.SSLContext:
    """TLS according to the settings; a WirelagError if a file cannot be used."""
    assert settings.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION  # a handshake again and again costs a client nothing (OpenSSL 1.1.1)
    try:
        context.load_cert_chain(settings.certificate, settings.key)
    except (OSError, ssl.SSLError) as error:
        why = unusable(error)
        raise WirelagError(f"{settings.certificate}: no certificate that fits {settings.key} ({why})") from None
    if settings.client_ca is not None:
        try:
            context.load_verify_locations(settings.client_ca)  # with its lists
            if context.cert_store_stats()["crl"]:
                context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        except (OSError, ssl.SSLError) as error:
            raise WirelagError(f"{settings.client_ca}: cannot be used as client_ca ({unusable(error)})") from None
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # before, sessions are resumed without looking at certificates
        context.num_tickets = 0
    return context


def points_of(line: ssl.SSLObject | None) -> frozenset[str] | None:
    """The points that a client's certificate names; None if clients need no certificate."""
    shown = None if line is None else line.getpeercert()
    if line is None or not shown:
        return None
    if _SIGNS.search(line.getpeercert(binary_form=True) or b""):
        return frozenset()
    subject = [pair for part in shown.get("subject", ()) for pair in part]
    names = [value for kind, value in (*subject, *shown.get("subjectAltName", ())) if kind in ("commonName", "DNS")]
    return frozenset(str(name) for name in names)
