"""Faults inside the SQLite ledger: at every statement, on a full disk, and in one row among others."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.outcome import Outcome
from redrive.domain.policy import DAY, SECOND
from redrive.errors import LedgerFull
from redrive.ledger.sqlite import enqueue, work
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.tx import Params, RawTx, Row
from tests.contract.harness import (
    DELIVERED,
    JOB,
    LEASE,
    NO_OP,
    OWN_FAULT,
    PERMANENT,
    RETRYABLE,
    START,
    Fault,
    HostClock,
    ManualTime,
    delivery_of,
    event,
)
from tests.contract.harness import work as job
from tests.contract.sqlite_subject import SqliteSubject, open_sqlite

ROUTE = identity.route_of(*JOB)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def subject(tmp_path: Path, time: ManualTime) -> Iterator[SqliteSubject]:
    made = open_sqlite(tmp_path, HostClock(time), fresh=True)
    yield made
    made.close()


def accept(subject: SqliteSubject, *keys: str, **fields: Any) -> None:
    items = [job(key, **fields) for key in keys]
    subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, items, path="", producer=""))


def reserve(subject: SqliteSubject, limit: int = 100) -> list[Lease]:
    return asyncio.run(subject.reserve(1, [JOB], limit, LEASE))


def close(subject: SqliteSubject, ends: Sequence[tuple[Lease, Outcome]]) -> list[Closed]:
    return asyncio.run(subject.close_attempts(1, [closing_of(lease, outcome) for lease, outcome in ends]))


def closing_of(x: Lease, outcome: Outcome) -> Closing:
    return Closing(x.seq, x.fence, x.generation, x.attempt, x.started_at, x.deferrals, outcome, 0.0, 1)


def everything(subject: SqliteSubject) -> dict[str, list[Row]]:
    """Every row but the clock's, which may go on."""

    def query(tx: Any) -> dict[str, list[Row]]:
        names = [name for (name,) in tx.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: tx.rows(f"SELECT * FROM {name}") for name in names if name != "clock"}

    return subject.read_sync(query)


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
    return lambda tx, now: work.reserve(tx, now, 1, [ROUTE], 10, LEASE)


def ending(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, *"abcdef")
    leases = reserve(subject)
    ends = [DELIVERED, RETRYABLE, PERMANENT, NO_OP, OWN_FAULT, DELIVERED]
    closings = [closing_of(lease, outcome) for lease, outcome in zip(leases, ends, strict=True)]
    return lambda tx, now: work.close(tx, now, 1, closings, subject.policy_in)


def ending_late(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, *"ab")
    leases = reserve(subject)
    time.now += LEASE
    asyncio.run(subject.reap(10, [0.0], [JOB]))
    closings = [closing_of(leases[0], DELIVERED), closing_of(leases[1], PERMANENT)]
    return lambda tx, now: work.close(tx, now, 1, closings, subject.policy_in)


def reaping(subject: SqliteSubject, time: ManualTime) -> Doing:
    accept(subject, "old", "older")
    time.now += DAY - SECOND
    accept(subject, "a", "b")
    leases = reserve(subject, 2)
    assert len(leases) == 2
    time.now += LEASE
    return lambda tx, now: work.reap(tx, now, 10, [0.0], frozenset([JOB]), subject.policy_in)


@pytest.mark.parametrize("doing", [publishing, enqueuing, reserving, ending, ending_late, reaping])
def test_a_death_at_any_statement_leaves_all_or_nothing(
    subject: SqliteSubject, time: ManualTime, doing: Callable[[SqliteSubject, ManualTime], Doing]
) -> None:
    """O-39: a change of state is one transaction; there is no step at which work is in two places or in none."""
    operation = doing(subject, time)
    before = everything(subject)
    for at in range(1, 200):
        with pytest.raises(Fault):
            subject.transact_sync(lambda tx, now, at=at: stop_after(operation, Dying(tx, at), now))
        assert everything(subject) == before
        if not stopped:
            break
        stopped.clear()
    assert at > 3, "it was cut at each of its statements"
    subject.transact_sync(operation)
    assert everything(subject) != before


stopped: list[int] = []


def stop_after(operation: Doing, tx: Dying, now: int) -> None:
    """Run it; it dies at its statement, or, past the last one, just before the commit."""
    try:
        operation(tx, now)
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
    entered: list[int] = []

    def hold(tx: RawTx, now: int) -> None:
        while len(entered) < 4:
            pass

    futures = [subject.writer.submit(hold, "hold")]
    for key in keys:
        item = job(key, payload=payloads[key])
        futures.append(
            subject.writer.submit(
                lambda tx, now, item=item: enqueue.accept(tx, now, [item], path="", producer=""), "enqueue"
            )
        )
        entered.append(1)
    told = {}
    for key, future in zip(keys, futures[1:], strict=True):
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
    """A whole batch is read as one value, and a value has a limit."""
    accept(subject, *(f"k{n}" for n in range(10)), payload=b"x" * 50_000)
    subject.transact_sync(lambda tx, now: tx.conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 400_000))
    claimed: list[int] = []
    while leases := reserve(subject, 10):
        assert len(leases) <= 3
        claimed += [lease.seq for lease in leases]
    assert claimed == list(range(1, 11))


