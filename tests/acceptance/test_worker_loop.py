"""The worker's loop: slots, idleness, faults that must not stop it, several workers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from redrive import UNIQUE, Context, Policy, Redrive, Retry
from redrive.app import JobSpec
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.errors import ConfigError, LedgerBusy, LedgerError, LedgerFull
from redrive.ledger.sqlite.ledger import SqliteLedger
from redrive.worker.settings import WorkerSettings
from tests.acceptance.engine_support import (
    FAST,
    MS,
    ONCE,
    assert_verified,
    drain,
    make,
    query,
    seen,
    tamper,
    tries,
    until,
    working,
)


def filled(app: Redrive, count: int, handler: str = "job") -> list[str]:
    return [job.delivery_id for job in app.enqueue_many([JobSpec(handler, n, ("n", n)) for n in range(count)])]


# --- slots ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_never_more_run_than_there_are_slots(tmp_path: Path, kind: str) -> None:
    lock = threading.Lock()
    running, most = 0, 0

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1

    with make(tmp_path, worker=WorkerSettings(slots=3, threads=8)) as app:

        def sync(context: Context, payload: Any) -> None:
            enter()
            time.sleep(0.005)
            leave()

        async def asynchronous(context: Context, payload: Any) -> None:
            enter()
            await asyncio.sleep(0.005)
            leave()

        app.handler("job")(sync if kind == "sync" else asynchronous)
        filled(app, 30)
        drain(app)
    assert (running, most) == (0, 3)


def test_a_worker_charges_only_what_it_has_a_free_slot_for(tmp_path: Path) -> None:
    release = threading.Event()
    with make(tmp_path, worker=WorkerSettings(slots=3, poll_s=0.02)) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            await asyncio.to_thread(release.wait, 20)

        filled(app, 10)
        charged = "SELECT count(*) FROM delivery_state WHERE attempt > 0"

        async def main() -> None:
            async with working(app):
                await until(lambda: query(app, charged) == [(3,)])
                await asyncio.sleep(0.2)
                assert query(app, charged) == [(3,)]
                release.set()
                await until(lambda: query(app, "SELECT count(*) FROM attempt") == [(10,)])

        asyncio.run(main())
        assert_verified(app)


def test_a_slow_handler_does_not_block_others(tmp_path: Path) -> None:
    release = asyncio.Event()
    with make(tmp_path, worker=WorkerSettings(slots=2)) as app:

        @app.handler("slow")
        async def slow(context: Context, payload: Any) -> None:
            await release.wait()

        @app.handler("fast")
        async def fast(context: Context, payload: Any) -> None:
            pass

        app.enqueue("slow", key=1)

        async def main() -> None:
            async with working(app):
                await until(lambda: query(app, "SELECT 1 FROM delivery_state WHERE disposition = 1"))
                done = filled(app, 20, "fast")
                await until(lambda: all(seen(app, one).disposition == "delivered" for one in done))
                assert query(app, "SELECT count(*) FROM delivery_state WHERE disposition = 1") == [(1,)]
                release.set()

        asyncio.run(main())


def test_a_backlog_of_one_handler_does_not_starve_another(tmp_path: Path) -> None:
    order: list[str] = []
    with make(tmp_path, worker=WorkerSettings(slots=2)) as app:

        async def note(context: Context, payload: Any) -> None:
            order.append(context.handler)

        app.handler("many")(note)
        app.handler("one")(note)
        filled(app, 200, "many")
        app.enqueue("one", key=1)
        drain(app)
    assert order.index("one") < 20


# --- idleness -------------------------------------------------------------------------------------------


def test_until_idle_waits_for_retries(tmp_path: Path) -> None:
    with make(tmp_path, random=lambda: 0.999) as app:

        @app.handler("job", policy=Policy(max_attempts=3, base=150 * MS))
        async def job(context: Context, payload: Any) -> None:
            if context.attempt < 3:
                raise Retry

        job_id = app.enqueue("job", key=1).delivery_id
        started = time.monotonic()
        drain(app)
        assert time.monotonic() - started >= 0.4
        assert seen(app, job_id).disposition == "delivered"


def test_until_idle_of_an_empty_ledger_returns_at_once(tmp_path: Path) -> None:
    with make(tmp_path) as app:
        started = time.monotonic()
        drain(app)
        assert time.monotonic() - started < 5
        assert app.operations.status().workers == ()


def test_pickup_in_the_same_process_does_not_wait_for_the_poll(tmp_path: Path) -> None:
    with make(tmp_path, worker=WorkerSettings(poll_s=30)) as app:
        done = asyncio.Event()

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            done.set()

        async def main() -> None:
            async with working(app):
                await asyncio.sleep(0.1)
                started = time.monotonic()
                await app.enqueue_async("job", key=1)
                async with asyncio.timeout(10):
                    await done.wait()
                assert time.monotonic() - started < 5

        asyncio.run(main())


PRODUCER = """
import sys
from redrive import Redrive
with Redrive(sys.argv[1]) as app:
    app.enqueue("job", key=1, allow_unknown=True)
