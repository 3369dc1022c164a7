"""``verify`` and what retention leaves behind: of a delivery its identity, of an event all but its payload."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.reads_support import LEDGERS, OK, REFUSED, SEEN, Desk, opened, place

from redrive.domain.policy import DAY
from redrive.ledger.entries import Facts
from redrive.ledger.tx import Tx
from redrive.ledger.verify import Report, verify

TABLES = ("delivery", "delivery_state", "attempt", "generation", "transition", "repeat", "repeat_count")


@pytest.fixture(params=LEDGERS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with opened(place(request, tmp_path)) as made:
        yield made


def purging(desk: Desk, *statements: tuple[str, *tuple[object, ...]]) -> None:
    """One transaction that may delete what nothing else may."""

    def operation(tx: Tx, now: int) -> None:
        if desk.dialect == "sqlite":
            for (name,) in tx.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
                tx.run(f"DROP TRIGGER {name}")
        else:
            tx.rows("SELECT set_config('session_replication_role', 'replica', true)")
        for text, *values in statements:
            assert tx.run(desk.text(text), values) >= 0

    desk.ledger.transact_sync(operation)


def purge(desk: Desk, seq: int, *, but: str = "") -> None:
    """Take a whole delivery, but for one table's rows."""
    purging(
        desk,
        *((f"DELETE FROM @{table} WHERE seq = ?", seq) for table in TABLES if table != but),
        ("UPDATE @identity SET purged_at = ? WHERE seq = ?", desk.now, seq),
    )


def empty(desk: Desk) -> None:
    purging(desk, ("UPDATE @event SET payload = ?, purged_at = ?", b"", desk.now))


def found(report: Report) -> list[tuple[str, str]]:
    return [(problem.rule, problem.message) for problem in report.problems]


def test_of_what_retention_took_the_identity_is_enough(desk: Desk) -> None:
    gone, known, stays = (desk.enqueue(key).seq for key in ("gone", "known", "stays"))
    desk.kill([OK], gone)
    desk.kill([SEEN], known)
    desk.kill([REFUSED], stays)
    desk.enqueue("gone")
    desk.pass_time(DAY)
    assert verify(desk.ledger).checked == 3
    purge(desk, gone)
    purge(desk, known)
    report = verify(desk.ledger)
    assert (found(report), report.checked) == ([], 1), "the count of receiver duplicates outlives its attempts"


@pytest.mark.parametrize("left", [table for table in TABLES if table != "generation"])
def test_nothing_else_of_it_may_be_left(desk: Desk, left: str) -> None:
    seq = desk.enqueue("a").seq
    desk.cancel(seq)
    desk.enqueue("a")
    if left == "attempt":
        seq = desk.enqueue("b").seq
        desk.kill([OK], seq)
    desk.pass_time(DAY)
    purge(desk, seq, but=left)
    ((rule, message),) = found(verify(desk.ledger, chunk=1))
    assert (rule, left.removesuffix("_count") in message) == ("identity", True)


def test_a_delivery_that_is_whole_was_not_taken(desk: Desk) -> None:
    seq = desk.enqueue("a").seq
    desk.kill([OK], seq)
    purging(desk, ("UPDATE @identity SET purged_at = ? WHERE seq = ?", desk.now, seq))
    ((rule, message),) = found(verify(desk.ledger))
    assert (rule, "still there" in message) == ("identity", True)


def test_an_identity_without_a_delivery_was_taken_or_is_a_finding(desk: Desk) -> None:
    for n in range(5):
        desk.enqueue(f"k{n}")
    seqs = [row[0] for row in desk.ask("SELECT seq FROM @identity ORDER BY seq")]
    for table in ("delivery", "delivery_state"):
        purging(desk, (f"DELETE FROM @{table} WHERE seq IN (?, ?)", seqs[0], seqs[4]))
    report = verify(desk.ledger, chunk=2)
    assert [rule for rule, _ in found(report)] == ["identity"] * 2
    named = {int(message.split()[1]) for _, message in found(report)}
    assert named == {seqs[0], seqs[4]}
    assert all(problem.delivery is not None for problem in report.problems)


def test_an_event_is_kept_without_its_payload_and_its_deliveries(desk: Desk) -> None:
    one, other = desk.publish("e1", ["dst_1", "dst_2"])
    desk.attempt(OK)
    desk.attempt(OK)
    desk.pass_time(DAY)
    purge(desk, one)
    assert found(verify(desk.ledger)) == [], "the other one still needs the payload"
    purge(desk, other)
    empty(desk)
    assert found(verify(desk.ledger)) == []


def test_no_payload_is_taken_under_a_delivery(desk: Desk) -> None:
    desk.publish("e1", ["dst_1"])
    empty(desk)
    ((rule, message),) = found(verify(desk.ledger))
    assert (rule, "0 bytes and 1 deliveries are there" in message) == ("event", True)


def test_fewer_deliveries_than_the_fan_out_need_a_tombstone_and_more_are_never_right(desk: Desk) -> None:
    one, other = desk.publish("e1", ["dst_1", "dst_2"])
    for table in ("delivery", "delivery_state", "identity"):
        purging(desk, (f"DELETE FROM @{table} WHERE seq = ?", one))
    ((rule, message),) = found(verify(desk.ledger))
    assert (rule, "fanned out to 2, and has 1" in message) == ("event", True)
    purge(desk, other)
    assert found(verify(desk.ledger)) == []
    desk.publish("e2", ["dst_3"])
    columns = ", ".join(Facts._fields[1:7] + Facts._fields[8:16]) + ", key"
    hashed = ("payload_hash",) if desk.dialect != "sqlite" else ()
    columns = ", ".join((columns, *hashed))
    purging(desk, (f"INSERT INTO @delivery (seq, {columns}) SELECT 77, {columns} FROM @delivery",))
    assert any("fanned out to 1, and has 2" in message for _, message in found(verify(desk.ledger)))
