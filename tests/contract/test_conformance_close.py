"""Closing an attempt: what follows from each outcome, by the ledger's clock and the row's current budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import (
    DELIVERED,
    HELD,
    INTERRUPTED,
    JOB,
    LEASE,
    NO_OP,
    OWN_FAULT,
    PATIENT,
    PERMANENT,
    RETRYABLE,
    START,
    UNKNOWN,
    work,
)

from redrive.domain.delivery import Closed, Disposition
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import DAY, HOUR, SECOND, OnUnknown


@pytest.mark.parametrize(("outcome", "stands"), [(DELIVERED, Disposition.DELIVERED), (NO_OP, Disposition.NO_OP)])
def test_a_success_ends_the_delivery_with_one_attempt_row(bench: Bench, outcome: Outcome, stands: Disposition) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(SECOND)
    assert bench.close(lease, outcome) is Closed.APPLIED
    state = bench.state(made.seq)
    assert (state.disposition, state.attempt, state.fence) == (stands, 1, 1)
    assert (state.leased_by, state.leased_until, state.started_at) == (None, None, None)
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.number, attempt.fence, attempt.worker) == (1, 1, bench.worker)
    assert (attempt.started_at, attempt.ended_at, attempt.duration) == (START, START + SECOND, 1234)
    assert (attempt.outcome, attempt.category, attempt.status) == (
        outcome.kind,
        outcome.category,
        outcome.status,
    )
    assert (attempt.next_at, attempt.flags) == (None, 0)
    assert bench.dead_letters(made.seq) == []
    bench.advance(DAY)
    assert bench.reserve() == []


def test_a_retry_never_runs_before_its_recorded_time(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(SECOND)
    bench.close(lease, RETRYABLE)
    at = START + SECOND + 4 * SECOND
    state = bench.state(made.seq)
    assert (state.disposition, state.available_at, state.lane) == (Disposition.WAITING, at, 1)
    assert bench.attempts(made.seq)[0].next_at == at
    bench.advance_to(at - 1)
    assert bench.reserve() == []
    bench.advance_to(at)
    assert bench.lease().attempt == 2


def test_the_delay_is_added_to_ledger_time_at_the_close(bench: Bench) -> None:
    """A worker whose clock is an hour off, or whose lease is old, moves nothing."""
    made = bench.enqueue()
    wrong = bench.host(skew=-HOUR)
    (lease,) = wrong.reserve()
    assert lease.started_at == START
    bench.advance(20 * SECOND)
    wrong.close(lease._replace(started_at=START - HOUR, deadline_at=0, attempt=9), RETRYABLE)
    assert bench.state(made.seq).available_at == START + 24 * SECOND
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.number, attempt.ended_at) == (1, START + 20 * SECOND)


def test_what_a_target_asks_for_is_waited_for_and_recorded(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), replace(RETRYABLE, retry_after_us=HOUR))
    assert bench.state(made.seq).available_at == START + HOUR
    assert bench.attempts(made.seq)[0].retry_after == HOUR


@pytest.mark.parametrize(
    ("deadline", "stands"),
    [(START + 4 * SECOND, Disposition.DEAD), (START + 4 * SECOND + 1, Disposition.WAITING)],
)
def test_the_deadline_is_read_again_at_the_close(bench: Bench, deadline: int, stands: Disposition) -> None:
    """Not from the lease that the worker holds: the row may say otherwise by now."""
    made = bench.enqueue()
    lease = bench.lease()
    bench.tamper(made.seq, deadline_at=deadline)
    bench.close(lease, RETRYABLE)
    assert bench.standing(made.seq) is stands


def test_a_deadline_moved_out_meanwhile_lets_the_retry_wait(bench: Bench) -> None:
    short = replace(PATIENT, max_age=3 * SECOND)
    made = bench.enqueue(policy=short)
    lease = bench.lease()
    bench.tamper(made.seq, deadline_at=START + DAY)
    bench.close(lease, RETRYABLE)
    assert bench.standing(made.seq) is Disposition.WAITING


def test_a_retry_that_does_not_fit_the_age_budget_ends_as_age_exhausted(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, max_age=HOUR))
    bench.close(bench.lease(), replace(RETRYABLE, retry_after_us=10**20))
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "http_5xx", 1)


def test_permanent_ends_at_once_with_its_category(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), Outcome(OutcomeKind.PERMANENT, Category.PAYLOAD_INVALID))
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("permanent", "payload_invalid", 1)
    bench.advance(DAY)
    assert bench.reserve() == []
    assert bench.next_due() is None


def test_a_dead_letter_holds_the_evidence(bench: Bench) -> None:
    made = bench.enqueue(scope="shop-4", policy=replace(PATIENT, max_attempts=2))
    bench.close(bench.lease(), UNKNOWN)
    bench.until_due(made.seq)
    lease = bench.lease()
    bench.advance(SECOND)
    bench.close(lease, RETRYABLE)
    assert bench.dead_letter(made.seq)._asdict() == {
        "generation": 0,
        "state": "open",
        "handler": "job",
        "tenant": "acme",
        "scope": "shop-4",
        "destination": "dst_1",
        "cause": "attempts_exhausted",
        "category": "http_5xx",
        "attempts": 2,
        "first_at": START,
        "last_at": START + 5 * SECOND,
        "ambiguous": 1,
        "policy_version": replace(PATIENT, max_attempts=2).version,
        "died_at": START + 5 * SECOND,
    }


@pytest.mark.parametrize("outcome", [OWN_FAULT, INTERRUPTED])
def test_what_never_started_costs_no_attempt_and_waits_a_moment(bench: Bench, outcome: Outcome) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), outcome)
    state = bench.state(made.seq)
    assert (state.disposition, state.attempt, state.fence) == (Disposition.WAITING, 0, 1)
    assert state.available_at == START + SECOND
    assert bench.attempts(made.seq) == []
    bench.advance(SECOND)
    lease = bench.lease()
    assert (lease.attempt, lease.fence, lease.deferrals) == (1, 2, 1)
    bench.close(lease, DELIVERED)
    assert [(a.number, a.fence, a.deferrals) for a in bench.attempts(made.seq)] == [(1, 2, 1)]


def test_a_deferral_waits_as_long_as_it_must(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), OWN_FAULT, min_delay_us=30 * SECOND)
    assert bench.state(made.seq).available_at == START + 30 * SECOND


def test_repeated_deferrals_are_one_entry_and_a_count(bench: Bench) -> None:
    made = bench.enqueue()
    for _ in range(5):
        bench.until_due(made.seq)
        bench.close(bench.lease(), INTERRUPTED)
    assert bench.kinds(made.seq) == ["interrupted"]
    assert bench.state(made.seq).deferrals == 5
    bench.until_due(made.seq)
    bench.close(bench.lease(), OWN_FAULT)
    assert bench.kinds(made.seq) == ["interrupted", "deferred"]


def test_the_twentieth_own_fault_in_a_row_is_charged(bench: Bench) -> None:
    made = bench.enqueue()
    for number in range(1, 21):
        bench.until_due(made.seq)
        bench.close(bench.lease(), OWN_FAULT)
        assert bench.state(made.seq).attempt == (number == 20)
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.outcome, attempt.category) == ("deferred", "own_fault")
    assert (attempt.number, attempt.fence, attempt.deferrals) == (1, 20, 19)
    assert bench.state(made.seq).deferrals == 0


def test_interruptions_are_never_charged_however_many(bench: Bench) -> None:
    made = bench.enqueue()
    for _ in range(25):
        bench.until_due(made.seq)
        bench.close(bench.lease(), INTERRUPTED)
    bench.until_due(made.seq)
    bench.close(bench.lease(), OWN_FAULT)
    assert bench.state(made.seq).attempt == 0


def test_every_parking_is_on_the_ledger(bench: Bench) -> None:
    """A second one too, with the same category as the first: it holds the row again."""
    route = ("webhook", 1)
    disabled = Outcome(OutcomeKind.DEFERRED, Category.DESTINATION_DISABLED)
    seq = bench.enqueue(handler="webhook").seq
    for _ in range(2):
        bench.until_due(seq)
        (lease,) = bench.reserve(routes=[route])
        bench.close(lease, disabled)
        assert bench.state(seq).hold == HELD
        assert bench.reserve(routes=[route]) == []
        bench.hold("dst_1", on=False)
    assert bench.kinds(seq) == ["deferred", "released"] * 2


def test_a_deferral_past_the_deadline_is_age_exhausted_without_an_attempt(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, max_age=SECOND))
    bench.close(bench.lease(), OWN_FAULT)
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.attempts, letter.first_at, letter.last_at) == (
        "age_exhausted",
        0,
        None,
        None,
    )
    assert bench.state(made.seq).attempt == 0


def test_an_unknown_outcome_is_charged_and_retried(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), UNKNOWN)
    state = bench.state(made.seq)
    assert (state.disposition, state.attempt, state.ambiguous) == (Disposition.WAITING, 1, 1)
    bench.until_due(made.seq)
    assert bench.lease().ambiguous


def test_an_unknown_outcome_is_held_for_a_person_where_the_policy_says_so(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, on_unknown=OnUnknown.HOLD))
    bench.close(bench.lease(), UNKNOWN)
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.ambiguous) == ("ambiguous", "timeout_sent", 1)


def test_a_batch_answers_each_closing_in_order_and_each_stands_alone(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(7)])
    leases = bench.reserve()
    ends = [DELIVERED, RETRYABLE, PERMANENT, NO_OP, INTERRUPTED, DELIVERED, UNKNOWN]
    bench.close(leases[0], RETRYABLE)
    missing = leases[6]._replace(seq=999)
    results = bench.close_all(list(zip([*leases[:6], missing], ends, strict=True)))
    assert results == [
        Closed.LATE_ACCEPTED,
        *[Closed.APPLIED] * 5,
        Closed.MISSING,
    ]
    assert [bench.standing(lease.seq).label for lease in leases] == [
        "delivered", "waiting", "dead", "no_op", "waiting", "delivered", "leased",
    ]  # fmt: skip


def test_one_bad_success_in_a_batch_does_not_undo_the_others(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(3)])
    leases = bench.reserve()
    bench.close(leases[1], DELIVERED)
    assert bench.close_all([(lease, DELIVERED) for lease in leases]) == [
        Closed.APPLIED,
        Closed.ALREADY,
        Closed.APPLIED,
    ]
    assert [len(bench.attempts(lease.seq)) for lease in leases] == [1, 1, 1]


def test_a_close_keeps_what_the_receiver_said(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), replace(DELIVERED, category=Category.RECEIVER_DUPLICATE, flags=Flag.RECEIVER_DUPLICATE))
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.category, attempt.flags) == ("receiver_duplicate", Flag.RECEIVER_DUPLICATE)


def test_what_receivers_called_duplicates_is_counted_once_for_each_attempt_and_by_destination(bench: Bench) -> None:
    seen = replace(DELIVERED, category=Category.RECEIVER_DUPLICATE, flags=Flag.RECEIVER_DUPLICATE)
    refused = replace(RETRYABLE, flags=Flag.RECEIVER_DUPLICATE)
    bench.enqueue_all([work(f"k{n}", destination="a" if n < 4 else "b") for n in range(7)])
    leases = sorted(bench.reserve(), key=lambda lease: lease.seq)
    outcomes = [seen, seen, DELIVERED, refused, seen, NO_OP, seen]
    for _ in range(2):  # the second report of the same end changes nothing
        bench.close_all(list(zip(leases, outcomes, strict=True)))
        assert bench.receiver_duplicates() == {"a": 3, "b": 2}
    bench.close(leases[2], seen)  # recorded as delivered before: evidence, and no attempt of its own
    assert bench.receiver_duplicates() == {"a": 3, "b": 2}


@pytest.mark.parametrize("kind", [DELIVERED, RETRYABLE])
def test_an_excerpt_is_kept_where_an_operator_turned_it_on(bench: Bench, kind: Outcome) -> None:
    bench.enqueue_all([work("a"), work("b")])
    with_one, without = bench.reserve()
    bench.close_all([(with_one, replace(kind, excerpt="busy")), (without, kind)])
    assert [bench.attempts(lease.seq)[0].excerpt for lease in (with_one, without)] == ["busy", None]


def test_the_same_lease_twice_in_a_batch_is_closed_once(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    assert bench.close_all([(lease, DELIVERED)] * 3) == [Closed.APPLIED, Closed.ALREADY, Closed.ALREADY]
    assert len(bench.attempts(made.seq)) == 1


# --- cancelling


def test_cancelled_waiting_work_never_starts(bench: Bench) -> None:
    made = bench.enqueue()
    bench.cancel(made.seq)
    assert bench.standing(made.seq) is Disposition.CANCELLED
    bench.advance(DAY)
    assert bench.reserve() == []
    bench.reap()
    assert bench.standing(made.seq) is Disposition.CANCELLED


@pytest.mark.parametrize(
    ("outcome", "stands"),
    [
        (DELIVERED, Disposition.DELIVERED),
        (NO_OP, Disposition.NO_OP),
        (RETRYABLE, Disposition.CANCELLED),
        (PERMANENT, Disposition.CANCELLED),
        (UNKNOWN, Disposition.CANCELLED),
        (INTERRUPTED, Disposition.CANCELLED),
    ],
)
def test_cancelling_leased_work_is_a_request_and_delivered_wins(
    bench: Bench, outcome: Outcome, stands: Disposition
) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.cancel(made.seq)
    assert bench.standing(made.seq) is Disposition.LEASED
    assert bench.close(lease, outcome) is Closed.APPLIED
    assert bench.standing(made.seq) is stands
    assert bench.dead_letters(made.seq) == []
    assert bench.outcomes(made.seq) == ([] if outcome is INTERRUPTED else [(outcome.kind, outcome.category)])
    assert bench.kinds(made.seq)[-1] == ("cancelled" if stands is Disposition.CANCELLED else "cancel_requested")


@pytest.mark.parametrize("outcome", [DELIVERED, NO_OP])
def test_a_success_wins_over_a_cancellation_when_it_is_late_too(bench: Bench, outcome: Outcome) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.cancel(made.seq)
    bench.advance(LEASE)
    assert bench.close(lease, outcome) is Closed.APPLIED
    assert bench.standing(made.seq).label == outcome.kind


def test_a_cancelled_delivery_whose_worker_is_lost_is_not_started_again(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.cancel(made.seq)
    bench.lose(lease)
    assert bench.standing(made.seq) is Disposition.CANCELLED
    assert bench.outcomes(made.seq) == [("unknown", "worker_lost")]
    assert bench.reserve(routes=[JOB], lease_us=LEASE) == []
