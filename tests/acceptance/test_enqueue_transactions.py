"""Enqueue and publish inside the caller's own transaction, and from many tasks, threads and processes at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.acceptance.engine_support import (
    assert_verified,
    drain,
    make,
    query,
    rig,
    seen,
    settings,
    until,
    working,
)

from redrive import Conflict, Context, InvalidInput, Redrive
from redrive.app import JobSpec
from redrive.errors import EnvironmentMismatch, LedgerBusy

SYNC = ["sqlite3", "sqlite3 BEGIN", "Connection", "Session"]
ASYNC = ["AsyncConnection", "AsyncSession"]


async def nothing(context: Context, payload: Any) -> None:
    pass


@contextlib.contextmanager
def prepared(folder: Path) -> Iterator[Redrive]:
    with make(folder) as app:
        app.handler("job")(nothing)
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
            conn.execute("CREATE TABLE mine (n INTEGER)")
        yield app


@contextlib.contextmanager
def connection(path: Path, way: str) -> Iterator[tuple[Any, Callable[[], Any], Callable[[], Any]]]:
    """A connection with an open transaction, in which ``mine`` has got a row; its commit and its rollback."""
    if way.startswith("sqlite3"):
        level: Any = None if way.endswith("BEGIN") else "DEFERRED"
        with contextlib.closing(sqlite3.connect(path, isolation_level=level)) as conn:
            if level is None:
                conn.execute("BEGIN IMMEDIATE")
            conn.execute("INSERT INTO mine VALUES (1)")
            yield conn, lambda: conn.execute("COMMIT"), lambda: conn.execute("ROLLBACK")
        return
    engine = sa.create_engine(f"sqlite:///{path}")
    try:
        with Session(engine) if way == "Session" else engine.connect() as made:
            made.execute(sa.text("INSERT INTO mine VALUES (1)"))
            yield made, made.commit, made.rollback
    finally:
        engine.dispose()


@pytest.mark.parametrize("way", SYNC)
def test_work_becomes_visible_with_the_callers_transaction(tmp_path: Path, way: str) -> None:
    with prepared(tmp_path) as app:
        with connection(app.ledger.path, way) as (conn, commit, _):
            job = app.enqueue("job", {"n": 1}, key=1, connection=conn)
            assert job.created
            assert query(app, "SELECT count(*) FROM delivery") == [(0,)]
            assert not app.enqueue("job", {"n": 1}, key=1, connection=conn).created
            commit()
        assert query(app, "SELECT n FROM mine") == [(1,)]
        assert query(app, "SELECT path FROM repeat") == [("connection",)]
        drain(app)
        assert seen(app, job.delivery_id).disposition == "delivered"
        assert_verified(app)


@pytest.mark.parametrize("way", SYNC)
def test_work_is_rolled_back_with_the_callers_transaction(tmp_path: Path, way: str) -> None:
    with prepared(tmp_path) as app:
        with connection(app.ledger.path, way) as (conn, _, rollback):
            app.enqueue("job", {"n": 1}, key=1, connection=conn)
            rollback()
        assert query(app, "SELECT count(*) FROM mine") == [(0,)]
        assert query(app, "SELECT count(*) FROM identity") == [(0,)]
        # The key is as free as before, for another payload too.
        assert app.enqueue("job", {"n": 2}, key=1).created
        assert_verified(app)


@pytest.mark.parametrize("way", SYNC)
def test_a_conflict_leaves_the_callers_transaction_usable(tmp_path: Path, way: str) -> None:
    with prepared(tmp_path) as app:
        app.enqueue("job", {"n": 1}, key=1)
        with connection(app.ledger.path, way) as (conn, commit, _):
            with pytest.raises(Conflict):
                app.enqueue_many([JobSpec("job", 0, "new"), JobSpec("job", {"n": 2}, 1)], connection=conn)
            app.enqueue("job", 0, key="after", connection=conn)
            commit()
        assert query(app, "SELECT n FROM mine") == [(1,)]
        assert query(app, "SELECT key FROM delivery ORDER BY seq") == [("1",), ("after",)]
        assert query(app, "SELECT decided FROM repeat") == [("conflict",)]
        assert_verified(app)


@pytest.mark.parametrize("way", ASYNC)
@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_async_connections_and_sessions(tmp_path: Path, way: str, end: str) -> None:
    async def main(app: Redrive) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{app.ledger.path}")
        try:
            async with AsyncSession(engine) if way == "AsyncSession" else engine.connect() as conn:
                await conn.execute(sa.text("INSERT INTO mine VALUES (1)"))
                made = await app.enqueue_async("job", {"n": 1}, key=1, connection=conn)
                assert made.created
                await app.publish_async("order.paid", {}, event_id=1, connection=conn)
                assert query(app, "SELECT count(*) FROM delivery") == [(0,)]
                await getattr(conn, end)()
        finally:
            await engine.dispose()

    with prepared(tmp_path) as app:
        asyncio.run(main(app))
        expected = [(int(end == "commit"),)]
        for table in ("mine", "delivery", "event"):
            assert query(app, f"SELECT count(*) FROM {table}") == expected
        drain(app)
        assert_verified(app)


def test_publish_inside_the_callers_transaction(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=()))
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
            app.publish("order.paid", {"n": 1}, event_id=1, connection=conn)
            conn.rollback()
            drain(app)
            assert receiver.got == []
            made = app.publish("order.paid", {"n": 2}, event_id=1, connection=conn)
            assert (made.created, len(made.deliveries)) == (True, 1)
            conn.commit()
        drain(app)
        assert [got.body for got in receiver.got] == [b'{"n":2}']
        assert_verified(app)


def test_a_waiting_worker_notices_what_a_callers_transaction_committed(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:

        async def main() -> None:
            async with working(app):
                await asyncio.sleep(0.1)
                with connection(app.ledger.path, "sqlite3") as (conn, commit, _):
                    job = app.enqueue("job", key=1, connection=conn)
                    commit()
                await until(lambda: seen(app, job.delivery_id).disposition == "delivered")

        asyncio.run(main())


def test_refused_enqueues_stay_counted_when_the_callers_transaction_is_rolled_back(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:
        with connection(app.ledger.path, "sqlite3") as (conn, _, rollback):
            with pytest.raises(InvalidInput):
                app.enqueue("job", key=None, connection=conn)
            app.enqueue("job", key=1, connection=conn)
            rollback()
        app.enqueue("job", key=2)
        assert app.operations.status().rejections == {"invalid_input": 1}


# --- connections that cannot be used --------------------------------------------------------------------


def test_another_database_is_refused(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:
        for target in (":memory:", str(tmp_path / "other.db")):
            with contextlib.closing(sqlite3.connect(target)) as conn:
                conn.execute("CREATE TABLE mine (n)")
                conn.execute("INSERT INTO mine VALUES (1)")
                with pytest.raises(InvalidInput) as caught:
                    app.enqueue("job", key=1, connection=conn)
                assert caught.value.param == "connection"
        assert query(app, "SELECT count(*) FROM identity") == [(0,)]


def test_the_same_file_by_another_name_is_the_ledger(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:
        link = tmp_path / "link.db"
        link.symlink_to(app.ledger.path)
        with contextlib.closing(sqlite3.connect(f"{tmp_path}/./link.db")) as conn:
            app.enqueue("job", key=1, connection=conn)
            conn.commit()
        assert query(app, "SELECT count(*) FROM identity") == [(1,)]


def test_a_ledger_of_another_environment_is_refused(tmp_path: Path) -> None:
    with prepared(tmp_path) as app, contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        conn.execute("UPDATE ledger SET environment = 'other'")
        with pytest.raises(EnvironmentMismatch):
            app.enqueue("job", key=1, connection=conn)
        conn.rollback()


def test_autocommit_is_refused(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:
        with contextlib.closing(sqlite3.connect(app.ledger.path, isolation_level=None)) as conn:
            with pytest.raises(InvalidInput) as caught:
                app.enqueue("job", key=1, connection=conn)
            assert caught.value.param == "connection"
        engine = sa.create_engine(f"sqlite:///{app.ledger.path}", isolation_level="AUTOCOMMIT")
        with engine.connect() as made, pytest.raises(InvalidInput) as caught:
            app.enqueue("job", key=1, connection=made)
        engine.dispose()
        assert caught.value.param == "connection"
        assert query(app, "SELECT count(*) FROM identity") == [(0,)]


def test_an_async_connection_needs_the_async_method(tmp_path: Path) -> None:
    async def main(app: Redrive) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{app.ledger.path}")
        try:
            async with engine.connect() as conn:
                with pytest.raises(InvalidInput) as caught:
                    app.enqueue("job", key=1, connection=conn)
                assert "_async" in (caught.value.hint or "")
                with pytest.raises(InvalidInput):
                    app.publish("a.b", 1, event_id=1, connection=conn)
        finally:
            await engine.dispose()
        with contextlib.closing(sqlite3.connect(app.ledger.path)) as sync, pytest.raises(InvalidInput):
            await app.enqueue_async("job", key=1, connection=sync)

    with prepared(tmp_path) as app:
        asyncio.run(main(app))


@pytest.mark.parametrize("what", ["engine", "text", "cursor", "object"])
def test_what_is_no_connection_is_refused(tmp_path: Path, what: str) -> None:
    with prepared(tmp_path) as app, contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        engine = sa.create_engine(f"sqlite:///{app.ledger.path}")
        given: Any = {"engine": engine, "text": "sqlite://", "cursor": conn.cursor(), "object": object()}[what]
        with pytest.raises(InvalidInput) as caught:
            app.enqueue("job", key=1, connection=given)
        assert caught.value.param == "connection"
        engine.dispose()


def test_a_subclass_of_a_session_is_a_session(tmp_path: Path) -> None:
    class Ours(Session):
        pass

    with prepared(tmp_path) as app:
        engine = sa.create_engine(f"sqlite:///{app.ledger.path}")
        with Ours(engine) as session:
            app.enqueue("job", key=1, connection=session)
            session.commit()
        engine.dispose()
        assert query(app, "SELECT count(*) FROM identity") == [(1,)]


@pytest.mark.parametrize("factory", [sqlite3.Row, lambda cursor, row: {"row": row}], ids=["Row", "dict"])
def test_a_row_factory_of_the_callers_own_does_not_matter(tmp_path: Path, factory: Any) -> None:
    with prepared(tmp_path) as app, contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        conn.row_factory = factory
        first = app.enqueue("job", {"n": 1}, key=1, connection=conn)
        assert not app.enqueue("job", {"n": 1}, key=1, connection=conn).created
        conn.commit()
        assert conn.row_factory is factory
        assert seen(app, first.delivery_id).disposition == "waiting"


@pytest.mark.parametrize("way", ["sqlite3", "Connection"])
def test_a_locked_ledger_is_busy_and_not_a_drivers_error(tmp_path: Path, way: str) -> None:
    with prepared(tmp_path) as app, contextlib.closing(sqlite3.connect(app.ledger.path)) as holder:
        with contextlib.closing(sqlite3.connect(app.ledger.path, timeout=0)) as conn:
            engine = sa.create_engine(f"sqlite:///{app.ledger.path}", connect_args={"timeout": 0})
            holder.execute("INSERT INTO mine VALUES (1)")
            with engine.connect() as made, pytest.raises(LedgerBusy):
                app.enqueue("job", key=1, connection=conn if way == "sqlite3" else made)
            engine.dispose()
        holder.rollback()


# --- many at once ---------------------------------------------------------------------------------------


def test_fifty_tasks_enqueue_the_same_and_different_work(tmp_path: Path) -> None:
    async def main(app: Redrive) -> list[Any]:
        return await asyncio.gather(
            *(app.enqueue_async("job", {"n": n % 10}, key=n % 10) for n in range(50)),
            *(app.enqueue_async("job", {"n": n}, key=("own", n)) for n in range(50)),
        )

    with prepared(tmp_path) as app:
        made = asyncio.run(main(app))
        assert sum(job.created for job in made) == 60
        assert len({job.delivery_id for job in made}) == 60
        assert query(app, "SELECT count(*) FROM delivery") == [(60,)]
        assert query(app, "SELECT sum(duplicates) FROM repeat_count") == [(40,)]
        drain(app)
        assert_verified(app)


def test_threads_enqueue_the_same_work_once(tmp_path: Path) -> None:
    with prepared(tmp_path) as app, ThreadPoolExecutor(8) as threads:
        made = list(threads.map(lambda n: app.enqueue("job", {"n": 1}, key="one"), range(64)))
        assert sum(job.created for job in made) == 1
        assert len({job.delivery_id for job in made}) == 1


CHILD = """
import sys
from redrive import Redrive
app = Redrive(sys.argv[1], producer=sys.argv[2])
@app.handler("job")
def job(context, payload): pass
print("ready", flush=True)
sys.stdin.readline()
print(sum(app.enqueue("job", {"n": n}, key=n).created for n in range(50)))
app.close()
"""


def test_processes_that_enqueue_the_same_work_at_the_same_moment_make_one_delivery_each(tmp_path: Path) -> None:
    with prepared(tmp_path) as app:
        command = [sys.executable, "-c", CHILD, app.url]
        environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        children = [
            subprocess.Popen([*command, f"p{n}"], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for n in range(3)
        ]
        try:
            for child in children:
                assert child.stdout is not None
                assert child.stdout.readline() == "ready\n"
            for child in children:
                assert child.stdin is not None
                child.stdin.write("go\n")
                child.stdin.flush()
            created = [int(child.communicate(timeout=30)[0]) for child in children]
        finally:
            for child in children:
                if child.poll() is None:
                    child.kill()
                    child.communicate()
        assert sum(created) == 50
        assert query(app, "SELECT count(*) FROM delivery") == [(50,)]
        assert query(app, "SELECT sum(duplicates) FROM repeat_count") == [(100,)]
        drain(app)
        assert_verified(app)
