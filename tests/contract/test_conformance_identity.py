"""Accepting work: one identity is one delivery, whatever is tried (contract 2.1)."""

from __future__ import annotations

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import DELIVERED, PATIENT, PERMANENT, START, Fault, delivery_of, event, work

from redrive.domain.delivery import Decided, Disposition
from redrive.domain.policy import DAY, HOUR, SECOND

TABLES = ("identity", "delivery", "delivery_state", "event", "policy", "repeat", "repeat_count")


def counts(bench: Bench) -> dict[str, int]:
    return {table: bench.rows(table) for table in TABLES}


def test_the_same_work_twice_is_one_delivery_and_the_second_call_says_so(bench: Bench) -> None:
    first = bench.enqueue()
    second = bench.enqueue()
    assert first.decided is Decided.CREATED
    assert second == first.__class__(first.seq, first.delivery_id, Decided.DUPLICATE)
    assert bench.rows("delivery") == 1
    assert bench.rows("delivery_state") == 1


def test_another_payload_under_the_same_identity_is_a_conflict_and_changes_nothing(bench: Bench) -> None:
    first = bench.enqueue(payload=b"one", policy=PATIENT)
    before = bench.everything(first.seq)
    second = bench.enqueue(payload=b"two", priority=0, delay_us=HOUR)
    assert (second.seq, second.delivery_id, second.decided) == (
        first.seq,
        first.delivery_id,
        Decided.CONFLICT,
    )
    assert bench.everything(first.seq) == before
    assert bench.lease().payload == b"one"


@pytest.mark.parametrize("end", [DELIVERED, PERMANENT])
def test_a_duplicate_of_finished_work_revives_nothing(bench: Bench, end: object) -> None:
    made = bench.enqueue()
    bench.close(bench.lease(), end)  # type: ignore[arg-type]
    before = bench.everything(made.seq)
    assert bench.enqueue().decided is Decided.DUPLICATE
    assert bench.everything(made.seq) == before
    assert bench.reserve() == []


