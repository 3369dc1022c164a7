"""What callers hand in, checked once at the edge: names, payloads, instants, durations.

Nothing here normalises text: a name is kept as it was given, or refused. A refused value raises
:class:`~redrive.errors.InvalidInput` (or :class:`~redrive.errors.PayloadInvalid`) that names the place and
never repeats the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta

from redrive.errors import InvalidInput, PayloadInvalid

MAX_NAME = 200
"""Longest tenant, scope, handler or destination name and event type, in characters."""
MAX_REASON = 4_000
"""Longest reason, in characters."""
MAX_DEPTH = 64
"""Deepest nesting of a JSON payload. A scalar has depth 0."""
MAX_DURATION_US = 3650 * 86_400 * 1_000_000
"""Ten years, in microseconds."""

# C0, DEL and C1 controls, line and paragraph separators, bidirectional overrides and isolates (they make
# one name look like another in a terminal or a console), surrogates.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_NOT_KEPT = re.compile("[\x00\ud800-\udfff]")
_SLUG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")
SEGMENT = re.compile(r"[A-Za-z0-9_-]+")
"""One segment of an event type."""


# --- names ------------------------------------------------------------------------------------------


def check_label(value: object, param: str, *, max_length: int = MAX_NAME) -> str:
    """A tenant or scope: any text of 1 to ``max_length`` characters without control characters.

    NUL, other controls, lone surrogates, line separators, bidirectional overrides and white space at
    either end are refused. Raises :class:`InvalidInput`.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{param} must be text, not {type(value).__name__}", param=param)
    if not value:
        raise InvalidInput(f"{param} must not be empty", param=param)
    if len(value) > max_length:
        raise InvalidInput(f"{param} is longer than {max_length} characters", param=param)
    if _UNPRINTABLE.search(value):
        raise InvalidInput(f"{param} contains a control character or a lone surrogate", param=param)
    if value != value.strip():
        raise InvalidInput(f"{param} begins or ends with white space", param=param)
    return str(value)


def check_reason(value: object, param: str = "reason") -> str:
    """Why somebody did something: text of up to :data:`MAX_REASON` characters that says something, over any number of
    lines. NUL and lone surrogates are refused, since not every ledger keeps them. Raises :class:`InvalidInput`.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{param} must be text, not {type(value).__name__}", param=param)
    if not value.strip():
        raise InvalidInput(f"a {param} is required", param=param)
    if len(value) > MAX_REASON:
        raise InvalidInput(f"{param} is longer than {MAX_REASON} characters", param=param)
    if _NOT_KEPT.search(value):
        raise InvalidInput(f"{param} contains NUL or a lone surrogate", param=param)
    return value


def check_slug(value: object, param: str, *, max_length: int = MAX_NAME) -> str:
    """A handler, destination, policy or environment name: ASCII letters, digits, ``_ . : -``.

    The first character is a letter, a digit or ``_``, so that a name is never taken for an option on a
    command line. Raises :class:`InvalidInput`.
    """
    text = check_label(value, param, max_length=max_length)
    if not _SLUG.fullmatch(text):
        raise InvalidInput(
            f"{param} may hold ASCII letters, digits and _ . : - only, and begins with a letter, digit or _",
            param=param,
        )
    return text


def check_event_type(value: object, param: str = "event_type") -> str:
    """An event type: segments of ASCII letters, digits, ``_`` and ``-``, joined by full stops.

    For example ``order.paid`` or ``customer.plan_changed``. Raises :class:`InvalidInput`.
    """
    text = check_label(value, param)
    if not all(SEGMENT.fullmatch(segment) for segment in text.split(".")):
        raise InvalidInput(
            f"{param} must be segments of ASCII letters, digits, _ and - joined by full stops",
            param=param,
            hint="for example order.paid",
        )
    return text


# --- payloads ---------------------------------------------------------------------------------------

_PLAIN_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,39}")
_SURROGATE = re.compile("[\ud800-\udfff]")
# Digits become 0 and E becomes e, so that numbers that may exceed a double are found by plain searches.
_SHAPE = bytes(48 if 48 <= code <= 57 else 101 if code == 69 else code for code in range(256))
_LONG_NUMBER = b"0" * 200
_MAX_INT_BITS = 8192
# Possessive, and closed by the end as well as by a quote: linear on any input.
_STRING_TOKEN = re.compile(r'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


class _Refused(Exception):
    """Carries the reason outwards while each level adds its part of the path."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.path: list[str] = []


