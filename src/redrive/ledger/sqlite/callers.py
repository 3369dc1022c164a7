"""The caller's own connection as a transaction of ours: same file, same statements, the caller's commit."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from redrive.errors import EnvironmentMismatch, InvalidInput
from redrive.ledger.sqlite.clock import LedgerClock
from redrive.ledger.sqlite.connect import translate
from redrive.ledger.sqlite.enqueue import tick
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import CursorTx, SqlAlchemyTx, Tx

T = TypeVar("T")


def run_in(connection: Any, path: Path, environment: str, clock: LedgerClock, operation: Callable[[Tx, int], T]) -> T:
    """Run ``operation`` in the caller's open transaction on a sync connection or session.

    Raises :class:`InvalidInput` for a connection to another file, one without a transaction, or an async one.
    """
    tx = _sync_tx(connection, path)
    try:
        _check_file(tx, path)
        _check_open(tx)
        # A write first: it takes the lock, so that nothing can come between what we read and what we write.
        now = tick(tx, clock.estimate())
        _check_environment(tx, environment)
        return operation(tx, now)
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc
    except Exception as exc:
        original = getattr(exc, "orig", None)  # SQLAlchemy's wrapping
        if isinstance(original, sqlite3.Error):
            raise translate(original, path) from exc
        raise


async def run_in_async(
    connection: Any, path: Path, environment: str, clock: LedgerClock, operation: Callable[[Tx, int], T]
) -> T:
    """As :func:`run_in`, on a SQLAlchemy ``AsyncConnection`` or ``AsyncSession``."""
    run_sync = getattr(connection, "run_sync", None)
    if run_sync is None or not _is_sqlalchemy(connection):
        raise _not_a_connection(connection)
    result: T = await run_sync(lambda sync: run_in(sync, path, environment, clock, operation))
    return result


def _is_sqlalchemy(connection: Any) -> bool:
    """Whether it is SQLAlchemy's, or a subclass of what is. SQLAlchemy itself is not imported for it."""
    return any(kind.__module__.startswith("sqlalchemy.") for kind in type(connection).__mro__)


def is_async(connection: Any) -> bool:
    """Whether the connection needs to be awaited."""
    return hasattr(connection, "run_sync")


def _sync_tx(connection: Any, path: Path) -> CursorTx | SqlAlchemyTx:
    if isinstance(connection, sqlite3.Connection):
        return CursorTx(connection)
    if is_async(connection):
        raise InvalidInput(
            "this is an async connection",
            param="connection",
            hint="await the method whose name ends in _async",
        )
    if _is_sqlalchemy(connection):
        session_connection = getattr(connection, "connection", None)
        if callable(session_connection):  # a Session
            connection = session_connection()
        if not hasattr(connection, "exec_driver_sql"):
            raise _not_a_connection(connection)
        if connection.dialect.name != "sqlite":
            raise _another_database(path)
        return SqlAlchemyTx(connection)
    raise _not_a_connection(connection)


def _not_a_connection(connection: Any) -> InvalidInput:
    return InvalidInput(
        f"a {type(connection).__name__} is not a connection to the ledger",
        param="connection",
        hint="pass a sqlite3.Connection, or a SQLAlchemy Connection, Session, AsyncConnection or AsyncSession",
    )


def _check_file(tx: Tx, path: Path) -> None:
    """The ledger's own file, or nothing. Reads no page of it."""
    files = [row[2] for row in tx.rows("PRAGMA database_list") if row[1] == "main"]
    if not files or not files[0] or not Path(files[0]).samefile(path):
        raise _another_database(path)


def _check_open(tx: CursorTx | SqlAlchemyTx) -> None:
    """The driver is asked, after a first statement: SQLAlchemy does not know SQLite's autocommit, and begins late."""
    driver: Any = tx.conn if isinstance(tx, CursorTx) else tx.connection.connection.driver_connection
    autocommits = driver.isolation_level is None or getattr(driver, "autocommit", None) is True
    if autocommits and not driver.in_transaction:
        raise InvalidInput(
            "the connection is in autocommit mode and has no open transaction",
            param="connection",
            hint="execute BEGIN IMMEDIATE first, or use a transactional connection",
        )


def _another_database(path: Path) -> InvalidInput:
    return InvalidInput(
        "the connection is to another database than the ledger",
        param="connection",
        hint=f"connect to {path.name}, or enqueue without a connection",
    )


def _check_environment(tx: Tx, environment: str) -> None:
    (name,) = tx.rows(sql("environment"))[0]
    if name != environment:
        raise EnvironmentMismatch(
            f"the ledger belongs to environment {name!r}, not {environment!r}",
            param="environment",
            hint="nothing was written; check which ledger, or which configuration, is meant",
        )
