"""Late writes and fences: what an old lease may still say (contract 1 and 2)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import (
    DELIVERED,
    INTERRUPTED,
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
from redrive.domain.outcome import Category, Flag, Outcome
from redrive.domain.policy import SECOND, OnUnknown

ANY = [DELIVERED, NO_OP, RETRYABLE, PERMANENT, UNKNOWN, INTERRUPTED, OWN_FAULT]


@pytest.mark.parametrize("outcome", [DELIVERED, RETRYABLE, PERMANENT, UNKNOWN])
def test_a_close_after_expiry_and_before_the_reaper_is_valid_and_flagged_late(bench: Bench, outcome: Outcome) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(LEASE)
    assert bench.close(lease, outcome) is Closed.APPLIED
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.outcome, attempt.flags) == (outcome.kind, Flag.LATE)
    assert bench.reap().expired_leases == 0


def test_a_close_in_the_last_microsecond_is_not_late(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(LEASE - 1)
    bench.close(lease, DELIVERED)
    assert bench.attempts(made.seq)[0].flags == 0


@pytest.mark.parametrize("outcome", ANY)
def test_the_same_end_again_is_already_done_and_changes_nothing(bench: Bench, outcome: Outcome) -> None:
    """An ambiguous commit, retried."""
    made = bench.enqueue()
    lease = bench.lease()
    assert bench.close(lease, outcome) is Closed.APPLIED
    before = bench.everything(made.seq)
    assert [bench.close(lease, outcome) for _ in range(3)] == [Closed.ALREADY] * 3
    assert bench.everything(made.seq) == before


@pytest.mark.parametrize("outcome", [DELIVERED, RETRYABLE, OWN_FAULT])
def test_the_same_end_again_is_already_done_under_a_later_lease_too(bench: Bench, outcome: Outcome) -> None:
    made = bench.enqueue()
    old = bench.lease()
    bench.close(old, outcome if outcome is not DELIVERED else RETRYABLE)
    bench.until_due(made.seq)
    bench.lease()
    before = bench.everything(made.seq)
    again = bench.close(old, outcome)
    if outcome is DELIVERED:
        assert again is Closed.EVIDENCE
    else:
        assert again is Closed.ALREADY
        assert bench.everything(made.seq) == before


def test_a_late_delivered_under_the_latest_fence_is_accepted_while_the_row_waits(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    assert bench.standing(made.seq) is Disposition.WAITING
    assert bench.close(lease, DELIVERED) is Closed.LATE_ACCEPTED
    state = bench.state(made.seq)
    assert (state.disposition, state.attempt, state.fence) == (Disposition.DELIVERED, 1, 1)
    assert bench.outcomes(made.seq) == [("unknown", "worker_lost")], "what was recorded stays"
    assert bench.kinds(made.seq) == ["late_delivered"]
    bench.advance(LEASE)
    assert bench.reserve() == []


def test_a_late_success_accepted_is_then_already_done(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    bench.close(lease, DELIVERED)
    before = bench.everything(made.seq)
    assert bench.close(lease, DELIVERED) is Closed.ALREADY
    assert bench.everything(made.seq) == before


def test_a_late_no_op_is_accepted_as_one(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    assert bench.close(lease, NO_OP) is Closed.LATE_ACCEPTED
    assert bench.standing(made.seq) is Disposition.NO_OP


@pytest.mark.parametrize("outcome", [RETRYABLE, PERMANENT, INTERRUPTED, OWN_FAULT])
def test_a_late_failure_is_evidence_and_moves_nothing(bench: Bench, outcome: Outcome) -> None:
    """The reaper has decided: no second retry, no refund, no dead letter."""
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    before = bench.everything(made.seq)
    assert bench.close(lease, outcome) is Closed.EVIDENCE
    assert bench.everything(made.seq)[:3] == before[:3]
    (entry,) = bench.transitions(made.seq)
    assert (entry.kind, entry.fence) == (f"evidence_{outcome.kind}", 1)
    assert entry.category == outcome.category
    assert bench.close(lease, outcome) is Closed.ALREADY
    assert len(bench.transitions(made.seq)) == 1


@pytest.mark.parametrize("outcome", ANY)
def test_a_stale_fence_changes_no_disposition(bench: Bench, outcome: Outcome) -> None:
    made = bench.enqueue()
    old = bench.lease()
    bench.lose(old)
    bench.until_due(made.seq)
    current = bench.lease()
    state = bench.state(made.seq)
    assert bench.close(old, outcome) in (Closed.EVIDENCE, Closed.ALREADY)
    assert bench.state(made.seq) == state
    assert bench.close(current, DELIVERED) is Closed.APPLIED
    assert bench.outcomes(made.seq) == [("unknown", "worker_lost"), ("delivered", "ok")]


def test_a_stale_fence_is_evidence_while_the_row_waits(bench: Bench) -> None:
    made = bench.enqueue()
    old = bench.lease()
    bench.lose(old)
    bench.until_due(made.seq)
    bench.close(bench.lease(), RETRYABLE)
    assert bench.close(old, DELIVERED) is Closed.EVIDENCE
    assert bench.standing(made.seq) is Disposition.WAITING
    assert bench.kinds(made.seq) == ["evidence_delivered"]


@pytest.mark.parametrize("fence", [-1, 0, 2, 99])
def test_a_fence_that_was_never_given_out_closes_nothing(bench: Bench, fence: int) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    state = bench.state(made.seq)
    forged = lease._replace(fence=fence)
    assert bench.close(forged, DELIVERED, worker=bench.worker) is Closed.EVIDENCE
    assert bench.close(forged, OWN_FAULT, worker=bench.worker) is Closed.EVIDENCE
    assert bench.state(made.seq) == state
    assert bench.attempts(made.seq) == []


@pytest.mark.parametrize("end", [PERMANENT, UNKNOWN])
def test_a_late_delivered_on_a_dead_delivery_is_evidence_and_revives_nothing(bench: Bench, end: Outcome) -> None:
    made = bench.enqueue(policy=replace(PATIENT, on_unknown=OnUnknown.HOLD))
    lease = bench.lease()
    bench.close(lease, end)
    before = bench.everything(made.seq)
    assert bench.close(lease, DELIVERED) is Closed.EVIDENCE
    assert bench.everything(made.seq)[:3] == before[:3]
    assert bench.standing(made.seq) is Disposition.DEAD
    assert [(t.kind, t.fence, t.at) for t in bench.transitions(made.seq)] == [("evidence_delivered", 1, START)]


def test_a_late_delivered_after_the_last_attempts_worker_was_lost_is_evidence(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, max_attempts=1))
    lease = bench.lease()
    bench.lose(lease)
    assert bench.close(lease, DELIVERED) is Closed.EVIDENCE
    assert bench.dead_letter(made.seq).cause == "worker_lost"


def test_nothing_leaves_delivered_by_a_later_report(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.close(lease, DELIVERED)
    for outcome in (RETRYABLE, PERMANENT, NO_OP, UNKNOWN):
        assert bench.close(lease, outcome) is Closed.EVIDENCE
    assert bench.standing(made.seq) is Disposition.DELIVERED
    assert bench.outcomes(made.seq) == [("delivered", "ok")]


# --- extending


def test_extending_keeps_a_lease_that_is_held(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(LEASE - SECOND)
    assert bench.extend(lease) == set()
    assert bench.state(made.seq).leased_until == START + 2 * LEASE - SECOND
    bench.advance(LEASE - SECOND)
    assert bench.reap().expired_leases == 0
    assert bench.close(lease, DELIVERED) is Closed.APPLIED
    assert bench.attempts(made.seq)[0].flags == 0


def test_a_lease_is_never_shortened(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.extend(lease, lease_us=SECOND)
    assert bench.state(made.seq).leased_until == START + LEASE


def test_a_lease_is_extended_only_under_its_fence_and_by_its_holder(bench: Bench) -> None:
    bench.enqueue()
    lease = bench.lease()
    before = bench.state(lease.seq)
    bench.advance(SECOND)
    assert bench.extend(lease, worker=bench.join()) == {lease.seq}
    assert bench.extend(lease._replace(fence=0)) == {lease.seq}
    assert bench.extend(lease._replace(fence=2)) == {lease.seq}
    assert bench.state(lease.seq) == before


def test_a_lost_lease_is_not_won_back(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    before = bench.state(made.seq)
    assert bench.extend(lease) == {made.seq}
    assert bench.state(made.seq) == before


def test_extending_a_batch_names_exactly_those_that_are_lost(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(4)])
    leases = bench.reserve()
    bench.close(leases[1], DELIVERED)
    bench.close(leases[2], Outcome(RETRYABLE.kind, Category.CONNECT))
    bench.advance(SECOND)
    assert bench.extend(*leases) == {leases[1].seq, leases[2].seq}
    assert bench.state(leases[3].seq).leased_until == START + SECOND + LEASE
