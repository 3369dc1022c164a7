"""Every kind of connection that a caller may hand in, behind one face; and ledgers to use them on.

The coroutines of a synchronous way never wait, and run without an event loop: Django refuses to work inside one.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeVar
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from tests.services.postgres import PostgresServer

from redrive import Context, Redrive
from redrive.worker.settings import WorkerSettings

T = TypeVar("T")
SYNC = ["psycopg", "Connection", "Session", "Django"]
ASYNC = [
    "psycopg async",
    "asyncpg",
    "asyncpg pool",
    "AsyncConnection psycopg",
    "AsyncConnection asyncpg",
    "AsyncSession psycopg",
    "AsyncSession asyncpg",
]
WAYS = [*SYNC, *ASYNC]
DEADLINE_S = 20.0
_idle: dict[int, list[str]] = {}
"""Ledgers that no test uses, by their server's port: making one takes longer than most tests."""
FILLED = (
    "identity, event, delivery, delivery_state, generation, attempt, dead_letter, transition, repeat, repeat_count, "
    "rejection, receiver_duplicate, destination, subscription, handler, worker, audit"
)
CLEAN = (
    "DROP SCHEMA IF EXISTS trap CASCADE",
    f"SET session_replication_role = replica; SET search_path = redrive, public; TRUNCATE mine, {FILLED}; "
    "RESET session_replication_role",
    "UPDATE redrive.ledger SET environment = 'development'",
)
_aliases = itertools.count(1)


async def nothing(context: Context, payload: Any) -> None:
    pass


