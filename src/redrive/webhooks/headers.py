"""A destination's static headers: checked when they are configured, masked when they are shown.

A value of the form ``env:NAME`` or ``file:/path`` is a reference to a secret and is read when the request is
made. Headers that carry credentials take a reference only, so that no row ever holds a credential.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from redrive.errors import InvalidInput
from redrive.webhooks.secrets import (
    Secret,
    SecretRef,
    SecretUnavailable,
    looks_like_literal,
    looks_like_ref,
    parse_ref,
)

MAX_HEADERS = 32
"""Most static headers of one destination."""
MAX_NAME = 128
"""Longest header name, in characters."""
MAX_VALUE = 4096
"""Longest header value, in characters."""
MAX_TOTAL = 16_384
"""All names and values together, in characters."""
MASK = "***"

Headers = tuple[tuple[str, str], ...]

RESERVED = frozenset(
    {
        "host",
        "content-length",
        "content-type",
        "content-encoding",
        "transfer-encoding",
        "connection",
        "keep-alive",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "accept-encoding",
        "idempotency-key",
        "date",
    }
)
"""Names that only the sender writes. They frame the message, promise something about the body (whose content
type is the event's own), or identify the delivery."""

RESERVED_PREFIXES = ("webhook-", "redrive-", "proxy-")

SENSITIVE = frozenset({"authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "x-auth-token"})
"""Names that always carry credentials; :func:`is_sensitive` knows more by their parts."""

_TOKEN = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")  # RFC 9110, 5.6.2
_VALUE = re.compile(r"[\x21-\x7e](?:[\t\x20-\x7e]*[\x21-\x7e])?|")  # RFC 9110, 5.5, without obs-text
_SUBSTRING = re.compile(r"token|secret|passw|passphrase|credential|api-?key|access-?key|authori[sz]ation|cookie")
_SEGMENTS = frozenset({"auth", "authn", "authentication", "bearer", "jwt", "session", "sid", "sig", "signature"})
_HARMLESS_KEYS = frozenset({"idempotency-key", "routing-key", "partition-key", "ordering-key", "event-key"})


def is_sensitive(name: str) -> bool:
    """True if a header of this name carries credentials, as far as its name tells. Errs towards True."""
    lower = name.lower().replace("_", "-")
    segments = lower.split("-")
    if lower in SENSITIVE or _SUBSTRING.search(lower) or not _SEGMENTS.isdisjoint(segments):
        return True
    return segments[-1] == "key" and lower.removeprefix("x-") not in _HARMLESS_KEYS


def check_headers(headers: Mapping[str, str] | Iterable[tuple[str, str]]) -> Headers:
    """The headers in their order, or :class:`InvalidInput` that names the header and never its value.

    Names are tokens (RFC 9110), each once whatever its case, and not reserved. Values are text of visible
    ASCII, spaces and tabs, without white space at either end: no CR, LF, NUL or other control, no number or
    object. A value that is a reference is checked as one. A sensitive header takes a reference only.
    """
    items = headers.items() if isinstance(headers, Mapping) else headers
    found: list[tuple[str, str]] = []
    seen: set[str] = set()
    total = 0
    for name, value in items:
        lower = _check_name(name)
        if lower in seen:
            raise _refused(f"the header {lower} is given twice")
        seen.add(lower)
        _check_value(lower, value)
        total += len(name) + len(value)
        found.append((str(name), str(value)))
        if len(found) > MAX_HEADERS:
            raise _refused(f"more than {MAX_HEADERS} headers")
    if total > MAX_TOTAL:
        raise _refused(f"the headers are longer than {MAX_TOTAL} characters together")
    return tuple(found)


def resolve_headers(
    headers: Iterable[tuple[str, str]], resolve: Callable[[SecretRef], Secret]
) -> list[tuple[bytes, bytes]]:
    """Checked headers as they go on the wire, references read by ``resolve``.

    Raises :class:`SecretUnavailable` where a secret cannot be read, or holds what a header value may not
    (a newline in the middle would be a second header). The message names the reference only.
    """
    wire: list[tuple[bytes, bytes]] = []
    for name, value in headers:
        if looks_like_ref(value):
            ref = parse_ref(value, "headers")
            raw = resolve(ref).reveal()
            if len(raw) > MAX_VALUE or not _VALUE.fullmatch(raw.decode("latin-1")):
                raise SecretUnavailable(f"the secret {ref} is not usable as a header value", param="headers")
            wire.append((name.encode("ascii"), raw))
        else:
            wire.append((name.encode("ascii"), value.encode("ascii")))
    return wire


def redact(headers: Iterable[tuple[str | bytes, str | bytes]]) -> list[tuple[str, str]]:
    """Headers for a screen, a log or a document: values of sensitive ones, and values that look like
    credentials under any name, are ``***``. A configured reference is shown: it is not the secret.
    """
    shown: list[tuple[str, str]] = []
    for raw_name, raw_value in headers:
        name = raw_name.decode("latin-1") if isinstance(raw_name, bytes) else raw_name
        value = raw_value.decode("latin-1") if isinstance(raw_value, bytes) else raw_value
        # Bytes come from a wire, where "env:" is just somebody's text.
        hidden = is_sensitive(name) or looks_like_literal(value)
        if hidden and isinstance(raw_value, str) and _is_ref(value):
            hidden = False
        shown.append((name, MASK if hidden else value))
    return shown


def _is_ref(value: str) -> bool:
    try:
        parse_ref(value)
    except InvalidInput:
        return False
    return True


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise _refused(f"a header name must be text, not {type(name).__name__}")
    if len(name) > MAX_NAME:
        raise _refused(f"a header name is longer than {MAX_NAME} characters")
    lower = name.lower()
    if not _TOKEN.fullmatch(name):
        raise _refused("a header name must be letters, digits and ! # $ % & ' * + - . ^ _ ` | ~")
    if lower in RESERVED or lower.startswith(RESERVED_PREFIXES):
        raise _refused(f"the header {lower} is written by the sender")
    return lower


def _check_value(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise _refused(f"the value of the header {name} must be text, not {type(value).__name__}")
    if len(value) > MAX_VALUE:
        raise _refused(f"the value of the header {name} is longer than {MAX_VALUE} characters")
    if not _VALUE.fullmatch(value):
        raise _refused(
            f"the value of the header {name} must be visible ASCII, without control characters and without "
            "white space at its ends"
        )
    if looks_like_ref(value):
        parse_ref(value, "headers")
    elif is_sensitive(name) or looks_like_literal(value):
        raise InvalidInput(
            f"the header {name} carries a credential, and credentials are references",
            param="headers",
            hint="give env:NAME or file:/absolute/path as its value",
        )


def _refused(message: str) -> InvalidInput:
    return InvalidInput(message, param="headers")
