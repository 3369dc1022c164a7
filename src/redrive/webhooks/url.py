"""A destination's URL, parsed once and strictly.

URL parsers disagree about malformed input (``http://127.0.0.1\\@a.example``), and a check made by one
parser says nothing about a connection made by another. So there is one, it refuses whatever is unusual, and
what it returned is what is judged, dialled and sent. No error repeats any part of a refused URL: it may
hold credentials.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal, NoReturn

from redrive.errors import InvalidInput

MAX_URL = 2048
"""Longest URL accepted, in characters."""

DEFAULT_PORTS = {"http": 80, "https": 443}

_SHAPE = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?]*)(/[^?]*)?(\?.*)?", re.DOTALL)
_CONTROL_OR_SPACE = re.compile(r"[\x00-\x20\x7f-\xa0\s\ud800-\udfff]")
_PORT = re.compile(r"[0-9]{1,5}")
# RFC 3986, 3.3 and 3.4: pchar and "/". The query adds "?", and [ ] | because frameworks use them bare.
_PATH = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/]|%[0-9A-Fa-f]{2})*")
_QUERY = re.compile(r"(?:[A-Za-z0-9\-._~!$&'()*+,;=:@/?\[\]|]|%[0-9A-Fa-f]{2})*")
# RFC 1123, 2.1, and the underscore that names inside container networks have.
_LABEL = re.compile(r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
# IDNA 2003 maps these to an ASCII full stop.
_OTHER_DOTS = re.compile("[\u3002\uff0e\uff61]")


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes.

    ``host`` is lower-case ASCII: a name without its trailing dot, or an IP address without brackets
    (then ``is_literal``). ``target`` is the path and query as the request line carries them, as they were
    given; ``host_header`` is the Host header's value, with the port unless it is the scheme's default.
    """

    scheme: Literal["http", "https"]
    host: str
    port: int
    target: bytes
    is_literal: bool
    host_header: bytes

    @property
    def origin(self) -> str:
        """``scheme://host:port``, without the path and query, which may hold a token."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_url(text: str) -> Target:
    """Parse a destination's URL, or raise :class:`InvalidInput` (param ``url``) that does not repeat it.

    Only http and https. Refused: user information, fragments, backslashes, control characters, white space,
    a percent sign or zone in the host, an empty host or port, port 0 and ports over 65535, labels over 63 and
    names over 253 characters, unescaped characters that RFC 3986 does not allow in a path or query.

    A name beyond ASCII is taken only if Python's IDNA 2003 codec and back gives the very same name, so that
    every IDNA version agrees on the host; digits beyond ASCII are always refused. Otherwise the caller
    gives the ``xn--`` form.
    """
    if not isinstance(text, str):
        _refuse(f"a URL must be text, not {type(text).__name__}")
    if not text:
        _refuse("the URL is empty")
    if len(text) > MAX_URL:
        _refuse(f"the URL is longer than {MAX_URL} characters")
    if _CONTROL_OR_SPACE.search(text):
        _refuse("the URL contains a control character or white space")
    if "\\" in text:
        _refuse("the URL contains a backslash")
    if "#" in text:
        _refuse("the URL has a fragment", "a fragment is never sent: leave it out")
    match = _SHAPE.fullmatch(text)
    if match is None:
        _refuse("the URL is not of the form https://host/path")
    scheme = match[1].lower()
    if scheme not in ("http", "https"):
        _refuse("the URL's scheme is not http or https")
    authority, path, query = match[2], match[3] or "/", match[4] or ""
    if "@" in authority:
        _refuse("the URL holds user information", "put credentials in a header that refers to a secret")
    if not _PATH.fullmatch(path):
        _refuse("the URL's path holds a character that must be percent-encoded")
    if not _QUERY.fullmatch(query[1:]):
        _refuse("the URL's query holds a character that must be percent-encoded")
    host, port, is_literal = _authority(authority, DEFAULT_PORTS[scheme])
    shown = f"[{host}]" if ":" in host else host
    if port != DEFAULT_PORTS[scheme]:
        shown = f"{shown}:{port}"
    return Target(
        scheme="https" if scheme == "https" else "http",
        host=host,
        port=port,
        target=(path + query).encode("ascii"),
        is_literal=is_literal,
        host_header=shown.encode("ascii"),
    )


def inet_aton(host: str) -> ipaddress.IPv4Address | None:
    """The IPv4 address that C libraries read in ``host``, or None.

    One to four parts, each decimal, octal (``0177``) or hexadecimal (``0x7f``), the last one filling what is
    left: ``127.1``, ``2130706433`` and ``0x7f000001`` are all 127.0.0.1.
    """
    parts = host.split(".")
    if len(parts) > 4:
        return None
    numbers: list[int] = []
    for part in parts:
        number = _aton_part(part)
        if number is None:
            return None
        numbers.append(number)
    *heads, last = numbers
    if any(number > 255 for number in heads) or last >= 256 ** (5 - len(numbers)):
        return None
    value = last
    for index, number in enumerate(heads):
        value += number << (8 * (3 - index))
    return ipaddress.IPv4Address(value)


def looks_numeric(host: str) -> bool:
    """True if the last label is a number: such a host can only be meant as an IPv4 address (WHATWG URL)."""
    return _NUMBER.fullmatch(host.rstrip(".").rpartition(".")[2].lower()) is not None


def _aton_part(part: str) -> int | None:
    if not part.isascii() or len(part) > 20:
        return None
    text = part.lower()
    if re.fullmatch(r"0x[0-9a-f]+", text):
        return int(text, 16)
    if re.fullmatch(r"0[0-7]*", text):
        return int(text, 8)
    return int(text) if re.fullmatch(r"[1-9][0-9]*", text) else None


def _authority(authority: str, default_port: int) -> tuple[str, int, bool]:
    if authority.startswith("["):
        host, bracket, rest = authority[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            _refuse("the URL's IPv6 address is not closed by a bracket and a port")
        return _ipv6(host), _port(rest[1:] if rest else None, default_port), True
    host, colon, port = authority.partition(":")
    number = _port(port if colon else None, default_port)
    name = _name(host)
    try:
        return str(ipaddress.IPv4Address(name)), number, True
    except ValueError:
        return name, number, False


def _port(text: str | None, default: int) -> int:
    if text is None:
        return default
    if not _PORT.fullmatch(text):
        _refuse("the URL's port is not a number", "an IPv6 address goes in brackets")
    number = int(text)
    if not 1 <= number <= 65535:
        _refuse("the URL's port is not between 1 and 65535")
    return number


def _ipv6(text: str) -> str:
    if "%" in text:
        _refuse("the URL's IPv6 address has a zone")
    try:
        address = ipaddress.IPv6Address(text)
    except ValueError:
        address = None
    if address is None:
        # Outside the handler: the standard library's error repeats the text, and would come along as context.
        _refuse("the URL's host is not an IPv6 address")
    # One spelling on every Python (3.13 changed its own for these), as RFC 5952 section 5 has it.
    mapped = address.ipv4_mapped
    return address.compressed if mapped is None else f"::ffff:{mapped}"


def _name(text: str) -> str:
    host = text.removesuffix(".").lower()
    if not host:
        _refuse("the URL has no host")
    if "%" in host:
        _refuse("the URL's host holds a percent sign")
    if not host.isascii():
        host = _idna(host)
    if len(host) > 253:
        _refuse("the URL's host is longer than 253 characters")
    for label in host.split("."):
        if not label:
            _refuse("the URL's host has an empty label")
        if len(label) > 63:
            _refuse("the URL's host has a label longer than 63 characters")
        if not _LABEL.fullmatch(label):
            _refuse("the URL's host is not a name: letters, digits, _ and inner hyphens only")
    return host


def _idna(host: str) -> str:
    hint = "write the host in its ASCII form (xn--...)"
    if _OTHER_DOTS.search(host) or any(char.isnumeric() and not char.isascii() for char in host):
        _refuse("the URL's host holds a digit or a full stop that is not ASCII", hint)
    try:
        encoded = host.encode("idna")
        same = encoded.decode("idna") == host
    except UnicodeError:
        same = False
    if not same:
        _refuse("the URL's host has no unambiguous ASCII form", hint)
    return encoded.decode("ascii").lower()


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise InvalidInput(message, param="url", hint=hint)
