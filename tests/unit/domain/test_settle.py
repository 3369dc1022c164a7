"""``settle``: a decision against the row as it is when the decision is written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.rows import (
    CLOCKS,
    DISABLED,
    FAR,
    NOW,
    OUTCOMES,
    PATIENT,
    POLICIES,
    RETRYABLE,
    STANDINGS,
    UNIT,
    leased,
)

from redrive.domain.decide import Decision, Entry, decide, settle
from redrive.domain.delivery import Cause, Disposition, Hold, Standing
from redrive.domain.outcome import Category, Flag, Outcome
from redrive.domain.policy import DAY, HOUR, MINUTE, SECOND, Policy

WAITING = Decision(Disposition.WAITING, Entry.ATTEMPT, Category.HTTP_5XX, delay_us=MINUTE, ambiguous=True)
DEAD = Decision(Disposition.DEAD, Entry.ATTEMPT, Category.HTTP_4XX, cause=Cause.PERMANENT)
DONE = Decision(Disposition.DELIVERED, Entry.ATTEMPT, Category.OK)
HELD = Decision(
    Disposition.WAITING,
    Entry.DEFERRAL,
    Category.DESTINATION_DISABLED,
    delay_us=SECOND,
    hold=Hold.DESTINATION_DISABLED,
)
LATE = Decision(Disposition.DELIVERED, Entry.EVIDENCE, Category.OK, flags=Flag.LATE)
LATE_DEAD = Decision(Disposition.DEAD, Entry.EVIDENCE, Category.OK, flags=Flag.LATE)


@pytest.mark.parametrize("decision", [WAITING, HELD])
def test_a_deadline_moved_earlier_ends_it_and_moved_later_lets_it_wait(decision: Decision) -> None:
    ended = settle(decision, NOW, NOW + decision.delay_us)
    assert (ended.disposition, ended.cause) == (Disposition.DEAD, Cause.AGE_EXHAUSTED)
    assert (ended.hold, ended.entry) == (Hold.NONE, decision.entry)
    assert (ended.category, ended.ambiguous) == (decision.category, decision.ambiguous)
    assert settle(ended, NOW, NOW + decision.delay_us + 1) == decision
    assert settle(decision, NOW, FAR) == decision


def test_a_worker_whose_clock_is_an_hour_fast_or_slow_changes_nothing() -> None:
    deadline = NOW + 10 * MINUTE
    rows = [(leased(deadline_at=deadline), RETRYABLE), (leased(deadline_at=deadline), DISABLED)]
    rows += [(leased(deadline_at=deadline), replace(RETRYABLE, retry_after_us=HOUR))]
    for standing, outcome in rows:
        right = decide(standing, outcome, PATIENT, NOW, 0.5)
        for skew in (-HOUR, HOUR):
            assert settle(decide(standing, outcome, PATIENT, NOW + skew, 0.5), NOW, deadline) == right


def test_a_dead_letter_of_another_cause_is_not_revived() -> None:
    for cause in Cause:
        if cause is not Cause.AGE_EXHAUSTED:
            decision = replace(DEAD, cause=cause)
            assert settle(decision, NOW, FAR) == decision


def test_a_requested_cancellation_ends_whatever_did_not_succeed() -> None:
    for decision in (WAITING, HELD, DEAD, settle(WAITING, NOW, NOW)):
        cancelled = settle(decision, NOW, FAR, cancel_requested=True)
        assert (cancelled.disposition, cancelled.cause) == (Disposition.CANCELLED, None)
        assert (cancelled.delay_us, cancelled.hold) == (0, Hold.NONE)
        assert (cancelled.entry, cancelled.ambiguous) == (decision.entry, decision.ambiguous)
        assert settle(cancelled, NOW, FAR) == cancelled, "terminal stays terminal"
    for decision in (DONE, replace(DONE, disposition=Disposition.NO_OP)):
        assert settle(decision, NOW, FAR, cancel_requested=True) == decision, "delivered wins"


def test_evidence_is_never_settled() -> None:
    for decision in (LATE, LATE_DEAD, replace(LATE, disposition=Disposition.WAITING)):
        assert settle(decision, NOW, NOW - DAY) == decision
        assert settle(decision, NOW, FAR, cancel_requested=True) == decision


@settings(deadline=None, max_examples=300)
@given(STANDINGS, OUTCOMES, POLICIES, CLOCKS, UNIT, CLOCKS, CLOCKS, st.booleans())
def test_settling_is_the_last_word(
    standing: Standing,
    outcome: Outcome,
    policy: Policy,
    worker_now: int,
    u: float,
    now: int,
    deadline: int,
    cancel: bool,
) -> None:
    """Whatever clock and deadline the decision was made with, the ledger's own count."""
    stale = decide(standing, outcome, policy, worker_now, u)
    settled = settle(stale, now, deadline, cancel)
    fresh = decide(standing._replace(deadline_at=deadline), outcome, policy, now, u)
    assert settled == settle(fresh, now, deadline, cancel)
    assert settle(settled, now, deadline, cancel) == settled
    if settled.disposition is Disposition.WAITING and settled.entry is not Entry.EVIDENCE:
        assert now + settled.delay_us < deadline
        assert not cancel


def test_decisions_cannot_be_changed_afterwards() -> None:
    with pytest.raises(AttributeError):
        WAITING.delay_us = 0  # type: ignore[misc]
