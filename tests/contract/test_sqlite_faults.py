"""Faults inside the SQLite ledger: at every statement, on a full disk, and in one row among others."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest
from tests.contract.harness import (
    DELIVERED,
    JOB,
    LEASE,
    NO_OP,
    OWN_FAULT,
    PERMANENT,
    RETRYABLE,
    Fault,
    HostClock,
    ManualTime,
    delivery_of,
    event,
)
from tests.contract.harness import work as job
from tests.contract.sqlite_subject import SqliteSubject, accept, close, closing_of, everything, open_sqlite, reserve

from redrive.domain import identity
from redrive.domain.delivery import Closed, Enqueued, NewDelivery
from redrive.domain.policy import DAY, SECOND
from redrive.errors import LedgerFull
from redrive.ledger import reap as reaps
from redrive.ledger.sqlite import close as closes
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite import reserve as reserves
from redrive.ledger.sqlite.tx import Params, RawTx, Row

ROUTE = identity.route_of(*JOB)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def subject(tmp_path: Path, time: ManualTime) -> Iterator[SqliteSubject]:
    made = open_sqlite(tmp_path, HostClock(time), fresh=True)
    yield made
    made.close()


# --- a death at every statement


class Dying(RawTx):
    """A transaction that fails just before its ``at``-th statement, as a killed process would."""

    def __init__(self, tx: RawTx, at: int) -> None:
        super().__init__(tx.conn)
        self.left = at

    def _pass(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Fault

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        self._pass()
        return super().rows(sql, params)

    def run(self, sql: str, params: Params = ()) -> int:
        self._pass()
        return super().run(sql, params)

    def many(self, sql: str, params: Sequence[Params]) -> int:
        self._pass()
        return super().many(sql, params)


Doing = Callable[[RawTx, int], object]


def publishing(subject: SqliteSubject, time: ManualTime) -> Doing:
    source = event()
    fan_out = [delivery_of(source, f"dst_{n}") for n in range(3)]
    return lambda tx, now: enqueue.accept_events(tx, now, [(source, fan_out)], path="p", producer="p")


def enqueuing(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, "old")
    items = [job("a"), job("old"), job("b", payload=b"2"), job("a"), job("old", payload=b"3")]
    return lambda tx, now: enqueue.accept(tx, now, items, path="p", producer="p")


def reserving(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, "a", "b", priority=0)
    accept(subject, "c", priority=3)
    return lambda tx, now: reserves.reserve(tx, now, 1, [ROUTE], 10, LEASE)


def ending(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, *"abcdef")
    leases = reserve(subject)
    ends = [DELIVERED, RETRYABLE, PERMANENT, NO_OP, OWN_FAULT, DELIVERED]
    closings = [closing_of(lease, outcome) for lease, outcome in zip(leases, ends, strict=True)]
    return lambda tx, now: closes.close(tx, now, 1, closings, subject.policy_in)


def ending_late(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, *"ab")
    leases = reserve(subject)
    time.now += LEASE
    asyncio.run(subject.reap(10, [0.0], [JOB]))
    closings = [closing_of(leases[0], DELIVERED), closing_of(leases[1], PERMANENT)]
    return lambda tx, now: closes.close(tx, now, 1, closings, subject.policy_in)


def reaping(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, "old", "older")
    time.now += DAY - SECOND
    accept(subject, "a", "b")
    leases = reserve(subject, 2)
    assert len(leases) == 2
    time.now += LEASE
    return lambda tx, now: reaps.reap(tx, now, 10, [0.0], frozenset([JOB]), subject.policy_in)


@pytest.mark.parametrize("doing", [publishing, enqueuing, reserving, ending, ending_late, reaping])
def test_a_death_at_any_statement_leaves_all_or_nothing(
    subject: SqliteSubject, time: ManualTime, doing: Callable[[SqliteSubject, ManualTime], Doing]
) -> None:
    """O-39: a change of state is one transaction; there is no step at which work is in two places or in none."""
    operation = doing(subject, time)
    before = everything(subject)
    for at in range(1, 200):
        with pytest.raises(Fault):
            subject.transact_sync(partial(stop_after, operation, at))
        assert everything(subject) == before
        if not stopped:
            break
        stopped.clear()
    assert at > 3, "it was cut at each of its statements"
    subject.transact_sync(operation)
    assert everything(subject) != before


stopped: list[int] = []


def stop_after(operation: Doing, at: int, tx: RawTx, now: int) -> None:
    """Run it; it dies at its statement, or, past the last one, just before the commit."""
    try:
        operation(Dying(tx, at), now)
    except Fault:
        stopped.append(1)
        raise
    raise Fault


# --- a full disk


def fill_up(subject: SqliteSubject) -> None:
    """No page more than the file has."""

    def limit(tx: RawTx, now: int) -> None:
        tx.conn.execute("CREATE TABLE filler (x BLOB)")
        while tx.rows("PRAGMA freelist_count") != [(0,)]:
            tx.conn.execute("INSERT INTO filler VALUES (zeroblob(4000))")
        tx.conn.execute(f"PRAGMA max_page_count = {tx.rows('PRAGMA page_count')[0][0]}")

    subject.transact_sync(limit)


def make_room(subject: SqliteSubject) -> None:
    subject.transact_sync(lambda tx, now: tx.conn.execute("PRAGMA max_page_count = 1000000").close())


def test_an_enqueue_on_a_full_disk_is_refused_whole_and_works_later(subject: SqliteSubject) -> None:
    accept(subject, "small")
    fill_up(subject)
    before = everything(subject)
    big = [job("a"), job("big", payload=b"x" * 200_000), job("b")]
    with pytest.raises(LedgerFull, match="no space left") as caught:
        subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, big, path="", producer=""))
    assert caught.value.hint == "free space; nothing was half-written"
    assert everything(subject) == before
    assert len(reserve(subject)) == 1, "what needs no space goes on"
    make_room(subject)
    subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, big, path="", producer=""))
    assert [lease.payload_hash for lease in reserve(subject)] == [item.payload_hash for item in big]


def test_a_reservation_on_a_full_disk_charges_nothing(subject: SqliteSubject) -> None:
    """O-50: nothing is handed out whose attempt could not be written."""
    accept(subject, *(f"k{n}" for n in range(700)))
    fill_up(subject)
    before = everything(subject)
    for _ in range(3):
        with pytest.raises(LedgerFull):
            reserve(subject, 700)
        assert everything(subject) == before
    make_room(subject)
    leases = reserve(subject, 700)
    assert len(leases) == 700
    assert {(lease.attempt, lease.fence) for lease in leases} == {(1, 1)}


def test_a_close_on_a_full_disk_can_be_said_again(subject: SqliteSubject) -> None:
    accept(subject, *(f"k{n}" for n in range(300)))
    leases = reserve(subject, 300)
    fill_up(subject)
    before = everything(subject)
    ends = [(lease, DELIVERED if n % 2 else PERMANENT) for n, lease in enumerate(leases)]
    with pytest.raises(LedgerFull):
        close(subject, ends)
    assert everything(subject) == before
    make_room(subject)
    assert close(subject, ends) == [Closed.APPLIED] * 300


def test_a_full_disk_within_a_group_is_clear_to_each_of_it(subject: SqliteSubject) -> None:
    """Those that were told that it worked are there; the others were told that it did not, and are not."""
    accept(subject, "small")
    fill_up(subject)
    keys = ["a", "big", "c", "d"]
    payloads = {key: b"x" * (200_000 if key == "big" else 1) for key in keys}
    queued = threading.Event()

    def accepting(item: NewDelivery) -> Future[list[Enqueued]]:
        return subject.writer.submit(lambda tx, now: enqueue.accept(tx, now, [item], path="", producer=""), "enqueue")

    subject.writer.submit(lambda tx, now: queued.wait(10), "wait")
    futures = [accepting(job(key, payload=payloads[key])) for key in keys]
    queued.set()
    told = {}
    for key, future in zip(keys, futures, strict=True):
        error = future.exception(10)
        assert error is None or isinstance(error, LedgerFull)
        told[key] = error is None
    stored = {row[0] for row in subject.read_sync(lambda tx: tx.rows("SELECT key FROM delivery"))}
    assert stored == {"small", *(key for key, ok in told.items() if ok)}
    assert not told["big"]
    make_room(subject)
    accept(subject, *keys)
    assert len(reserve(subject)) == 5


# --- big payloads


def test_payloads_that_are_too_big_together_are_claimed_a_few_at_a_time(subject: SqliteSubject) -> None:
    """A batch's payloads are read as one value, and a value has a limit: 10 of them would be 500,000 bytes."""
    accept(subject, *(f"k{n}" for n in range(10)), payload=b"x" * 50_000)
    subject.transact_sync(lambda tx, now: tx.conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 400_000))
    claimed: list[int] = []
    while leases := reserve(subject, 10):
        assert len(leases) <= 5
        claimed += [lease.seq for lease in leases]
    assert claimed == list(range(1, 11))