def canonical_json(value: object) -> bytes:
    """The one encoding of a Python payload: UTF-8 JSON, keys sorted by code point, no white space.

    Equal values have equal bytes, so that their hashes can be compared. Accepted are dict with text keys,
    list, tuple, str, int, float, bool and None. Raises :class:`PayloadInvalid`, with the path named, for
    NaN and infinities, lone surrogates, other types, keys that are not text (``{1: x}`` and ``{"1": x}``
    would become the same), and nesting deeper than :data:`MAX_DEPTH` (so cycles too). U+0000 is kept: it
    is stored escaped, inside bytes.
    """
    if _is_plain(value, MAX_DEPTH):
        try:
            return _ENCODER.encode(value).encode("utf-8")
        except ValueError:  # not finite, or a lone surrogate: the walk says where
            pass
    try:
        _walk(value, 0)
    except _Refused as refused:
        raise PayloadInvalid(_where(refused), param="payload") from None
    return _ENCODER.encode(value).encode("utf-8")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))
_SCALARS = frozenset((str, int, float, bool, type(None)))


def _is_plain(value: object, depth: int) -> bool:
    """Whether the value is of JSON's own types with text keys, down to ``depth``: the walk is only for the rest."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if depth == 0:
        return False
    if kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str or not (type(item) in _SCALARS or _is_plain(item, depth - 1)):
                return False
        return True
    if kind is list:
        return all(type(item) in _SCALARS or _is_plain(item, depth - 1) for item in value)  # type: ignore[attr-defined]
    return False


def check_json_bytes(body: bytes) -> None:
    """Raise :class:`PayloadInvalid` unless ``body`` is one strict JSON document.

    Strict: valid UTF-8 without a byte order mark, no NaN or infinity (a number beyond double range included),
    no lone surrogate escapes, nesting up to :data:`MAX_DEPTH`. The bytes are never serialised again: what
    was given is what is stored, signed and sent. Repeated keys are left to the receiver here;
    :func:`parse_json_bytes` can refuse them.
    """
    parse_json_bytes(body)


def parse_json_bytes(body: bytes, *, unique_keys: bool = False) -> object:
    """As :func:`check_json_bytes`, and return the value.

    With ``unique_keys`` a repeated key is refused too: two parsers may disagree on which one counts.
    """
    # Errors are raised outside the handlers: the parsers' own errors carry the whole payload along.
    text, reason = _decode(body)
    value: object = None
    if reason is None:
        # The counts bound the depth from above, and cost far less than walking; most payloads stop here.
        if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth(text) > MAX_DEPTH:
            raise PayloadInvalid(f"the payload is nested deeper than {MAX_DEPTH} levels", param="payload")
        value, reason = _parse(text, suspicious=_is_suspicious(body), unique_keys=unique_keys)
    if reason is not None:
        raise PayloadInvalid(reason, param="payload")
    return value


def _decode(body: bytes) -> tuple[str, str | None]:
    try:
        return body.decode("utf-8"), None
    except UnicodeDecodeError as error:
        return "", f"the payload is not UTF-8 at byte {error.start}"


def _parse(text: str, *, suspicious: bool, unique_keys: bool) -> tuple[object, str | None]:
    hook = _unique_object if unique_keys else _every_object if suspicious else None
    try:
        value: object = _DECODERS[hook].decode(text)
        if suspicious:
            _walk(value, 0)
    except json.JSONDecodeError as error:
        return None, f"the payload is not JSON: {error.msg} at character {error.pos}"
    except _Refused as refused:
        return None, _where(refused)
    except ValueError:
        return None, "the payload holds an integer of too many digits"
    return value, None


def _is_suspicious(body: bytes) -> bool:
    """True if the body may hold a surrogate escape, a constant that Python's parser adds to JSON, or a number
    beyond a double. It errs towards True, which costs a walk over the value and refuses nothing by itself.
    """
    if (b"\\u" in body and (b"\\ud" in body or b"\\uD" in body)) or b"NaN" in body or b"Infinity" in body:
        return True
    shape = body.translate(_SHAPE)
    return b"0e000" in shape or b"0e+000" in shape or _LONG_NUMBER in shape


def _unique_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = _every_object(pairs)
    if len(found) != len(pairs):
        raise _Refused("an object has a key twice")
    return found


def _every_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A dict of the pairs, after a look at values that a later one with the same key would hide."""
    found = dict(pairs)
    if len(found) != len(pairs):
        for key, value in pairs:
            _walk({key: value}, 0)
    return found


# Made once: json.loads with options makes a decoder at every call.
_DECODERS = {
    hook: json.JSONDecoder(parse_constant=float, object_pairs_hook=hook)
    for hook in (None, _unique_object, _every_object)
}


def _depth(text: str) -> int:
    deepest = level = 0
    for mark in re.findall(r"[\[\]{}]", _STRING_TOKEN.sub("", text)):
        level += 1 if mark in "[{" else -1
        deepest = max(deepest, level)
    return deepest


