"""The SQLite ledger's transactions, over the writer's connection or over the caller's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Literal

from redrive.ledger.sqlite.statements import arranged, text_of
from redrive.ledger.tx import Params, Row, Tx, Undo

if TYPE_CHECKING:
    import sqlalchemy as sa

__all__ = ["Params", "RawTx", "Row", "SqlAlchemyTx", "Tx"]

_SAVEPOINT: Final = "redrive_part"


class _Savepoint(Undo):
    __slots__ = ("_execute",)

    def __init__(self, execute: Callable[[str], object]) -> None:
        self._execute = execute

    def undo(self) -> None:
        self._execute(f"ROLLBACK TO {_SAVEPOINT}")


class SqliteTx:
    """What every transaction on SQLite shares; the rest is how its driver executes."""

    __slots__ = ()
    dialect: Final[Literal["sqlite"]] = "sqlite"

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
        self.run(f"SAVEPOINT {_SAVEPOINT}")
        try:
            yield _Savepoint(self.run)
        except BaseException:
            if self.alive():  # else SQLite itself has rolled everything back (disk full, I/O error)
                self.run(f"ROLLBACK TO {_SAVEPOINT}")
                self.run(f"RELEASE {_SAVEPOINT}")
            raise
        self.run(f"RELEASE {_SAVEPOINT}")

    def alive(self) -> bool:
        """Whether the transaction is still open."""
        return True

    def refused(self, exc: Exception) -> bool:
        original = getattr(exc, "orig", exc)  # SQLAlchemy's wrapping
        return isinstance(original, sqlite3.IntegrityError)


class RawTx(SqliteTx):
    """A transaction on a standard library connection."""

    __slots__ = ("conn",)

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        sql = text_of(sql)
        return self.conn.execute(sql, arranged(sql, params)).fetchall()

    def run(self, sql: str, params: Params = ()) -> int:
        sql = text_of(sql)
        return self.conn.execute(sql, arranged(sql, params)).rowcount

    def many(self, sql: str, params: Sequence[Params]) -> int:
        sql = text_of(sql)
        if getattr(sql, "order", None) is not None:
            params = [arranged(sql, row) for row in params]
        return self.conn.executemany(sql, params).rowcount

    def alive(self) -> bool:
        return self.conn.in_transaction


class CursorTx(SqliteTx):
    """A caller's standard library connection, whatever row factory it has."""

    __slots__ = ("conn",)

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn

    def _execute(self, statement: str, params: Params) -> sqlite3.Cursor:
        statement = text_of(statement)
        cursor = self.conn.cursor()
        cursor.row_factory = None
        return cursor.execute(statement, arranged(statement, params))

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self._execute(sql, params).fetchall()

    def run(self, sql: str, params: Params = ()) -> int:
        return self._execute(sql, params).rowcount

    def alive(self) -> bool:
        return self.conn.in_transaction


class SqlAlchemyTx(SqliteTx):
    """A transaction on a SQLAlchemy connection, sync or (through ``run_sync``) async."""

    __slots__ = ("connection",)

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        sql = text_of(sql)
        return [tuple(row) for row in self.connection.exec_driver_sql(sql, tuple(arranged(sql, params))).fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        sql = text_of(sql)
        return self.connection.exec_driver_sql(sql, tuple(arranged(sql, params))).rowcount
