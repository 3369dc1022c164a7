"""Names, payloads, instants, durations and event filters at the edge."""

from __future__ import annotations

import enum
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.domain.event_filter import EventFilter, matches_any
from redrive.domain.values import (
    MAX_DEPTH,
    MAX_DURATION_US,
    MAX_NAME,
    canonical_json,
    check_event_type,
    check_json_bytes,
    check_label,
    check_slug,
    duration_us,
    parse_json_bytes,
    utc_us,
)
from redrive.errors import InvalidInput, PayloadInvalid

S = 1_000_000

# --- names ------------------------------------------------------------------------------------------

NEVER_NAMES: list[Any] = [
    "",
    "a\x00b",
    "a\nb",
    "a\r\nb",
    "a\tb",
    "\x1b[31m",
    "\x7f",
    "\x85",
    "\ud800",
    "a\udfffb",
    "a\u2028b",
    "a\u202eb",
    "\u2066a",
    " a",
    "a ",
    "\u00a0a",
    "x" * (MAX_NAME + 1),
    None,
    1,
    True,
    b"a",
    ["a"],
]


@pytest.mark.parametrize("value", NEVER_NAMES)
@pytest.mark.parametrize("check", [check_label, check_slug, check_event_type, EventFilter.parse])
def test_never_a_name(check: Any, value: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        check(value, "thing")
    assert caught.value.param == "thing"
    assert str(caught.value).isascii()


@pytest.mark.parametrize(
    "value",
    ["acme", "Acme GmbH & Co. KG", "müller", "日本", "a/b", "*", "👩‍🚀", "x" * MAX_NAME, "-", "é", "e\u0301"],
)
def test_labels_are_kept_as_given(value: str) -> None:
    assert check_label(value, "tenant") == value


@pytest.mark.parametrize("value", ["a", "A_1", "invoices.send", "acme:prod-1", "9lives", "_x"])
def test_slugs(value: str) -> None:
    assert check_slug(value, "handler") == value


@pytest.mark.parametrize("value", ["a b", "-a", ".a", ":a", "a/b", "ä", "a*", "a,b", "a'b", "١"])
def test_not_slugs(value: str) -> None:
    with pytest.raises(InvalidInput):
        check_slug(value, "handler")


@pytest.mark.parametrize("value", ["order", "order.paid", "a.b_c-d", "A.B1.2-c.__", "-.-"])
def test_event_types(value: str) -> None:
    assert check_event_type(value) == value


@pytest.mark.parametrize("value", [".", "a.", ".a", "a..b", "a b", "a.*", "*", "a/b", "a:b", "ä.b", "a.b\u0661"])
def test_not_event_types(value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_event_type(value)
    assert caught.value.param == "event_type"


# --- event filters ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "yes", "no"),
    [
        (
            "order.paid",
            ["order.paid"],
            ["order", "order.paid.late", "order.Paid", "xorder.paid", "order.paids"],
        ),
        ("order.*", ["order.paid", "order.x"], ["order", "order.item.added", "orders.paid", "xorder.paid"]),
        ("order.**", ["order.paid", "order.item.added"], ["order", "orders.paid", "other"]),
        ("*.paid", ["order.paid", "invoice.paid"], ["paid", "a.b.paid", "order.paid.x"]),
        ("order.*.added", ["order.item.added"], ["order.added", "order.a.b.added", "order.item.removed"]),
        ("*.*", ["a.b"], ["a", "a.b.c"]),
        ("*.**", ["a.b", "a.b.c"], ["a"]),
        ("order.*.**", ["order.a.b", "order.a.b.c"], ["order.a", "order"]),
        ("*", ["a", "a.b", "a.b.c"], []),
        ("**", ["a", "a.b", "a.b.c"], []),
    ],
)
def test_filters(text: str, yes: list[str], no: list[str]) -> None:
    made = EventFilter.parse(text)
    assert str(made) == made.text == text
    for event_type in yes:
        assert made.matches(event_type), event_type
    for event_type in no:
        assert not made.matches(event_type), event_type


@pytest.mark.parametrize(
    "text",
    [
        "order.",
        ".*",
        "*.",
        "a..b",
        "ord*",
        "order.pa*",
        "order.*d",
        "***",
        "a.***",
        "**.a",
        "a.**.b",
        "a.b c",
        "a.?",
        "a.[b]",
        "#",
    ],
)
def test_not_filters(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        EventFilter.parse(text)
    assert caught.value.param == "event_types"


event_types = st.lists(st.from_regex(r"[a-z]{1,3}", fullmatch=True), min_size=1, max_size=4).map(".".join)


@given(event_types, event_types)
def test_a_filter_without_wildcards_is_equality(one: str, other: str) -> None:
    assert EventFilter.parse(one).matches(other) == (one == other)
    assert EventFilter.parse(f"{one}.**").matches(f"{one}.{other}")
    assert not EventFilter.parse(f"{one}.**").matches(one)
    assert EventFilter.parse("*").matches(one)
    assert EventFilter.parse(".".join("*" for _ in one.split("."))).matches(one)


def test_any_of_several() -> None:
    filters = [EventFilter.parse("a.*"), EventFilter.parse("b")]
    assert matches_any(filters, "b")
    assert matches_any(filters, "a.x")
    assert not matches_any(filters, "c")
    assert not matches_any([], "c")


# --- canonical JSON ---------------------------------------------------------------------------------


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (None, b"null"),
        (True, b"true"),
        (0, b"0"),
        (-1.5, b"-1.5"),
        (1e300, b"1e+300"),
        (2**63, b"9223372036854775808"),
        ("", b'""'),
        ("ü\u2028\x00\x7f\U0001f680", '"ü\u2028\\u0000\x7f\U0001f680"'.encode()),
        ([], b"[]"),
        ((1, (2,)), b"[1,[2]]"),
        ({"b": 1, "a": [True, None]}, b'{"a":[true,null],"b":1}'),
        ({"é": 1, "z": 2, "Z": 3}, '{"Z":3,"z":2,"é":1}'.encode()),
        ({"c": Colour.RED}, b'{"c":"red"}'),
        ({"a": {}}, b'{"a":{}}'),
    ],
)
def test_canonical_json(value: object, want: bytes) -> None:
    assert canonical_json(value) == want
    check_json_bytes(want)


