"""What a worker knows is not lost, what has started is not refunded, and nothing spins."""

from __future__ import annotations

import asyncio
import queue
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    MS,
    assert_verified,
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

from redrive import Context, Permanent, Policy, Unknown
from redrive.domain.delivery import Closing, Lease
from redrive.domain.outcome import DELIVERED, INTERRUPTED, OWN_FAULT, Outcome
from redrive.domain.policy import OnUnknown
from redrive.domain.ports import LeaseGuard
from redrive.errors import LedgerBusy
from redrive.webhooks.catalog import Compiled
from redrive.webhooks.handler import Sent
from redrive.webhooks.secrets import SecretUnavailable
from redrive.webhooks.sender import Timeouts
from redrive.worker.closer import Closer
from redrive.worker.engine import Worker
from redrive.worker.heart import lease_clock
from redrive.worker.jobs import JobHandler
from redrive.worker.settings import WorkerSettings
from redrive.worker.threads import Threads

SHORT = WorkerSettings(slots=4, lease_s=0.4, reap_s=0.05, poll_s=0.05, drain_s=5)


# --- a known outcome --------------------------------------------------------------------------------------


def test_a_known_outcome_keeps_its_lease_until_it_is_durable(tmp_path: Path) -> None:
    """Another worker's reaper finds nothing to reap, though the outcome waits for four leases."""
    with make(tmp_path, worker=SHORT) as app, make(tmp_path, init=False, worker=SHORT) as other:
        ledger = faulty(app)

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            raise Permanent("rejected")

        @other.handler("elsewhere")
        async def elsewhere(context: Context, payload: Any) -> None:
            pass

        ledger.refuse["close_attempts"] = LedgerBusy("busy")
        it = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app), working(other):
                await until(lambda: ledger.refused.get("close_attempts"))
                began = lease_clock()
                await until(lambda: lease_clock() - began > 4 * SHORT.lease_s)
                assert seen(app, it).disposition == "leased"
                del ledger.refuse["close_attempts"]
                await until(lambda: seen(app, it).disposition == "dead")

        asyncio.run(main())
        assert tries(app, it) == [("permanent", "rejected")]
        assert_verified(app)


def test_a_worker_that_cannot_store_outcomes_reaps_nothing(tmp_path: Path) -> None:
    with make(tmp_path, worker=SHORT) as app:
        ledger = faulty(app)

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            raise Permanent("rejected")

        ledger.refuse["close_attempts"] = LedgerBusy("busy")
        ledger.refuse["extend_sync"] = LedgerBusy("busy")
        it = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app):
                await until(lambda: ledger.refused.get("close_attempts"))
                began = lease_clock()
                await until(lambda: lease_clock() - began > 3 * SHORT.lease_s)
                assert seen(app, it).disposition == "leased"
                ledger.refuse.clear()
                await until(lambda: seen(app, it).disposition == "dead")

        asyncio.run(main())
        assert tries(app, it) == [("permanent", "rejected")]


def test_the_closer_says_what_it_keeps_and_when_it_has_caught_up() -> None:
    class Ledger:
        def __init__(self) -> None:
            self.commit = asyncio.Event()

        async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Any]:
            await self.commit.wait()
            return []

    async def main() -> None:
        ledger: Any = Ledger()
        closer = Closer(ledger, 1, lambda: None)
        running = asyncio.create_task(closer.run())
        closer.add(Closing(7, 3, 0, 1, 0, 0, DELIVERED, 0.0, 1))
        caught_up = asyncio.create_task(closer.caught_up())
        for _ in range(5):
            await asyncio.sleep(0)
        assert [(kept.seq, kept.fence) for kept in closer.kept()] == [(7, 3)]
        assert not caught_up.done()
        ledger.commit.set()
        async with asyncio.timeout(10):
            await caught_up
        assert closer.kept() == []
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(main())


def test_a_closer_that_dies_stops_the_worker_with_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(self: Closer, batch: list[Closing]) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Closer, "_close", broken)
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        app.enqueue("job", key=1)

        async def main() -> None:
            async with asyncio.timeout(10):
                await app.work()

        with pytest.raises(ZeroDivisionError):
            asyncio.run(main())


# --- cancelled --------------------------------------------------------------------------------------------


def test_a_cancelled_worker_gives_back_what_it_was_just_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            ran.append(payload)

        for n in range(3):
            app.enqueue("job", n, key=n)
        granted = asyncio.Event()
        receive = Worker._receive

        async def slow(self: Worker, free: int) -> list[Lease]:
            leases = await receive(self, free)
            granted.set()
            await asyncio.sleep(0.05)
            return leases

        monkeypatch.setattr(Worker, "_receive", slow)

        async def main() -> None:
            task = asyncio.create_task(app.work())
            async with asyncio.timeout(10):
                await granted.wait()
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(main())
        assert ran == []
        assert query(app, "SELECT disposition, attempt, fence FROM delivery_state") == [(0, 0, 1)] * 3
        assert query(app, "SELECT count(*) FROM worker WHERE stopped_at IS NULL") == [(0,)]
        assert_verified(app)


