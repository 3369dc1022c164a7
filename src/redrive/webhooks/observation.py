"""What the sender saw of one HTTP exchange: a response head, or a failure in a named phase.

This is the whole vocabulary between the sender, which talks to sockets, and the outcome table, which
decides what it means.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Phase(enum.StrEnum):
    """Where an exchange ended. The order is the order in which they happen."""

    GUARD = "guard"
    """The address guard refused the host or one of its addresses."""
    DNS = "dns"
    CONNECT = "connect"
    PROXY = "proxy"
    TLS = "tls"
    SEND = "send"
    """The request write was called; no byte of a final response head has been parsed."""
    HEAD = "head"
    """Part of a final response head arrived, and not all of it."""


class Fault(enum.StrEnum):
    """How it ended."""

    REFUSED = "refused"
    """Refused, unreachable, no such name, handshake or proxy refusal."""
    TIMEOUT = "timeout"
    LOST = "lost"
    """Reset or closed by the peer."""
    MALFORMED = "malformed"
    """Bytes that are not an acceptable HTTP/1.1 response."""
    FORBIDDEN = "forbidden"
    CERTIFICATE = "certificate"
    """The peer's certificate was not acceptable, or it wanted one we could not give."""
    OURS = "ours"
    """Our own side: no file descriptors, our proxy unreachable, unusable key material."""


NO_SLOT = "pool"
"""``Failure.detail`` when every connection that our own limits allow was busy until the deadline."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An exchange without a full response head.

    ``sent`` is False exactly when the request write was never called: the receiver has certainly not
    seen this attempt. ``detail`` is a short bounded code (an errno name, an OpenSSL reason), never free text.
    """

    phase: Phase
    fault: Fault
    sent: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """A full final response head, and what could be read of its body within the cap and the deadline.

    ``headers`` keeps order and repetition; names are lower-case. ``truncated`` is True when the body
    ended early, went over the cap, broke, or ran into the total deadline: the head stands all the same.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    truncated: bool = False

    def header(self, name: bytes) -> bytes | None:
        """The first value of ``name`` (lower-case), or None."""
        for key, value in self.headers:
            if key == name:
                return value
        return None


Observation = Response | Failure
