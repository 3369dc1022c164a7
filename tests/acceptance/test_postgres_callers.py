"""Connections that cannot be used, peculiar ones that can, what goes over the wire, and ``ctx.close_in``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session, scoped_session, sessionmaker
from tests.acceptance.engine_support import FAST, assert_verified, drain, tries
from tests.acceptance.postgres_callers import (
    ASYNC,
    SYNC,
    WAYS,
    application,
    calling,
    count,
    django_connection,
    drive,
    ledger,
    query,
)
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy

from redrive import Context, InvalidInput
from redrive.app import JobSpec
from redrive.webhooks.publish import Event
from redrive.worker.jobs import LeaseLost


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    with ledger(postgres) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_a_batch_is_one_statement(url: str, way: str) -> None:
    async def main(app: Any, through: str) -> None:
        async with calling(through, way) as caller:
            sent = proxy.executions()
            made = await caller.call(app, "enqueue_many", [JobSpec("job", n, n) for n in range(500)])
            assert proxy.executions() - sent == 1
            assert [job.created for job in made] == [True] * 500
            await caller.call(app, "enqueue", "job", 1, key="one")
            await caller.call(app, "publish_many", [Event("a.b", n, n) for n in range(500)])
            assert proxy.executions() - sent == 3
            # Duplicates cost no more.
            await caller.call(app, "enqueue_many", [JobSpec("job", n, n) for n in range(500)])
            assert proxy.executions() - sent == 4
            await caller.commit()

    with Proxy.start(url) as proxy, application(url) as app:
        drive(way, main(app, proxy.url_of(url)))
        assert (count(url, "redrive.delivery"), count(url, "redrive.event")) == (501, 500)


# --- connections that cannot be used --------------------------------------------------------------------


def engine_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def test_autocommit_without_a_transaction_is_refused(url: str) -> None:
    async def asynchronous(app: Any) -> None:
        async def refused(conn: Any) -> None:
            with pytest.raises(InvalidInput) as caught:
                await app.enqueue_async("job", 1, key=1, connection=conn)
            assert (caught.value.param, "autocommit" in caught.value.message) == ("connection", True)

        async with await psycopg.AsyncConnection.connect(url, autocommit=True) as conn:
            await refused(conn)
            async with conn.transaction():
                assert (await app.enqueue_async("job", 1, key="psycopg async", connection=conn)).created
        plain = await asyncpg.connect(url)
        await refused(plain)
        async with plain.transaction():
            assert (await app.enqueue_async("job", 1, key="asyncpg", connection=plain)).created
        await plain.close()
        for driver in ("psycopg", "asyncpg"):
            engine = create_async_engine(engine_url(url, driver), isolation_level="AUTOCOMMIT")
            async with engine.connect() as made:
                await refused(made)
            await engine.dispose()

    with application(url) as app:

        def refused(conn: Any) -> None:
            with pytest.raises(InvalidInput) as caught:
                app.enqueue("job", 1, key=1, connection=conn)
            assert (caught.value.param, "autocommit" in caught.value.message) == ("connection", True)

        with psycopg.connect(url, autocommit=True) as conn:
            refused(conn)
            with conn.transaction():
                assert app.enqueue("job", 1, key="psycopg", connection=conn).created
        engine = sa.create_engine(engine_url(url, "psycopg"), isolation_level="AUTOCOMMIT")
        with engine.connect() as made, Session(engine) as session:
            refused(made)
            refused(session)
        engine.dispose()
        with django_connection(url) as own:
            refused(own)
        asyncio.run(asynchronous(app))
        keys = query(url, "SELECT key FROM redrive.delivery ORDER BY key")
        assert keys == [("asyncpg",), ("psycopg",), ("psycopg async",)]


@pytest.mark.parametrize("way", WAYS)
def test_the_method_must_suit_the_connection(url: str, way: str) -> None:
    async def main(app: Any) -> None:
        async with calling(url, way) as caller:
            if caller.waits:
                for act in (
                    lambda: app.enqueue("job", 1, key=1, connection=caller.conn),
                    lambda: app.publish("a.b", 1, event_id=1, connection=caller.conn),
                ):
                    with pytest.raises(InvalidInput) as caught:
                        act()
                    assert (caught.value.param, "_async" in (caught.value.hint or "")) == ("connection", True)
            else:
                with pytest.raises(InvalidInput) as caught:
                    # Nothing is waited for before it is refused.
                    app.enqueue_async("job", 1, key=1, connection=caller.conn).send(None)
                assert (caught.value.param, "not an async" in caught.value.message) == ("connection", True)
            assert await caller.execute("SELECT n FROM mine") == [(1,)]

    with application(url) as app:
        app.enqueue("job", 1, key="the policy is known")
        drive(way, main(app))


def test_what_is_no_connection_is_refused(url: str) -> None:
    async def asynchronous(app: Any, given: list[Any]) -> None:
        engine = create_async_engine(engine_url(url, "asyncpg"))
        async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, engine.connect() as conn:
            for each in (*given, pool, engine, conn.begin(), await conn.get_raw_connection()):
                with pytest.raises(InvalidInput) as caught:
                    await app.enqueue_async("job", 1, key=1, connection=each)
                assert "is not a connection" in caught.value.message
        await engine.dispose()

    engine = sa.create_engine(engine_url(url, "psycopg"))
    with application(url) as app, psycopg.connect(url) as conn, contextlib.closing(engine.raw_connection()):
        app.enqueue("job", 1, key="the policy is known")
        given = [engine, url, conn.cursor(), object(), sessionmaker(engine), conn.transaction()]
        for each in given:
            with pytest.raises(InvalidInput) as caught:
                app.enqueue("job", 1, key=1, connection=each)
            assert (caught.value.param, "is not a connection" in caught.value.message) == ("connection", True)
        asyncio.run(asynchronous(app, given))
    engine.dispose()
    sqlite = sa.create_engine("sqlite://")
    with application(url) as app, sqlite.connect() as made, pytest.raises(InvalidInput) as caught:
        app.enqueue("job", 1, key=1, connection=made)
    assert "another database" in caught.value.message
    sqlite.dispose()


def test_a_closed_connection_is_refused(url: str) -> None:
    async def asynchronous(app: Any) -> None:
        for conn in (await asyncpg.connect(url), await psycopg.AsyncConnection.connect(url)):
            await conn.close()
            with pytest.raises(InvalidInput) as caught:
                await app.enqueue_async("job", 1, key=1, connection=conn)
            assert "closed" in caught.value.message

    with application(url) as app:
        conn = psycopg.connect(url)
        conn.close()
        with pytest.raises(InvalidInput) as caught:
            app.enqueue("job", 1, key=1, connection=conn)
        assert "closed" in caught.value.message
        asyncio.run(asynchronous(app))


# --- peculiar ones that can -----------------------------------------------------------------------------


def twice(app: Any, conn: Any) -> None:
    """Created, then a duplicate; a publish with and without deliveries to return."""
    assert app.enqueue("job", {"100%": "$1 %s"}, key=("100%", "$1"), connection=conn).created
    assert not app.enqueue("job", {"100%": "$1 %s"}, key=("100%", "$1"), connection=conn).created
    assert app.publish("a.b", "{}", event_id="%s", connection=conn).created
    assert not app.publish("a.b", "{}", event_id="%s", connection=conn).created


@pytest.mark.parametrize(
    "options",
    [
        {"row_factory": dict_row},
        {"prepare_threshold": None},
        {"prepare_threshold": 0},
        {"cursor_factory": psycopg.ClientCursor},
        {"cursor_factory": psycopg.RawCursor},
        {"client_encoding": "LATIN1"},
    ],
    ids=str,
)
def test_a_psycopg_connection_of_any_make(url: str, options: Any) -> None:
    with application(url) as app, psycopg.connect(url, **options) as conn:
        twice(app, conn)
        with conn.transaction(), conn.pipeline():
            assert app.enqueue("job", 1, key="in a pipeline", connection=conn).created
        conn.commit()
        assert count(url, "redrive.delivery") == 2


def test_asyncpg_without_prepared_statements_and_sqlalchemy_with_streaming(url: str) -> None:
    async def asynchronous(app: Any) -> None:
        conn = await asyncpg.connect(url, statement_cache_size=0)
        async with conn.transaction():
            for n in range(3):
                assert (await app.enqueue_async("job", 1, key=("asyncpg", n), connection=conn)).created
        await conn.close()

    engine = sa.create_engine(engine_url(url, "psycopg"))
    with application(url) as app:
        asyncio.run(asynchronous(app))
        with engine.connect().execution_options(stream_results=True, yield_per=1) as made:
            made = made.execution_options(stream_results=True, yield_per=1)
            assert all(
                job.created for job in app.enqueue_many([JobSpec("job", n, n) for n in range(9)], connection=made)
            )
            made.commit()
        sessions = scoped_session(sessionmaker(engine))
        assert app.enqueue("job", 1, key="scoped", connection=sessions).created
        with sessions.begin_nested():
            assert app.enqueue("job", 1, key="nested", connection=sessions).created
        sessions.commit()
        sessions.remove()
    engine.dispose()
    assert count(url, "redrive.delivery") == 14


# --- effect and outcome together ------------------------------------------------------------------------


def handler_in(url: str, way: str, after: Any) -> Any:
    """A handler whose effect is a row in ``mine``."""

    async def work(context: Context) -> None:
        async with calling(url, way) as caller:
            if caller.waits:
                await context.close_in_async(caller.conn)
            else:
                context.close_in(caller.conn)
            try:
                after(context)
            except BaseException:
                await caller.rollback()
                raise
            await caller.commit()

    def sync(context: Context, payload: Any) -> None:
        drive(way, work(context))

    async def asynchronous(context: Context, payload: Any) -> None:
        await work(context)

    return asynchronous if way in ASYNC else sync


@pytest.mark.parametrize("way", WAYS)
def test_effect_and_outcome_commit_together_or_not_at_all(url: str, way: str) -> None:
    def look(context: Context) -> None:
        assert count(url, "mine") == 0
        assert query(url, "SELECT disposition FROM redrive.delivery_state") == [(1,)]
        if context.attempt == 1:
            raise RuntimeError

    with application(url) as app:
        app.handler("effect", policy=FAST)(handler_in(url, way, look))
        job = app.enqueue("effect", key=1)
        drain(app)
        assert tries(app, job.delivery_id) == [("retryable", "handler_error"), ("delivered", "ok")]
        assert count(url, "mine") == 1
        assert_verified(app)


@pytest.mark.parametrize("way", [SYNC[0], "Session", "asyncpg", "AsyncConnection asyncpg"])
def test_close_in_under_a_lost_lease_keeps_nothing(url: str, way: str) -> None:
    lost: list[LeaseLost] = []

    def expire(context: Context, payload: Any) -> None:
        with psycopg.connect(url) as conn:
            conn.execute("UPDATE redrive.delivery_state SET leased_until = 0")
        reaped = query(
            url,
            "UPDATE redrive.delivery_state SET disposition = 5, leased_by = NULL, leased_until = NULL, "
            "started_at = NULL RETURNING 1",
        )
        assert reaped == [(1,)]

    with application(url) as app:
        inner = handler_in(url, way, lambda context: None)

        @app.handler("effect", policy=FAST)
        async def effect(context: Context, payload: Any) -> None:
            await asyncio.to_thread(expire, context, payload)
            try:
                if way in ASYNC:
                    await inner(context, payload)
                else:
                    await asyncio.to_thread(inner, context, payload)
            except LeaseLost as exc:
                lost.append(exc)
                raise

        app.enqueue("effect", key=1)
        drain(app)
        assert [exc.code for exc in lost] == ["lease_lost"]
        assert count(url, "mine") == 0
