"""Promises of the contract that no other test shows by itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    ONCE,
    SECRET,
    Got,
    Reply,
    assert_verified,
    attempts,
    dead,
    drain,
    faulty,
    make,
    query,
    rig,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive import Conflict, Context, Redrive, Retry
from redrive.domain.outcome import INTERRUPTED, Category, Outcome, OutcomeKind
from redrive.domain.ports import Withdrawn
from redrive.errors import LedgerFull, LedgerReadOnly
from redrive.webhooks.signing import verify
from redrive.worker.settings import WorkerSettings

# --- identity outlives the row (contract 2.1) ------------------------------------------------------------------


def test_an_identity_outlives_its_delivery_and_keeps_later_duplicates_out(tmp_path: Path) -> None:
    """As after retention: every row of the delivery is gone, but for its ID and payload hash."""
    ran: list[Any] = []
    with make(tmp_path) as app:

        @app.handler("job", policy=ONCE)
        async def job(context: Context, payload: Any) -> None:
            ran.append(payload)

        first = app.enqueue("job", {"n": 1}, key="k")
        drain(app)
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
            for (name,) in conn.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
                conn.execute(f"DROP TRIGGER {name}")
            for table in ("attempt", "delivery_state", "delivery"):
                assert conn.execute(f"DELETE FROM {table}").rowcount == 1
            conn.commit()
        again = app.enqueue("job", {"n": 1}, key="k")
        assert (again.delivery_id, again.created) == (first.delivery_id, False)
        with pytest.raises(Conflict):
            app.enqueue("job", {"n": 2}, key="k")
        drain(app)
        assert ran == [{"n": 1}]
        assert query(app, "SELECT count(*) FROM delivery") == [(0,)]


# --- attempts are written ahead (contract 2.5) -----------------------------------------------------------------


def test_when_a_request_arrives_its_attempt_is_committed(tmp_path: Path) -> None:
    stood: list[Any] = []

    def answer(got: Got, number: int) -> Reply:
        with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as conn:
            text = "SELECT disposition, attempt, fence, leased_by IS NOT NULL FROM delivery_state"
            stood.append((got.headers["redrive-attempt"], *conn.execute(text).fetchone()))
        return 503 if number < 3 else 200

    with rig(tmp_path, answer) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=()))
        app.publish("order.paid", 1, event_id=1)
        drain(app)
    assert stood == [(f"0.{n}", 1, n, n, 1) for n in (1, 2, 3)]


@pytest.mark.parametrize("error", [LedgerFull("full"), LedgerReadOnly("read-only")], ids=lambda e: e.code)
def test_nothing_is_sent_while_the_attempt_cannot_be_written(tmp_path: Path, error: Exception) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=()))
        ledger = faulty(app)
        ledger.refuse["reserve"] = error
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: ledger.refused.get("reserve", 0) >= 3)
                assert receiver.connections == 0
                assert (seen(app, one).disposition, seen(app, one).attempt) == ("waiting", 0)
                del ledger.refuse["reserve"]
                await until(lambda: seen(app, one).disposition == "delivered")

        asyncio.run(main())
        assert len(receiver.got) == 1
        assert tries(app, one) == [("delivered", "ok")]
        assert_verified(app)


# --- a restart refunds nothing (contract 2.2) ------------------------------------------------------------------


def test_workers_that_come_and_go_share_one_budget(tmp_path: Path) -> None:
    """Each deploy executes once and is replaced, by an application that knows nothing but the ledger."""
    ran: list[int] = []

    def job(context: Context, payload: Any) -> None:
        ran.append(context.attempt)
        raise Retry

    def deploy(app: Redrive) -> None:
        async def main() -> None:
            before = len(ran)
            async with working(app):
                await until(lambda: len(ran) > before or dead(app))

        app.handler("job", policy=FAST)(job)
        asyncio.run(main())

    with make(tmp_path) as app:
        app.handler("job", policy=FAST)(job)
        one = app.enqueue("job", key=1).delivery_id
    for _ in range(FAST.max_attempts + 2):
        # One slot: what is in flight when the deploy ends is all that it ever charged.
        with make(tmp_path, init=False, worker=WorkerSettings(slots=1, threads=1, reap_s=0.05, poll_s=60)) as app:
            deploy(app)
    assert ran == [1, 2, 3]
    with make(tmp_path, init=False) as app:
        assert (seen(app, one).disposition, seen(app, one).attempt) == ("dead", 3)
        assert [(letter.cause, letter.attempts) for letter in dead(app)] == [("attempts_exhausted", 3)]
        assert_verified(app)


# --- deferred and interrupted are the engine's alone (contract 2.9) --------------------------------------------

ENGINES = [Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT), INTERRUPTED]


@pytest.mark.parametrize("outcome", ENGINES, ids=lambda outcome: outcome.kind.value)
@pytest.mark.parametrize("kind", ["async", "sync"])
def test_no_handler_can_return_or_raise_what_is_the_engines(tmp_path: Path, kind: str, outcome: Outcome) -> None:
    def sync(context: Context, payload: Any) -> Any:
        if payload == "raise":
            raise Withdrawn
        return outcome

    async def asynchronous(context: Context, payload: Any) -> Any:
        return sync(context, payload)

    with make(tmp_path) as app:
        app.handler("job", policy=FAST)(sync if kind == "sync" else asynchronous)
        returned = app.enqueue("job", "return", key=1).delivery_id
        raised = app.enqueue("job", "raise", key=2).delivery_id
        drain(app)
        assert tries(app, returned) == [("delivered", "ok")]
        assert tries(app, raised) == [("retryable", "handler_error")] * FAST.max_attempts
        assert query(app, "SELECT count(*) FROM transition") == [(0,)]
        assert_verified(app)


# --- signatures and bodies -----------------------------------------------------------------------------------


def test_each_attempt_is_signed_at_its_own_time_under_the_same_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    with rig(tmp_path, lambda got, number: (503, {"Retry-After": "1"}, b"") if number == 1 else 200) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        app.publish("order.paid", {"n": 1}, event_id=1)
        drain(app)
        first, second = receiver.got
    assert first.delivery == second.delivery
    times = [int(got.headers["webhook-timestamp"]) for got in (first, second)]
    assert times[1] > times[0]
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    for got, at in zip((first, second), times, strict=True):
        verify([SECRET], got.headers, got.body, now=at, tolerance_s=0)
    assert abs(times[1] - time.time()) < 30


def test_what_a_receiver_answers_is_in_no_file_and_no_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hidden = (b"BODY-4111-1111", b"COOKIE-e5d1", b"HEADER-77ab")

    def answer(got: Got, number: int) -> Reply:
        headers = {"Set-Cookie": f"sid={hidden[1].decode()}", "X-Debug": hidden[2].decode()}
        return {1: (503, headers, hidden[0]), 2: (502, headers, hidden[0])}.get(number, (400, headers, hidden[0]))

    with rig(tmp_path, answer) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=()))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        assert [attempt.status for attempt in attempts(app, one)] == [503, 502, 400]
        texts = [str(entry.as_dict()) for entry in app.operations.timeline(one)]
        files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    for text in hidden:
        assert not any(text in data for data in files)
        assert not any(text.decode() in shown for shown in [*texts, caplog.text])
