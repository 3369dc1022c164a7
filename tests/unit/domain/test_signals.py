"""What a handler may raise, and what the signals refuse."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from redrive.domain.outcome import Category
from redrive.domain.policy import SECOND
from redrive.domain.signals import NoOp, Permanent, Retry, Signal, Unknown
from redrive.domain.values import MAX_DURATION_US, duration_us
from redrive.errors import InvalidInput, RedriveError

ALLOWED = (
    "payload_invalid",
    "policy",
    "rejected",
    "gone",
    "handler_error",
    "http_4xx",
    "http_5xx",
    "http_429",
)


@pytest.mark.parametrize(
    ("after", "microseconds"),
    [
        (None, None),
        (0, 0),
        (0.0, 0),
        (1, SECOND),
        (0.5, SECOND // 2),
        (2.3, 2_300_000),
        (timedelta(seconds=2.3), 2_300_000),
        (timedelta(microseconds=1), 1),
        (timedelta(days=1), 86_400 * SECOND),
        ("5m", 300 * SECOND),
        ("1h30m", 5400 * SECOND),
        ("2.3", 2_300_000),
        (3650 * 86_400, MAX_DURATION_US),
        (timedelta(days=3650), MAX_DURATION_US),
    ],
)
def test_retry_after_in_seconds_a_timedelta_or_text(
    after: float | timedelta | str | None, microseconds: int | None
) -> None:
    assert Retry(after).after_us == microseconds
    assert Retry(after=after).after_us == microseconds


@pytest.mark.parametrize(
    "after",
    [
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        float("-inf"),
        10**30,
        3650 * 86_400 + 1,
        True,
        False,
        "",
        "soon",
        "-5s",
        "99999w",
        b"5",
        [5],
        timedelta(seconds=-1),
        timedelta(microseconds=-1),
        timedelta.max,
        timedelta.min,
    ],
)
def test_a_wait_that_makes_no_sense_is_refused_as_a_delay_is(after: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Retry(after=after)
    assert caught.value.param == "after"
    with pytest.raises(InvalidInput) as delay:
        duration_us(after, "after")
    assert caught.value.as_dict() == delay.value.as_dict()


def test_every_millisecond_of_a_minute_is_kept_exactly() -> None:
    for ms in range(60_000):
        assert Retry(ms / 1000).after_us == ms * 1000


def test_permanent_is_rejected_unless_it_says_more() -> None:
    assert Permanent().category is Category.REJECTED


@pytest.mark.parametrize("category", Category)
def test_a_handler_can_claim_only_what_a_handler_can_know(category: Category) -> None:
    if category.value in ALLOWED:
        assert Permanent(category).category is Permanent(category.value).category is category
        assert f"``{category.value}``" in (Permanent.__doc__ or "")
        return
    for given in (category, category.value):
        with pytest.raises(InvalidInput, match="cannot claim") as caught:
            Permanent(given)
        assert caught.value.param == "category"
        assert all(word in (caught.value.hint or "") for word in ALLOWED)


@pytest.mark.parametrize("given", ["", "card 4111111111111111 declined", "REJECTED", "worker lost", None, 7, []])
def test_a_text_is_no_category_and_is_not_repeated(given: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        Permanent(given)
    assert caught.value.param == "category"
    assert "4111" not in f"{caught.value} {caught.value.hint}"


def test_signals_are_one_family_and_no_errors() -> None:
    for signal in (Retry(), Permanent(), Unknown(), NoOp()):
        assert isinstance(signal, Signal)
        assert not isinstance(signal, RedriveError)
    kinds = (Retry, Permanent, Unknown, NoOp)
    assert not any(issubclass(a, b) for a in kinds for b in kinds if a is not b)
