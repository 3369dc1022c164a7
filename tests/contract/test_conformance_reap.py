"""The reaper: what a lost worker leaves behind, and what has waited too long (contract 2.5, 2.6)."""

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
    OWN_FAULT,
    PATIENT,
    PERMANENT,
    RETRYABLE,
    START,
    UNKNOWN,
    work,
)

from redrive.domain.delivery import Closed, Disposition
from redrive.domain.outcome import Outcome
from redrive.domain.policy import DAY, HOUR, MINUTE, SECOND, Jitter, OnUnknown


def test_an_expired_lease_is_recorded_as_unknown_worker_lost_and_retried(bench: Bench) -> None:
    made = bench.enqueue()
    bench.lease()
    bench.advance(LEASE - 1)
    assert not bench.overdue()
    assert bench.reap().expired_leases == 0
    bench.advance(1)
    assert bench.overdue()
    assert bench.reap().expired_leases == 1
    assert not bench.overdue()
    state = bench.state(made.seq)
    assert (state.disposition, state.attempt, state.ambiguous) == (Disposition.WAITING, 1, 1)
    assert state.available_at == START + LEASE + 4 * SECOND, "the policy's backoff, from now"
    (attempt,) = bench.attempts(made.seq)
    assert (attempt.number, attempt.worker, attempt.outcome, attempt.category, attempt.flags) == (
        1,
        bench.worker,
        "unknown",
        "worker_lost",
        0,
    )
    assert (attempt.started_at, attempt.ended_at, attempt.next_at) == (
        START,
        START + LEASE,
        state.available_at,
    )


def test_a_lost_worker_is_retried_by_the_same_policy_as_an_error(bench: Bench) -> None:
    spread = replace(PATIENT, jitter=Jitter.EQUAL)
    lost, failed = bench.enqueue("lost", policy=spread), bench.enqueue("failed", policy=spread)
    first, second = bench.reserve()
    bench.advance(LEASE)
    bench.close(second, RETRYABLE, u=0.25)
    bench.reap(u=(0.25,))
    assert first.seq == lost.seq
    assert bench.state(lost.seq).available_at == bench.state(failed.seq).available_at
    assert bench.state(lost.seq).available_at == START + LEASE + 2_500_000


def test_lost_workers_use_up_exactly_the_budget_and_no_more(bench: Bench) -> None:
    """O-01: each start was charged before it began; there is no fourth."""
    made = bench.enqueue()
    for number in (1, 2, 3):
        bench.until_due(made.seq)
        lease = bench.lease()
        assert lease.attempt == number
        bench.lose(lease)
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("worker_lost", "worker_lost", 3)
    assert bench.outcomes(made.seq) == [("unknown", "worker_lost")] * 3
    bench.advance(HOUR)
    assert bench.reserve() == []
    bench.reap()
    assert len(bench.attempts(made.seq)) == 3


def test_a_lost_last_attempt_blocks_nothing_behind_it(bench: Bench) -> None:
    """O-36: the exhausted item leaves, and what came after it is served."""
    bench.enqueue("poison", policy=replace(PATIENT, max_attempts=1))
    behind = bench.enqueue("behind", destination="dst_1")
    (poison,) = bench.reserve(1)
    bench.lose(poison)
    assert bench.standing(poison.seq) is Disposition.DEAD
    assert bench.lease().seq == behind.seq


def test_each_lease_runs_by_its_own_length(bench: Bench) -> None:
    """O-12: a short one comes back after its own time, whatever else the worker holds."""
    bench.enqueue_all([work("short"), work("long")])
    (short,) = bench.reserve(1, lease_us=3 * SECOND)
    (long,) = bench.reserve(1, lease_us=30 * SECOND)
    bench.advance(3 * SECOND)
    bench.reap()
    assert bench.standing(short.seq) is Disposition.WAITING
    assert bench.standing(long.seq) is Disposition.LEASED