def test_repeats_are_listed_singly_up_to_eight_then_counted(bench: Bench) -> None:
    made = bench.enqueue()
    for number in range(6):
        bench.advance(SECOND)
        bench.enqueue_all([work(), work(payload=b"other")], producer=f"p{number}")
    listed, duplicates, conflicts = bench.repeats(made.seq)
    assert (duplicates, conflicts) == (6, 6)
    assert [(r.number, r.decided, r.producer) for r in listed] == [
        (number, ("duplicate", "conflict")[(number - 1) % 2], f"p{(number - 1) // 2}") for number in range(1, 9)
    ]
    assert [r.at for r in listed] == [START + SECOND * ((n + 1) // 2) for n in range(1, 9)]
    assert {r.path for r in listed} == {"library"}


def test_a_batch_answers_each_item_in_order_its_own_duplicates_too(bench: Bench) -> None:
    bench.enqueue("old")
    batch = [work("a"), work("old"), work("a"), work("b"), work("a", payload=b"other"), work("b")]
    made = bench.enqueue_all(batch)
    assert [one.decided.value for one in made] == [
        "created", "duplicate", "duplicate", "created", "conflict", "duplicate",
    ]  # fmt: skip
    assert [one.delivery_id for one in made] == [item.delivery_id for item in batch]
    assert made[0].seq == made[2].seq == made[4].seq
    assert bench.rows("delivery") == 3


def test_a_batch_is_one_transaction_and_is_rolled_back_whole(bench: Bench) -> None:
    bench.enqueue("old")
    before = counts(bench)
    with pytest.raises(Fault):
        bench.enqueue_all([work("a"), work("old"), work("b")], fail=True)
    assert counts(bench) == before
    assert [one.decided for one in bench.enqueue_all([work("a"), work("b")])] == [Decided.CREATED] * 2


def test_an_event_and_its_deliveries_are_one_transaction(bench: Bench) -> None:
    before = counts(bench)
    with pytest.raises(Fault):
        bench.publish(event(), ["dst_1", "dst_2"], fail=True)
    assert counts(bench) == before
    assert bench.publish(event(), ["dst_1", "dst_2"]).decided is Decided.CREATED


def test_an_events_payload_is_stored_once_and_reaches_each_delivery_byte_for_byte(bench: Bench) -> None:
    body = b'{ "order" : 7.10, "name":"\xc3\xa9\\u001B" }\n'
    made = bench.publish(event(payload=body), ["dst_1", "dst_2"])
    leases = bench.reserve(routes=[("webhook", 1)])
    assert [lease.payload for lease in leases] == [body, body]
    assert [lease.destination for lease in leases] == ["dst_1", "dst_2"]
    assert {(x.event_id, x.event_type, x.occurred_at) for x in leases} == {
        (made.event_id, "order.paid", START - SECOND)
    }
    assert bench.rows("event") == 1


def test_fan_out_is_frozen_at_the_first_publish(bench: Bench) -> None:
    first = bench.publish(event(), ["dst_1", "dst_2"])
    assert [one.decided for one in first.deliveries] == [Decided.CREATED] * 2
    again = bench.publish(event(), ["dst_2", "dst_3"])
    assert again.decided is Decided.DUPLICATE
    assert [one.delivery_id for one in again.deliveries] == [one.delivery_id for one in first.deliveries]
    assert {one.decided for one in again.deliveries} == {Decided.DUPLICATE}
    assert bench.rows("delivery") == 2
    assert bench.repeats(first.deliveries[0].seq)[1] == 1


def test_a_fan_out_to_nobody_is_frozen_too(bench: Bench) -> None:
    assert bench.publish(event()).decided is Decided.CREATED
    again = bench.publish(event(), ["dst_1"])
    assert again.decided is Decided.DUPLICATE
    assert again.deliveries == ()
    assert bench.rows("delivery") == 0


@pytest.mark.parametrize("other", [event(payload=b"{}"), event(event_type="order.refunded")])
def test_an_event_with_another_payload_or_type_is_a_conflict(bench: Bench, other: object) -> None:
    first = bench.publish(event(), ["dst_1"])
    again = bench.publish(other, ["dst_1", "dst_2"])  # type: ignore[arg-type]
    assert again.decided is Decided.CONFLICT
    assert [one.seq for one in again.deliveries] == [first.deliveries[0].seq]
    (lease,) = bench.reserve(routes=[("webhook", 1)])
    assert (lease.payload, lease.event_type) == (event().payload, "order.paid")


def test_two_processes_that_accept_the_same_work_at_once_make_one_delivery(bench: Bench) -> None:
    hosts = [bench, bench.host(), bench.host()]
    batches = bench.together(
        *(host.ledger.accept([work(f"k{n}")], "library", "p", False) for n in range(10) for host in hosts)
    )
    made = [one for batch in batches for one in batch]
    assert [one.decided for one in made].count(Decided.CREATED) == 10
    assert len({one.seq for one in made}) == 10
    assert bench.rows("delivery") == 10


def test_one_event_published_by_two_processes_at_once_fans_out_once(bench: Bench) -> None:
    source = event()
    fan_out = [delivery_of(source, "dst_1")]
    hosts = [bench, bench.host()]
    made = bench.together(*(host.ledger.accept_event(source, fan_out, False) for host in hosts))
    assert sorted(one.decided for one in made) == [Decided.CREATED, Decided.DUPLICATE]
    assert bench.rows("delivery") == 1


def test_work_is_born_waiting_with_an_untouched_budget(bench: Bench) -> None:
    state = bench.state(bench.enqueue(priority=1).seq)
    assert state.disposition is Disposition.WAITING
    assert (state.generation, state.attempt, state.fence, state.deferrals) == (0, 0, 0, 0)
    assert (state.max_attempts, state.priority) == (PATIENT.max_attempts, 1)
    assert (state.available_at, state.deadline_at) == (START, START + DAY)


def test_the_age_budget_runs_from_when_the_work_is_due(bench: Bench) -> None:
    later = bench.state(bench.enqueue("later", delay_us=6 * HOUR).seq)
    assert (later.available_at, later.deadline_at) == (START + 6 * HOUR, START + 6 * HOUR + DAY)
    fixed = bench.state(bench.enqueue("fixed", available_at=START + 9).seq)
    assert (fixed.available_at, fixed.deadline_at) == (START + 9, START + 9 + DAY)
    past = bench.state(bench.enqueue("past", available_at=START - DAY).seq)
    assert past.deadline_at == START + DAY


def test_refused_enqueues_are_counted_by_code(bench: Bench) -> None:
    bench.run(bench.ledger.count_rejections({"payload_invalid": 2, "invalid_input": 1}))
    counted = bench.run(bench.ledger.count_rejections({"payload_invalid": 1}))
    assert counted == {"payload_invalid": 3, "invalid_input": 1}
