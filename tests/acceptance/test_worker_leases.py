"""Leases: kept while work runs, lost without harm, and given back or left to expire at the end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    MS,
    Receiver,
    assert_verified,
    drain,
    environ,
    faulty,
    filled,
    make,
    opened,
    query,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive import Context, Policy, Redrive
from redrive.domain.ports import Extended
from redrive.worker.heart import Heart, Held
from redrive.worker.settings import WorkerSettings

SHORT = WorkerSettings(slots=4, lease_s=0.4, reap_s=0.05, poll_s=0.05, drain_s=5)


def expire(app: Redrive) -> None:
    """Every lease is over, as after a long stop of its worker."""
    with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        conn.execute("UPDATE delivery_state SET leased_until = 1 WHERE disposition = 1")
        conn.commit()


@contextlib.contextmanager
def no_heartbeat(app: Redrive) -> Any:
    """The worker's heartbeats reach nobody."""
    ledger = faulty(app)
    ledger.refuse["extend_sync"] = RuntimeError("cut off")
    with _quiet("redrive.worker"):
        yield


@contextlib.contextmanager
def _quiet(name: str) -> Any:
    log = logging.getLogger(name)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


# --- kept -----------------------------------------------------------------------------------------------


def test_heartbeats_keep_the_lease_of_a_job_that_is_longer_than_it(tmp_path: Path) -> None:
    held: list[bool] = []
    with make(tmp_path, worker=SHORT) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            await asyncio.sleep(1.2)
            held.append(context.holds_lease())

        it = app.enqueue("job", key=1)
        drain(app)
        assert held == [True]
        assert tries(app, it.delivery_id) == [("delivered", "ok")]
        assert seen(app, it.delivery_id).fence == 1
        assert query(app, "SELECT flags FROM attempt") == [(0,)]


def test_a_handler_that_blocks_the_event_loop_loses_no_lease(tmp_path: Path) -> None:
    """The heart is a thread of its own: what blocks the loop for three leases does not cost the others theirs."""
    held: dict[str, bool] = {}
    with make(tmp_path, worker=SHORT) as app, make(tmp_path, init=False, worker=SHORT) as other:

        @app.handler("rude", policy=FAST)
        async def rude(context: Context, payload: Any) -> None:
            await asyncio.sleep(0.1)
            time.sleep(1.2)
            held["rude"] = context.holds_lease()

        @app.handler("polite", policy=FAST)
        async def polite(context: Context, payload: Any) -> None:
            await asyncio.sleep(0.2)
            held["polite"] = context.holds_lease()

        @other.handler("elsewhere")
        async def elsewhere(context: Context, payload: Any) -> None:
            pass

        jobs = [app.enqueue(name, key=1) for name in ("rude", "polite")]
        stop = asyncio.Event
        over: list[Any] = []

        def reaper() -> None:
            async def main() -> None:
                event = stop()
                over.append((asyncio.get_running_loop(), event))
                await other.work(stop=event)

            asyncio.run(main())

        thread = threading.Thread(target=reaper)  # another worker would reap whatever expires
        thread.start()
        drain(app)
        loop, event = over[0]
        loop.call_soon_threadsafe(event.set)
        thread.join()
        assert held == {"rude": True, "polite": True}
        for job in jobs:
            assert tries(app, job.delivery_id) == [("delivered", "ok")]
            assert seen(app, job.delivery_id).fence == 1


# --- lost -----------------------------------------------------------------------------------------------


def test_a_lost_lease_is_noticed_and_its_holder_says_so(tmp_path: Path) -> None:
    said: list[tuple[int, bool, bool]] = []
    with make(tmp_path, worker=SHORT) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            before = context.holds_lease()
            if context.fence == 1:
                while context.holds_lease():  # a heartbeat may come before the reaper does
                    await asyncio.to_thread(expire, app)
                    await asyncio.sleep(0.02)
            said.append((context.fence, before, context.holds_lease()))

        it = app.enqueue("job", key=1)
        drain(app)
        assert sorted(said) == [(1, True, False), (2, True, True)]
        assert tries(app, it.delivery_id) == [("unknown", "worker_lost"), ("delivered", "ok")]
        assert_verified(app)


def test_without_heartbeats_the_lease_ends_by_the_holders_own_clock(tmp_path: Path) -> None:
    said: list[tuple[int, bool]] = []
    with make(tmp_path, worker=SHORT) as app, no_heartbeat(app):

        @app.handler("job", policy=Policy(max_attempts=2, base=MS))
        async def job(context: Context, payload: Any) -> None:
            if context.fence == 1:
                await asyncio.sleep(0.5)
            said.append((context.fence, context.holds_lease()))

        it = app.enqueue("job", key=1)
        drain(app)
        assert (1, False) in said
        assert seen(app, it.delivery_id).disposition == "delivered"


