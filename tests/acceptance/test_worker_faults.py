"""Faults that must not stop a worker: rows that cannot be closed, and a ledger that refuses for a while."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    ONCE,
    assert_verified,
    faulty,
    filled,
    make,
    query,
    rig,
    seen,
    settings,
    tamper,
    tries,
    until,
    working,
)

from redrive import Context, Policy, Redrive, Retry, running
from redrive.errors import LedgerBusy, LedgerError, LedgerFull
from redrive.ledger.sqlite import connect as connecting
from redrive.webhooks.destinations import Destinations
from redrive.worker.settings import WorkerSettings


def test_a_row_whose_close_is_refused_does_not_stop_others(tmp_path: Path) -> None:
    """Its policy is gone, so that nothing can be decided about it: no outcome is invented, and the rest goes on."""
    with make(tmp_path) as app:

        @app.handler("bad", policy=Policy(max_attempts=9))
        async def bad(context: Context, payload: Any) -> None:
            raise Retry

        @app.handler("good")
        async def good(context: Context, payload: Any) -> None:
            if context.attempt == 1:
                raise Retry(after=0)

        app.enqueue("bad", key=1)
        tamper(app, "DELETE FROM policy")
        done = [app.enqueue("good", key=n).delivery_id for n in range(5)]

        async def main() -> None:
            async with working(app):
                await until(lambda: all(seen(app, one).disposition == "delivered" for one in done))
                more = app.enqueue("good", key="more").delivery_id
                await until(lambda: seen(app, more).disposition == "delivered")

        asyncio.run(main())
        assert query(app, "SELECT count(*) FROM attempt WHERE seq = 1") == [(0,)]


def test_a_row_that_the_schema_refuses_to_close_does_not_stop_others(tmp_path: Path) -> None:
    with make(tmp_path) as app:

        @app.handler("job", policy=ONCE)
        async def job(context: Context, payload: Any) -> None:
            if payload == "bad":
                # Somebody has written this attempt's row already, as something else.
                tamper(
                    app,
                    "INSERT INTO attempt (seq, fence, generation, number, started_at, ended_at, duration, outcome,"
                    " category)"
                    " VALUES (1, 1, 0, 1, 1, 1, 1, 'permanent', 'policy')",
                )
            raise Retry

        bad = app.enqueue("job", "bad", key="bad")
        done = filled(app, 5)

        async def main() -> None:
            async with working(app):
                await until(lambda: all(tries(app, one) for one in done))
                more = app.enqueue("job", key="more").delivery_id
                await until(lambda: seen(app, more).disposition == "dead")

        asyncio.run(main())
        assert tries(app, bad.delivery_id) == [("permanent", "policy")]


@pytest.mark.parametrize("error", [LedgerFull("full"), LedgerBusy("busy"), LedgerError("I/O")], ids=lambda e: e.code)
def test_while_outcomes_cannot_be_stored_they_are_kept_and_nothing_is_claimed(
    tmp_path: Path, error: LedgerError
) -> None:
    ran: list[int] = []
    with make(tmp_path) as app:
        ledger = faulty(app)

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            ran.append(payload)

        ledger.refuse["close_attempts"] = error
        first = app.enqueue("job", -1, key="first").delivery_id

        async def main() -> None:
            async with working(app):
                await until(lambda: ledger.refused.get("close_attempts", 0) >= 2)
                claimed = ledger.calls.count("reserve")
                later = filled(app, 3)
                await asyncio.sleep(0.3)
                assert ran == [-1]
                assert ledger.calls.count("reserve") == claimed
                assert ledger.refused["close_attempts"] < 10  # it backs off
                assert seen(app, first).disposition == "leased"
                del ledger.refuse["close_attempts"]
                await until(lambda: all(seen(app, one).disposition == "delivered" for one in [first, *later]))

        asyncio.run(main())
        assert sorted(ran) == [-1, 0, 1, 2]
        assert tries(app, first) == [("delivered", "ok")]
        assert_verified(app)


def test_a_refused_outcome_is_one_alarm_and_not_one_a_try(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with make(tmp_path) as app:
        ledger = faulty(app)

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        ledger.refuse["close_attempts"] = LedgerFull("no space left")
        filled(app, 5)

        async def main() -> None:
            async with working(app):
                await until(lambda: ledger.refused.get("close_attempts", 0) >= 4)
                del ledger.refuse["close_attempts"]
                await until(lambda: query(app, "SELECT count(*) FROM attempt") == [(5,)])

        asyncio.run(main())
    alarms = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(alarms) == 1
    assert "no space left" in alarms[0].getMessage()


@pytest.mark.parametrize("call", ["reserve", "next_due", "overdue", "extend_sync"])
def test_a_ledger_that_fails_for_a_while_does_not_end_the_worker(tmp_path: Path, call: str) -> None:
    settings = WorkerSettings(slots=2, reap_s=0.02, poll_s=0.05, lease_s=0.3)
    with make(tmp_path, worker=settings) as app:
        ledger = faulty(app)

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        async def main() -> None:
            async with working(app):
                ledger.refuse[call] = LedgerBusy("busy")
                await until(lambda: ledger.refused.get(call, 0) >= 2)
                del ledger.refuse[call]
                done = app.enqueue("job", key=1).delivery_id
                await until(lambda: seen(app, done).disposition == "delivered")

        asyncio.run(main())


# --- a ledger that is busy when the worker starts ---------------------------------------------------------


@contextlib.contextmanager
def locked(app: Redrive) -> Iterator[None]:
    """Another process, stopped by somebody while it has the write lock."""
    with contextlib.closing(sqlite3.connect(app.ledger.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


def test_a_worker_waits_for_a_ledger_that_is_busy_when_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(connecting, "BUSY_TIMEOUT_S", 0.05)
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        one = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app):
                with locked(app):
                    await until(lambda: "cannot begin yet (2 in a row)" in caplog.text)
                await until(lambda: seen(app, one).disposition == "delivered")

        with locked(app):
            asyncio.run(stopped_at_once(app, caplog))
        caplog.clear()
        asyncio.run(main())
        assert query(app, "SELECT count(*), count(stopped_at) FROM worker") == [(1, 1)]
        assert_verified(app)


async def stopped_at_once(app: Redrive, caplog: pytest.LogCaptureFixture) -> None:
    """Told to stop before it could begin, a worker ends without having been one."""
    async with working(app):
        await until(lambda: "cannot begin yet (1 in a row)" in caplog.text)


def test_unfinished_holds_of_a_busy_start_are_finished_later_and_keep_no_work_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tries_left = threading.Semaphore(0)
    reconcile = Destinations.reconcile

    def busy(self: Destinations) -> int:
        if not tries_left.acquire(blocking=False):
            raise LedgerBusy("busy")
        return reconcile(self)

    monkeypatch.setattr(Destinations, "reconcile", busy)
    monkeypatch.setattr(running, "RECONCILE_AGAIN_S", 0.05)
    with rig(tmp_path) as (app, receiver):

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        app.destinations.add("on", settings(receiver.url("/on"), secrets=()))
        app.destinations.disable("on", reason="test")
        held = app.publish("order.paid", 1, event_id=1).deliveries[0]
        # As after a death between the registry's change and the rows'.
        tamper(app, "UPDATE destination SET enabled = 1")
        one = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app):
                await until(lambda: seen(app, one).disposition == "delivered")
                await until(lambda: caplog.text.count("unfinished holds and releases wait") >= 3)
                assert seen(app, held).hold == "destination_disabled"
                tries_left.release()
                await until(lambda: seen(app, held).disposition == "delivered")

        asyncio.run(main())
        assert [got.delivery for got in receiver.got] == [held]
        assert_verified(app)