def nested(depth: int) -> object:
    value: object = 1
    for _ in range(depth):
        value = [value]
    return value


CYCLE: list[object] = []
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (math.nan, "$:"),
        (math.inf, "$:"),
        ({"a": [1, {"b": -math.inf}]}, "$.a[1].b:"),
        ({"a": "\ud800"}, "$.a:"),
        ({"a": ["x", "\udfff!"]}, "$.a[1]:"),
        ({"\ud800": 1}, '$["\\ud800"]:'),
        ({1: 2}, "$[int]:"),
        ({"a": {None: 1}}, "$.a[NoneType]:"),
        ({"a": {True: 1}}, "$.a[bool]:"),
        ({(1, 2): 1}, "$[tuple]:"),
        ({"a": b"bytes"}, "$.a:"),
        ({"a": {1, 2}}, "$.a:"),
        ({"a": object()}, "$.a:"),
        ({"a": Decimal("1.5")}, "$.a:"),
        ({"a": datetime(2026, 1, 1, tzinfo=UTC)}, "$.a:"),
        ({"a": date(2026, 1, 1)}, "$.a:"),
        ({"a": 10**5000}, "$.a:"),
        ({"with space": [math.nan]}, '$["with space"][0]:'),
        ({"x" * 100: math.nan}, '$["' + "x" * 40 + '"]:'),
        (nested(MAX_DEPTH + 1), "$[0][0]"),
        (CYCLE, "$[0][0]"),
        (iter([1]), "$:"),
    ],
)
def test_refused_payloads_name_the_path(value: object, path: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        canonical_json(value)
    assert path in str(caught.value)
    assert len(str(caught.value)) < 400
    assert str(caught.value).isascii()
    assert caught.value.param == "payload"


def test_depth_is_exact() -> None:
    assert canonical_json(nested(MAX_DEPTH)) == b"[" * MAX_DEPTH + b"1" + b"]" * MAX_DEPTH


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=10),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=6), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(json_values)
def test_canonical_json_round_trips_and_is_stable(value: Any) -> None:
    raw = canonical_json(value)
    assert json.loads(raw) == value
    assert canonical_json(json.loads(raw)) == raw
    check_json_bytes(raw)
    if isinstance(value, dict):
        assert canonical_json(dict(reversed(value.items()))) == raw


