"""What one exchange is asked to do: the endpoint, the bytes, the deadlines.

Everything is checked when the objects are made, so that :meth:`Sender.send` has nothing left to
refuse and never raises. What the wire needs is prepared once, here.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from redrive.errors import InvalidInput

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

Guard = Callable[[IPAddress], str | None]
"""Judges one address: None allows it, a short reason code forbids it. Never raises.

It is part of what identifies an :class:`Endpoint`, so it must be hashable, and the same policy must
be the same (or an equal) object each time: a new lambda per request would never reuse a connection.
"""

RESERVED_HEADERS = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"connection",
        b"keep-alive",
        b"proxy-connection",
        b"proxy-authorization",
        b"accept-encoding",
        b"te",
        b"trailer",
        b"upgrade",
        b"expect",
    )
)
"""Lower-case names that only the sender writes: they frame the message or govern the connection."""

USER_AGENT = b"redrive"

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_TARGET = re.compile(rb"/[\x21\x22\x24-\x7e]*")  # origin form: visible ASCII, no fragment
_HOST = re.compile(r"[A-Za-z0-9_:](?:[A-Za-z0-9._:\-]*)")
_CONTROLS = bytes(code for code in (*range(32), 127) if code != 9)  # RFC 9110, 5.5: none but HTAB

_known_names: set[bytes] = set()
_known_targets: set[bytes] = set()
_KNOWN_MAX = 1024


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Deadlines in seconds. ``total`` bounds the whole exchange, the waiting for a slot included.

    ``connect`` covers every address that is tried, and a proxy's answer to CONNECT. ``first_byte`` runs
    from the request write to the first byte that comes back. They are never early and at most about
    0.05 s late.
    """

    dns: float = 5.0
    connect: float = 5.0
    tls: float = 5.0
    first_byte: float = 15.0
    total: float = 30.0

    def __post_init__(self) -> None:
        for name in ("dns", "connect", "tls", "first_byte", "total"):
            value = getattr(self, name)
            if not 0 < value <= 86_400:  # also refuses NaN
                raise InvalidInput(f"timeout {name!r} must be more than 0 and at most 86400 s", param=name)


@dataclass(frozen=True, slots=True)
class Proxy:
    """An HTTP proxy that is asked to CONNECT, spoken to in clear. It is the operator's own configuration:
    the address guard does not judge it."""

    host: str
    port: int
    authorization: bytes | None = field(default=None, repr=False)
    """The value of ``Proxy-Authorization``."""

    def __post_init__(self) -> None:
        _check_host(self.host, "proxy.host")
        _check_port(self.port, "proxy.port")
        if self.authorization is not None and set(self.authorization) & set(_CONTROLS):
            raise InvalidInput("proxy authorization contains a control character", param="proxy.authorization")


@dataclass(frozen=True, slots=True)
class Tls:
    """Key material by path. The peer's name and chain are always verified.

    ``ca_file`` replaces the system's authorities. Files are read again when they change.
    """

    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Endpoint:
    """Where requests go and under which terms. Connections are shared between equal endpoints only.

    ``host`` is already parsed: an ASCII (IDNA) name or an IP literal without brackets.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    guard: Guard
    tls: Tls = Tls()
    proxy: Proxy | None = None
    prefix: bytes = field(init=False, repr=False)
    """The part of a request head that is the same for every request."""
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.scheme not in ("http", "https"):
            raise InvalidInput("the scheme must be http or https", param="scheme")
        _check_host(self.host, "host")
        _check_port(self.port, "port")
        name = f"[{self.host}]" if ":" in self.host else self.host
        if self.port != (443 if self.scheme == "https" else 80):
            name = f"{name}:{self.port}"
        object.__setattr__(self, "prefix", b" HTTP/1.1\r\nHost: %b\r\nAccept-Encoding: identity\r\n" % name.encode())
        object.__setattr__(self, "_hash", hash(self._identity()))

    def _identity(self) -> tuple[object, ...]:
        return (self.scheme, self.host, self.port, self.guard, self.tls, self.proxy)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Endpoint):
            return NotImplemented
        return self is other or (self._hash == other._hash and self._identity() == other._identity())

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True, eq=False)
class Request:
    """One POST. ``headers`` and ``body`` go out byte for byte, in the order given.

    The sender adds Host, Accept-Encoding (``identity``), Content-Length, ``Connection: close`` where
    ``fresh``, and a User-Agent if there is none. ``fresh`` never touches a connection that has carried
    another request, so that a stale keep-alive cannot make the outcome ambiguous.

    ``max_response_head`` and ``max_response_body`` are bytes. A head over the cap is malformed; a body over
    it is cut and flagged. ``on_send`` is called immediately before the request write; if it raises, nothing is
    written, and :meth:`Sender.send` raises the same. ``on_head`` is called when the final response head has been
    parsed, and may not raise. Neither may block.

    Raises InvalidInput for a name that is no token, a control character (CR, LF and NUL among them), a
    header that only the sender may write, or a target that is not in origin form.
    """

    endpoint: Endpoint
    target: bytes
    headers: Sequence[tuple[bytes, bytes]] = field(repr=False)
    body: bytes = field(repr=False)
    timeouts: Timeouts = Timeouts()
    fresh: bool = False
    max_response_head: int = 65_536
    max_response_body: int = 65_536
    on_send: Callable[[], None] | None = field(default=None, repr=False)
    on_head: Callable[[], None] | None = field(default=None, repr=False)
    head: bytes = field(init=False, repr=False)
    """Everything of the request head that follows the endpoint's prefix."""

    def __post_init__(self) -> None:
        if self.target not in _known_targets and not _check_target(self.target):
            raise InvalidInput("the request target must be a path of visible ASCII", param="target")
        if self.max_response_head < 64 or self.max_response_body < 0:
            raise InvalidInput("a response cap is out of range", param="max_response_head")
        has_agent = False
        for name, _ in self.headers:
            if name not in _known_names:
                has_agent |= _check_name(name)
        block = b"".join([b"%b: %b\r\n" % pair for pair in self.headers])
        # One pass over all values: no control characters but the line ends that were just written.
        if len(block.translate(None, _CONTROLS)) != len(block) - 2 * len(self.headers):
            raise InvalidInput("a header value contains a control character", param="headers")
        if not has_agent:
            block += b"User-Agent: " + USER_AGENT + b"\r\n"
        if self.fresh:
            block += b"Connection: close\r\n"
        object.__setattr__(self, "head", b"%bContent-Length: %d\r\n\r\n" % (block, len(self.body)))

    def wire(self) -> bytes:
        """The whole request as it goes out, in one piece."""
        return b"".join((b"POST ", self.target, self.endpoint.prefix, self.head, self.body))


