"""Retry-After: the grammar of RFC 9110 and nothing else; never raises (O-04, O-05)."""

from __future__ import annotations

import email.utils
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.retry_after import MAX_US, parse_retry_after

NOW = datetime(2026, 8, 21, 2, 0, 0, tzinfo=UTC)
NOW_US = int(NOW.timestamp()) * 1_000_000
S = 1_000_000


@pytest.mark.parametrize(
    ("value", "want"),
    [
        ("0", 0),
        ("30", 30 * S),
        (b"30", 30 * S),
        (" 30\t", 30 * S),
        ("007", 7 * S),
        ("2026", 2026 * S),  # seconds, never a year
        ("0" * 5000 + "7", 7 * S),
        ("9999999999", MAX_US),
        ("9" * 20, MAX_US),
        ("9" * 4400, MAX_US),
        ("9" * 60_000, MAX_US),
        ("315360000", MAX_US),
        ("315359999", MAX_US - S),
        ("315360001", MAX_US),
        ("Fri, 21 Aug 2026 02:01:00 GMT", 60 * S),
        (b"Fri, 21 Aug 2026 02:01:00 GMT", 60 * S),
        ("Friday, 21-Aug-26 02:01:00 GMT", 60 * S),
        ("Fri Aug 21 02:01:00 2026", 60 * S),
        ("Tue Sep  1 02:00:00 2026", 11 * 86_400 * S),
        ("Fri, 21 Aug 2026 01:59:59 GMT", 0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),
        ("Sun Nov  6 08:49:37 1994", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", MAX_US),
        ("Tue, 29 Feb 2028 00:00:00 GMT", None),
        ("Thu, 31 Dec 2026 23:59:60 GMT", None),
        ("Wed, 21 Aug 2026 02:01:00 GMT", 60 * S),  # the day name does not matter
    ],
)
def test_accepted(value: str | bytes, want: int | None) -> None:
    if want is None:
        text = str(value)
        second = 60 if ":60 " in text else int(text[23:25])
        parsed = datetime.strptime(text[5:22] + " +0000", "%d %b %Y %H:%M %z") + timedelta(seconds=second)
        want = int((parsed - NOW).total_seconds()) * S
    assert parse_retry_after(value, NOW_US) == want


@pytest.mark.parametrize(
    "value",
    [
        None,
        "",
        " ",
        "-3",
        "+3",
        "1.5",
        "1,5",
        "1e3",
        "0x10",
        "1_000",
        "120junk",
        "120 seconds",
        "120, 120",
        "120,",
        "30\r\n",
        "30\x00",
        "\u00a030",
        "١٢٠",
        "١٢٠".encode(),
        "１２０",
        "²",
        "inf",
        "nan",
        "now",
        "2026-08-21T02:01:00Z",
        "Mon, 31 Feb 2026 00:00:00 GMT",
        "Sun, 29 Feb 2026 00:00:00 GMT",
        "Mon, 00 Aug 2026 00:00:00 GMT",
        "Mon, 32 Aug 2026 00:00:00 GMT",
        "Fri, 21 Aug 2026 24:00:00 GMT",
        "Fri, 21 Aug 2026 02:60:00 GMT",
        "Fri, 21 Aug 2026 02:00:61 GMT",
        "Fri, 21 Aug 0000 02:00:00 GMT",
        "Fri, 21 Aug 2026 02:01:00 UTC",
        "Fri, 21 Aug 2026 02:01:00 +0000",
        "Fri, 21 Aug 2026 02:01:00 -0000",
        "Fri, 21 Aug 2026 02:01:00",
        "Fri, 21 Aug 2026 02:01:00 gmt",
        "fri, 21 aug 2026 02:01:00 GMT",
        "Fri, 1 Aug 2026 02:01:00 GMT",
        "Fri,21 Aug 2026 02:01:00 GMT",
        "Fri  21 Aug 2026 02:01:00 GMT",
        "Fri, 21 August 2026 02:01:00 GMT",
        "Fry, 21 Aug 2026 02:01:00 GMT",
        "21 Aug 2026 02:01:00 GMT",
        "Fri, 21-Aug-26 02:01:00 GMT",
        "Friday, 21-Aug-2026 02:01:00 GMT",
        "Fri Aug 21 02:01:00 2026 GMT",
        "Fri Aug 1 02:01:00 2026",
        "Fri Aug 21 02:01:00 26",
        "Fri, 21 Aug 2026 02:01:00 GMT, Fri, 21 Aug 2026 02:01:00 GMT",
        "Fri, ٢١ Aug 2026 02:01:00 GMT",
        b"\xff\xfe",
        12,
        True,
        ["30"],
    ],
)
def test_malformed(value: object) -> None:
    assert parse_retry_after(value, NOW_US) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("year", "want"),
    [
        ("26", 2026),
        ("27", 2027),
        ("75", 2075),
        ("76", 2076),  # exactly 50 years ahead, to the second: not more than 50
        ("77", 1977),
        ("99", 1999),
        ("00", 2000),
    ],
)
def test_rfc_850_years_by_the_50_year_rule(year: str, want: int) -> None:
    got = parse_retry_after(f"Friday, 21-Aug-{year} 02:00:00 GMT", NOW_US)
    ahead = int((NOW.replace(year=want) - NOW).total_seconds()) * S
    assert got == min(max(0, ahead), MAX_US)


