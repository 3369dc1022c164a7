"""What the database itself refuses, whatever the code above it believes (contract 2.2, 2.7, 2.8)."""

from __future__ import annotations

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import DELIVERED, NO_OP, PERMANENT, RETRYABLE, START, Refused, event

from redrive.domain.delivery import Disposition
from redrive.domain.policy import DAY, SECOND

WAITING, LEASED, DONE, NOTHING, DEAD, CANCELLED = map(int, Disposition)
RESERVED = {"disposition": LEASED, "leased_by": 1, "leased_until": START + SECOND, "started_at": START}
CHARGED = {**RESERVED, "attempt": 2, "fence": 2, "started_at": START + 3600 * SECOND}
"""A second reservation that would be legal."""
ENDED: dict[str, int | None] = {"leased_by": None, "leased_until": None, "started_at": None}


def placed(bench: Bench, where: Disposition) -> int:
    """A delivery that stands ``where``; never its first attempt, so that there is something to go back to."""
    seq = bench.enqueue().seq
    if where is Disposition.CANCELLED:
        bench.cancel(seq)
        return seq
    bench.close(bench.lease(), RETRYABLE)
    if where is Disposition.WAITING:
        return seq
    bench.until_due(seq)
    lease = bench.lease()
    end = {Disposition.DELIVERED: DELIVERED, Disposition.NO_OP: NO_OP, Disposition.DEAD: PERMANENT}.get(where)
    if end is not None:
        bench.close(lease, end)
    assert bench.standing(seq) is where
    return seq


@pytest.mark.parametrize(
    ("where", "change"),
    [
        pytest.param(Disposition.WAITING, {"attempt": 4}, id="attempt-above-max"),
        pytest.param(Disposition.LEASED, {"attempt": 4}, id="attempt-above-max-while-leased"),
        pytest.param(Disposition.WAITING, {"attempt": -1}, id="attempt-below-zero"),
        pytest.param(Disposition.WAITING, {"attempt": 0}, id="refund-without-a-close"),
        pytest.param(Disposition.WAITING, {"attempt": 2}, id="charge-without-a-reservation"),
        pytest.param(Disposition.LEASED, {"attempt": 1}, id="refund-while-leased"),
        pytest.param(Disposition.LEASED, {"disposition": DONE, "attempt": 1, **ENDED}, id="refund-of-a-success"),
        pytest.param(Disposition.LEASED, {"disposition": WAITING, "attempt": 0, **ENDED}, id="refund-of-two"),
        pytest.param(Disposition.LEASED, {"disposition": WAITING, **ENDED, "attempt": 3}, id="waits-at-max"),
        pytest.param(Disposition.WAITING, {"max_attempts": 9}, id="budget-raised"),
        pytest.param(Disposition.LEASED, {"max_attempts": 2}, id="budget-lowered"),
        pytest.param(Disposition.WAITING, {"deadline_at": START + 9 * DAY}, id="deadline-moved"),
        pytest.param(Disposition.LEASED, {"deadline_at": START + 9 * DAY}, id="deadline-moved-while-leased"),
        pytest.param(Disposition.WAITING, {**CHARGED, "started_at": START}, id="reserved-before-it-is-due"),
        pytest.param(Disposition.WAITING, {**CHARGED, "started_at": START + DAY}, id="reserved-past-its-age"),
        pytest.param(Disposition.WAITING, {**CHARGED, "hold": 1}, id="reserved-while-held"),
        pytest.param(Disposition.WAITING, {**RESERVED, "fence": 2}, id="reserved-without-a-charge"),
        pytest.param(Disposition.WAITING, {**RESERVED, "attempt": 2}, id="reserved-without-a-fence"),
        pytest.param(Disposition.WAITING, {**RESERVED, "attempt": 2, "fence": 9}, id="fence-jumps"),
        pytest.param(Disposition.WAITING, {"fence": 0}, id="fence-decreases"),
        pytest.param(Disposition.WAITING, {"fence": 2}, id="fence-grows-without-a-reservation"),
        pytest.param(Disposition.LEASED, {"fence": 3}, id="fence-grows-while-leased"),
        pytest.param(Disposition.LEASED, {"leased_by": 77}, id="lease-changes-hands"),
        pytest.param(Disposition.LEASED, {"leased_until": None}, id="lease-without-an-end"),
        pytest.param(Disposition.LEASED, {"disposition": WAITING}, id="waiting-with-a-lease"),
        pytest.param(Disposition.WAITING, {"generation": 1}, id="generation-while-waiting"),
        pytest.param(Disposition.LEASED, {"generation": 1}, id="generation-while-leased"),
        pytest.param(Disposition.WAITING, {"disposition": 6}, id="unknown-disposition"),
        pytest.param(Disposition.WAITING, {"priority": 4}, id="unknown-priority"),
        pytest.param(Disposition.WAITING, {"lane": 3}, id="unknown-lane"),
        pytest.param(Disposition.DEAD, {"disposition": WAITING}, id="dead-to-waiting-without-a-generation"),
        pytest.param(
            Disposition.DEAD,
            {"disposition": WAITING, "generation": 1},
            id="new-generation-with-the-old-attempts",
        ),
        pytest.param(
            Disposition.DEAD,
            {"disposition": WAITING, "generation": 2, "attempt": 0},
            id="generation-skipped",
        ),
        pytest.param(
            Disposition.DEAD,
            {"disposition": WAITING, "generation": 1, "attempt": 0, "fence": 0},
            id="new-generation-with-an-old-fence",
        ),
        pytest.param(Disposition.DEAD, {"last_category": None}, id="dead-touched"),
    ],
)
def test_an_illegal_change_of_a_delivery_is_refused(
    bench: Bench, where: Disposition, change: dict[str, int | None]
) -> None:
    seq = placed(bench, where)
    before = bench.everything(seq)
    with pytest.raises(Refused):
        bench.force(seq, **change)
    assert bench.everything(seq) == before


