"""The caller's own connection as a transaction of ours: same database, same statements, the caller's commit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from redrive.errors import EnvironmentMismatch, InvalidInput, LedgerVersion
from redrive.ledger.postgres.connect import PostgresUrl, state_of, translated
from redrive.ledger.postgres.tx import (
    AsyncpgTx,
    AsyncPsycopgTx,
    DjangoTx,
    PostgresTx,
    PsycopgTx,
    SqlAlchemyTx,
    bridged,
)
from redrive.ledger.statements import sql

_ASYNCPG: Final = frozenset({"asyncpg.Connection", "asyncpg.PoolConnectionProxy"})

T = TypeVar("T")


class Callers:
    """Runs work in callers' transactions. With ``clock``, a test's time is ledger time there too."""

    def __init__(self, url: PostgresUrl, clock: Callable[[], int] | None) -> None:
        self._url = url
        self._clock = clock

    def run(self, connection: Any, work: Callable[[PostgresTx], T]) -> T:
        """``work(tx)`` in the open transaction of a sync connection or session."""
        with _in_callers_words(self._url.where), translated(self._url.where):
            tx = sync_tx(connection, self._url.schema)
            self._set_clock(tx)
            return work(tx)

    async def run_async(self, connection: Any, work: Callable[[PostgresTx], T]) -> T:
        """The same, of an async one."""
        tx = async_tx(connection, self._url.schema)
        if tx is None:
            result: T = await connection.run_sync(lambda sync: self.run(sync, work))
            return result

        def bridge() -> T:
            with _in_callers_words(self._url.where), translated(self._url.where):
                self._set_clock(tx)
                return work(tx)

        return await bridged(bridge)

    def _set_clock(self, tx: PostgresTx) -> None:
        if self._clock is not None:
            tx.rows(sql("transaction_settings"), (str(self._clock()),))


def sync_tx(connection: Any, schema: str) -> PostgresTx:
    """A sync connection's open transaction.

    Raises :class:`InvalidInput` for anything else than a psycopg, SQLAlchemy or Django connection to PostgreSQL, for an
    async one, and for one that would commit by itself.
    """
    kinds = _kinds(connection)
    if "psycopg.AsyncConnection" in kinds or kinds & _ASYNCPG:
        raise _await_it()
    if "psycopg.Connection" in kinds:
        _check_psycopg(connection)
        return PsycopgTx(connection, schema)
    if _is_of("sqlalchemy", kinds):
        return _sqlalchemy_tx(connection, schema)
    if _is_of("django", kinds):
        return _django_tx(connection, schema)
    raise _not_a_connection(connection)


def async_tx(connection: Any, schema: str) -> PostgresTx | None:
    """An async driver's open transaction; None for SQLAlchemy's, which brings its own ``run_sync``. Raises likewise."""
    kinds = _kinds(connection)
    if "psycopg.AsyncConnection" in kinds:
        _check_psycopg(connection)
        return AsyncPsycopgTx(connection, schema)
    if kinds & _ASYNCPG:
        if connection.is_closed():
            raise _closed()
        if not connection.is_in_transaction():
            raise _no_transaction("open one: async with connection.transaction(): ...")
        return AsyncpgTx(connection, schema)
    if _is_of("sqlalchemy", kinds):
        if hasattr(connection, "run_sync"):
            return None
        if not (hasattr(connection, "exec_driver_sql") or hasattr(connection, "get_bind")):
            raise _not_a_connection(connection)
        raise _not_async()
    if "psycopg.Connection" in kinds or (hasattr(connection, "vendor") and _is_of("django", kinds)):
        raise _not_async()
    raise _not_a_connection(connection)


def begun(tx: PostgresTx, stamped: str) -> int:
    """Ledger time, once the transaction's database turns out to hold the very ledger that is meant."""
    known, now, made = tx.rows(sql("caller_begin"))[0]
    environment = stamped.partition("@")[0]
    if known != environment:
        raise EnvironmentMismatch(
            f"the ledger belongs to environment {known!r}, not {environment!r}",
            param="environment",
            hint="nothing was written; check which ledger, or which configuration, is meant",
        )
    if f"{known}@{made}" != stamped:
        raise _another_database("the ledger")
    return int(now)


@contextmanager
def _in_callers_words(where: str) -> Iterator[None]:
    """What an error that :func:`~redrive.ledger.postgres.connect.translated` has translated means to the caller."""
    try:
        yield
    except (LedgerVersion, InvalidInput, EnvironmentMismatch) as exc:
        state = None if exc.__cause__ is None else state_of(exc.__cause__)
        if isinstance(exc, LedgerVersion) or state == "RD003":
            raise _another_database(f"the ledger {where}") from exc
        raise


def _kinds(connection: Any) -> set[str]:
    """The names of what the connection is, without importing any driver."""
    # Django's and asyncpg's stand-ins (a thread's connection, a pool's) are of their own modules too.
    return {f"{kind.__module__.partition('.')[0]}.{kind.__name__}" for kind in type(connection).__mro__}


def _is_of(package: str, kinds: set[str]) -> bool:
    return any(kind.startswith(f"{package}.") for kind in kinds)


def _check_psycopg(connection: Any) -> None:
    if connection.closed:
        raise _closed()
    if connection.autocommit and connection.info.transaction_status.name == "IDLE":
        raise _no_transaction("open one: with connection.transaction(): ...")


def _sqlalchemy_tx(connection: Any, schema: str) -> SqlAlchemyTx:
    if hasattr(connection, "run_sync"):
        raise _await_it()
    if hasattr(connection, "get_bind"):  # a Session
        connection = connection.connection()
    if not hasattr(connection, "exec_driver_sql"):
        raise _not_a_connection(connection)
    if connection.dialect.name != "postgresql":
        raise _another_database("the ledger")
    raw = connection.connection.dbapi_connection
    autocommit = getattr(raw, "autocommit", None) is True or getattr(raw, "isolation_level", None) == "autocommit"
    if autocommit:
        raise _no_transaction("use a connection without isolation_level AUTOCOMMIT")
    return SqlAlchemyTx(connection, schema)


def _django_tx(connection: Any, schema: str) -> DjangoTx:
    if not hasattr(connection, "vendor"):
        raise _not_a_connection(connection)
    if connection.vendor != "postgresql":
        raise _another_database("the ledger")
    connection.ensure_connection()
    if not connection.in_atomic_block and connection.get_autocommit():
        raise _no_transaction("open one: with transaction.atomic(): ...")
    return DjangoTx(connection, schema)


def _another_database(ledger: str) -> InvalidInput:
    return InvalidInput(
        f"the connection is to another database than {ledger}, or may not use its schema",
        param="connection",
        hint="connect to the ledger's PostgreSQL database, or enqueue without a connection",
    )


def _await_it() -> InvalidInput:
    return InvalidInput(
        "this is an async connection", param="connection", hint="await the method whose name ends in _async"
    )


def _not_async() -> InvalidInput:
    return InvalidInput("this is not an async connection", param="connection", hint="call the method without _async")


def _closed() -> InvalidInput:
    return InvalidInput("the connection is closed", param="connection")


def _no_transaction(hint: str) -> InvalidInput:
    return InvalidInput(
        "the connection is in autocommit mode and has no open transaction", param="connection", hint=hint
    )


def _not_a_connection(connection: Any) -> InvalidInput:
    return InvalidInput(
        f"a {type(connection).__name__} is not a connection to the ledger",
        param="connection",
        hint="pass a psycopg, asyncpg, SQLAlchemy or Django connection, or a SQLAlchemy session",
    )