class Prepared:
    """A request made by a :class:`Template`: what :class:`Request` is, with its bytes already joined."""

    __slots__ = (
        "_wire",
        "endpoint",
        "fresh",
        "max_response_body",
        "max_response_head",
        "on_head",
        "on_send",
        "timeouts",
    )

    def __init__(
        self,
        template: Template,
        wire: bytes,
        on_send: Callable[[], None] | None,
        on_head: Callable[[], None] | None,
    ) -> None:
        self._wire = wire
        self.endpoint = template.endpoint
        self.fresh = template.fresh
        self.max_response_body = template.max_response_body
        self.max_response_head = template.max_response_head
        self.on_head = on_head
        self.on_send = on_send
        self.timeouts = template.timeouts

    def wire(self) -> bytes:
        """The whole request as it goes out, in one piece."""
        return self._wire


class Template:
    """Many requests to one target that differ in the values of some headers and in the body.

    ``names`` are the headers whose values vary, in the order of the values that :meth:`request` takes; ``fixed`` are
    those that do not. Names and fixed values are checked once, here, by the rules of :class:`Request`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        target: bytes,
        names: Sequence[bytes],
        fixed: Sequence[tuple[bytes, bytes]],
        timeouts: Timeouts,
        *,
        fresh: bool = False,
        max_response_head: int = 65_536,
        max_response_body: int = 65_536,
    ) -> None:
        self.endpoint = endpoint
        self.timeouts = timeouts
        self.fresh = fresh
        self.max_response_head = max_response_head
        self.max_response_body = max_response_body
        model = Request(
            endpoint,
            target,
            [*((name, b"") for name in names), *fixed],
            b"",
            timeouts,
            fresh=fresh,
            max_response_head=max_response_head,
            max_response_body=max_response_body,
        )
        varying = b"".join([name.replace(b"%", b"%%") + b": %b\r\n" for name in names])
        given = b"".join([name + b": \r\n" for name in names])
        rest = model.head[len(given) : -len(b"Content-Length: 0\r\n\r\n")].replace(b"%", b"%%")
        opening = b"POST " + target + endpoint.prefix
        self._format = opening.replace(b"%", b"%%") + varying + rest + b"Content-Length: %d\r\n\r\n%b"

    def request(
        self,
        values: Sequence[bytes],
        body: bytes,
        on_send: Callable[[], None] | None = None,
        on_head: Callable[[], None] | None = None,
    ) -> Prepared:
        """One request. Raises :class:`InvalidInput` for a control character in a value."""
        joined = b"".join(values)
        if len(joined.translate(None, _CONTROLS)) != len(joined):
            raise InvalidInput("a header value contains a control character", param="headers")
        return Prepared(self, self._format % (*values, len(body), body), on_send, on_head)


def _check_name(name: bytes) -> bool:
    """Refuse a name that is not ours to send; say whether it is User-Agent. Good names are remembered."""
    if _TOKEN.fullmatch(name) is None:
        raise InvalidInput("a header name is not a token", param="headers")
    lower = name.lower()
    if lower in RESERVED_HEADERS:
        raise InvalidInput(f"header {lower.decode()!r} is written by the sender", param="headers")
    if lower == b"user-agent":
        return True
    if len(_known_names) < _KNOWN_MAX:
        _known_names.add(name)
    return False


def _check_target(target: bytes) -> bool:
    good = _TARGET.fullmatch(target) is not None
    if good and len(target) <= 256 and len(_known_targets) < _KNOWN_MAX:
        _known_targets.add(target)
    return good


def _check_host(host: str, param: str) -> None:
    if len(host) > 253 or _HOST.fullmatch(host) is None:
        raise InvalidInput("the host must be an ASCII name or an IP literal without a zone", param=param)


def _check_port(port: int, param: str) -> None:
    if not 0 < port < 65_536:
        raise InvalidInput("the port must be between 1 and 65535", param=param)