# --- JSON bytes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b" \r\n\t[1 , 2]\n",
        b"null",
        b"1e308",
        b"1E+0000001",
        b"9" * 400,
        b'"\\u0000"',
        b'"\\ud83d\\ude80"',
        b'"\\\\ud800"',
        b'"NaN Infinity -Infinity 1e999"',
        b'{"a":1,"a":2}',
        '"ü\u2028"'.encode(),
        b'"' + b"[" * 500 + b'"',
        b'"\\"' + b"[" * 500 + b'"',
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b"[" + b"[]," * 500 + b"{}]",
    ],
)
def test_json_bytes_accepted(body: bytes) -> None:
    check_json_bytes(body)
    assert parse_json_bytes(body) == json.loads(body)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "not JSON"),
        (b" ", "not JSON"),
        (b"{", "not JSON"),
        (b"{}{}", "not JSON"),
        (b"{} x", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"01", "not JSON"),
        (b"+1", "not JSON"),
        (b".5", "not JSON"),
        (b"0x10", "not JSON"),
        (b"True", "not JSON"),
        (b"nan", "not JSON"),
        (b"// c\n1", "not JSON"),
        (b'"\t"', "not JSON"),
        (b'"\x00"', "not JSON"),
        (b"1\x00", "not JSON"),
        (b'"\\x41"', "not JSON"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b"\xff", "not UTF-8 at byte 0"),
        (b'"\xed\xa0\x80"', "not UTF-8 at byte 1"),
        (b'"\xc0\x80"', "not UTF-8"),
        ('"ü"'.encode("latin-1"), "not UTF-8"),
        ('"a"'.encode("utf-16"), "not UTF-8"),
        (b"NaN", "$: a number that is not finite"),
        (b'{"a":[0,NaN]}', "$.a[1]: a number that is not finite"),
        (b'{"a":Infinity}', "$.a: a number that is not finite"),
        (b"[-Infinity]", "$[0]: a number that is not finite"),
        (b'{"a":1e999}', "$.a: a number that is not finite"),
        (b'{"a":-1E+400}', "$.a: a number that is not finite"),
        (b"1" * 310 + b".5", "$: a number that is not finite"),
        (b"1" * 250 + b"e99", "$: a number that is not finite"),
        (b'{"a":"\\ud800"}', "$.a: a lone surrogate"),
        (b'{"a":"\\uDFFF x"}', "$.a: a lone surrogate"),
        (b'{"a":"\\ude80\\ud83d"}', "$.a: a lone surrogate"),
        (b'{"\\ud800":1}', "a lone surrogate"),
        (b'{"a":"\\ud800","a":1}', "$.a: a lone surrogate"),
        (b'[{"b":{"a":NaN,"a":1}}]', "not finite"),
        (b"9" * 5000, "too many digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "nested deeper"),
        (b'{"a":' * 100 + b"1" + b"}" * 100, "nested deeper"),
        (b"[" * 500_000, "nested deeper"),
        (b'["x",' * 100_000, "nested deeper"),
    ],
)
def test_json_bytes_refused(body: bytes, says: str) -> None:
    with pytest.raises(PayloadInvalid) as caught:
        check_json_bytes(body)
    assert says in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None  # a parser's error would carry the payload along
    assert len(str(caught.value)) < 300


def test_repeated_keys_on_request() -> None:
    assert parse_json_bytes(b'{"a":1,"a":2}') == {"a": 2}
    for body in (b'{"a":1,"a":2}', b'[{"b":{"a":1,"\\u0061":2}}]'):
        with pytest.raises(PayloadInvalid, match="twice"):
            parse_json_bytes(body, unique_keys=True)
    assert parse_json_bytes(b'{"a":{"a":1}}', unique_keys=True) == {"a": {"a": 1}}


@pytest.mark.parametrize("body", [b'"\\"' * 200_000, b'"' * 400_000, b'"\\' * 200_000, b"{[" * 100 + b'"\\"' * 100_000])
def test_hostile_bodies_take_linear_time(body: bytes) -> None:
    started = datetime.now(UTC)
    with pytest.raises(PayloadInvalid):
        check_json_bytes(b"[" * 70 + body)
    assert datetime.now(UTC) - started < timedelta(seconds=5)


@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(lambda t: t.encode("utf-8", "surrogatepass"))))
def test_json_bytes_never_raise_anything_else(body: bytes) -> None:
    try:
        value = parse_json_bytes(body)
    except PayloadInvalid:
        return
    # Whatever is accepted can be encoded again: no surrogate, no NaN got through.
    canonical_json(value)


