"""The one writer: group commit, savepoints, and nobody else's fault is yours."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.contract.harness import JOB, LEASE, Fault, HostClock, ManualTime, work
from tests.contract.sqlite_subject import SqliteSubject, open_sqlite

from redrive.errors import LedgerError
from redrive.ledger.sqlite import enqueue, writer
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.tx import RawTx


@pytest.fixture
def subject(tmp_path: Path) -> Iterator[SqliteSubject]:
    made = open_sqlite(tmp_path, HostClock(ManualTime()), fresh=True)
    yield made
    made.close()


def accepting(key: str) -> Callable[[RawTx, int], int]:
    """An operation that accepts one delivery and returns its seq."""
    return lambda tx, now: enqueue.accept(tx, now, [work(key)], path="library", producer="p")[0].seq


def failing(key: str) -> Callable[[RawTx, int], int]:
    """One that does as much and then fails."""

    def operation(tx: RawTx, now: int) -> int:
        accepting(key)(tx, now)
        raise Fault

    return operation


@contextmanager
def one_group(subject: SqliteSubject) -> Iterator[list[str]]:
    """What is submitted inside shares one transaction; yields the statements that the writer runs for it."""
    entered, leave = threading.Event(), threading.Event()
    traced: list[str] = []

    def block(tx: RawTx, now: int) -> None:
        entered.set()
        assert leave.wait(10)
        tx.conn.set_trace_callback(traced.append)

    blocked = subject.writer.submit(block, "block")
    assert entered.wait(10)
    yield traced
    leave.set()
    blocked.result(10)
    subject.writer.submit(lambda tx, now: tx.conn.set_trace_callback(None), "x").result(10)


def keys(subject: SqliteSubject) -> list[str]:
    return [row[0] for row in subject.read_sync(lambda tx: tx.rows("SELECT key FROM delivery ORDER BY seq"))]


def test_a_failing_operation_of_a_group_undoes_only_itself(subject: SqliteSubject) -> None:
    with one_group(subject) as traced:
        futures = [
            subject.writer.submit(failing(f"k{n}") if n in (0, 3) else accepting(f"k{n}"), "enqueue") for n in range(6)
        ]
    seqs = [f.result(10) for n, f in enumerate(futures) if n not in (0, 3)]
    for n in (0, 3):
        with pytest.raises(Fault):
            futures[n].result(10)
    assert keys(subject) == ["k1", "k2", "k4", "k5"]
    assert len(set(seqs)) == 4
    assert traced.count("COMMIT") == 2, "the one that opened the group, and all six together"


def test_a_database_error_of_one_operation_is_its_own_too(subject: SqliteSubject) -> None:
    with one_group(subject):
        bad = subject.writer.submit(lambda tx, now: tx.run("DELETE FROM identity WHERE seq = 1"), "x")
        good = subject.writer.submit(accepting("k"), "enqueue")
        worse = subject.writer.submit(lambda tx, now: tx.run("DELETE FROM identity"), "x")
    assert bad.result(10) == 0
    assert good.result(10) == 1
    with pytest.raises(LedgerError, match="identity is insert-only"):
        worse.result(10)
    assert keys(subject) == ["k"]


def test_fifty_coroutines_share_one_commit(subject: SqliteSubject) -> None:
    async def many() -> list[int]:
        with one_group(subject) as statements:
            waiting = [asyncio.create_task(subject.transact(accepting(f"k{n}"))) for n in range(50)]
            await asyncio.sleep(0)
        traced.append(statements)
        return await asyncio.gather(*waiting)

    traced: list[list[str]] = []
    assert len(set(asyncio.run(many()))) == 50
    assert traced[0].count("COMMIT") == 2
    assert "BEGIN" not in traced[0], "each transaction takes the write lock first"


def test_a_result_is_handed_back_only_after_its_commit(subject: SqliteSubject) -> None:
    done_early: list[bool] = []
    with one_group(subject):
        first = subject.writer.submit(accepting("a"), "enqueue")

        def look(tx: RawTx, now: int) -> None:
            done_early.append(first.done())

        second = subject.writer.submit(look, "look")
    second.result(10)
    assert done_early == [False]
    assert first.result(10) == 1


def test_a_group_that_cannot_commit_fails_for_each_of_its_operations(subject: SqliteSubject) -> None:
    def rolled_back(tx: RawTx, now: int) -> int:
        tx.conn.execute("ROLLBACK")  # as SQLite itself does when the disk fails
        raise sqlite3.OperationalError("disk I/O error")

    with one_group(subject):
        futures: list[Future[int]] = [
            subject.writer.submit(operation, "enqueue") for operation in (accepting("a"), rolled_back, accepting("b"))
        ]
    for future in futures:
        with pytest.raises(LedgerError, match="disk I/O error"):
            future.result(10)
    assert keys(subject) == []
    assert subject.transact_sync(accepting("a")) == 1, "and the writer goes on"


def test_what_is_queued_is_finished_before_the_ledger_closes(tmp_path: Path) -> None:
    host = HostClock(ManualTime())
    subject = open_sqlite(tmp_path, host, fresh=True)
    futures = [subject.writer.submit(accepting(f"k{n}"), "enqueue") for n in range(100)]
    subject.close()
    assert [future.result(0) for future in futures] == list(range(1, 101))
    for refused in (lambda: subject.transact_sync(accepting("x")), lambda: keys(subject)):
        with pytest.raises(LedgerError, match="closed"):
            refused()
    subject.close()


def test_a_listeners_fault_reaches_nobody_who_waits(subject: SqliteSubject, caplog: pytest.LogCaptureFixture) -> None:
    heard: list[str] = []

    def broken(point: str) -> None:
        raise Fault

    subject.writer.on_commit += [broken, heard.append]
    assert subject.transact_sync(accepting("a")) == 1
    assert subject.transact_sync(accepting("b")) == 2
    assert heard == ["operator", "operator"]
    assert [record.levelno for record in caplog.records] == [logging.ERROR] * 2


def test_a_listener_hears_only_of_what_was_committed(subject: SqliteSubject) -> None:
    heard: list[str] = []
    subject.writer.on_commit.append(heard.append)
    with pytest.raises(Fault):
        subject.transact_sync(failing("a"), "first")
    subject.transact_sync(accepting("b"), "second")
    assert heard == ["second"]


def test_a_future_that_was_cancelled_does_not_stop_the_writer(subject: SqliteSubject) -> None:
    with one_group(subject):
        given_up = subject.writer.submit(accepting("a"), "enqueue")
        assert given_up.cancel()
    assert subject.transact_sync(accepting("b")) == 2
    assert keys(subject) == ["a", "b"]


def test_a_loop_that_is_gone_does_not_stop_the_writer(subject: SqliteSubject) -> None:
    async def leave_it_behind() -> None:
        task = asyncio.ensure_future(subject.transact(accepting("a")))
        await asyncio.sleep(0)
        task.cancel()

    with one_group(subject):
        asyncio.run(leave_it_behind())
    assert subject.transact_sync(accepting("b")) == 2


def test_the_file_is_written_with_the_promised_durability(subject: SqliteSubject) -> None:
    def settings(tx: RawTx, now: int) -> dict[str, object]:
        names = ("journal_mode", "synchronous", "mmap_size", "wal_autocheckpoint", "recursive_triggers")
        return {name: tx.rows(f"PRAGMA {name}")[0][0] if tx.rows(f"PRAGMA {name}") else 0 for name in names}

    assert subject.transact_sync(settings) == {
        "journal_mode": "wal",
        "synchronous": 2,
        "mmap_size": 0,
        "wal_autocheckpoint": 0,
        "recursive_triggers": 1,
    }


def test_a_reservation_charges_leases_and_fences_in_one_statement(subject: SqliteSubject) -> None:
    subject.transact_sync(
        lambda tx, now: enqueue.accept(tx, now, [work(f"k{n}") for n in range(5)], path="", producer="")
    )
    worker = asyncio.run(subject.register_worker("w", [JOB]))
    traced: list[str] = []
    subject.transact_sync(lambda tx, now: tx.conn.set_trace_callback(traced.append))
    leases = asyncio.run(subject.reserve(worker, [JOB], 5, LEASE))
    assert len(leases) == 5
    # A statement is traced once more for each trigger that it fires.
    (change,) = {text for text in traced if text.startswith("UPDATE delivery_state")}
    assert "attempt = attempt + 1" in change
    assert traced[-1] == "COMMIT"


def test_one_process_checkpoints_at_a_time(subject: SqliteSubject) -> None:
    lock = subject.path.with_name(subject.path.name + "-checkpoint")

    def checkpoint(tx: RawTx, now: int) -> bool:
        tx.conn.execute("COMMIT")
        try:
            return subject.writer.checkpoint(tx.conn)
        finally:
            tx.conn.execute("BEGIN IMMEDIATE")

    assert subject.transact_sync(checkpoint)
    other = os.open(lock, os.O_RDWR)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert not subject.transact_sync(checkpoint)
    os.close(other)
    assert subject.transact_sync(checkpoint)


def test_the_log_is_moved_into_the_file_and_used_again(subject: SqliteSubject, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "_CHECKPOINT_BYTES", 64 * 1024)
    wal = subject.path.with_name(subject.path.name + "-wal")
    sizes = set()
    for n in range(320):
        subject.transact_sync(accepting(f"k{n}"))
        sizes.add(wal.stat().st_size)
    assert max(sizes) < 4 * 1024 * 1024
    with connect(subject.path) as conn:
        busy, pages, moved = conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    conn.close()
    assert (busy, moved) == (0, pages)
    assert len(keys(subject)) == 320
