"""Several real processes on one SQLite file."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.harness import JOB, LEASE, HostClock, ManualTime, work
from tests.contract.sqlite_child import start, together
from tests.contract.sqlite_subject import ENVIRONMENT, open_sqlite, url

from redrive.domain.delivery import Disposition
from redrive.errors import LedgerBusy
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite.connect import connect, translated
from redrive.ledger.sqlite.ledger import create
from redrive.ledger.sqlite.migrate import migrations
from redrive.ledger.sqlite.tx import RawTx


def test_three_processes_execute_each_of_two_thousand_deliveries_once(tmp_path: Path) -> None:
    create(url(tmp_path), ENVIRONMENT)
    total = 2000
    children = [start("work", url(tmp_path), f"worker-{n}", str(total), "3") for n in range(3)]
    results = together(children)
    executed = [one for result in results for one in result["executed"]]
    assert sum(result["created"] for result in results) == total
    assert sum(bool(result["executed"]) for result in results) >= 2, "they shared it"
    assert len(executed) == len(set(executed)) == total
    assert {one.partition(":")[2] for one in executed} == {"1"}, "each under its first and only fence"
    with connect(tmp_path / "ledger.db") as conn:
        assert conn.execute("SELECT count(*), count(DISTINCT seq), max(number) FROM attempt").fetchone() == (
            total,
            total,
            1,
        )
        standing = conn.execute("SELECT DISTINCT disposition, attempt, fence FROM delivery_state").fetchall()
        assert standing == [(Disposition.DELIVERED, 1, 1)]
        assert conn.execute("SELECT sum(duplicates), sum(conflicts) FROM repeat_count").fetchone() == (
            2 * total,
            0,
        )
    conn.close()


def test_a_ledger_made_by_four_processes_at_once_is_made_once(tmp_path: Path) -> None:
    rounds = 12
    results = together([start("create", str(tmp_path), str(rounds)) for _ in range(4)])
    steps = len(migrations())
    assert [sum(applied) for applied in zip(*results, strict=True)] == [steps] * rounds
    for number in range(rounds):
        with connect(tmp_path / f"{number}.db") as conn:
            assert conn.execute("SELECT count(*) FROM schema_migration").fetchone() == (steps,)
            assert conn.execute("SELECT environment FROM ledger").fetchall() == [(ENVIRONMENT,)]
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        conn.close()


def test_a_duplicate_waits_for_the_first_and_takes_its_place_if_it_rolls_back(tmp_path: Path) -> None:
    """O-30: no enqueue is skipped for the sake of one that never committed."""
    subject = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    others = [open_sqlite(tmp_path, HostClock(ManualTime()), fresh=False) for _ in range(5)]
    decided: list[str] = []
    writing = [threading.Event() for _ in others]
    holder = connect(tmp_path / "ledger.db")
    holder.execute("BEGIN IMMEDIATE")
    tx = RawTx(holder)
    enqueue.accept(tx, enqueue.tick(tx, 1), [work()], path="library", producer="first")

    def accept(number: int) -> None:
        writing[number].set()
        made = others[number].transact_sync(
            lambda tx, now: enqueue.accept(tx, now, [work()], path="library", producer=f"p{number}")
        )
        decided.append(made[0].decided.value)

    threads = [threading.Thread(target=accept, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for event in writing:
        assert event.wait(10)
    assert decided == [], "they wait: nobody can say yet"
    holder.execute("ROLLBACK")
    holder.close()
    for thread in threads:
        thread.join(30)
    assert sorted(decided) == ["created", *["duplicate"] * 4]
    for one in (subject, *others):
        one.close()


def test_reading_and_writing_do_not_wait_for_each_other(tmp_path: Path) -> None:
    subject = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    other = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=False)

    def accept(key: str) -> int:
        return subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work(key)], path="", producer="")[0].seq)

    def count(ledger: object) -> int:
        return int(ledger.read_sync(lambda tx: tx.rows("SELECT count(*) FROM delivery")[0][0]))  # type: ignore[attr-defined]

    def read_while_others_write(tx: object) -> tuple[int, int]:
        before = tx.rows("SELECT count(*) FROM delivery")[0][0]  # type: ignore[attr-defined]
        accept("b")
        accept("c")
        return before, tx.rows("SELECT count(*) FROM delivery")[0][0]  # type: ignore[attr-defined]

    accept("a")
    assert other.read_sync(read_while_others_write) == (1, 1), "one snapshot, and the writes went through"
    assert count(other) == 3

    def write_while_others_read(tx: RawTx, now: int) -> int:
        enqueue.accept(tx, now, [work("d")], path="", producer="")
        return count(other)

    assert subject.transact_sync(write_while_others_read) == 3, "read at once, and nothing uncommitted"
    assert count(other) == 4
    for one in (subject, other):
        one.close()


def test_nothing_between_ready_and_leased_is_ever_visible(tmp_path: Path) -> None:
    """O-41: before the commit others see it waiting and uncharged, after it leased and charged."""
    from redrive.domain import identity
    from redrive.ledger.sqlite import reserve as hot

    subject = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    other = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=False)
    subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work()], path="", producer=""))

    def seen() -> tuple[int, ...]:
        text = "SELECT disposition, attempt, fence FROM delivery_state"
        return tuple(other.read_sync(lambda tx: tx.rows(text))[0])

    def operation(tx: RawTx, now: int) -> list[tuple[int, ...]]:
        before = seen()
        assert len(hot.reserve(tx, now, 1, [identity.route_of(*JOB)], 1, LEASE)) == 1
        return [before, seen()]

    assert subject.transact_sync(operation) == [(0, 0, 0), (0, 0, 0)]
    assert seen() == (1, 1, 1)
    for one in (subject, other):
        one.close()


def test_a_read_before_a_write_in_a_deferred_transaction_is_explained(tmp_path: Path) -> None:
    """O-49: SQLite refuses it at once, whatever the wait; as the first statement the tick takes the lock."""
    subject = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    path = tmp_path / "ledger.db"
    callers = connect(path)
    tx = RawTx(callers)
    callers.execute("BEGIN")
    tx.rows("SELECT count(*) FROM delivery")
    subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work("other")], path="", producer=""))
    with pytest.raises(LedgerBusy, match="read before it wrote") as caught, translated(path):
        enqueue.tick(tx, 1)
    assert caught.value.hint is not None
    assert "BEGIN IMMEDIATE" in caught.value.hint
    callers.execute("ROLLBACK")

    callers.execute("BEGIN")
    now = enqueue.tick(tx, 1)
    enqueue.accept(tx, now, [work("k")], path="session", producer="p")
    callers.execute("COMMIT")
    callers.close()
    assert len(subject.read_sync(lambda tx: tx.rows("SELECT seq FROM delivery"))) == 2
    subject.close()


def test_an_enqueue_in_the_callers_transaction_is_rolled_back_with_it(tmp_path: Path) -> None:
    subject = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    with closing(connect(tmp_path / "ledger.db")) as callers:
        tx = RawTx(callers)
        for end in ("ROLLBACK", "COMMIT"):
            assert subject.read_sync(lambda tx: tx.rows("SELECT seq FROM identity")) == []
            callers.execute("BEGIN")
            enqueue.accept(tx, enqueue.tick(tx, 1), [work("k")], path="session", producer="p")
            callers.execute(end)
    assert subject.read_sync(lambda tx: tx.rows("SELECT seq FROM identity")) == [(1,)]
    subject.close()
