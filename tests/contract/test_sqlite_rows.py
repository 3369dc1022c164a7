"""One bad row among others, and what the tables refuse below the triggers and beside them."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.contract.harness import (
    JOB,
    LEASE,
    OWN_FAULT,
    PATIENT,
    PERMANENT,
    RETRYABLE,
    HostClock,
    ManualTime,
    event,
)
from tests.contract.sqlite_subject import SqliteSubject, accept, close, everything, open_sqlite, reserve

from redrive.domain import identity
from redrive.domain.delivery import NewDelivery, NewEvent
from redrive.domain.policy import DAY
from redrive.errors import LedgerError
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite.connect import connect

ROUTE = identity.route_of(*JOB)


@pytest.fixture
def time() -> ManualTime:
    return ManualTime()


@pytest.fixture
def subject(tmp_path: Path, time: ManualTime) -> Iterator[SqliteSubject]:
    made = open_sqlite(tmp_path, HostClock(time), fresh=True)
    yield made
    made.close()


# --- one bad row


def with_unreadable_policies(subject: SqliteSubject, tmp_path: Path, time: ManualTime, count: int) -> list[int]:
    """Expired leases of which the first ``count`` have a policy that this release cannot read."""

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
    events: list[tuple[NewEvent, list[NewDelivery]]] = [(event(), [])]
    subject.transact_sync(lambda tx, now: enqueue.accept_events(tx, now, events, path="", producer=""))
    leases = reserve(subject)
    close(subject, [(leases[0], PERMANENT), (leases[1], OWN_FAULT)])
    before = everything(subject)
    with pytest.raises(Exception, match="redrive: "):
        subject.transact_sync(lambda tx, now: tx.run(f"INSERT OR REPLACE INTO {table} SELECT * FROM {table}"))
    assert everything(subject) == before


def test_a_budget_cannot_be_reset_by_replacing_the_row(subject: SqliteSubject) -> None:
    accept(subject, "a")
    close(subject, [(reserve(subject)[0], RETRYABLE)])
    columns = "seq, route, flow, lane, priority, disposition, generation, attempt, max_attempts, deadline_at"
    replacing = (
        f"INSERT OR REPLACE INTO delivery_state ({columns}, available_at, fence) "
        "SELECT seq, route, flow, lane, priority, 0, 0, 0, 3, deadline_at, available_at, 0 FROM delivery_state"
    )
    with pytest.raises(LedgerError, match="always in exactly one disposition"):
        subject.transact_sync(lambda tx, now: tx.run(replacing))
    assert asyncio.run(subject.state(1)).attempt == 1