def test_a_cancelled_worker_lets_what_runs_finish_and_records_it(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        begun, release = asyncio.Event(), asyncio.Event()

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            begun.set()
            await release.wait()

        it = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            task = asyncio.create_task(app.work())
            async with asyncio.timeout(10):
                await begun.wait()
                later = app.enqueue("job", key=2).delivery_id
                task.cancel()
                asyncio.get_running_loop().call_later(0.05, release.set)
                with pytest.raises(asyncio.CancelledError):
                    await task
            assert seen(app, later).fence in (0, 1)

        asyncio.run(main())
        assert tries(app, it) == [("delivered", "ok")]
        assert query(app, "SELECT count(*) FROM delivery_state WHERE disposition = 1") == [(0,)]
        assert_verified(app)


# --- nothing that started is refunded -----------------------------------------------------------------------


@pytest.mark.parametrize("outcome", [OWN_FAULT, INTERRUPTED], ids=lambda outcome: str(outcome.kind))
@pytest.mark.parametrize("starts", [True, False])
def test_an_uncharged_outcome_of_what_has_started_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, starts: bool
) -> None:
    async def execute(self: JobHandler, lease: Lease, guard: LeaseGuard) -> Outcome | None:
        if lease.fence > 1:
            return DELIVERED
        if starts:
            guard.start()
        return outcome

    monkeypatch.setattr(JobHandler, "execute", execute)
    with make(tmp_path) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            pass

        it = app.enqueue("job", key=1).delivery_id
        drain(app)
        charged = [("retryable", "handler_error")] if starts else []
        assert tries(app, it) == [*charged, ("delivered", "ok")]


CONFIRM = Policy(max_attempts=3, base=MS, cap=5 * MS, on_unknown=OnUnknown.CONFIRM)


def test_a_secret_that_is_missing_is_found_before_anybody_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ready = Compiled.ready

    def gone(self: Compiled, now_us: int) -> Any:
        if receiver.got:
            raise SecretUnavailable("gone")
        return ready(self, now_us)

    monkeypatch.setattr(Compiled, "ready", gone)
    with rig(tmp_path, lambda got, number: 502) as (app, receiver):

        @app.confirm("ask")
        async def ask(sent: Sent) -> bool | None:
            asked.append(sent.attempt)
            return False

        app.destinations.add("a", settings(receiver.url("/a"), policy=CONFIRM, confirm="ask", secrets=()))
        it = app.publish("order.paid", {}, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: seen(app, it).deferrals)

        asyncio.run(main())
        assert asked == []
        assert tries(app, it) == [("unknown", "http_gateway")]


def test_a_secret_that_goes_missing_after_somebody_was_asked_is_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    ready = Compiled.ready

    def gone(self: Compiled, now_us: int) -> Any:
        if asked:
            raise SecretUnavailable("gone")
        return ready(self, now_us)

    monkeypatch.setattr(Compiled, "ready", gone)
    with rig(tmp_path, lambda got, number: 502) as (app, receiver):

        @app.confirm("ask")
        async def ask(sent: Sent) -> bool | None:
            asked.append(sent.attempt)
            return False

        app.destinations.add("a", settings(receiver.url("/a"), policy=CONFIRM, confirm="ask", secrets=()))
        it = app.publish("order.paid", {}, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: len(tries(app, it)) == 2)

        asyncio.run(main())
        assert asked == [2]
        assert tries(app, it) == [("unknown", "http_gateway"), ("retryable", "own_fault")]
        assert_verified(app)


def test_a_webhook_that_is_still_connecting_has_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connecting = asyncio.Event()

    async def never(self: Any, request: Any) -> Any:
        connecting.set()
        await asyncio.sleep(60)

    monkeypatch.setattr("redrive.webhooks.sender.Sender.send", never)
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=()))
        it = app.publish("order.paid", {}, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await connecting.wait()

        asyncio.run(main())
        assert (seen(app, it).disposition, seen(app, it).attempt) == ("waiting", 0)
        assert tries(app, it) == []
        assert_verified(app)


# --- confirm ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_confirm_function_is_bounded_by_the_handlers_time(tmp_path: Path, kind: str) -> None:
    release = threading.Event()

    def sync(context: Context, payload: Any) -> bool:
        release.wait(20)
        return True

    async def asynchronous(context: Context, payload: Any) -> bool:
        await asyncio.sleep(60)
        return True

    with make(tmp_path) as app:

        @app.handler(
            "job",
            policy=Policy(max_attempts=2, base=MS, cap=MS),
            timeout=0.1,
            unknown="confirm",
            confirm=sync if kind == "sync" else asynchronous,
        )
        async def job(context: Context, payload: Any) -> None:
            raise Unknown

        it = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app):
                await until(lambda: seen(app, it).disposition == "dead")
                release.set()

        asyncio.run(main())
        assert tries(app, it) == [("unknown", "handler_error"), ("retryable", "confirm_failed")]


