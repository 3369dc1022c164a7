"""Retry-After: what a receiver asked for, read strictly.

The grammar is RFC 9110 section 10.2.3: ``delay-seconds`` (ASCII digits only) or one of the three
HTTP-date forms of section 5.6.7. Everything else is malformed, and the caller falls back to its own
backoff. Lenient date parsers read ``1.5`` as a year and ``+3`` as a zone, so none is used here.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, timedelta

MAX_US = 3650 * 86_400 * 1_000_000
"""Ten years in microseconds: whatever is asked for beyond is clamped to this, before any arithmetic."""

_SECOND_US = 1_000_000
_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
_MONTH = "(" + "|".join(_MONTHS) + ")"
_SHORT_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_TIME = "([0-9]{2}):([0-9]{2}):([0-9]{2})"

_SECONDS = re.compile(r"[0-9]+")
_IMF_FIXDATE = re.compile(f"{_SHORT_DAY}, ([0-9]{{2}}) {_MONTH} ([0-9]{{4}}) {_TIME} GMT")
_RFC_850 = re.compile(f"{_LONG_DAY}, ([0-9]{{2}})-{_MONTH}-([0-9]{{2}}) {_TIME} GMT")
_ASCTIME = re.compile(f"{_SHORT_DAY} {_MONTH} ([0-9]{{2}}| [0-9]) {_TIME} ([0-9]{{4}})")


def parse_retry_after(value: str | bytes | None, now_us: int) -> int | None:
    """Microseconds to wait from ``now_us`` (Unix time in microseconds), or None.

    None means that the header is absent or malformed; several values in one field are malformed. A date
    in the past is 0. The result is between 0 and :data:`MAX_US`. Never raises.

    The day name has to be one of the seven and is not compared with the date: a receiver that gets it wrong
    has still named an instant. A leap second (``:60``) is accepted, as the grammar does.
    """
    if isinstance(value, bytes):
        # Latin-1 never fails, and no character beyond ASCII matches below.
        text = value.decode("latin-1")
    elif isinstance(value, str):
        text = value
    else:
        return None
    text = text.strip(" \t")
    if _SECONDS.fullmatch(text):
        digits = text.lstrip("0")
        # Twelve digits are already beyond the clamp; int() of thousands of digits would raise.
        return MAX_US if len(digits) > 11 else min(int(digits or "0") * _SECOND_US, MAX_US)
    when = _http_date(text, now_us)
    if when is None:
        return None
    return min(max(0, when * _SECOND_US - now_us), MAX_US)


def _http_date(text: str, now_us: int) -> int | None:
    """Unix seconds of an HTTP-date, or None."""
    if match := _IMF_FIXDATE.fullmatch(text):
        day, month, year, hour, minute, second = match.groups()
        return _seconds(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
    if match := _ASCTIME.fullmatch(text):
        month, day, hour, minute, second, year = match.groups()
        return _seconds(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second))
    if match := _RFC_850.fullmatch(text):
        day, month, short_year, hour, minute, second = match.groups()
        rest = (_MONTHS[month], int(day), int(hour), int(minute), int(second))
        return _seconds(_full_year(int(short_year), rest, now_us), *rest)
    return None


def _full_year(short: int, rest: tuple[int, int, int, int, int], now_us: int) -> int:
    """The year meant by two digits: the latest one that is not more than 50 years ahead (RFC 9110 5.6.7)."""
    try:
        now = _EPOCH + timedelta(microseconds=now_us)
    except OverflowError:
        return 0
    limit = (now.year + 50, now.month, now.day, now.hour, now.minute, now.second)
    year = now.year - now.year % 100 + 100 + short
    while (year, *rest) > limit:
        year -= 100
    return year


def _seconds(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int | None:
    if hour > 23 or minute > 59 or second > 60:
        return None
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return None
    return days * 86_400 + hour * 3600 + minute * 60 + second
