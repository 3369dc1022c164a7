"""Versioned payloads and their decoders.

Every stored payload carries an envelope version, and that version is part of the delivery's route: a worker
claims only what it can decode, so work written by a newer release waits, uncharged, for a newer worker. If
none comes before the age budget ends, the dead letter says ``undecodable``. A payload whose version *is*
known and whose bytes cannot be read is corrupt, and goes to quarantine at once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from redrive.errors import ConfigError

Decoder = Callable[[bytes], Any]
"""From stored bytes to the value that a handler receives. Raises on bytes it cannot read."""

CURRENT: Final = 1
"""The version that this release writes: UTF-8 JSON for jobs, the body's own bytes for webhooks."""


class Undecodable(Exception):
    """The bytes are not what their version promises. The message never holds any of them."""


def payload_hash(content_type: str, body: bytes) -> bytes:
    """SHA-256 over content type and bytes: what makes a second enqueue the same or a conflict."""
    return hashlib.sha256(content_type.encode() + b"\x00" + body).digest()


def _refuse(constant: str) -> Any:
    raise ValueError("NaN and Infinity are not JSON")


_JSON: Final = json.JSONDecoder(parse_constant=_refuse)


def decode_json(body: bytes) -> Any:
    """Version 1 of a job's payload: JSON in UTF-8, so no UTF-16, no byte order mark, no NaN or Infinity."""
    return _JSON.decode(body.decode("utf-8"))


def decode_opaque(body: bytes) -> bytes:
    """Version 1 of a webhook's payload: the bytes, untouched."""
    return body


class Decoders:
    """The envelope versions that one handler can read.

    ``{1: decode_json}`` unless told otherwise; a rolling deploy of a new format adds ``{2: ...}`` everywhere
    before anything writes version 2.
    """

    __slots__ = ("_by_version",)

    def __init__(self, by_version: Mapping[int, Decoder] | None = None) -> None:
        self._by_version = dict(by_version) if by_version is not None else {CURRENT: decode_json}
        for version in self._by_version:
            if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= 32767:
                raise ConfigError("an envelope version is an integer from 1 to 32767", param="decoders")

    @property
    def versions(self) -> frozenset[int]:
        """What can be decoded."""
        return frozenset(self._by_version)

    def decode(self, version: int, content_type: str, body: bytes, expected_hash: bytes) -> Any:
        """The value, after checking the bytes against the hash kept with the identity.

        Raises :class:`Undecodable` when they differ or the decoder cannot read them.
        """
        decoder = self._by_version.get(version)
        if decoder is None:
            raise Undecodable(f"envelope version {version} is not known to this worker")
        if payload_hash(content_type, body) != expected_hash:
            raise Undecodable("the stored payload does not match its hash")
        try:
            return decoder(body)
        except MemoryError:
            raise  # ours, not the payload's
        except Exception as exc:
            # Not chained: a decoder's error quotes, or holds, the bytes that it could not read.
            raise Undecodable(f"the payload is not a valid version {version} envelope ({type(exc).__name__})") from None
