"""Retry policy: the named schedules, the bounds of every delay, Retry-After, and the stored form."""

from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.domain import policy as policies
from redrive.domain.policy import DAY, HOUR, MINUTE, SECOND, Jitter, OnUnknown, Policy
from redrive.errors import ConfigError

ISSUE_FULL = Policy(max_attempts=7, base=SECOND, cap=15 * MINUTE, jitter=Jitter.FULL)
ISSUE_EQUAL = Policy(max_attempts=6, base=2 * SECOND, cap=15 * MINUTE, jitter=Jitter.EQUAL)
ISSUE_SIX_HOURS = Policy(max_attempts=5, max_age=6 * HOUR, base=30 * SECOND, cap=30 * MINUTE)
MS = SECOND // 1000
TIMES = st.integers(0, policies.MAX_AGE)
UNIT = st.floats(0, 1, exclude_max=True)
HUGE = st.integers(-(10**30), 10**30)


@st.composite
def any_policy(draw: st.DrawFn) -> Policy:
    floor, cap = sorted((draw(TIMES), draw(TIMES)))
    return Policy(
        max_attempts=draw(st.integers(1, policies.MAX_ATTEMPTS)),
        max_age=draw(st.integers(1, policies.MAX_AGE)),
        base=draw(TIMES),
        factor=draw(st.sampled_from([1, 1.001, 1.5, 2.0, 4.0, 1000.0]) | st.floats(1, 1000)),
        cap=cap,
        floor=floor,
        jitter=draw(st.sampled_from(Jitter)),
        retry_after_cap=draw(TIMES),
        on_unknown=draw(st.sampled_from(OnUnknown)),
    )


# ---- the schedules that the issue names -------------------------------------------------------


def test_seven_attempts_full_jitter() -> None:
    assert [ISSUE_FULL.delay(n, 0.5) for n in (1, 2)] == [500 * MS, 1_000 * MS]
    assert [ISSUE_FULL.delay(n, 0.5) for n in range(1, 7)] == [500 * MS * 2**n for n in range(6)]
    assert [ISSUE_FULL.delay(n, 0.0) for n in range(1, 7)] == [0] * 6


def test_six_attempts_equal_jitter() -> None:
    """``cap * (0.5 + 0.5 u)``, where ``cap`` is the capped exponential delay."""
    for u in (0.0, 0.25, 0.5, 0.75):
        expected = [int(2 * SECOND * 2**n * (0.5 + 0.5 * u)) for n in range(5)]
        assert [ISSUE_EQUAL.delay(n, u) for n in range(1, 6)] == expected
    assert ISSUE_EQUAL.delay(1, 0.5) == 1_500 * MS
    assert ISSUE_EQUAL.delay(30, 0.0) == 7 * MINUTE + 30 * SECOND


def test_half_a_minute_to_half_an_hour() -> None:
    ceilings = [30, 60, 120, 240, 480, 960, 1800, 1800]
    assert [ISSUE_SIX_HOURS.ceiling(n) for n in range(1, 9)] == [s * SECOND for s in ceilings]
    assert sum(ISSUE_SIX_HOURS.ceiling(n) for n in range(1, 5)) < ISSUE_SIX_HOURS.max_age


def test_the_defaults_are_what_they_say() -> None:
    assert Policy() == policies.JOBS
    assert (policies.JOBS.max_attempts, policies.JOBS.max_age) == (7, 24 * HOUR)
    webhooks = policies.WEBHOOKS
    worst = sum(webhooks.delay(n, 1.0) for n in range(1, webhooks.max_attempts))
    assert worst < webhooks.max_age, "all eight attempts fit into the age budget"
    assert min(webhooks.delay(n, 0.0) for n in range(1, webhooks.max_attempts)) >= SECOND


# ---- O-08: the cap is applied last ------------------------------------------------------------


