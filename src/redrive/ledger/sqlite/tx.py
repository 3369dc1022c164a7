"""What a statement needs of a transaction, over the writer's connection or over the caller's own."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from redrive.ledger.sqlite.statements import arranged

if TYPE_CHECKING:
    import sqlalchemy as sa

Row = tuple[Any, ...]
Params = Sequence[Any]


class Tx(Protocol):
    """An open write transaction. Statements use numbered parameters (``?1``)."""

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        """All rows of one statement."""
        ...

    def run(self, sql: str, params: Params = ()) -> int:
        """Run one statement; the number of rows it changed."""
        ...

    def many(self, sql: str, params: Sequence[Params]) -> int:
        """Run one statement for each set of parameters; the number of rows changed in all."""
        ...


def _all_arranged(sql: str, rows: Sequence[Params]) -> Sequence[Params]:
    if getattr(sql, "order", None) is None:
        return rows
    return [arranged(sql, row) for row in rows]


class RawTx:
    """A transaction on a standard library connection."""

    __slots__ = ("conn",)

    def __init__(self, conn: sqlite3.Connection) -> None:
        self.conn = conn

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return self.conn.execute(sql, arranged(sql, params)).fetchall()

    def run(self, sql: str, params: Params = ()) -> int:
        return self.conn.execute(sql, arranged(sql, params)).rowcount

    def many(self, sql: str, params: Sequence[Params]) -> int:
        return self.conn.executemany(sql, _all_arranged(sql, params)).rowcount


class SqlAlchemyTx:
    """A transaction on a SQLAlchemy connection, sync or (through ``run_sync``) async."""

    __slots__ = ("connection",)

    def __init__(self, connection: sa.Connection) -> None:
        self.connection = connection

    def rows(self, sql: str, params: Params = ()) -> list[Row]:
        return [tuple(row) for row in self.connection.exec_driver_sql(sql, tuple(arranged(sql, params))).fetchall()]

    def run(self, sql: str, params: Params = ()) -> int:
        return self.connection.exec_driver_sql(sql, tuple(arranged(sql, params))).rowcount

    def many(self, sql: str, params: Sequence[Params]) -> int:
        changed = 0
        for values in params:
            changed += self.run(sql, values)
        return changed