@contextlib.contextmanager
def ledger(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a ledger of one test's own, and of a table ``mine``: empty, though perhaps used by an earlier test."""
    idle = _idle.setdefault(postgres.port, [])
    url = idle.pop() if idle else _made(postgres)
    yield url
    # Sessions that a failed test left open would be waited for: its database is not used again.
    with psycopg.connect(url, autocommit=True) as conn:
        for text in CLEAN:
            conn.execute(text)
    idle.append(url)


def _made(postgres: PostgresServer) -> str:
    url = postgres.url(postgres.create_database())
    with Redrive(url) as app:
        app.init()
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE TABLE mine (n integer)")
    return url


@contextlib.contextmanager
def application(url: str, **options: Any) -> Iterator[Redrive]:
    """An application with one handler, ``job``."""
    options.setdefault("worker", WorkerSettings(slots=20, reap_s=0.05, drain_s=5, poll_s=0.5))
    with Redrive(url, **options) as app:
        app.handler("job")(nothing)
        yield app


def query(url: str, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows, from another session."""
    with psycopg.connect(url, autocommit=True) as conn:
        return conn.execute(sql, params or None).fetchall()


def count(url: str, table: str) -> int:
    return int(query(url, f"SELECT count(*) FROM {table}")[0][0])


class Caller:
    """A connection with an open transaction."""

    def __init__(self, conn: Any, execute: Callable[..., Any], commit: Any, rollback: Any, waits: bool) -> None:
        self.conn = conn
        self._execute = execute
        self._commit = commit
        self._rollback = rollback
        self.waits = waits

    async def _did(self, done: Any) -> Any:
        return await done if self.waits else done

    async def execute(self, sql: str) -> Any:
        """Run a statement; its rows, if the way has any to give."""
        return await self._did(self._execute(sql))

    async def commit(self) -> None:
        await self._did(self._commit())

    async def rollback(self) -> None:
        await self._did(self._rollback())

    async def call(self, app: Redrive, method: str, *arguments: Any, **named: Any) -> Any:
        """A method of the application on this connection; the one whose name ends in ``_async`` where one waits."""
        function = getattr(app, f"{method}_async" if self.waits else method)
        return await self._did(function(*arguments, connection=self.conn, **named))


@contextlib.asynccontextmanager
async def calling(url: str, way: str, level: str = "READ COMMITTED") -> AsyncIterator[Caller]:
    """A transaction of that isolation level, in which ``mine`` has got a row."""
    kind, _, driver = way.partition(" ")
    opened = _OPENED.get(way) or _OPENED[kind]
    async with opened(url, level, driver) as caller:
        await caller.execute("INSERT INTO mine VALUES (1)")
        yield caller


def drive(way: str, work: Coroutine[Any, Any, T]) -> T:
    """Run a test's body."""
    if way in SYNC:
        try:
            work.send(None)
        except StopIteration as end:
            done: T = end.value
            return done
        raise AssertionError("a synchronous way has waited")

    async def bounded() -> T:
        async with asyncio.timeout(DEADLINE_S):
            return await work

    return asyncio.run(bounded())


@contextlib.asynccontextmanager
async def _psycopg(url: str, level: str, _: str) -> AsyncIterator[Caller]:
    with psycopg.connect(url) as conn:
        conn.isolation_level = psycopg.IsolationLevel[level.replace(" ", "_")]
        yield Caller(conn, lambda sql: _fetched(conn.execute(sql)), conn.commit, conn.rollback, False)
        conn.rollback()


def _fetched(cursor: Any) -> Any:
    return cursor.fetchall() if cursor.description else None


@contextlib.asynccontextmanager
async def _psycopg_async(url: str, level: str, _: str) -> AsyncIterator[Caller]:
    async with await psycopg.AsyncConnection.connect(url) as conn:
        await conn.set_isolation_level(psycopg.IsolationLevel[level.replace(" ", "_")])

        async def execute(sql: str) -> Any:
            cursor = await conn.execute(sql)
            return await cursor.fetchall() if cursor.description else None

        yield Caller(conn, execute, conn.commit, conn.rollback, True)
        await conn.rollback()


def _asyncpg_caller(conn: Any) -> Caller:
    async def execute(sql: str) -> Any:
        return [tuple(row) for row in await conn.fetch(sql)]

    return Caller(conn, execute, lambda: conn.execute("COMMIT"), lambda: conn.execute("ROLLBACK"), True)


@contextlib.asynccontextmanager
async def _asyncpg(url: str, level: str, _: str) -> AsyncIterator[Caller]:
    conn = await asyncpg.connect(url)
    try:
        await conn.execute(f"BEGIN ISOLATION LEVEL {level}")
        yield _asyncpg_caller(conn)
    finally:
        await conn.close()


@contextlib.asynccontextmanager
async def _asyncpg_pool(url: str, level: str, _: str) -> AsyncIterator[Caller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as conn:
        await conn.execute(f"BEGIN ISOLATION LEVEL {level}")
        yield _asyncpg_caller(conn)


def _engine_url(url: str, driver: str) -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


@contextlib.asynccontextmanager
async def _sqlalchemy(url: str, level: str, way: str) -> AsyncIterator[Caller]:
    engine = sa.create_engine(_engine_url(url, "psycopg"), isolation_level=level)
    try:
        with Session(engine) if way == "Session" else engine.connect() as conn:

            def execute(sql: str) -> Any:
                result: Any = conn.execute(sa.text(sql))
                return [tuple(row) for row in result] if result.returns_rows else None

            yield Caller(conn, execute, conn.commit, conn.rollback, False)
    finally:
        engine.dispose()


@contextlib.asynccontextmanager
async def _sqlalchemy_async(url: str, level: str, way: str, driver: str) -> AsyncIterator[Caller]:
    engine = create_async_engine(_engine_url(url, driver), isolation_level=level)
    try:
        async with AsyncSession(engine) if way == "AsyncSession" else engine.connect() as conn:

            async def execute(sql: str) -> Any:
                result: Any = await conn.execute(sa.text(sql))
                return [tuple(row) for row in result] if result.returns_rows else None

            yield Caller(conn, execute, conn.commit, conn.rollback, True)
    finally:
        await engine.dispose()


@contextlib.contextmanager
def django_connection(url: str, level: str = "READ COMMITTED") -> Iterator[Any]:
    """Django's own stand-in for this thread's connection, as ``django.db.connection`` is one."""
    import django
    from django.conf import settings
    from django.db import connections
    from django.utils.connection import ConnectionProxy

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()
    alias = f"test{next(_aliases)}"
    parts = urlsplit(url)
    isolation = psycopg.IsolationLevel[level.replace(" ", "_")]
    connections.settings[alias] = connections.configure_settings(
        {
            alias: {
                "ENGINE": "django.db.backends.postgresql",
                "NAME": parts.path.lstrip("/"),
                "USER": parts.username,
                "HOST": parts.hostname,
                "PORT": parts.port,
                "OPTIONS": {"isolation_level": isolation},
            },
            "default": {},
        }
    )[alias]
    try:
        yield ConnectionProxy(connections, alias)
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]


@contextlib.asynccontextmanager
async def _django(url: str, level: str, _: str) -> AsyncIterator[Caller]:
    from django.db import transaction

    with django_connection(url, level) as conn:

        def execute(sql: str) -> Any:
            with conn.cursor() as cursor:
                cursor.execute(sql)
                return _fetched(cursor)

        with contextlib.ExitStack() as stack:
            atomic = stack.enter_context(transaction.atomic(using=conn.alias))
            assert atomic is None

            def rollback() -> None:
                transaction.set_rollback(True, using=conn.alias)
                stack.close()

            yield Caller(conn, execute, stack.close, rollback, False)


_OPENED: dict[str, Callable[[str, str, str], contextlib.AbstractAsyncContextManager[Caller]]] = {
    "psycopg": _psycopg,
    "psycopg async": _psycopg_async,
    "asyncpg": _asyncpg,
    "asyncpg pool": _asyncpg_pool,
    "Connection": lambda url, level, _: _sqlalchemy(url, level, "Connection"),
    "Session": lambda url, level, _: _sqlalchemy(url, level, "Session"),
    "AsyncConnection": lambda url, level, driver: _sqlalchemy_async(url, level, "AsyncConnection", driver),
    "AsyncSession": lambda url, level, driver: _sqlalchemy_async(url, level, "AsyncSession", driver),
    "Django": _django,
}