@pytest.mark.parametrize("outcome", [DELIVERED, RETRYABLE, PERMANENT])
def test_when_the_finisher_comes_first_the_reaper_finds_nothing(bench: Bench, outcome: Outcome) -> None:
    """O-33."""
    made = bench.enqueue()
    lease = bench.lease()
    bench.advance(LEASE)
    bench.close(lease, outcome)
    before = bench.everything(made.seq)
    assert bench.reap().expired_leases == 0
    assert bench.everything(made.seq) == before


def test_when_the_reaper_comes_first_the_finisher_is_fenced(bench: Bench) -> None:
    """O-33, the other way round."""
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    before = bench.state(made.seq)
    assert bench.close(lease, RETRYABLE) is Closed.EVIDENCE
    assert bench.state(made.seq) == before
    assert bench.close(lease, DELIVERED) is Closed.LATE_ACCEPTED


def test_reaper_and_finisher_at_once_leave_one_end(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(40)])
    leases = bench.reserve(40)
    other = bench.host()
    bench.advance(LEASE)
    closings = [[bench.closing(lease, DELIVERED)] for lease in leases]
    bench.together(
        *(bench.ledger.close_attempts(bench.worker, one) for one in closings),
        *(other.ledger.reap(5, [0.0], [JOB]) for _ in range(8)),
    )
    for lease in leases:
        assert bench.standing(lease.seq) is Disposition.DELIVERED
        assert len(bench.attempts(lease.seq)) == 1


def test_two_reapers_at_once_end_each_lease_once(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(30)])
    leases = bench.reserve(30)
    hosts = [bench, bench.host(), bench.host()]
    bench.advance(LEASE)
    passes = bench.together(*(host.ledger.reap(100, [0.0], [JOB]) for host in hosts))
    assert sum(one.expired_leases for one in passes) == 30
    assert all(len(bench.attempts(lease.seq)) == 1 for lease in leases)


def test_a_pass_is_bounded_and_says_when_there_is_more(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(5)])
    bench.reserve()
    bench.advance(LEASE)
    passes = [bench.reap(limit=2) for _ in range(3)]
    assert [(one.expired_leases, one.more) for one in passes] == [(2, True), (2, True), (1, False)]


def test_the_oldest_lease_is_reaped_first(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(3)])
    lengths = [3 * SECOND, SECOND, 2 * SECOND]
    leases = [bench.reserve(1, lease_us=length)[0] for length in lengths]
    bench.advance(MINUTE)
    bench.reap(limit=1)
    assert [bench.standing(lease.seq).label for lease in leases] == ["leased", "waiting", "leased"]


def test_a_lost_worker_is_held_for_a_person_where_the_policy_says_so(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, on_unknown=OnUnknown.HOLD))
    bench.lose(bench.lease())
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.ambiguous) == ("ambiguous", "worker_lost", 1)


def test_a_reused_name_owns_nothing_of_the_one_before(bench: Bench) -> None:
    """O-35: a worker that restarts on the same host is another worker, and its orphans come back in time."""
    made = bench.enqueue()
    lease = bench.lease()
    again = bench.join()
    assert again != bench.worker
    assert bench.extend(lease, worker=again) == {made.seq}
    bench.run(bench.ledger.retire_worker(bench.worker))
    assert bench.standing(made.seq) is Disposition.LEASED
    bench.lose(lease)
    assert bench.standing(made.seq) is Disposition.WAITING


# --- age


def test_waiting_work_past_its_deadline_is_dead_with_its_last_category(bench: Bench) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), replace(RETRYABLE, retry_after_us=DAY - SECOND))
    bench.advance(DAY - 1)
    assert not bench.overdue()
    assert bench.reap().expired_ages == 0
    bench.advance(1)
    assert bench.overdue()
    assert bench.reap().expired_ages == 1
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "http_5xx", 1)
    assert (letter.first_at, letter.last_at, letter.died_at) == (START, START, START + DAY)
    assert bench.kinds(made.seq) == ["expired"]
    assert not bench.overdue()


