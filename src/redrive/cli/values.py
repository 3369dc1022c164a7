"""Reading what people type: payloads, instants, lengths of time; and completing names."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from redrive.domain.values import duration_us, utc_us
from redrive.errors import InvalidInput, PayloadTooLarge

_JSON: Final = re.compile(
    rb"""\s*(?:[\[{"0-9]|[+-]\s*(?:[0-9]|Inf)|(?:true|false|null|none|undefined|nan|infinity)\s*\Z)""", re.IGNORECASE
)
_EXAMPLE: Final = "for example 2026-08-21T02:00:00Z"


def read_payload(text: str, limit: int) -> bytes:
    """``-`` is stdin, ``@PATH`` a file, anything else the payload itself; the bytes, as they are.

    Never reads more than ``limit`` bytes and one.
    """
    if text == "-":
        body = sys.stdin.buffer.read(limit + 1)
    elif text.startswith("@"):
        try:
            with Path(text[1:]).open("rb") as file:
                body = file.read(limit + 1)
        except OSError as exc:
            raise InvalidInput(f"the payload file cannot be read: {exc.strerror}", param="payload") from None
    else:
        # An argument that is not UTF-8 comes as surrogates: the bytes go back, and the JSON check refuses them.
        try:
            body = text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError:
            raise InvalidInput("the payload holds a lone surrogate, which is not text", param="payload") from None
    if len(body) > limit:
        raise PayloadTooLarge(
            f"the payload is more than the limit of {limit} bytes",
            param="payload",
            hint="raise max_payload, or send a reference to the data",
        )
    return body


def looks_like_json(body: bytes) -> bool:
    """True if a body that is not JSON was meant to be: it begins as JSON does, or is a word that some writers emit."""
    return not body.strip() or _JSON.match(body) is not None


def read_instant(text: str, param: str) -> datetime:
    """An ISO 8601 time with its zone. One without is refused: it would mean another instant on another host."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(f"{param} is not a time", param=param, hint=_EXAMPLE) from None
    if moment.utcoffset() is None:
        raise InvalidInput(f"{param} has no time zone", param=param, hint=f"{_EXAMPLE}; Z is UTC")
    return moment


def read_past(text: str | None, now: int, param: str) -> int | None:
    """A time (as :func:`read_instant`), or how long ago (``2h``), in microseconds."""
    if text is None:
        return None
    if ":" in text or text.count("-") >= 2:
        return utc_us(read_instant(text, param), param)
    return max(0, now - duration_us(text, param))


def read_seconds(text: str, param: str) -> float:
    """A length of time, in seconds."""
    return timedelta(microseconds=duration_us(text, param)).total_seconds()


def complete_destination(incomplete: str) -> list[str]:
    """Names of destinations on the ledger that the settings name; none where it cannot be read."""
    return [name for name in _names("destinations") if name.startswith(incomplete)]


def complete_handler(incomplete: str) -> list[str]:
    """Names of the configured application's handlers."""
    return [name for name in _names("handlers") if name.startswith(incomplete)]


def _names(what: str) -> list[str]:
    from redrive.cli.session import Session

    session = Session({})
    try:
        if what == "handlers":
            return sorted(session.app(handlers=True).job_handlers)
        return sorted({found.name for found in session.app().destinations.list()})
    except Exception:
        return []  # a shell that is waiting for a completion has no use for an error
    finally:
        session.close()