def test_the_reservation_that_the_refused_ones_differ_from_is_legal(bench: Bench) -> None:
    seq = placed(bench, Disposition.WAITING)
    bench.force(seq, **CHARGED)
    assert bench.standing(seq) is Disposition.LEASED


@pytest.mark.parametrize("final", [Disposition.DELIVERED, Disposition.NO_OP, Disposition.CANCELLED])
@pytest.mark.parametrize("target", [WAITING, LEASED, DONE, NOTHING, DEAD, CANCELLED])
def test_nothing_leaves_a_final_disposition(bench: Bench, final: Disposition, target: int) -> None:
    seq = placed(bench, final)
    change: dict[str, int | None] = {"disposition": target}
    if target == LEASED:
        state = bench.state(seq)
        change = {**RESERVED, "attempt": state.attempt + 1, "fence": state.fence + 1}
    with pytest.raises(Refused):
        bench.force(seq, **change)
    assert bench.standing(seq) is final


@pytest.mark.parametrize("target", [LEASED, DONE, NOTHING, DEAD, CANCELLED])
def test_dead_is_left_only_for_waiting(bench: Bench, target: int) -> None:
    seq = placed(bench, Disposition.DEAD)
    change: dict[str, int | None] = {"disposition": target, "generation": 1, "attempt": 0}
    if target == LEASED:
        change |= {**RESERVED, "attempt": 1, "fence": 3}
    with pytest.raises(Refused):
        bench.force(seq, **change)


def test_a_new_generation_with_its_own_budget_is_the_one_way_out_of_dead(bench: Bench) -> None:
    seq = placed(bench, Disposition.DEAD)
    bench.force(seq, disposition=WAITING, generation=1, attempt=0, max_attempts=1, lane=2)
    lease = bench.lease()
    assert (lease.generation, lease.attempt, lease.fence) == (1, 1, 3)
    bench.close(lease, RETRYABLE)
    assert [letter.generation for letter in bench.dead_letters(seq)] == [0, 1]
    assert [(a.generation, a.number) for a in bench.attempts(seq)] == [(0, 1), (0, 2), (1, 1)]


ENTRIES = {
    "attempt": "category",
    "transition": "kind",
    "dead_letter": "cause",
    "event": "event_type",
    "delivery": "tenant",
    "identity": "first_seen",
    "policy": "spec",
    "repeat": "producer",
}


def with_entries(bench: Bench) -> None:
    """At least one row in each append-only table."""
    placed(bench, Disposition.DEAD)
    bench.enqueue()
    bench.publish(event(), ["dst_1"])
    bench.hold("dst_1")


@pytest.mark.parametrize("table", ENTRIES)
def test_an_entry_cannot_be_rewritten(bench: Bench, table: str) -> None:
    with_entries(bench)
    with pytest.raises(Refused):
        bench.run(bench.ledger.rewrite(table, ENTRIES[table]))


@pytest.mark.parametrize("table", [*ENTRIES, "delivery_state"])
def test_an_entry_cannot_be_deleted(bench: Bench, table: str) -> None:
    with_entries(bench)
    before = bench.rows(table)
    with pytest.raises(Refused):
        bench.run(bench.ledger.erase(table))
    assert bench.rows(table) == before > 0


@pytest.mark.parametrize(
    "column",
    ["generation", "handler", "tenant", "destination", "category", "attempts", "first_at", "last_at", "ambiguous",
     "policy_version", "died_at"],
)  # fmt: skip
def test_a_dead_letters_evidence_cannot_be_changed(bench: Bench, column: str) -> None:
    placed(bench, Disposition.DEAD)
    with pytest.raises(Refused):
        bench.run(bench.ledger.rewrite("dead_letter", column))