def test_work_that_nobody_was_free_for_is_dead_of_age(bench: Bench) -> None:
    made = bench.enqueue()
    bench.advance(DAY)
    bench.reap()
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "age", 0)
    assert (letter.first_at, letter.last_at, letter.ambiguous) == (None, None, 0)


def test_work_that_no_worker_has_a_handler_for_is_unknown_handler(bench: Bench) -> None:
    made = bench.enqueue(handler="nobody")
    bench.advance(DAY)
    bench.reap()
    assert bench.dead_letter(made.seq).category == "unknown_handler"


def test_work_that_no_worker_can_decode_is_undecodable(bench: Bench) -> None:
    made = bench.enqueue(envelope_version=2)
    bench.advance(DAY)
    assert bench.reserve() == []
    bench.reap()
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category, letter.attempts) == ("age_exhausted", "undecodable", 0)


def test_what_another_live_worker_can_decode_is_not_undecodable(bench: Bench) -> None:
    newer = bench.join(routes=[("job", 2)])
    made = bench.enqueue(envelope_version=2)
    bench.advance(DAY)
    bench.run(bench.ledger.extend(newer, [], LEASE))
    bench.reap()
    assert bench.dead_letter(made.seq).category == "age"


def test_a_worker_long_unseen_or_retired_counts_for_nothing(bench: Bench) -> None:
    newer = bench.join(routes=[("job", 2)])
    made, other = (bench.enqueue(key, envelope_version=2) for key in "ab")
    bench.tamper(other.seq, deadline_at=START + 2 * DAY)
    bench.advance(DAY)
    bench.reap()
    assert bench.dead_letter(made.seq).category == "undecodable"
    bench.advance(DAY)
    bench.run(bench.ledger.extend(newer, [], LEASE))
    bench.run(bench.ledger.retire_worker(newer))
    bench.reap()
    assert bench.dead_letter(other.seq).category == "undecodable"


def test_held_work_ages_too(bench: Bench) -> None:
    made = bench.enqueue(handler="webhook")
    bench.hold("dst_1")
    assert bench.state(made.seq).hold == HELD
    bench.advance(DAY)
    bench.extend()
    bench.reap()
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category) == ("age_exhausted", "destination_disabled")
    assert bench.state(made.seq).hold == 0


def test_leased_work_past_its_deadline_is_left_to_its_lease(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, max_age=SECOND))
    lease = bench.lease()
    bench.advance(2 * SECOND)
    assert not bench.overdue()
    assert bench.reap().expired_ages == 0
    assert bench.close(lease, DELIVERED) is Closed.APPLIED
    assert bench.standing(made.seq) is Disposition.DELIVERED


def test_a_lease_that_outlives_the_deadline_ends_as_age_exhausted(bench: Bench) -> None:
    made = bench.enqueue(policy=replace(PATIENT, max_age=SECOND))
    bench.lose(bench.lease())
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.category) == ("age_exhausted", "worker_lost")


@pytest.mark.parametrize("end", [DELIVERED, PERMANENT])
def test_finished_work_never_ages(bench: Bench, end: Outcome) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), end)
    before = bench.everything(made.seq)
    bench.advance(3 * DAY)
    assert not bench.overdue()
    assert bench.reap().expired_ages == 0
    assert bench.everything(made.seq) == before


@pytest.mark.parametrize("outcome", [INTERRUPTED, OWN_FAULT, UNKNOWN])
def test_a_lost_worker_is_never_refunded(bench: Bench, outcome: Outcome) -> None:
    """The reaper charges; a late word that nothing had started takes nothing back."""
    made = bench.enqueue()
    lease = bench.lease()
    bench.lose(lease)
    bench.close(lease, outcome)
    assert bench.state(made.seq).attempt == 1
    assert bench.outcomes(made.seq) == [("unknown", "worker_lost")]