@pytest.mark.parametrize("jitter", Jitter)
@pytest.mark.parametrize("u", [0.0, 0.25, 0.5, 0.875, 1.0])
def test_o08_jitter_never_exceeds_a_cap_of_a_minute(jitter: Jitter, u: float) -> None:
    policy = Policy(base=SECOND, cap=60 * SECOND, floor=2 * SECOND, jitter=jitter)
    for attempt in range(1, 40):
        assert 2 * SECOND <= policy.delay(attempt, u) <= 60 * SECOND
    expected = {
        Jitter.FULL: max(int(60 * SECOND * u), 2 * SECOND),
        Jitter.EQUAL: int(60 * SECOND * (0.5 + 0.5 * u)),
        Jitter.NONE: 60 * SECOND,
    }
    assert policy.delay(20, u) == expected[jitter]


@settings(deadline=None)
@given(any_policy(), HUGE, st.floats(allow_nan=True, allow_infinity=True))
def test_every_delay_is_a_whole_number_between_floor_and_cap(policy: Policy, attempt: int, u: float) -> None:
    delay = policy.delay(attempt, u)
    assert type(delay) is int
    assert policy.floor <= delay <= policy.cap


@settings(deadline=None)
@given(any_policy(), st.integers(1, 1000), UNIT, UNIT)
def test_delays_grow_with_u_and_ceilings_with_the_attempt(policy: Policy, n: int, u: float, v: float) -> None:
    assert policy.ceiling(n) <= policy.ceiling(n + 1) <= policy.cap
    assert policy.delay(n, min(u, v)) <= policy.delay(n, max(u, v))


@settings(deadline=None)
@given(
    st.integers(0, HOUR),
    st.sampled_from([1.0, 1.25, 1.5, 2.0, 3.0, 10.0]),
    st.integers(0, DAY),
    st.integers(1, 60),
)
def test_ceilings_are_the_exponential(base: int, factor: float, cap: int, attempt: int) -> None:
    """Against exact fractions, rounded down to a microsecond once, at the end."""
    exact = min(Fraction(base) * Fraction(factor) ** (attempt - 1), Fraction(cap))
    assert Policy(base=base, factor=factor, cap=cap).ceiling(attempt) == int(exact)


@pytest.mark.parametrize("jitter", Jitter)
def test_a_u_outside_its_range_is_brought_back(jitter: Jitter) -> None:
    policy = Policy(base=8 * SECOND, jitter=jitter)
    for u, meant in ((float("nan"), 0.0), (-1.0, 0.0), (float("-inf"), 0.0), (7.5, 1.0), (float("inf"), 1.0)):
        assert policy.delay(3, u) == policy.delay(3, meant)
        assert policy.delay(3, u, MINUTE) == policy.delay(3, meant, MINUTE)