def _walk(value: object, depth: int) -> None:
    if isinstance(value, str):
        if not value.isascii() and _SURROGATE.search(value):
            raise _Refused("a lone surrogate is not text")
    elif value is None or isinstance(value, bool):
        return
    elif isinstance(value, int):
        if value.bit_length() > _MAX_INT_BITS:
            raise _Refused("an integer of too many digits")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise _Refused("a number that is not finite")
    elif isinstance(value, dict):
        _descend(value.items(), depth, _key_part)
    elif isinstance(value, (list, tuple)):
        _descend(enumerate(value), depth, _index_part)
    else:
        raise _Refused(f"{type(value).__name__} is not a JSON type")


def _descend(items: Iterable[tuple[object, object]], depth: int, part: Callable[[object], str]) -> None:
    if depth >= MAX_DEPTH:
        raise _Refused(f"nested deeper than {MAX_DEPTH} levels")
    for key, item in items:
        try:
            if part is _key_part:
                if not isinstance(key, str):
                    raise _Refused(f"a key must be text, not {type(key).__name__}")
                _walk(key, 0)
            _walk(item, depth + 1)
        except _Refused as refused:
            refused.path.append(part(key))
            raise


def _key_part(key: object) -> str:
    if isinstance(key, str) and _PLAIN_KEY.fullmatch(key):
        return f".{key}"
    shown = json.dumps(key[:40]) if isinstance(key, str) else type(key).__name__
    return f"[{shown}]"


def _index_part(index: object) -> str:
    return f"[{index}]"


def _where(refused: _Refused) -> str:
    parts = refused.path[::-1]
    shown = "".join(parts[:12]) + ("..." if len(parts) > 12 else "")
    return f"the payload cannot be stored: ${shown}: {refused.reason}"


# --- time -------------------------------------------------------------------------------------------

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_UNITS: Mapping[str, int] = {
    "w": 7 * 86_400 * 1_000_000,
    "d": 86_400 * 1_000_000,
    "h": 3_600 * 1_000_000,
    "m": 60 * 1_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_ORDER = list(_UNITS)
_PIECE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,12}))? ?(ms|us|[wdhms])", re.ASCII)
_BARE = re.compile(r"([0-9]{1,18})(?:\.([0-9]{1,12}))?", re.ASCII)


def utc_us(value: datetime, param: str = "at") -> int:
    """Unix time of an aware datetime, in microseconds. A naive datetime raises :class:`InvalidInput`."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{param} must be a datetime, not {type(value).__name__}", param=param)
    if value.utcoffset() is None:
        raise InvalidInput(
            f"{param} has no time zone",
            param=param,
            hint="pass an aware datetime, for example datetime.now(timezone.utc)",
        )
    return (value - _EPOCH) // _MICROSECOND


def duration_us(value: timedelta | float | str, param: str = "duration") -> int:
    """A length of time in microseconds, between 0 and ten years.

    Accepts a timedelta, a number of seconds, or text: ``15m``, ``1h30m``, ``500ms``, ``2 s``, ``1.5h``; units
    ``w d h m s ms us``, from large to small, each once; a bare number is seconds. Raises
    :class:`InvalidInput` for negative, NaN, infinite or longer values, booleans and other types.
    """
    if isinstance(value, bool):
        raise InvalidInput(f"{param} must be a duration, not a boolean", param=param)
    if isinstance(value, timedelta):
        total = value // _MICROSECOND
    elif isinstance(value, int):
        total = value * 1_000_000
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInput(f"{param} is not a finite number", param=param)
        # The bound comes first: the product of a huge float may be infinite.
        total = round(min(max(value, -1.0), 4e9) * 1_000_000) if value >= 0 else -1
    elif isinstance(value, str):
        total = _text_us(value, param)
    else:
        raise InvalidInput(f"{param} must be a duration, not {type(value).__name__}", param=param)
    if total < 0:
        raise InvalidInput(f"{param} must not be negative", param=param)
    if total > MAX_DURATION_US:
        raise InvalidInput(f"{param} is longer than ten years", param=param)
    return total


def _text_us(text: str, param: str) -> int:
    trimmed = text.strip(" ")
    if re.match(r"-[0-9]", trimmed):
        return -1
    if match := _BARE.fullmatch(trimmed):
        return _amount(match[1], match[2], _UNITS["s"])
    total = position = 0
    last = -1
    while position < len(trimmed):
        match = _PIECE.match(trimmed, position)
        if match is None or _ORDER.index(match[3]) <= last:
            last = len(_ORDER)
            break
        last = _ORDER.index(match[3])
        total += _amount(match[1], match[2], _UNITS[match[3]])
        position = match.end()
        if trimmed[position : position + 1] == " ":
            position += 1
    if last in (-1, len(_ORDER)):
        raise InvalidInput(f"{param} is not a duration", param=param, hint="for example 500ms, 15m or 1h30m")
    return total


def _amount(whole: str, fraction: str | None, unit: int) -> int:
    if fraction is None:
        return int(whole) * unit
    scale: int = 10 ** len(fraction)
    return (int(whole + fraction) * unit + scale // 2) // scale