@given(st.text(alphabet='{}[]":,\\u dD8NaInfity019.eE+-', max_size=40).map(str.encode))
def test_json_bytes_on_what_looks_like_json(body: bytes) -> None:
    try:
        value = parse_json_bytes(body)
    except PayloadInvalid:
        return
    canonical_json(value)


# --- instants ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (datetime(1970, 1, 1, tzinfo=UTC), 0),
        (datetime(2026, 8, 21, 2, 0, 0, 1, tzinfo=UTC), 1_787_277_600_000_001),
        (datetime(2026, 8, 21, 4, 0, tzinfo=timezone(timedelta(hours=2))), 1_787_277_600_000_000),
        (datetime(2026, 8, 21, 4, 0, tzinfo=ZoneInfo("Europe/Berlin")), 1_787_277_600_000_000),
        (datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), -1),
        (datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC), 253_402_300_799_999_999),
        (datetime(2026, 10, 25, 2, 30, fold=0, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_888_200_000_000),
        (datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=ZoneInfo("Europe/Berlin")), 1_792_891_800_000_000),
    ],
)
def test_utc_us_is_exact(value: datetime, want: int) -> None:
    assert utc_us(value) == want


@pytest.mark.parametrize("value", [datetime(2026, 1, 1), date(2026, 1, 1), "2026-01-01T00:00:00Z", 0, None])  # noqa: DTZ001
def test_naive_and_other_instants_are_refused(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        utc_us(value, "at")
    assert caught.value.param == "at"


# --- durations --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "want"),
    [
        (0, 0),
        (1, S),
        (0.5, S // 2),
        (2.3, 2_300_000),
        (0.0000004, 0),
        (-0.0, 0),
        (timedelta(0), 0),
        (timedelta(minutes=15, microseconds=1), 900_000_001),
        ("15m", 900 * S),
        ("1h30m", 5400 * S),
        ("1h 30m", 5400 * S),
        ("500ms", 500_000),
        ("2 s", 2 * S),
        (" 2s ", 2 * S),
        ("1.5h", 5400 * S),
        ("250us", 250),
        ("1w2d3h4m5s6ms7us", ((((7 + 2) * 24 + 3) * 60 + 4) * 60 + 5) * S + 6007),
        ("90", 90 * S),
        ("0.25", 250_000),
        ("0s", 0),
        ("0.0000001s", 0),
        ("3650d", MAX_DURATION_US),
        (timedelta(days=3650), MAX_DURATION_US),
        (3650 * 86_400, MAX_DURATION_US),
    ],
)
def test_durations(value: Any, want: int) -> None:
    assert duration_us(value) == want


@pytest.mark.parametrize(
    "value",
    [
        -1,
        -0.001,
        -5e-324,
        timedelta(microseconds=-1),
        math.nan,
        math.inf,
        -math.inf,
        1e300,
        10**30,
        3650 * 86_400 + 1,
        timedelta(days=3650, microseconds=1),
        timedelta.max,
        True,
        False,
        None,
        b"15m",
        Decimal(1),
        [1],
        "",
        " ",
        "m",
        "-15m",
        "-1",
        "--1",
        "-" * 5000,
        "+1s",
        "1e3",
        "1.s",
        ".5s",
        "1,5s",
        "15 m 3",
        "15mm",
        "15min",
        "15M",
        "1h1h",
        "30m1h",
        "1s 1m",
        "1h  30m",
        "1h,30m",
        "1h30",
        "30 1h",
        "1y",
        "inf",
        "nan",
        "PT15M",
        "00:15:00",
        "١٥m",
        "１５m",
        "3651d",
        "9" * 18 + "w",
        "9" * 30 + "s",
        "1s\n",
        "1s\x00",
    ],
)
def test_not_durations(value: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        duration_us(value, "delay")
    assert caught.value.param == "delay"
    assert str(caught.value).isascii()


@given(st.text(max_size=20) | st.floats() | st.integers() | st.timedeltas())
def test_durations_are_in_range_or_refused(value: Any) -> None:
    try:
        got = duration_us(value)
    except InvalidInput:
        return
    assert type(got) is int
    assert 0 <= got <= MAX_DURATION_US


@given(st.integers(0, MAX_DURATION_US))
def test_timedeltas_are_exact(number: int) -> None:
    assert duration_us(timedelta(microseconds=number)) == number
    assert duration_us(f"{number}us") == number
    assert duration_us(f"{number // S}.{number % S:06d}s") == number