def test_rfc_850_boundary_is_to_the_second_and_spans_a_century() -> None:
    assert parse_retry_after("Friday, 21-Aug-76 02:00:01 GMT", NOW_US) == 0
    late = datetime(2099, 12, 31, 23, 59, 0, tzinfo=UTC)
    assert parse_retry_after("Friday, 01-Jan-00 00:00:00 GMT", int(late.timestamp()) * S) == 60 * S
    # Only the chosen year must have the day: 2000 had a 29 February, 2100 will not.
    assert parse_retry_after("Friday, 29-Feb-00 00:00:00 GMT", NOW_US) == 0
    assert parse_retry_after("Friday, 29-Feb-00 00:00:00 GMT", int(late.timestamp()) * S) is None


def test_a_fraction_of_the_current_second_counts() -> None:
    assert parse_retry_after("Fri, 21 Aug 2026 02:00:01 GMT", NOW_US + 250_000) == 750_000


@given(st.integers(min_value=0, max_value=10**30))
def test_any_integer_is_clamped(seconds: int) -> None:
    assert parse_retry_after(str(seconds), NOW_US) == min(seconds * S, MAX_US)


@given(st.integers(0, 3_786_912_000), st.integers(0, 4 * 10**15))
def test_all_three_forms_agree_with_the_instant(second: int, now_us: int) -> None:
    aware = datetime.fromtimestamp(second, UTC)
    want = min(max(0, second * S - now_us), MAX_US)
    assert parse_retry_after(email.utils.format_datetime(aware, usegmt=True), now_us) == want
    asctime = aware.strftime("%a %b ") + f"{aware.day:2d}" + aware.strftime(" %H:%M:%S %Y")
    assert parse_retry_after(asctime, now_us) == want


@given(st.one_of(st.text(), st.binary()), st.integers())
def test_never_raises_and_stays_in_range(value: str | bytes, now_us: int) -> None:
    got = parse_retry_after(value, now_us)
    assert got is None or 0 <= got <= MAX_US


@given(
    st.from_regex(
        r"(Mon|Monday)[, ] ?[0-9]{1,2}[ -](Jan|Feb)[ -][0-9]{2,4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT",
        fullmatch=True,
    ),
    st.integers(-(10**18), 10**18),
)
def test_never_raises_on_what_looks_like_a_date(value: str, now_us: int) -> None:
    got = parse_retry_after(value, now_us)
    assert got is None or 0 <= got <= MAX_US
