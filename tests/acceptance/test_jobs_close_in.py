"""``ctx.close_in``: effect and outcome in one transaction on the ledger's own file."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.acceptance.engine_support import (
    FAST,
    ONCE,
    assert_verified,
    attempts,
    drain,
    make,
    query,
    seen,
    tries,
)

from redrive import Context, InvalidInput, Redrive
from redrive.worker.jobs import LeaseLost
from redrive.worker.settings import WorkerSettings

WAYS = ["sqlite3", "sqlite3 BEGIN", "Connection", "Session", "AsyncConnection", "AsyncSession"]
INSERT = "INSERT INTO effect (fence) VALUES (:fence)"


class Abort(Exception):
    """The handler's own failure, inside its transaction."""


def effects(app: Redrive) -> list[int]:
    return [row[0] for row in query(app, "SELECT fence FROM effect ORDER BY fence")]


@contextlib.contextmanager
def with_effects(folder: Path, **options: Any) -> Iterator[Redrive]:
    with make(folder, **options) as app:
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
            conn.execute("CREATE TABLE effect (fence INTEGER)")
        yield app


def effect_in(app: Redrive, way: str, *, no_op: bool = False, after: Any = None) -> Any:
    """A handler that inserts a row and closes in one transaction; ``after(context)`` runs before the commit."""
    path = app.ledger.path

    def sync(context: Context, payload: Any) -> None:
        if way.startswith("sqlite3"):
            level: Any = None if way.endswith("BEGIN") else "DEFERRED"
            with contextlib.closing(sqlite3.connect(path, isolation_level=level)) as conn:
                if level is None:
                    conn.execute("BEGIN IMMEDIATE")
                try:
                    conn.execute(INSERT, {"fence": context.fence})
                    context.close_in(conn, no_op=no_op)
                    if after:
                        after(context)
                    conn.execute("COMMIT")
                except BaseException:
                    conn.execute("ROLLBACK")
                    raise
            return
        engine = sa.create_engine(f"sqlite:///{path}")
        try:
            with Session(engine) if way == "Session" else engine.connect() as connection, connection.begin():
                connection.execute(sa.text(INSERT), {"fence": context.fence})
                context.close_in(connection, no_op=no_op)
                if after:
                    after(context)
        finally:
            engine.dispose()

    async def asynchronous(context: Context, payload: Any) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}")
        try:
            async with (
                AsyncSession(engine) if way == "AsyncSession" else engine.connect() as connection,
                connection.begin(),
            ):
                await connection.execute(sa.text(INSERT), {"fence": context.fence})
                await context.close_in_async(connection, no_op=no_op)
                if after:
                    after(context)
        finally:
            await engine.dispose()

    return asynchronous if way.startswith("Async") else sync


@pytest.mark.parametrize("way", WAYS)
def test_effect_and_outcome_commit_together(tmp_path: Path, way: str) -> None:
    with with_effects(tmp_path) as app:
        inside: list[tuple[Any, Any]] = []

        def look(context: Context) -> None:
            # From another connection nothing is there before the commit: neither the effect nor the outcome.
            inside.append((effects(app), query(app, "SELECT disposition FROM delivery_state")))

        app.handler("job", policy=ONCE)(effect_in(app, way, after=look))
        job = app.enqueue("job", key=1)
        drain(app)
        assert inside == [([], [(1,)])]
        assert effects(app) == [1]
        (attempt,) = attempts(app, job.delivery_id)
        assert (attempt.outcome, attempt.category, attempt.flags) == ("delivered", "ok", ("closed_in_handler",))
        assert seen(app, job.delivery_id).disposition == "delivered"
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
def test_effect_and_outcome_are_rolled_back_together(tmp_path: Path, way: str) -> None:
    with with_effects(tmp_path) as app:

        def fail_first(context: Context) -> None:
            if context.attempt == 1:
                raise Abort

        app.handler("job", policy=FAST)(effect_in(app, way, after=fail_first))
        job = app.enqueue("job", key=1)
        drain(app)
        assert effects(app) == [2]
        assert tries(app, job.delivery_id) == [("retryable", "handler_error"), ("delivered", "ok")]
        assert_verified(app)