def test_a_webhooks_confirm_function_is_bounded_by_the_total_time(tmp_path: Path) -> None:
    with rig(tmp_path, lambda got, number: 502) as (app, receiver):

        @app.confirm("ask")
        async def ask(sent: Sent) -> bool | None:
            await asyncio.sleep(60)
            return True

        app.destinations.add(
            "a",
            settings(receiver.url("/a"), policy=CONFIRM, confirm="ask", secrets=(), timeouts=Timeouts(total=0.5)),
        )
        it = app.publish("order.paid", {}, event_id=1).deliveries[0]
        drain(app)
        assert tries(app, it) == [("unknown", "http_gateway"), *[("retryable", "confirm_failed")] * 2]


def test_the_confirm_rule_is_the_one_that_the_work_was_granted(tmp_path: Path) -> None:
    """A release that dropped ``unknown="confirm"`` does not run again what was promised to be asked about."""
    granted = Policy(max_attempts=3, base=MS, cap=MS)
    ran: list[str] = []
    with make(tmp_path) as old, make(tmp_path, init=False) as new, make(tmp_path, init=False) as last:

        @old.handler("job", policy=granted, unknown="confirm", confirm=lambda context, payload: True)
        async def first(context: Context, payload: Any) -> None:
            stop.set()
            raise Unknown

        @new.handler("job", policy=granted)
        async def second(context: Context, payload: Any) -> None:
            ran.append("new")

        @last.handler("job", policy=granted, confirm=lambda context, payload: True)
        async def third(context: Context, payload: Any) -> None:
            ran.append("last")

        stop = asyncio.Event()
        it = old.enqueue("job", key=1, delay=0).delivery_id

        async def once() -> None:
            async with working(old) as over:
                await stop.wait()
                over.set()

        asyncio.run(once())

        async def deferred() -> None:
            async with working(new):
                await until(lambda: seen(new, it).deferrals or seen(new, it).disposition == "delivered")

        asyncio.run(deferred())
        drain(last)
        assert ran == []
        assert tries(last, it)[-1] == ("delivered", "confirmed")
        assert_verified(last)


def test_a_confirm_that_rules_the_effect_out_leaves_nothing_ambiguous(tmp_path: Path) -> None:
    with make(tmp_path) as app:

        @app.handler(
            "job",
            policy=Policy(max_attempts=2, base=MS, cap=MS),
            unknown="confirm",
            confirm=lambda context, payload: False,
        )
        async def job(context: Context, payload: Any) -> None:
            raise Unknown if context.attempt == 1 else ValueError

        app.enqueue("job", key=1)
        drain(app)
        (letter,) = app.operations.dead().items
        assert (letter.cause, letter.ambiguous) == ("attempts_exhausted", False)
        assert_verified(app)


# --- waiting, threads, clocks ---------------------------------------------------------------------------------


def test_work_past_its_age_and_not_yet_reaped_costs_no_spin(tmp_path: Path) -> None:
    reserves: list[str] = []
    with make(tmp_path, worker=WorkerSettings(reap_s=60)) as app:

        @app.handler("job", policy=Policy(max_age=1000))
        async def job(context: Context, payload: Any) -> None:
            raise AssertionError

        app.enqueue("job", key=1)
        time.sleep(0.05)  # its age is the subject
        app.ledger.writer.on_commit.append(lambda point: reserves.append(point) if point == "reserve" else None)

        async def main() -> None:
            async with working(app):
                await asyncio.sleep(0.5)

        asyncio.run(main())
        assert 1 <= len(reserves) <= 25


def test_closing_threads_does_not_wait_for_an_item_that_a_thread_took(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = Threads(1, "test")

    class Emptied(queue.SimpleQueue[Any]):
        """Says that it has something, as it did a moment ago."""

        def empty(self) -> bool:
            return False

    threads._queue = Emptied()
    over = threading.Thread(target=threads.close, daemon=True)
    over.start()
    over.join(5)
    assert not over.is_alive()


def test_a_lease_ends_while_the_host_sleeps() -> None:
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # where there is no such clock, it cannot be told
    before = time.clock_gettime(clock)
    assert before <= lease_clock() <= time.clock_gettime(clock)


def test_a_ledger_locked_for_long_by_another_does_not_cost_a_known_outcome(tmp_path: Path) -> None:
    with make(tmp_path, worker=SHORT) as app:
        running = threading.Event()

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            running.set()
            await asyncio.sleep(0.2)
            raise Permanent("rejected")

        it = app.enqueue("job", key=1).delivery_id

        async def main() -> None:
            async with working(app):
                await until(running.is_set)
                other = sqlite3.connect(app.ledger.path, isolation_level=None)
                other.execute("BEGIN IMMEDIATE")
                await asyncio.sleep(1.2)  # three leases
                other.execute("COMMIT")
                other.close()
                await until(lambda: seen(app, it).disposition == "dead")

        asyncio.run(main())
        assert tries(app, it) == [("permanent", "rejected")]