def test_jitter_spreads_as_named() -> None:
    full, equal, none = (Policy(base=8 * SECOND, factor=1, jitter=j) for j in Jitter)
    assert [full.delay(1, u) // MS for u in (0.0, 0.25, 1.0)] == [0, 2000, 8000]
    assert [equal.delay(1, u) // MS for u in (0.0, 0.25, 1.0)] == [4000, 5000, 8000]
    assert [none.delay(1, u) // MS for u in (0.0, 0.25, 1.0)] == [8000, 8000, 8000]


# ---- O-09: the exponent is capped first -------------------------------------------------------


@pytest.mark.parametrize("attempt", [0, 1, 63, 64, 1017, 1024, 10**6, 10**18])
@pytest.mark.parametrize("factor", [1.0, 1.5, 2.0, 10.0, 1000.0])
def test_o09_any_attempt_number_has_a_delay(attempt: int, factor: float) -> None:
    policy = Policy(max_attempts=1000, base=300 * SECOND, cap=HOUR, factor=factor, jitter=Jitter.NONE)
    expected = 300 * SECOND if attempt <= 1 or factor == 1.0 else HOUR
    assert policy.ceiling(attempt) == policy.delay(attempt, 0.5) == expected


def test_o09_slow_growth_and_small_bases_stay_capped() -> None:
    slow = Policy(base=1, factor=1.001, cap=500, jitter=Jitter.NONE)
    assert [slow.ceiling(n) for n in (1, 2, 500, 1000, 10**6)] == [1, 1, 1, 2, 500]
    assert [Policy(base=0).ceiling(n) for n in (1, 64, 10**6)] == [0, 0, 0]
    assert Policy(base=HOUR, cap=MINUTE).ceiling(1) == MINUTE


# ---- O-10: a thousand deliveries that failed together -----------------------------------------


def per_second(policy: Policy, attempt: int, retry_after: int | None = None) -> Counter[int]:
    source = random.Random(480)
    return Counter(policy.delay(attempt, source.random(), retry_after) // SECOND for _ in range(1000))


@pytest.mark.parametrize(("jitter", "most"), [(Jitter.FULL, 0.10), (Jitter.EQUAL, 0.17)])
def test_o10_no_second_gets_more_than_its_share(jitter: Jitter, most: float) -> None:
    policy = Policy(base=SECOND, cap=15 * MINUTE, jitter=jitter)
    seconds = per_second(policy, attempt=5)
    assert policy.ceiling(5) == 16 * SECOND
    assert max(seconds.values()) <= most * 1000
    assert max(seconds) == 15
    assert len(seconds) == (16 if jitter is Jitter.FULL else 8)


def test_o10_deliveries_told_to_come_back_at_one_instant_do_not() -> None:
    for jitter in (Jitter.FULL, Jitter.EQUAL):
        seconds = per_second(Policy(jitter=jitter), attempt=5, retry_after=30 * SECOND)
        assert min(seconds) == 30, "never before what was asked"
        assert max(seconds.values()) <= 100


# ---- Retry-After: a clamped floor, jitter on top ----------------------------------------------


def test_retry_after_is_a_floor_with_jitter_on_top() -> None:
    policy = Policy(base=4 * SECOND, jitter=Jitter.FULL)
    assert policy.delay(1, 0.0, 30 * SECOND) == 30 * SECOND
    assert policy.delay(1, 0.5, 30 * SECOND) == 32 * SECOND
    assert Policy(base=4 * SECOND, jitter=Jitter.NONE).delay(1, 0.5, 30 * SECOND) == 30 * SECOND


@pytest.mark.parametrize("jitter", Jitter)
@pytest.mark.parametrize("asked", [-5, 0, 1, SECOND])
def test_retry_after_never_brings_a_retry_forward(jitter: Jitter, asked: int) -> None:
    policy = Policy(base=5 * MINUTE, jitter=jitter)
    for u in (0.0, 0.3, 0.99):
        assert policy.delay(1, u, asked) >= policy.delay(1, u)


@pytest.mark.parametrize("asked", [9_999_999_999 * SECOND, 10**20 * SECOND, 10**400])
def test_o05_a_huge_retry_after_is_clamped(asked: int) -> None:
    policy = Policy(base=SECOND, cap=MINUTE, retry_after_cap=2 * HOUR)
    assert policy.delay(1, 0.0, asked) == 2 * HOUR
    assert policy.delay(30, 0.5, asked) == 2 * HOUR + 30 * SECOND
    assert Policy(base=SECOND, retry_after_cap=0).delay(1, 0.5, asked) == SECOND // 2


@settings(deadline=None)
@given(any_policy(), HUGE, st.floats(allow_nan=True, allow_infinity=True), HUGE)
def test_retry_after_bounds(policy: Policy, attempt: int, u: float, asked: int) -> None:
    delay = policy.delay(attempt, u, asked)
    clamped = min(max(asked, 0), policy.retry_after_cap)
    assert type(delay) is int
    assert max(policy.floor, clamped, policy.delay(attempt, u)) <= delay
    assert delay <= max(policy.floor, clamped + policy.ceiling(attempt))


# ---- what is refused --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", -1),
        ("max_attempts", 1001),
        ("max_attempts", True),
        ("max_attempts", 3.0),
        ("max_attempts", "3"),
        ("max_attempts", None),
        ("max_age", 0),
        ("max_age", policies.MAX_AGE + 1),
        ("max_age", 10**30),
        ("base", -1),
        ("base", policies.MAX_AGE + 1),
        ("base", 0.5),
        ("cap", -1),
        ("cap", policies.MAX_AGE + 1),
        ("floor", -1),
        ("floor", 15 * MINUTE + 1),
        ("retry_after_cap", -1),
        ("retry_after_cap", policies.MAX_AGE + 1),
        ("factor", 0.99),
        ("factor", 0),
        ("factor", -2.0),
        ("factor", 1000.1),
        ("factor", 10**400),
        ("factor", float("nan")),
        ("factor", float("inf")),
        ("factor", True),
        ("factor", "2"),
        ("factor", None),
        ("jitter", "sometimes"),
        ("jitter", None),
        ("jitter", []),
        ("on_unknown", "guess"),
        ("on_unknown", True),
    ],
)
def test_values_that_make_no_policy(field: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Policy(**{field: value})
    assert caught.value.param in (field, "cap" if field == "floor" else field)
    assert field in str(caught.value)


def test_the_extremes_that_are_allowed() -> None:
    Policy(max_attempts=1, max_age=1, base=0, cap=0, floor=0, retry_after_cap=0, factor=1)
    Policy(max_attempts=1000, max_age=policies.MAX_AGE, base=policies.MAX_AGE, cap=policies.MAX_AGE, factor=1000)
    assert Policy(floor=15 * MINUTE).delay(1, 0.5) == 15 * MINUTE


# ---- the stored form --------------------------------------------------------------------------

GOLDEN = Policy(
    max_attempts=6,
    max_age=6 * HOUR,
    base=2 * SECOND,
    factor=2,
    cap=15 * MINUTE,
    floor=SECOND,
    jitter=Jitter.EQUAL,
    retry_after_cap=HOUR,
    on_unknown=OnUnknown.HOLD,
)
GOLDEN_SPEC = (
    '{"base":2000000,"cap":900000000,"factor":2.0,"floor":1000000,"jitter":"equal","max_age":21600000000,'
    '"max_attempts":6,"on_unknown":"hold","retry_after_cap":3600000000}'
)
GOLDEN_VERSION = 4197192256846427843


def test_golden_spec_and_version() -> None:
    """Frozen: rows on every ledger name their policy by this number."""
    assert GOLDEN.spec() == GOLDEN_SPEC
    assert GOLDEN.version == GOLDEN_VERSION
    assert Policy.from_spec(GOLDEN_SPEC) == GOLDEN


@settings(deadline=None)
@given(any_policy())
def test_spec_round_trip(policy: Policy) -> None:
    again = Policy.from_spec(policy.spec())
    assert again == policy
    assert again.spec() == policy.spec()
    assert again.version == policy.version
    assert 0 <= policy.version < 2**63
    assert isinstance(again.jitter, Jitter)
    assert isinstance(again.on_unknown, OnUnknown)


def test_equal_policies_have_equal_versions() -> None:
    words: Any = {"jitter": "full", "on_unknown": "retry"}
    for other in (Policy(factor=2), Policy(factor=2.0), Policy(**words)):
        assert other == Policy()
        assert other.version == Policy().version


def test_every_field_counts_in_the_version() -> None:
    changed: dict[str, Any] = {
        "max_attempts": 8,
        "max_age": HOUR,
        "base": 2,
        "factor": 3,
        "cap": HOUR,
        "floor": 1,
        "jitter": Jitter.NONE,
        "retry_after_cap": 1,
        "on_unknown": OnUnknown.CONFIRM,
    }
    assert changed.keys() == json.loads(Policy().spec()).keys()
    versions = {Policy().version} | {Policy(**{name: value}).version for name, value in changed.items()}
    assert len(versions) == 10


@pytest.mark.parametrize(
    "text",
    [
        GOLDEN_SPEC.replace('"base"', '"basis"'),
        GOLDEN_SPEC.replace("}", ',"patience":1}'),
        GOLDEN_SPEC.replace("equal", "gaussian"),
        GOLDEN_SPEC.replace('"factor":2.0', '"factor":NaN'),
        GOLDEN_SPEC.replace('"max_attempts":6', '"max_attempts":0'),
        "[]",
        "[1]",
        "null",
        "7",
        "{",
        "",
    ],
)
def test_a_stored_policy_that_cannot_be_honoured_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        Policy.from_spec(text)
