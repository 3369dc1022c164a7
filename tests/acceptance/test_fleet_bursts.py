"""Bursts: workers that end when nothing is due, and say when the next delivery is."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import DEADLINE_S, assert_verified, seen, tries, until
from tests.acceptance.fleet_support import LATER, POLICY, burst, job, made, registered, reserved

from redrive import Context, Retry
from redrive.app import JobSpec
from redrive.errors import InvalidInput
from redrive.running import Rest


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger to be made, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    found: str = request.getfixturevalue("database")
    return found


def test_a_burst_does_what_is_due_and_says_when_the_next_is(url: str) -> None:
    ran: list[Any] = []
    with made(url) as app:
        job(app, ran)
        assert burst(app) == Rest(None, None), "nothing waits"
        app.enqueue_many([JobSpec("job", n, n) for n in range(30)])
        later = app.enqueue("job", "later", key="later", delay=600).delivery_id
        app.enqueue("other", key=1, policy=POLICY, allow_unknown=True, delay=1)  # not this application's
        ended = burst(app)
        assert ended is not None
        assert sorted(ran) == list(range(30))
        assert ended.next_due_at == seen(app, later).available_at
        assert ended.next_due_us is not None
        assert (600 - DEADLINE_S) * 1e6 < ended.next_due_us <= 600 * 1e6
        assert app.operations.workers() == ()
        assert_verified(app)


def test_a_burst_is_not_kept_by_a_retry_but_by_what_runs(url: str) -> None:
    with made(url, random=lambda: 0.5) as app:
        release = asyncio.Event()

        @app.handler("fails", policy=LATER)
        async def fails(context: Context, payload: Any) -> None:
            raise Retry

        @app.handler("long", policy=POLICY)
        async def long(context: Context, payload: Any) -> None:
            await release.wait()

        app.enqueue("fails", key=1)
        app.enqueue("long", key=1)

        async def main() -> Rest | None:
            task = asyncio.create_task(app.work(burst=True))
            await until(lambda: app.operations.status().dispositions["leased"].count == 1)
            await asyncio.sleep(0.3)
            assert not task.done()
            release.set()
            async with asyncio.timeout(DEADLINE_S):
                return await task

        ended = asyncio.run(main())
        assert ended is not None
        assert ended.next_due_us is not None
        assert ended.next_due_us > 600 * 1e6, "the retry is due in some half an hour, and kept nobody"
        assert app.operations.status().dispositions["delivered"].count == 1


def test_a_burst_lingers_for_work_and_anew_after_it(url: str) -> None:
    ran: list[Any] = []
    with made(url) as app:
        job(app, ran)

        async def main() -> float:
            begun = time.monotonic()
            task = asyncio.create_task(app.work(burst=True, linger="600ms"))
            await asyncio.sleep(0.3)
            assert not task.done()
            await app.enqueue_async("job", 1, key=1)
            await until(lambda: ran)
            had = time.monotonic()
            async with asyncio.timeout(DEADLINE_S):
                assert await task == Rest(None, None)
            assert time.monotonic() - had >= 0.55, "it stayed that long after the work"
            return time.monotonic() - begun

        assert asyncio.run(main()) >= 0.85


def test_a_burst_ends_what_a_lost_worker_left_behind(url: str) -> None:
    ran: list[Any] = []
    with made(url) as app:
        job(app, ran)
        it = app.enqueue("job", 1, key=1).delivery_id
        assert reserved(app, registered(app, ("job", 1)), [("job", 1)], 1, lease_s=0.0) == 1
        assert app.operations.due().expired_leases == 1
        burst(app, linger=0.1)
        assert tries(app, it) == [("unknown", "worker_lost"), ("delivered", "ok")]


def test_a_burst_that_is_stopped_says_nothing_of_the_next(url: str) -> None:
    with made(url) as app:
        job(app)

        async def main() -> Rest | None:
            stop = asyncio.Event()
            task = asyncio.create_task(app.work(burst=True, linger=60, stop=stop))
            await until(app.operations.workers)
            stop.set()
            async with asyncio.timeout(DEADLINE_S):
                return await task

        assert asyncio.run(main()) is None
        for options in ({"burst": True, "until_idle": True}, {"linger": 1}, {"burst": True, "linger": -1}):
            with pytest.raises(InvalidInput):
                asyncio.run(app.work(**options))  # type: ignore[arg-type]
