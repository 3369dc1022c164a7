"""The worker's loop: slots, idleness, faults that must not stop it, several workers, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    MS,
    assert_verified,
    drain,
    environ,
    filled,
    make,
    query,
    seen,
    until,
    working,
)

from redrive import UNIQUE, Context, Policy, Redrive, Retry
from redrive.app import JobSpec
from redrive.errors import ConfigError
from redrive.worker.settings import WorkerSettings

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
from redrive import Policy, Redrive
with Redrive(sys.argv[1]) as app:
    app.enqueue("job", key=1, policy=Policy(), allow_unknown=True)
"""


def test_pickup_from_another_process_does_not_wait_for_the_poll(tmp_path: Path) -> None:
    with make(tmp_path, worker=WorkerSettings(poll_s=30, reap_s=30)) as app:
        done = asyncio.Event()

        @app.handler("job")
        async def job(context: Context, payload: Any) -> None:
            done.set()

        async def main() -> None:
            async with working(app):
                await asyncio.sleep(0.1)
                child = await asyncio.create_subprocess_exec(sys.executable, "-c", PRODUCER, app.url, env=environ())
                assert await child.wait() == 0
                async with asyncio.timeout(10):
                    await done.wait()

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
    [
        {"slots": 0},
        {"slots": 10**6},
        {"lease_s": 0.0},
        {"lease_s": -1},
        {"reap_s": 0},
        {"poll_s": 0},
        {"drain_s": -1},
        {"threads": 0},
        {"threads": 10_001},
    ],
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
