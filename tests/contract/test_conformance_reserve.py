"""Reserving an attempt: who gets what, when, and what it costs (contract 2.2 and 2.4)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import DELIVERED, JOB, LEASE, PATIENT, RETRYABLE, START, delivery_of, event, work

from redrive.domain import identity
from redrive.domain.delivery import Disposition, Hold
from redrive.domain.policy import DAY, HOUR, SECOND


def test_a_reservation_charges_the_attempt_and_raises_the_fence(bench: Bench) -> None:
    made = bench.enqueue()
    lease = bench.lease()
    state = bench.state(made.seq)
    assert state.disposition is Disposition.LEASED
    assert (state.attempt, state.fence, state.leased_by) == (1, 1, bench.worker)
    assert (state.started_at, state.leased_until) == (START, START + LEASE)
    assert (lease.attempt, lease.fence, lease.generation) == (1, 1, 0)
    assert (lease.started_at, lease.leased_until) == (START, START + LEASE)


def test_a_lease_carries_all_that_its_handler_needs(bench: Bench) -> None:
    item = work("k", scope="shop-4", payload=b"\x00\xff", content_type="application/octet-stream")
    (made,) = bench.enqueue_all([item])
    lease = bench.lease()
    assert (lease.seq, lease.delivery_id) == (made.seq, item.delivery_id)
    assert (lease.handler, lease.tenant, lease.scope, lease.destination) == ("job", "acme", "shop-4", "dst_1")
    assert (lease.payload, lease.payload_hash) == (b"\x00\xff", item.payload_hash)
    assert (lease.content_type, lease.envelope_version) == ("application/octet-stream", 1)
    assert (lease.max_attempts, lease.deadline_at) == (3, START + DAY)
    assert bench.run(bench.ledger.policy(lease.policy_version)) == PATIENT
    assert (lease.event_id, lease.event_type, lease.occurred_at) == (None, None, None)


def test_nothing_is_reserved_before_it_is_due(bench: Bench) -> None:
    bench.enqueue(delay_us=HOUR)
    bench.advance(HOUR - 1)
    assert bench.reserve() == []
    bench.advance(1)
    assert bench.lease().started_at == START + HOUR


def test_a_delay_longer_than_a_lease_is_one_reservation_when_due(bench: Bench) -> None:
    """O-31: the wait is a due time on the ledger; no lease runs during it."""
    made = bench.enqueue(delay_us=6 * HOUR)
    for _ in range(6):
        assert bench.reserve(lease_us=HOUR) == []
        assert not bench.overdue()
        assert bench.reap().expired_leases == 0
        bench.advance(HOUR)
    lease = bench.lease(HOUR)
    assert (lease.fence, lease.leased_until) == (1, START + 7 * HOUR)
    bench.close(lease, DELIVERED)
    assert len(bench.attempts(made.seq)) == 1


def test_claims_go_by_priority_then_by_age(bench: Bench) -> None:
    bench.enqueue("low", priority=3)
    bench.enqueue("normal-late", delay_us=2)
    bench.enqueue("normal-early", delay_us=1)
    bench.enqueue("normal-tie", delay_us=1)
    bench.enqueue("urgent", priority=0, delay_us=3)
    bench.enqueue("high", priority=1)
    bench.advance(3)
    order = ["urgent", "high", "normal-early", "normal-tie", "normal-late", "low"]
    got = [lease.delivery_id for lease in bench.reserve()]
    assert got == [identity.delivery_id("job", "acme", key) for key in order]


def test_a_retry_waits_its_turn_behind_work_that_was_due_before_it(bench: Bench) -> None:
    first = bench.enqueue("first")
    bench.close(bench.lease(), RETRYABLE)
    second = bench.enqueue("second")
    bench.until_due(first.seq)
    assert [lease.seq for lease in bench.reserve()] == [second.seq, first.seq]


def test_a_claim_never_takes_more_than_asked_for(bench: Bench) -> None:
    other = ("other", 1)
    bench.enqueue_all([work(f"a{n}", priority=n % 4) for n in range(20)])
    bench.enqueue_all([work(f"b{n}", handler="other") for n in range(20)])
    sizes = [len(bench.reserve(limit, routes=[JOB, other])) for limit in (1, 3, 7, 0, 19, 30, 5)]
    assert sizes == [1, 3, 7, 0, 19, 10, 0]


def test_what_is_leased_is_not_handed_out_again(bench: Bench) -> None:
    bench.enqueue()
    bench.lease()
    other = bench.join()
    assert bench.reserve(worker=other) == []
    bench.advance(LEASE + 1)
    assert bench.reserve(worker=other) == [], "an expired lease goes through the reaper"


def test_held_work_fills_no_claim_and_goes_on_when_released(bench: Bench) -> None:
    source = event()
    bench.publish(source, ["dst_1", "dst_2"])
    bench.hold("dst_1")
    route = ("webhook", 1)
    assert [lease.destination for lease in bench.reserve(routes=[route])] == ["dst_2"]
    assert bench.next_due(route) is None
    born_held = delivery_of(event("evt-2"), "dst_1")._replace(hold=Hold.DESTINATION_DISABLED, payload=b"{}")
    bench.enqueue_all([born_held])
    assert bench.reserve(routes=[route]) == []
    bench.hold("dst_1", on=False)
    leases = bench.reserve(routes=[route])
    assert [lease.destination for lease in leases] == ["dst_1", "dst_1"]
    assert [lease.attempt for lease in leases] == [1, 1], "waiting cost nothing"


def test_no_attempt_starts_at_or_past_the_deadline(bench: Bench) -> None:
    bench.enqueue_all([work("a"), work("b")])
    bench.advance(DAY - 1)
    assert len(bench.reserve(1)) == 1
    bench.advance(1)
    assert bench.reserve() == []


@pytest.mark.parametrize("routes", [[("other", 1)], [("job", 2)], [("job", 0)], []])
def test_a_worker_never_claims_what_it_cannot_decode(bench: Bench, routes: list[tuple[str, int]]) -> None:
    made = bench.enqueue()
    before = bench.everything(made.seq)
    assert bench.reserve(routes=routes) == []
    assert bench.everything(made.seq) == before


def test_no_handlers_backlog_keeps_another_from_being_claimed(bench: Bench) -> None:
    routes = [JOB, ("other", 1), ("third", 1)]
    bench.enqueue_all([work(f"a{n}") for n in range(50)])
    bench.enqueue_all([work("b", handler="other"), work("c", handler="third", priority=3)])
    claimed = {lease.handler for _ in range(3) for lease in bench.reserve(10, routes=routes)}
    assert claimed == {"job", "other", "third"}


def test_two_workers_never_hold_the_same_delivery(bench: Bench) -> None:
    bench.enqueue_all([work(f"k{n}") for n in range(60)])
    hosts = [bench, bench.host(), bench.host()]
    claims = bench.together(*(host.reserving(7, [JOB], LEASE, host.worker) for _ in range(5) for host in hosts))
    taken = [lease.seq for claim in claims for lease in claim]
    assert len(taken) == len(set(taken)) == 60


def test_attempt_max_is_the_last_to_start(bench: Bench) -> None:
    """Six of six: five failures schedule a retry each, the sixth ends it."""
    six = replace(PATIENT, max_attempts=6)
    made = bench.enqueue(policy=six)
    for number in range(1, 7):
        bench.until_due(made.seq)
        assert bench.standing(made.seq) is Disposition.WAITING
        lease = bench.lease()
        assert lease.attempt == number
        bench.close(lease, RETRYABLE)
    letter = bench.dead_letter(made.seq)
    assert (letter.cause, letter.attempts) == ("attempts_exhausted", 6)
    bench.advance(HOUR)
    assert bench.reserve() == []
    assert [a.number for a in bench.attempts(made.seq)] == [1, 2, 3, 4, 5, 6]
    assert [a.fence for a in bench.attempts(made.seq)] == [1, 2, 3, 4, 5, 6]


def test_next_due_is_the_earliest_that_waits_of_any_priority(bench: Bench) -> None:
    assert bench.next_due() is None
    bench.enqueue("a", delay_us=3 * HOUR)
    assert bench.next_due() == START + 3 * HOUR
    bench.enqueue("b", delay_us=HOUR, priority=3)
    assert bench.next_due() == START + HOUR
    bench.enqueue("c", handler="other", delay_us=SECOND)
    assert bench.next_due() == START + HOUR
    assert bench.next_due(JOB, ("other", 1)) == START + SECOND


def test_outstanding_means_leased_or_able_to_be(bench: Bench) -> None:
    def outstanding() -> bool:
        return bench.run(bench.ledger.outstanding([JOB]))

    assert not outstanding()
    bench.enqueue(delay_us=HOUR)
    bench.enqueue("other", handler="other")
    assert outstanding()
    bench.advance(HOUR)
    lease = bench.lease()
    assert outstanding()
    bench.close(lease, DELIVERED)
    assert not outstanding()
    bench.enqueue("held", hold=Hold.DESTINATION_DISABLED)
    assert not outstanding()
