"""The PostgreSQL ledger's transactions, over its own connections or over the caller's, whatever the driver.

Statements are written once, for synchronous code. An async connection runs them through SQLAlchemy's bridge between
the two: the code waits in a greenlet while the event loop goes on, and a cancelled wait is raised where it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from redrive.errors import ConfigError
from redrive.ledger.postgres.connect import driver, state_of
from redrive.ledger.postgres.statements import Text, rendered, text_of
from redrive.ledger.statements import Named
from redrive.ledger.tx import Params, Row, Undo

if TYPE_CHECKING:
    import psycopg
    import sqlalchemy as sa

T = TypeVar("T")
_SAVEPOINT: Final = "redrive_part"
_AT_ONCE: Final = {"stream_results": False}
"""A caller may stream its own results; through a cursor on the server our statements would be run piecemeal."""


class _Savepoint(Undo):
    __slots__ = ("_tx",)

    def __init__(self, tx: PostgresTx) -> None:
        self._tx = tx

    def undo(self) -> None:
        self._tx.post(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")


class PostgresTx:
    """What every transaction on PostgreSQL shares; the rest is how its driver executes."""

    __slots__ = ("schema",)
    dialect: Final[Literal["postgres"]] = "postgres"

    def __init__(self, schema: str) -> None:
        self.schema = schema

    def _text(self, sql: str) -> Text:
        return text_of(sql, self.schema) if type(sql) is Named else rendered(sql, self.schema)

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        raise NotImplementedError

    def run(self, sql: str, params: Params = ()) -> int:
        raise NotImplementedError

    def post(self, sql: str, params: Params = ()) -> None:
        self.run(sql, params)

    def many(self, sql: str, params: Sequence[Params]) -> int:
        return sum(self.run(sql, values) for values in params)

    @contextmanager
    def savepoint(self) -> Iterator[Undo]:
        """Savepoints of one name nest: the innermost one is meant."""
        self.post(f"SAVEPOINT {_SAVEPOINT}")
        try:
            yield _Savepoint(self)
        except Exception:
            self.run(f"ROLLBACK TO SAVEPOINT {_SAVEPOINT}")
            self.run(f"RELEASE SAVEPOINT {_SAVEPOINT}")
            raise
        self.post(f"RELEASE SAVEPOINT {_SAVEPOINT}")

    def refused(self, exc: Exception) -> bool:
        return (state_of(exc) or "")[:2] == "23"


class PsycopgTx(PostgresTx):
    """A transaction on a psycopg connection, whatever row or cursor factory it has."""

    __slots__ = ("_cursor", "conn")

    def __init__(self, conn: psycopg.Connection[Any], schema: str) -> None:
        super().__init__(schema)
        self.conn = conn
        self._cursor = driver().RawCursor

    def _execute(self, sql: str, params: Params) -> psycopg.Cursor[Any]:
        from psycopg.rows import tuple_row

        cursor: psycopg.Cursor[Any] = self._cursor(self.conn, row_factory=tuple_row)
        # Binary: numbers and bytes cross as they are, at half the cost on either side.
        return cursor.execute(self._text(sql).dollar, params or None, binary=True)

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def run(self, sql: str, params: Params = ()) -> int:
        return self._execute(sql, params).rowcount

    def post(self, sql: str, params: Params = ()) -> None:
        """In a pipeline it is sent without waiting."""
        self._execute(sql, params)


class AsyncPsycopgTx(PostgresTx):
    """A transaction on a psycopg async connection; inside :func:`bridged`."""

    __slots__ = ("conn",)

    def __init__(self, conn: psycopg.AsyncConnection[Any], schema: str) -> None:
        super().__init__(schema)
        self.conn = conn

    async def _execute(self, sql: str, params: Params) -> psycopg.AsyncCursor[Any]:
        from psycopg.rows import tuple_row

        cursor = driver().AsyncRawCursor(self.conn, row_factory=tuple_row)
        made: psycopg.AsyncCursor[Any] = await cursor.execute(self._text(sql).dollar, params or None, binary=True)
        return made

    async def _rows(self, sql: str, params: Params) -> list[Row]:
        return await (await self._execute(sql, params)).fetchall()

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return _wait(self._rows(sql, params))

    def run(self, sql: str, params: Params = ()) -> int:
        return _wait(self._execute(sql, params)).rowcount


class AsyncpgTx(PostgresTx):
    """A transaction on an asyncpg connection; inside :func:`bridged`."""

    __slots__ = ("conn",)

    def __init__(self, conn: Any, schema: str) -> None:
        super().__init__(schema)
        self.conn = conn

    async def _rows(self, sql: str, params: Params) -> list[Row]:
        return [tuple(record) for record in await self.conn.fetch(self._text(sql).dollar, *params)]

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return _wait(self._rows(sql, params))

    def run(self, sql: str, params: Params = ()) -> int:
        done: str = _wait(self.conn.execute(self._text(sql).dollar, *params))
        count = done.rpartition(" ")[2]
        return int(count) if count.isdecimal() else -1


class SqlAlchemyTx(PostgresTx):
    """A transaction on a SQLAlchemy connection, sync or (through ``run_sync``) async."""

    __slots__ = ("_by_number", "connection")

    def __init__(self, connection: sa.Connection, schema: str) -> None:
        super().__init__(schema)
        self.connection = connection
        self._by_number = connection.dialect.paramstyle.startswith("numeric")

    def _execute(self, sql: str, params: Params) -> sa.CursorResult[Any]:
        text = self._text(sql)
        if self._by_number:
            return self.connection.exec_driver_sql(text.dollar, tuple(params), execution_options=_AT_ONCE)
        values = tuple(params[index] for index in text.order)
        # Without parameters the driver leaves percent signs alone.
        return self.connection.exec_driver_sql(
            text.percent if values else text.dollar, values or None, execution_options=_AT_ONCE
        )

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return [tuple(row) for row in self._execute(sql, params).fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        return self._execute(sql, params).rowcount


class DjangoTx(PostgresTx):
    """A transaction on Django's connection."""

    __slots__ = ("connection",)

    def __init__(self, connection: Any, schema: str) -> None:
        super().__init__(schema)
        self.connection = connection

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        text = self._text(sql)
        with self.connection.cursor() as cursor:
            cursor.execute(text.percent, [params[index] for index in text.order])
            return [tuple(row) for row in cursor.fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        text = self._text(sql)
        with self.connection.cursor() as cursor:
            cursor.execute(text.percent, [params[index] for index in text.order])
            count: int = cursor.rowcount
            return count


async def bridged(work: Callable[[], T]) -> T:
    """Run synchronous code whose statements wait on an async driver."""
    if find_spec("greenlet") is None:
        raise ConfigError(
            "an async connection needs the greenlet package", param="connection", hint="pip install greenlet"
        )
    from sqlalchemy.util import greenlet_spawn

    done: T = await greenlet_spawn(work)
    return done


def _wait(doing: Coroutine[Any, Any, T]) -> T:
    from sqlalchemy.util import await_only

    done: T = await_only(doing)
    return done