def test_close_in_can_say_that_there_was_nothing_to_do(tmp_path: Path) -> None:
    with with_effects(tmp_path) as app:
        app.handler("job", policy=ONCE)(effect_in(app, "sqlite3", no_op=True))
        job = app.enqueue("job", key=1)
        drain(app)
        assert tries(app, job.delivery_id) == [("no_op", "nothing_to_do")]
        assert_verified(app)


@pytest.mark.parametrize("way", ["sqlite3", "AsyncConnection"])
def test_what_a_handler_raises_after_the_commit_changes_nothing(tmp_path: Path, way: str) -> None:
    with with_effects(tmp_path) as app:
        inner = effect_in(app, way)

        async def asynchronous(context: Context, payload: Any) -> None:
            await inner(context, payload)
            raise Abort

        def sync(context: Context, payload: Any) -> None:
            inner(context, payload)
            raise Abort

        app.handler("job", policy=FAST)(asynchronous if way.startswith("Async") else sync)
        job = app.enqueue("job", key=1)
        drain(app)
        assert tries(app, job.delivery_id) == [("delivered", "ok")]
        assert query(app, "SELECT count(*) FROM transition") == [(0,)]


def test_a_close_in_that_is_never_committed_is_not_delivered(tmp_path: Path) -> None:
    with with_effects(tmp_path) as app:

        @app.handler("job", policy=FAST)
        def job(context: Context, payload: Any) -> None:
            with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                conn.execute(INSERT, {"fence": context.fence})
                context.close_in(conn)
                if context.attempt == 2:
                    conn.commit()

        it = app.enqueue("job", key=1)
        drain(app)
        assert tries(app, it.delivery_id) == [("retryable", "handler_error"), ("delivered", "ok")]
        assert effects(app) == [2]
        assert_verified(app)


@pytest.mark.parametrize("way", ["sqlite3", "Session", "AsyncConnection"])
def test_close_in_under_a_lease_that_was_taken_over_raises_and_keeps_nothing(tmp_path: Path, way: str) -> None:
    """The first holder comes back after its lease was reaped and the work was done by somebody else."""
    one = WorkerSettings(slots=1)  # busy with the first attempt, so that it cannot take the second
    with with_effects(tmp_path, worker=one) as app, make(tmp_path, init=False) as other:
        lost: list[LeaseLost] = []
        inner = effect_in(app, way)

        def overtake(context: Context) -> None:
            """Expire the lease and have the other worker do the work, as after a long stop of this process."""
            assert context.holds_lease()
            with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                conn.execute("UPDATE delivery_state SET leased_until = 0")
                conn.commit()
            drain(other)

        @app.handler("job", policy=FAST)
        async def job(context: Context, payload: Any) -> None:
            await asyncio.to_thread(overtake, context)
            try:
                if way.startswith("Async"):
                    await inner(context, payload)
                else:
                    await asyncio.to_thread(inner, context, payload)
            except LeaseLost as exc:
                lost.append(exc)
                raise

        other.handler("job")(effect_in(other, "sqlite3"))
        it = app.enqueue("job", key=1)
        drain(app)
        assert [(exc.code, exc.exit_status) for exc in lost] == [("lease_lost", 6)]
        assert effects(app) == [2]
        assert tries(app, it.delivery_id) == [("unknown", "worker_lost"), ("delivered", "ok")]
        assert_verified(app)


def test_close_in_on_another_database_is_refused_and_nothing_is_recorded(tmp_path: Path) -> None:
    with with_effects(tmp_path) as app:
        errors: list[InvalidInput] = []

        @app.handler("job", policy=ONCE)
        def job(context: Context, payload: Any) -> None:
            with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as conn:
                conn.execute("CREATE TABLE t (x)")
                try:
                    context.close_in(conn)
                except InvalidInput as exc:
                    errors.append(exc)
                    raise

        it = app.enqueue("job", key=1)
        drain(app)
        assert [exc.param for exc in errors] == ["connection"]
        assert tries(app, it.delivery_id) == [("retryable", "handler_error")]


def test_closing_twice_in_one_transaction_is_lease_lost(tmp_path: Path) -> None:
    with with_effects(tmp_path) as app:

        @app.handler("job", policy=ONCE)
        def job(context: Context, payload: Any) -> None:
            with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
                context.close_in(conn)
                with pytest.raises(LeaseLost):
                    context.close_in(conn)
                conn.commit()

        it = app.enqueue("job", key=1)
        drain(app)
        assert tries(app, it.delivery_id) == [("delivered", "ok")]
