"""``decide``: the named rules as tables, the promises as properties over every input."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.rows import (
    CLOCKS,
    DISABLED,
    ENGINE_ONLY,
    EXTREME,
    FAR,
    NOW,
    OUTCOMES,
    OWN_FAULT,
    PATIENT,
    PERMANENT,
    POLICIES,
    RETRYABLE,
    STANDINGS,
    SUCCESS,
    UNIT,
    UNKNOWN,
    leased,
)

from redrive.domain import outcome as outcomes
from redrive.domain.decide import MAX_DEFERRALS, MIN_DEFERRAL, Decision, Entry, decide
from redrive.domain.delivery import Cause, Disposition, Hold, Standing
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import DAY, HOUR, MINUTE, SECOND, Jitter, OnUnknown, Policy


def judge(standing: Standing, outcome: Outcome, on_unknown: OnUnknown = OnUnknown.RETRY) -> Decision:
    return decide(standing, outcome, replace(PATIENT, on_unknown=on_unknown), NOW, 0.5)


@settings(deadline=None, max_examples=600)
@given(STANDINGS, OUTCOMES, POLICIES, CLOCKS, UNIT, EXTREME | st.integers(0, HOUR))
def test_promises_over_every_input(
    standing: Standing, outcome: Outcome, policy: Policy, now: int, u: float, min_delay: int
) -> None:
    decision = decide(standing, outcome, policy, now, u, min_delay)
    disposition, entry, cause = decision.disposition, decision.entry, decision.cause

    assert type(decision.delay_us) is int
    assert decision.delay_us >= 0, "never before now"
    assert decision.category is outcome.category
    assert decision.flags & ~Flag.LATE == (Flag.NONE if entry is Entry.DEFERRAL else outcome.flags)
    assert (cause is not None) == (disposition is Disposition.DEAD and entry is not Entry.EVIDENCE)
    assert disposition is not Disposition.CANCELLED or standing.disposition is Disposition.CANCELLED

    if standing.disposition is not Disposition.LEASED:
        assert entry is Entry.EVIDENCE
        assert Flag.LATE in decision.flags
        if standing.disposition is Disposition.WAITING and outcome.kind in SUCCESS:
            assert disposition is SUCCESS[outcome.kind]
        else:
            assert disposition is standing.disposition, "a late report moves nothing else"
            assert decision.ambiguous is standing.ambiguous
        assert decision.delay_us == 0
        return

    assert disposition is not Disposition.LEASED
    assert Flag.LATE not in decision.flags
    if outcome.kind in SUCCESS:
        expected = Decision(SUCCESS[outcome.kind], Entry.ATTEMPT, outcome.category, flags=outcome.flags)
        assert decision == expected, "a success needs no budget"
        return
    assert disposition in (Disposition.WAITING, Disposition.DEAD)
    if disposition is Disposition.WAITING:
        assert now + decision.delay_us < standing.deadline_at, "never at or past the deadline"
        assert outcome.kind is not OutcomeKind.PERMANENT
    elif cause is not Cause.AGE_EXHAUSTED:
        assert decision.delay_us == 0
    if outcome.kind is OutcomeKind.PERMANENT:
        assert cause is Cause.PERMANENT
    if outcome.kind is OutcomeKind.UNKNOWN and policy.on_unknown is OnUnknown.HOLD:
        assert cause is Cause.AMBIGUOUS
    assert decision.ambiguous is (outcome.kind is OutcomeKind.UNKNOWN or standing.ambiguous)

    twentieth = (
        outcome.kind is OutcomeKind.DEFERRED
        and outcome.category is Category.OWN_FAULT
        and standing.own_faults + 1 >= MAX_DEFERRALS
    )
    if outcome.kind in ENGINE_ONLY and not twentieth:
        assert entry is Entry.DEFERRAL, "not charged"
        assert decision.delay_us >= max(MIN_DEFERRAL, min_delay)
        assert cause in (None, Cause.AGE_EXHAUSTED)
        parked = disposition is Disposition.WAITING and outcome.category is Category.DESTINATION_DISABLED
        assert decision.hold is (Hold.DESTINATION_DISABLED if parked else Hold.NONE)
    else:
        assert entry is Entry.ATTEMPT, "charged"
        assert decision.hold is Hold.NONE
        if disposition is Disposition.WAITING or cause is Cause.AGE_EXHAUSTED:
            assert standing.attempt < standing.max_attempts, "never beyond the attempt budget"
            asked = outcome.retry_after_us
            assert decision.delay_us == policy.delay(standing.attempt, u, asked)
            assert decision.delay_us >= min(max(asked or 0, 0), policy.retry_after_cap)
        if cause in (Cause.ATTEMPTS_EXHAUSTED, Cause.WORKER_LOST):
            assert standing.attempt >= standing.max_attempts


def test_every_combination_of_words_is_decided() -> None:
    """Exhaustive over the closed words; numbers at their turning points."""
    decided = 0
    for disposition in Disposition:
        for attempt in (1, 5, 6):
            for on_unknown in OnUnknown:
                policy = replace(PATIENT, on_unknown=on_unknown)
                standing = Standing(disposition, attempt, 6, FAR, own_faults=MAX_DEFERRALS - 1)
                for kind in OutcomeKind:
                    for category in Category:
                        decision = decide(standing, Outcome(kind, category), policy, NOW, 0.5)
                        assert (decision.disposition is Disposition.DEAD) >= (decision.cause is not None)
                        decided += 1
    assert decided == len(Disposition) * 3 * len(OnUnknown) * len(OutcomeKind) * len(Category)


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(0, 2 * HOUR), POLICIES)
def test_a_whole_generation_stays_inside_both_budgets(seed: int, most: int, age: int, policy: Policy) -> None:
    """Reserve, fail in any way, decide, wait: the charge, kept as the ledger does, stays in bounds."""
    source = random.Random(seed)
    failures = [RETRYABLE, UNKNOWN, OWN_FAULT, DISABLED, outcomes.INTERRUPTED, outcomes.WORKER_LOST]
    now, deadline, used, deferrals, starts, ambiguous = NOW, NOW + age, 0, 0, 0, False
    for _ in range(60 * most):
        used += 1
        standing = leased(used, most, deadline, own_faults=deferrals, ambiguous=ambiguous)
        outcome = source.choice(failures)
        decision = decide(standing, outcome, policy, now, source.random())
        if decision.entry is Entry.DEFERRAL:
            used -= 1
            deferrals += outcome is OWN_FAULT
        else:
            starts += 1
            deferrals = 0
        assert used <= most
        assert starts <= most
        ambiguous = decision.ambiguous
        if decision.disposition is Disposition.DEAD:
            break
        now += decision.delay_us
        assert now < deadline
    else:
        assert starts < most, "every charged failure brings the end nearer"


# ---- the attempt budget -----------------------------------------------------------------------


def test_attempt_five_of_six_may_schedule_six_and_six_dead_letters() -> None:
    fifth = judge(leased(attempt=5), RETRYABLE)
    assert (fifth.disposition, fifth.delay_us) == (Disposition.WAITING, 64 * SECOND)
    sixth = judge(leased(attempt=6), RETRYABLE)
    assert (sixth.disposition, sixth.cause) == (Disposition.DEAD, Cause.ATTEMPTS_EXHAUSTED)


def test_the_rows_budget_counts_and_not_the_policys() -> None:
    assert judge(leased(attempt=6, max_attempts=7), RETRYABLE).disposition is Disposition.WAITING
    assert judge(leased(attempt=1, max_attempts=1), RETRYABLE).disposition is Disposition.DEAD
    assert judge(leased(attempt=9, max_attempts=6), RETRYABLE).disposition is Disposition.DEAD


def test_five_attempts_within_six_hours() -> None:
    policy = Policy(max_attempts=5, max_age=6 * HOUR, base=30 * SECOND, cap=30 * MINUTE, jitter=Jitter.NONE)
    for took, ends in ((0, Cause.ATTEMPTS_EXHAUSTED), (2 * HOUR, Cause.AGE_EXHAUSTED)):
        now, attempt = NOW, 0
        while True:
            attempt += 1
            now += took
            decision = decide(leased(attempt, 5, NOW + policy.max_age), RETRYABLE, policy, now, 0.5)
            if decision.disposition is Disposition.DEAD:
                break
            assert decision.delay_us == 30 * SECOND * 2 ** (attempt - 1)
            now += decision.delay_us
        assert decision.cause is ends
        assert attempt == (5 if ends is Cause.ATTEMPTS_EXHAUSTED else 3)


@pytest.mark.parametrize(
    ("outcome", "attempt", "ambiguous", "on_unknown", "cause"),
    [
        (RETRYABLE, 6, False, OnUnknown.RETRY, Cause.ATTEMPTS_EXHAUSTED),
        (RETRYABLE, 6, True, OnUnknown.RETRY, Cause.ATTEMPTS_EXHAUSTED),
        (RETRYABLE, 6, False, OnUnknown.CONFIRM, Cause.ATTEMPTS_EXHAUSTED),
        (RETRYABLE, 6, True, OnUnknown.CONFIRM, Cause.AMBIGUOUS),
        (RETRYABLE, 6, True, OnUnknown.HOLD, Cause.AMBIGUOUS),
        (RETRYABLE, 5, True, OnUnknown.HOLD, None),
        (UNKNOWN, 5, False, OnUnknown.RETRY, None),
        (UNKNOWN, 6, False, OnUnknown.RETRY, Cause.ATTEMPTS_EXHAUSTED),
        (UNKNOWN, 1, False, OnUnknown.HOLD, Cause.AMBIGUOUS),
        (UNKNOWN, 6, False, OnUnknown.HOLD, Cause.AMBIGUOUS),
        (UNKNOWN, 1, False, OnUnknown.CONFIRM, None),
        (UNKNOWN, 6, False, OnUnknown.CONFIRM, Cause.AMBIGUOUS),
        (outcomes.WORKER_LOST, 5, False, OnUnknown.RETRY, None),
        (outcomes.WORKER_LOST, 6, False, OnUnknown.RETRY, Cause.WORKER_LOST),
        (outcomes.WORKER_LOST, 1, False, OnUnknown.HOLD, Cause.AMBIGUOUS),
        (outcomes.WORKER_LOST, 6, False, OnUnknown.CONFIRM, Cause.AMBIGUOUS),
        (PERMANENT, 1, False, OnUnknown.RETRY, Cause.PERMANENT),
        (PERMANENT, 6, True, OnUnknown.HOLD, Cause.PERMANENT),
    ],
)
def test_why_a_generation_ends(
    outcome: Outcome, attempt: int, ambiguous: bool, on_unknown: OnUnknown, cause: Cause | None
) -> None:
    decision = judge(leased(attempt, ambiguous=ambiguous), outcome, on_unknown)
    assert decision.cause is cause
    assert decision.disposition is (Disposition.WAITING if cause is None else Disposition.DEAD)
    assert decision.ambiguous is (ambiguous or outcome.kind is OutcomeKind.UNKNOWN)
    assert decision.entry is Entry.ATTEMPT


def test_o07_failures_before_a_byte_left_are_retried() -> None:
    for category in (Category.DNS, Category.CONNECT, Category.TLS, Category.PROXY, Category.TIMEOUT_UNSENT):
        decision = judge(leased(), Outcome(OutcomeKind.RETRYABLE, category))
        assert (decision.disposition, decision.ambiguous) == (Disposition.WAITING, False)


def test_a_success_clears_what_was_ambiguous() -> None:
    for outcome in (outcomes.DELIVERED, outcomes.NO_OP):
        decision = judge(leased(attempt=6, ambiguous=True, deadline_at=NOW - 1), outcome)
        assert decision == Decision(SUCCESS[outcome.kind], Entry.ATTEMPT, outcome.category)


# ---- the age budget ---------------------------------------------------------------------------


@pytest.mark.parametrize(("room", "waits"), [(4 * SECOND + 1, True), (4 * SECOND, False), (0, False), (-DAY, False)])
def test_a_retry_lands_strictly_before_the_deadline(room: int, waits: bool) -> None:
    decision = judge(leased(deadline_at=NOW + room), RETRYABLE)
    assert decision.disposition is (Disposition.WAITING if waits else Disposition.DEAD)
    assert decision.cause is (None if waits else Cause.AGE_EXHAUSTED)


@pytest.mark.parametrize("asked", [31 * DAY, 9_999_999_999 * SECOND, 10**20 * SECOND])
def test_o05_a_retry_after_past_the_deadline_ends_as_age_exhausted(asked: int) -> None:
    asking = replace(RETRYABLE, retry_after_us=asked)
    policy = replace(PATIENT, retry_after_cap=100 * DAY)
    decision = decide(leased(), asking, policy, NOW, 0.5)
    assert (decision.disposition, decision.cause) == (Disposition.DEAD, Cause.AGE_EXHAUSTED)
    clamped = decide(leased(), asking, PATIENT, NOW, 0.5)
    assert (clamped.disposition, clamped.delay_us) == (Disposition.WAITING, PATIENT.retry_after_cap)


def test_attempts_are_named_before_age() -> None:
    assert judge(leased(attempt=6, deadline_at=NOW - 1), RETRYABLE).cause is Cause.ATTEMPTS_EXHAUSTED
    assert judge(leased(attempt=1, deadline_at=NOW - 1), PERMANENT).cause is Cause.PERMANENT


# ---- deferred and interrupted -----------------------------------------------------------------


def test_interrupted_gives_the_charge_back_however_often() -> None:
    for deferrals in (0, 18, 19, 20, 10**9):
        decision = judge(leased(attempt=6, own_faults=deferrals, ambiguous=True), outcomes.INTERRUPTED)
        assert decision == Decision(
            Disposition.WAITING, Entry.DEFERRAL, Category.SHUTDOWN, delay_us=MIN_DEFERRAL, ambiguous=True
        )


@pytest.mark.parametrize(("before", "entry"), [(0, Entry.DEFERRAL), (18, Entry.DEFERRAL), (19, Entry.ATTEMPT)])
def test_the_twentieth_own_fault_in_a_row_is_charged(before: int, entry: Entry) -> None:
    assert MAX_DEFERRALS == 20
    decision = judge(leased(own_faults=before), OWN_FAULT)
    assert (decision.disposition, decision.entry) == (Disposition.WAITING, entry)
    last = judge(leased(attempt=6, own_faults=before), OWN_FAULT)
    assert last.cause is (Cause.ATTEMPTS_EXHAUSTED if entry is Entry.ATTEMPT else None)


@pytest.mark.parametrize("category", [c for c in Category if c is not Category.OWN_FAULT])
def test_no_other_wait_is_ever_charged(category: Category) -> None:
    decision = judge(leased(attempt=6, own_faults=10**6), Outcome(OutcomeKind.DEFERRED, category))
    assert (decision.disposition, decision.entry) == (Disposition.WAITING, Entry.DEFERRAL)


@pytest.mark.parametrize("category", Category)
def test_an_interruption_is_never_charged_whatever_its_reason(category: Category) -> None:
    decision = judge(leased(attempt=6, own_faults=10**6), Outcome(OutcomeKind.INTERRUPTED, category))
    assert (decision.disposition, decision.entry) == (Disposition.WAITING, Entry.DEFERRAL)


def test_a_deferral_waits_at_least_its_minimum() -> None:
    for asked, delay in ((0, MIN_DEFERRAL), (-5, MIN_DEFERRAL), (MINUTE, MINUTE)):
        assert decide(leased(), OWN_FAULT, PATIENT, NOW, 0.0, asked).delay_us == delay
        assert decide(leased(), outcomes.INTERRUPTED, PATIENT, NOW, 0.0, asked).delay_us == delay


def test_a_disabled_destination_holds_and_age_runs() -> None:
    held = judge(leased(own_faults=19), DISABLED)
    assert (held.disposition, held.hold) == (Disposition.WAITING, Hold.DESTINATION_DISABLED)
    old = judge(leased(deadline_at=NOW + 1), DISABLED)
    assert (old.cause, old.hold, old.entry) == (Cause.AGE_EXHAUSTED, Hold.NONE, Entry.DEFERRAL)


# ---- late reports (contract 2) ------------------------------------------------------------------


@pytest.mark.parametrize("standing", [d for d in Disposition if d is not Disposition.LEASED])
@pytest.mark.parametrize("kind", OutcomeKind)
def test_late_reports(standing: Disposition, kind: OutcomeKind) -> None:
    row = Standing(standing, 1, 6, FAR, ambiguous=True)
    decision = judge(row, Outcome(kind, Category.OK, flags=Flag.RECEIVER_DUPLICATE))
    accepted = standing is Disposition.WAITING and kind in SUCCESS
    assert decision == Decision(
        SUCCESS[kind] if accepted else standing,
        Entry.EVIDENCE,
        Category.OK,
        ambiguous=not accepted,
        flags=Flag.LATE | Flag.RECEIVER_DUPLICATE,
    )


def test_a_late_success_is_accepted_past_both_budgets() -> None:
    row = Standing(Disposition.WAITING, 6, 6, NOW - DAY, ambiguous=True)
    decision = judge(row, outcomes.DELIVERED, OnUnknown.HOLD)
    assert (decision.disposition, decision.ambiguous) == (Disposition.DELIVERED, False)