"""


def environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_pickup_from_another_process_does_not_wait_for_the_poll(tmp_path: Path) -> None:
    with make(tmp_path, worker=WorkerSettings(poll_s=30, reap_s=30)) as app:
        done = asyncio.Event()

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            done.set()

        async def main() -> None:
            async with working(app):
                await asyncio.sleep(0.1)
                child = await asyncio.create_subprocess_exec(
                    sys.executable, "-c", PRODUCER, app.url, env=environ()
                )
                assert await child.wait() == 0
                async with asyncio.timeout(10):
                    await done.wait()

        asyncio.run(main())


# --- faults ---------------------------------------------------------------------------------------------


def test_a_row_whose_close_is_refused_does_not_stop_others(tmp_path: Path) -> None:
    """Its policy is gone, so that nothing can be decided about it; everything else goes on, and no outcome is invented."""
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
                tamper(app, "INSERT INTO attempt VALUES (1, 1, 0, 1, 1, 1, 1, 1, 'permanent', 'policy', NULL, NULL, NULL, 0, 0, NULL)")
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


class Faulty:
    """A ledger that refuses some calls; everything else goes to the real one."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self.refuse: dict[str, Exception] = {}
        self.refused: dict[str, int] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def _check(self, name: str) -> None:
        self.calls.append(name)
        if name in self.refuse:
            self.refused[name] = self.refused.get(name, 0) + 1
            raise self.refuse[name]

    async def reserve(self, *arguments: Any) -> list[Lease]:
        self._check("reserve")
        return await self._ledger.reserve(*arguments)

    async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Closed]:
        self._check("close_attempts")
        return await self._ledger.close_attempts(worker, closings)

    async def next_due(self, routes: Any) -> int | None:
        self._check("next_due")
        return await self._ledger.next_due(routes)

    async def overdue(self) -> bool:
        self._check("overdue")
        return await self._ledger.overdue()

    def extend_sync(self, *arguments: Any) -> set[int]:
        self._check("extend_sync")
        return self._ledger.extend_sync(*arguments)


def faulty(app: Redrive) -> Faulty:
    """Put a faulty ledger between the application's worker and its file."""
    wrapper = Faulty(app.ledger)
    app._ledger = wrapper  # type: ignore[assignment]
    return wrapper


@pytest.mark.parametrize("error", [LedgerFull("full"), LedgerBusy("busy"), LedgerError("I/O")], ids=lambda e: e.code)
def test_while_outcomes_cannot_be_stored_they_are_kept_and_nothing_is_claimed(tmp_path: Path, error: LedgerError) -> None:
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


# --- several workers ------------------------------------------------------------------------------------


def test_two_workers_in_one_process_share_work_and_run_each_piece_once(tmp_path: Path) -> None:
    ran: list[tuple[str, int]] = []
    with make(tmp_path) as one, make(tmp_path, init=False) as two:
        for name, app in (("one", one), ("two", two)):

            def register(name: str, app: Redrive) -> None:
                @app.handler("job")
                async def job(context: Context, payload: Any) -> None:
                    ran.append((name, payload))
                    await asyncio.sleep(0.002)

            register(name, app)
        filled(one, 200)
        threads = [threading.Thread(target=drain, args=(app,)) for app in (one, two)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(n for _, n in ran) == list(range(200))
        assert {name for name, _ in ran} == {"one", "two"}
        assert query(one, "SELECT count(*), max(number) FROM attempt") == [(200, 1)]
        assert_verified(one)


WORKER = """
import asyncio, sys
from redrive import Redrive
from redrive.worker.settings import WorkerSettings
app = Redrive(sys.argv[1], worker=WorkerSettings(slots=5))
@app.handler("job")
async def job(context, payload):
    print(payload, flush=True)
    await asyncio.sleep(0.005)
app.run(until_idle=True)
app.close()
"""


def test_two_worker_processes_share_work_and_run_each_piece_once(tmp_path: Path) -> None:
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            raise AssertionError

        filled(app, 200)
        command = [sys.executable, "-c", WORKER, app.url]
        workers = [subprocess.Popen(command, env=environ(), stdout=subprocess.PIPE, text=True) for _ in range(2)]
        try:
            seen_by = [[int(n) for n in worker.communicate(timeout=40)[0].split()] for worker in workers]
        finally:
            for worker in workers:
                if worker.poll() is None:
                    worker.kill()
                    worker.communicate()
        assert [worker.returncode for worker in workers] == [0, 0]
        assert sorted(seen_by[0] + seen_by[1]) == list(range(200))
        assert query(app, "SELECT count(*) FROM attempt WHERE outcome = 'delivered'") == [(200,)]
        assert_verified(app)


# --- what is left behind --------------------------------------------------------------------------------


def test_twenty_thousand_jobs_leave_nothing_behind_in_memory(tmp_path: Path) -> None:
    with make(tmp_path, worker=WorkerSettings(slots=200)) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        def objects() -> int:
            gc.collect()
            return len(gc.get_objects())

        def batch(count: int) -> None:
            for start in range(0, count, 2000):
                app.enqueue_many([JobSpec("job", None, UNIQUE) for _ in range(start, min(start + 2000, count))])
            drain(app)

        batch(2000)
        before = objects()
        batch(20_000)
        assert query(app, "SELECT count(*) FROM delivery_state WHERE disposition = 2") == [(22_000,)]
        assert objects() - before < 1000


@pytest.mark.parametrize(
    "bad",
    [{"slots": 0}, {"slots": 10**6}, {"lease_s": 0.0}, {"lease_s": -1}, {"reap_s": 0}, {"poll_s": 0}, {"drain_s": -1}, {"threads": 0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        WorkerSettings(**bad)
    assert caught.value.param == next(iter(bad)).removesuffix("_s")


def test_the_files_stay_whole_when_the_application_is_closed_while_it_has_work(tmp_path: Path) -> None:
    with make(tmp_path) as app:

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            pass

        filled(app, 10)
        path = app.ledger.path
        app.close()
        assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchone() == ("ok",)
        drain(app)  # it opens again
        assert_verified(app)
