"""Derived identities (contract 2.1).

An ID is the first 128 bits of SHA-256 over a versioned, typed, length-prefixed encoding of what the
thing *is*. Two processes, two releases and two languages that describe the same work derive the same ID,
so no path can mint a second delivery. ``tests/data/identity_vectors.json`` freezes the derivation.

The encoding, version 1::

    document = "redrive" 0x01 item(kind) item(part) ...
    item     = tag (1 byte) length (8 bytes, big-endian) content

======  =========  =================================================
tag     type       content
======  =========  =================================================
``n``   None       empty
``o``   bool       one byte, 0 or 1
``i``   int        ASCII decimal, no leading zeros, ``-`` if negative
``s``   str        UTF-8, exactly as given: no Unicode normalisation
``b``   bytes      as given
``u``   UUID       16 bytes, big-endian
``l``   tuple      the items, one after another
======  =========  =================================================

The type is part of the value: ``1``, ``"1"`` and ``True`` are three different keys.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from uuid import UUID

from redrive.errors import InvalidInput

KeyPart = None | bool | int | str | bytes | UUID | tuple["KeyPart", ...]
Key = KeyPart | Sequence[KeyPart]

_PREAMBLE: Final = b"redrive\x01"
_ALPHABET: Final = "0123456789abcdefghjkmnpqrstvwxyz"
_PAIRS: Final = [a + b for a in _ALPHABET for b in _ALPHABET]
"""Two characters at a time: IDs are printed on the hot path."""
_DECODE: Final = {
    **{c: i for i, c in enumerate(_ALPHABET)},
    **{c.upper(): i for i, c in enumerate(_ALPHABET)},
    **dict.fromkeys("oO", 0),
    **dict.fromkeys("iIlL", 1),
}
MAX_KEY_BYTES: Final = 4096
"""The longest encoded key, in bytes. A longer one is a payload in disguise."""


class Unique(enum.Enum):
    """The type of :data:`UNIQUE`."""

    UNIQUE = "UNIQUE"

    def __repr__(self) -> str:
        return "UNIQUE"


UNIQUE: Final = Unique.UNIQUE
"""Pass as a key or event ID to say: this work has no natural identity, mint a random one.

