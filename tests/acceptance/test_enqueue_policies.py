"""A job's own policy: instead of its handler's, and needed where the handler is another application's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    FAST,
    assert_verified,
    dead,
    drain,
    make,
    query,
    seen,
)

from redrive import Context, InvalidInput, OnUnknown, Policy, Redrive, Unknown
from redrive.app import JobSpec


async def nothing(context: Context, payload: Any) -> None:
    pass


def counting(folder: Path, **options: Any) -> Redrive:
    app = make(folder, **options)
    app.handler("job", policy=FAST)(nothing)
    return app


def stored(app: Redrive) -> int:
    count: int = query(app, "SELECT count(*) FROM delivery")[0][0]
    return count


def budgets(app: Redrive) -> list[tuple[Any, ...]]:
    return query(app, "SELECT max_attempts, deadline_at - available_at FROM delivery_state ORDER BY seq")


def test_a_jobs_own_policy_replaces_its_handlers(tmp_path: Path) -> None:
    own = Policy(max_attempts=2, max_age=3_600_000_000, on_unknown=OnUnknown.HOLD)
    runs: list[tuple[int, int]] = []
    with make(tmp_path) as app:

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            runs.append((context.attempt, context.max_attempts))
            raise Unknown

        app.enqueue("job", key=1, policy=own)
        app.enqueue_many([JobSpec("job", key=2, policy=own), JobSpec("job", key=3)])
        asyncio.run(app.enqueue_async("job", key=4, policy=own))
        kept = (own.max_attempts, own.max_age)
        assert budgets(app) == [kept, kept, (FAST.max_attempts, FAST.max_age), kept]
        drain(app)
        # Held after the first unknown, where the handler's own policy would have tried again.
        assert sum(1 for run in runs if run == (1, 2)) == 3
        assert not any(run == (2, 2) for run in runs)
        assert [letter.cause for letter in dead(app)].count("ambiguous") == 3
        assert_verified(app)


def test_a_handler_of_another_application_needs_a_policy_and_obeys_it(tmp_path: Path) -> None:
    hold = Policy(max_attempts=2, base=1000, cap=1000, on_unknown=OnUnknown.HOLD)
    runs: list[tuple[int, int]] = []
    with make(tmp_path) as worker, make(tmp_path, init=False) as producer:

        @worker.handler("pay", policy=hold)
        async def pay(context: Context, payload: Any) -> None:
            runs.append((context.attempt, context.max_attempts))
            raise Unknown

        for refused in (
            lambda: producer.enqueue("pay", key=1, allow_unknown=True),
            lambda: producer.enqueue_many([JobSpec("pay", key=1)], allow_unknown=True),
            lambda: asyncio.run(producer.enqueue_async("pay", key=1, allow_unknown=True)),
        ):
            with pytest.raises(InvalidInput) as caught:
                refused()
            assert (caught.value.param, caught.value.code) == ("policy", "invalid_input")
            assert "policy=Policy()" in (caught.value.hint or "")
        assert stored(worker) == 0
        # What the application does have keeps its handler's, flag or no flag.
        worker.enqueue("pay", key=0, allow_unknown=True)
        job = producer.enqueue("pay", key=1, policy=hold, allow_unknown=True)
        drain(worker)
        assert runs == [(1, 2), (1, 2)]
        assert seen(producer, job.delivery_id).disposition == "dead"
        assert [letter.cause for letter in dead(worker)] == ["ambiguous", "ambiguous"]
        assert_verified(worker)


@pytest.mark.parametrize("policy", ["hold", 5, {"max_attempts": 2}, FAST.spec()])
def test_what_is_no_policy_is_refused(tmp_path: Path, policy: Any) -> None:
    with counting(tmp_path) as app, pytest.raises(InvalidInput) as caught:
        app.enqueue("job", key=1, policy=policy)
    assert caught.value.param == "policy"


def test_confirm_for_a_handler_that_cannot_is_refused(tmp_path: Path) -> None:
    with counting(tmp_path) as app:
        confirm = Policy(on_unknown=OnUnknown.CONFIRM)
        with pytest.raises(InvalidInput) as caught:
            app.enqueue("job", key=1, policy=confirm)
        assert caught.value.param == "policy"
        app.handler("asks", confirm=lambda context, payload: True)(nothing)
        assert app.enqueue("asks", key=1, policy=confirm).created