# --- one bad row


def with_unreadable_policies(subject: SqliteSubject, tmp_path: Path, time: ManualTime, count: int) -> list[int]:
    """Expired leases of which the first ``count`` have a policy that this release cannot read."""
    from dataclasses import replace

    from tests.contract.harness import PATIENT

    strange = replace(PATIENT, max_attempts=9)
    accept(subject, *(f"bad{n}" for n in range(count)), policy=strange)
    accept(subject, "good1", "good2")
    leases = reserve(subject)
    time.now += LEASE
    with raw(tmp_path) as conn:
        conn.execute("DROP TRIGGER policy_no_update")
        conn.execute(
            """UPDATE policy SET spec = '{"max_attempts":9,"moon_phase":"full"}' WHERE version = ?""",
            (strange.version,),
        )
    return [lease.seq for lease in leases]


def raw(tmp_path: Path) -> Any:
    return closing(connect(tmp_path / "ledger.db"))


def test_a_row_that_cannot_be_reaped_stops_no_other(
    subject: SqliteSubject, tmp_path: Path, time: ManualTime, caplog: pytest.LogCaptureFixture
) -> None:
    seqs = with_unreadable_policies(subject, tmp_path, time, 3)
    one_pass = asyncio.run(subject.reap(2, [0.0], [JOB]))
    assert (one_pass.expired_leases, one_pass.more) == (2, True), "the bad ones take up no room in a pass"
    states = [asyncio.run(subject.state(seq)).disposition.label for seq in seqs]
    assert states == ["leased"] * 3 + ["waiting"] * 2
    (error,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert f"delivery {seqs[0]} cannot be reaped" in error.getMessage()
    again = asyncio.run(subject.reap(2, [0.0], [JOB]))
    assert (again.expired_leases, again.more) == (0, False), "and nobody spins on them"


def test_a_row_that_the_database_refuses_to_age_stops_no_other(
    subject: SqliteSubject, tmp_path: Path, time: ManualTime
) -> None:
    accept(subject, "bad", "good")
    with raw(tmp_path) as conn:
        conn.execute(
            "INSERT INTO dead_letter SELECT NULL, seq, 0, 'open', handler, tenant, scope, destination, 'x', 'y', 0, "
            "NULL, NULL, 0, 1, 1 FROM delivery WHERE seq = 1"
        )
    time.now += DAY
    assert asyncio.run(subject.reap(10, [0.0], [JOB])).expired_ages == 1
    assert [asyncio.run(subject.state(seq)).disposition.label for seq in (1, 2)] == ["waiting", "dead"]


# --- below the triggers


def test_the_check_holds_without_the_triggers(subject: SqliteSubject, tmp_path: Path) -> None:
    """The budget is a CHECK of the table, not only a rule of a trigger."""
    accept(subject, "a")
    reserve(subject)
    with raw(tmp_path) as conn:
        conn.execute("DROP TRIGGER delivery_state_legal")
        for change in ("attempt = 4", "attempt = -1", "attempt = 0", "max_attempts = 0", "max_attempts = 1001"):
            with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
                conn.execute(f"UPDATE delivery_state SET {change}")
        ended = "leased_by = NULL, leased_until = NULL, started_at = NULL"
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            conn.execute(f"UPDATE delivery_state SET disposition = 0, attempt = 3, {ended}")


@pytest.mark.parametrize("table", ["attempt", "transition", "event", "identity", "delivery", "dead_letter"])
def test_an_entry_cannot_be_replaced(subject: SqliteSubject, table: str) -> None:
    """INSERT OR REPLACE deletes what is in its way, and is refused as a delete is."""
    accept(subject, "a", "b")
    events = [(event(), [])]
    subject.transact_sync(lambda tx, now: enqueue.accept_events(tx, now, events, path="", producer=""))
    leases = reserve(subject)
    close(subject, [(leases[0], PERMANENT), (leases[1], OWN_FAULT)])
    before = everything(subject)
    with pytest.raises(Exception, match="redrive: "):
        subject.transact_sync(lambda tx, now: tx.run(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"))
    assert everything(subject) == before


@pytest.mark.parametrize("opened", [sqlite3.connect, connect])
def test_a_budget_cannot_be_reset_by_replacing_the_row(
    subject: SqliteSubject, tmp_path: Path, opened: Callable[[Path], sqlite3.Connection]
) -> None:
    """Not by another program's connection either, on which a replacement fires no delete trigger."""
    accept(subject, "a")
    close(subject, [(reserve(subject)[0], RETRYABLE)])
    columns = "seq, route, flow, lane, priority, disposition, generation, attempt, max_attempts, deadline_at"
    with closing(opened(tmp_path / "ledger.db")) as conn:
        with pytest.raises(sqlite3.IntegrityError, match="born once"):
            conn.execute(
                f"INSERT OR REPLACE INTO delivery_state ({columns}, available_at, fence) "
                "SELECT seq, route, flow, lane, priority, 0, 0, 0, 3, deadline_at, available_at, 0 "
                "FROM delivery_state"
            )
        conn.rollback()
    assert asyncio.run(subject.state(1)).attempt == 1
    assert START < asyncio.run(subject.state(1)).available_at