Enqueuing the same thing twice with ``UNIQUE`` is two deliveries; that is why it must be said.
"""


def _item(tag: bytes, content: bytes) -> bytes:
    return tag + len(content).to_bytes(8, "big") + content


def encode_part(part: KeyPart) -> bytes:
    """One item of the encoding. Raises :class:`InvalidInput` for any other type, and for lone surrogates."""
    if isinstance(part, str):
        try:
            return _item(b"s", part.encode("utf-8"))
        except UnicodeEncodeError as exc:
            raise InvalidInput("a key part holds a lone surrogate, which is not text", param="key") from exc
    if part is None:
        return _item(b"n", b"")
    if isinstance(part, bool):
        return _item(b"o", b"\x01" if part else b"\x00")
    if isinstance(part, int):
        if part.bit_length() > 256:
            raise InvalidInput("an integer key part is limited to 256 bits", param="key")
        return _item(b"i", b"%d" % part)
    if isinstance(part, bytes):
        return _item(b"b", part)
    if isinstance(part, UUID):
        return _item(b"u", part.bytes)
    if isinstance(part, tuple | list):
        return _item(b"l", b"".join(map(encode_part, part)))
    raise InvalidInput(
        f"a key part cannot be a {type(part).__name__}",
        param="key",
        hint="use str, int, bytes, bool, UUID, None or a tuple of these",
    )


def derive(kind: str, *parts: KeyPart) -> bytes:
    """The 16-byte ID of ``kind`` described by ``parts``."""
    body = b"".join(map(encode_part, parts))
    return hashlib.sha256(_PREAMBLE + encode_part(kind) + body).digest()[:16]


@lru_cache(maxsize=4096)
def _opening(kind: str, *parts: str) -> bytes:
    """The encoding up to the last part: the same for all work of one handler and tenant."""
    return _PREAMBLE + encode_part(kind) + b"".join(map(encode_part, parts))


_encoded_text = lru_cache(maxsize=16384)(encode_part)


def _digest(opening: bytes, last: bytes) -> bytes:
    return hashlib.sha256(opening + last).digest()[:16]


def encode_key(key: Key) -> bytes:
    """A key as one encoded tuple: a single value is a key of one part.

    Raises :class:`InvalidInput` for a missing key (no part that says anything: all None or empty), one over
    :data:`MAX_KEY_BYTES`, and whatever :func:`encode_part` refuses.
    """
    if type(key) is str and key:  # the usual one
        encoded = _item(b"l", encode_part(key))
        if len(encoded) <= MAX_KEY_BYTES:
            return encoded
    parts = tuple(key) if isinstance(key, tuple | list) else (key,)
    for part in parts:
        if not (part is None or (isinstance(part, str | bytes | tuple | list) and not part)):
            break
    else:
        raise InvalidInput(
            "a key is missing",
            param="key",
            hint="give the work its natural identity, or say UNIQUE to mint a random one",
        )
    try:
        encoded = encode_part(parts)
    except RecursionError:
        raise InvalidInput("a key is nested too deeply", param="key") from None
    if len(encoded) > MAX_KEY_BYTES:
        raise InvalidInput(f"a key is limited to {MAX_KEY_BYTES} encoded bytes", param="key")
    return encoded


def key_text(key: Key) -> str:
    """A key for people: its parts, joined, 200 characters at most. Identity never depends on it.

    U+0000 is shown as U+2400, its symbol: not every database keeps it in text.
    """
    if isinstance(key, str):
        text = key
    else:
        parts = key if isinstance(key, tuple | list) else (key,)
        text = "/".join([part.hex() if isinstance(part, bytes) else str(part) for part in parts])
    return text[:200].replace("\0", "\u2400")


def delivery_id(handler: str, tenant: str, key: Key) -> bytes:
    """The identity of one piece of work: (handler, tenant, key parts)."""
    return _digest(_opening("delivery", handler, tenant), encode_key(key))


def event_id(tenant: str, key: Key) -> bytes:
    """The identity of one event of a tenant: (tenant, the producer's own event ID)."""
    return _digest(_opening("event", tenant), encode_key(key))


def webhook_delivery_id(tenant: str, event: bytes, destination: str) -> bytes:
    """The identity of one event's delivery to one destination, by the destination's immutable ID."""
    parts = encode_part(event) + _encoded_text(destination)
    return _digest(_opening("delivery", "webhook", tenant), _item(b"l", parts))


def replay_id(delivery: bytes, generation: int) -> bytes:
    """The identity of one generation (a replay) of a delivery."""
    return derive("generation", delivery, generation)


def attempt_id(delivery: bytes, fence: int) -> bytes:
    """The identity of one reservation of a delivery: unique per request, whatever the generation."""
    return _digest(_opening("attempt"), _item(b"b", delivery) + encode_part(fence))


def to_text(prefix: str, raw: bytes) -> str:
    """``dlv_`` + 26 characters of Crockford base32 (lower case) for a 16-byte ID."""
    n = int.from_bytes(raw, "big")
    pair = _PAIRS
    return (
        f"{prefix}_{pair[n >> 120]}{pair[n >> 110 & 1023]}{pair[n >> 100 & 1023]}{pair[n >> 90 & 1023]}"
        f"{pair[n >> 80 & 1023]}{pair[n >> 70 & 1023]}{pair[n >> 60 & 1023]}{pair[n >> 50 & 1023]}"
        f"{pair[n >> 40 & 1023]}{pair[n >> 30 & 1023]}{pair[n >> 20 & 1023]}{pair[n >> 10 & 1023]}{pair[n & 1023]}"
    )


def from_text(prefix: str, text: str) -> bytes:
    """The 16 bytes behind ``text``. Accepts either case and Crockford's look-alikes (o, i, l)."""
    head, _, tail = text.partition("_")
    if head.lower() != prefix or len(tail) != 26 or any(c not in _DECODE for c in tail):
        raise InvalidInput(f"not a {prefix}_ ID: expected {prefix}_ and 26 base32 characters", param="id")
    number = 0
    for char in tail:
        number = number << 5 | _DECODE[char]
    if number >> 128:
        raise InvalidInput(f"not a {prefix}_ ID: it is out of range", param="id")
    return number.to_bytes(16, "big")


def route_of(handler: str, envelope_version: int) -> int:
    """The 63-bit number of (handler, envelope version): what a worker can or cannot decode."""
    return int.from_bytes(derive("route", handler, envelope_version)[:8], "big") >> 1


def flow_of(handler: str, envelope_version: int, destination: str, tenant: str) -> int:
    """The 63-bit number of a flow (contract 6): the unit of fairness."""
    return int.from_bytes(derive("flow", handler, envelope_version, destination, tenant)[:8], "big") >> 1