def test_nothing_is_sent_under_a_lease_that_is_over(tmp_path: Path) -> None:
    """A process that was stopped for longer than its lease wakes up and must not send (O-32)."""
    with Receiver() as receiver, make(tmp_path, address_policy=opened(receiver.port), worker=SHORT) as app:
        blocked: list[int] = []
        app.destinations.add("a", settings(receiver.url("/a"), secrets=(), policy=Policy(max_attempts=5, base=MS)))

        @app.handler("stop", policy=FAST)
        async def stop(context: Context, payload: Any) -> None:
            if not blocked:
                # The whole process, heart included: as SIGSTOP does. Claimed with this job is the webhook.
                blocked.append(1)
                time.sleep(0.7)

        app.publish("order.paid", {}, event_id=1)
        app.enqueue("stop", key=1)
        with no_heartbeat(app):
            drain(app)
        outcomes = [
            row[0]
            for row in query(
                app, "SELECT outcome FROM attempt JOIN delivery USING (seq) WHERE handler = 'webhook' ORDER BY fence"
            )
        ]
        # Either it was sent before the stop, or the attempt ended as lost and the next one was sent: never both.
        assert len(receiver.got) == outcomes.count("delivered") == 1


def test_the_heart_extends_a_delivery_under_its_newest_fence_only() -> None:
    class Lease:
        def __init__(self, seq: int, fence: int) -> None:
            self.seq, self.fence, self.valid_until, self.lost = seq, fence, 0.0, False

    old, new, gone = Lease(1, 1), Lease(1, 2), Lease(2, 1)
    asked: list[list[tuple[int, int]]] = []

    def extend(leases: list[tuple[int, int]]) -> Extended:
        asked.append(sorted(leases))
        return Extended({2})

    held: list[Held] = [new, old, gone]
    before = time.monotonic()
    Heart(extend, lambda: held, 30.0).beat()
    assert asked == [[(1, 2), (2, 1)]]
    assert (old.lost, new.lost, gone.lost) == (True, False, True)
    assert new.valid_until >= before + 30.0


# --- drain ----------------------------------------------------------------------------------------------


def test_stop_lets_what_is_in_flight_finish_and_claims_nothing_more(tmp_path: Path) -> None:
    begun: list[int] = []
    with make(tmp_path, worker=WorkerSettings(slots=2)) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            begun.append(payload)
            await asyncio.sleep(0.2)

        filled(app, 10)

        async def main() -> None:
            async with working(app) as stop:
                await until(lambda: len(begun) == 2)
                stop.set()

        asyncio.run(main())
        assert len(begun) == 2
        assert query(app, "SELECT outcome, count(*) FROM attempt GROUP BY 1") == [("delivered", 2)]
        assert query(app, "SELECT sum(fence) FROM delivery_state") == [(2,)]
        assert app.operations.status().workers == ()
        assert_verified(app)


def test_sync_jobs_that_never_started_go_back_uncharged(tmp_path: Path) -> None:
    begun: list[int] = []
    release = threading.Event()
    with make(tmp_path, worker=WorkerSettings(slots=5, threads=1, drain_s=5)) as app:

        @app.handler("job")
        def job(context: Context, payload: Any) -> None:
            begun.append(payload)
            release.wait(20)

        filled(app, 5)

        async def main() -> None:
            async with working(app) as stop:
                await until(lambda: query(app, "SELECT sum(fence) FROM delivery_state") == [(5,)] and begun)
                stop.set()
                await until(lambda: query(app, "SELECT count(*) FROM delivery_state WHERE disposition = 0") == [(4,)])
                release.set()

        asyncio.run(main())
        assert len(begun) == 1
        assert query(app, "SELECT kind, category, count(*) FROM transition GROUP BY 1, 2") == [
            ("interrupted", "shutdown", 4)
        ]
        waiting = query(app, "SELECT attempt, fence, deferrals FROM delivery_state WHERE disposition = 0")
        assert waiting == [(0, 1, 1)] * 4
        assert_verified(app)
        drain(app)
        assert sorted(begun) == [0, 1, 2, 3, 4]
        assert query(app, "SELECT count(*), max(number) FROM attempt") == [(5, 1)]
        assert_verified(app)


def test_every_sync_job_that_is_leased_has_a_thread_of_its_own_by_default(tmp_path: Path) -> None:
    slots = 40
    together = threading.Barrier(slots)
    with make(tmp_path, worker=WorkerSettings(slots=slots, drain_s=5)) as app:

        @app.handler("job", policy=Policy(max_attempts=1))
        def job(context: Context, payload: Any) -> None:
            together.wait(15)  # passes only if all of them run at once

        filled(app, slots)
        drain(app)
        assert query(app, "SELECT outcome, count(*) FROM attempt GROUP BY 1") == [("delivered", slots)]
    assert (WorkerSettings(slots=7).thread_limit, WorkerSettings(slots=7, threads=3).thread_limit) == (7, 3)


def test_a_job_that_starts_while_the_drain_begins_is_either_run_or_given_back_and_never_both(tmp_path: Path) -> None:
    for turn in range(15):
        ran: list[int] = []
        with make(tmp_path, name=f"{turn}.db", worker=WorkerSettings(slots=30, threads=2, drain_s=5)) as app:

            @app.handler("job")
            def job(context: Context, payload: Any, ran: list[int] = ran) -> None:
                ran.append(payload)

            filled(app, 30)

            async def main(app: Redrive = app, ran: list[int] = ran) -> None:
                async with working(app):
                    while not ran:
                        await asyncio.sleep(0)

            asyncio.run(main())
            recorded = [
                row[0]
                for row in query(app, "SELECT key FROM delivery JOIN attempt USING (seq) WHERE outcome = 'delivered'")
            ]
            assert sorted(recorded) == sorted(f"n/{n}" for n in ran)
            assert query(app, "SELECT count(*) FROM delivery_state WHERE disposition = 1") == [(0,)]


def test_a_drain_has_an_end_and_what_outlives_it_is_left_to_expire(tmp_path: Path) -> None:
    impatient = WorkerSettings(slots=2, lease_s=0.4, reap_s=0.05, drain_s=0.2)
    cancelled: list[int] = []
    with make(tmp_path, worker=impatient) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            if context.attempt > 1:
                return
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(context.attempt)
                raise

        it = app.enqueue("job", key=1)

        async def main() -> None:
            async with working(app) as stop:
                await until(lambda: seen(app, it.delivery_id).disposition == "leased")
                started = time.monotonic()
                stop.set()
            assert time.monotonic() - started < 5

        asyncio.run(main())
        assert cancelled == [1]
        assert seen(app, it.delivery_id).disposition == "leased"
        assert tries(app, it.delivery_id) == []
        drain(app)
        assert tries(app, it.delivery_id) == [("unknown", "worker_lost"), ("delivered", "ok")]
        assert_verified(app)


STUCK = """
import sys, time
from redrive import Redrive
from redrive.worker.settings import WorkerSettings
app = Redrive(sys.argv[1], worker=WorkerSettings(slots=2, drain_s=0.2))
@app.handler("job")
def job(context, payload):
    print("stuck", flush=True)
    time.sleep(600)
app.run()
app.close()
print("done", flush=True)
"""


def test_a_stuck_thread_does_not_keep_a_drained_process_from_ending(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        app.enqueue("job", key=1, policy=Policy(), allow_unknown=True)
        command = [sys.executable, "-c", STUCK, app.url]
        child = subprocess.Popen(command, env=environ(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert child.stdout is not None
            assert child.stdout.readline() == "stuck\n"
            child.terminate()
            assert child.communicate(timeout=20)[0] == "done\n"
            assert child.returncode == 0
        finally:
            if child.poll() is None:
                child.kill()
                child.communicate()
        assert query(app, "SELECT disposition, attempt FROM delivery_state") == [(1, 1)]


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_cancelling_the_workers_own_task_records_nothing_false(tmp_path: Path, kind: str) -> None:
    """Somebody's ``task.cancel()`` instead of a stop: leases are left to expire, no outcome is invented."""
    begun = threading.Event()
    release = threading.Event()
    with make(tmp_path, worker=WorkerSettings(slots=2, drain_s=0.2)) as app:

        def sync(context: Context, payload: Any) -> None:
            begun.set()
            release.wait(20)

        async def asynchronous(context: Context, payload: Any) -> None:
            begun.set()
            await asyncio.sleep(60)

        app.handler("job", policy=FAST)(sync if kind == "sync" else asynchronous)
        it = app.enqueue("job", key=1)

        async def main() -> None:
            task = asyncio.create_task(app.work())
            await until(begun.is_set)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        release.set()
        assert tries(app, it.delivery_id) == []
        assert seen(app, it.delivery_id).disposition == "leased"
