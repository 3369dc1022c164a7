"""One transaction of ours with several statements, and what became of it when the answer to its commit was lost."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redrive.errors import InvalidInput, LedgerError, LedgerUnavailable
from redrive.failpoint import hit
from redrive.ledger.postgres.connect import lost
from redrive.ledger.postgres.lane import Connections
from redrive.ledger.postgres.tx import PsycopgTx
from redrive.ledger.statements import sql
from redrive.ledger.tx import Operation

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
PATIENCE_S: Final = 10.0
"""Seconds for which a lost server is waited for before the caller is told."""
_FIRST_S: Final = 0.05


def backoff(failures: int) -> float:
    """Seconds before the next try: doubling, capped, and spread so that a fleet does not come back in one instant."""
    return float(min(_FIRST_S * 2 ** min(failures, 6), 1.0) * (0.5 + random.random()))  # noqa: S311


class _Commit:
    """How far a transaction got."""

    __slots__ = ("asked", "xid")

    def __init__(self) -> None:
        self.asked = False
        self.xid: str | None = None


def run_transaction(
    connections: Connections,
    settings: Callable[[], tuple[str] | None],
    operation: Operation[T],
    point: str,
    schema: str,
    observe: Callable[[int], None],
) -> T:
    """Run ``operation(tx, now)`` and commit. Tried again, for :data:`PATIENCE_S`, while it certainly did not happen.

    A commit whose answer was lost is looked up by the transaction's ID: what took effect is not done again.
    """
    end = time.monotonic() + PATIENCE_S
    failures = 0
    while True:
        commit = _Commit()
        results: list[T] = []
        try:
            with connections.use(fresh=failures > 0) as conn:
                _attempt(conn, settings(), operation, point, schema, observe, commit, results)
            return results[0]
        except LedgerError as exc:
            if exc.__cause__ is None or not lost(exc.__cause__):
                raise
            failures += 1
            if commit.asked and commit.xid is not None and _took_effect(connections, commit.xid, schema, end):
                return results[0]
            if time.monotonic() >= end:
                raise
            time.sleep(backoff(failures))


def _attempt(
    conn: psycopg.Connection[Any],
    settings: tuple[str] | None,
    operation: Operation[T],
    point: str,
    schema: str,
    observe: Callable[[int], None],
    commit: _Commit,
    results: list[T],
) -> None:
    tx = PsycopgTx(conn, schema)
    with conn.transaction():
        if settings is not None:
            tx.rows(sql("transaction_settings"), settings)
        now: int = tx.rows(sql("clock_read"))[0][0]
        observe(now)
        results.append(operation(tx, now))
        commit.xid = tx.rows(sql("transaction_id"))[0][0]
        hit(point + ".before_commit")
        commit.asked = True
    hit(point + ".after_commit")


def _took_effect(connections: Connections, xid: str, schema: str, end: float) -> bool:
    """Whether a transaction was committed. Raises :class:`LedgerUnavailable` when nobody can say in time."""
    failures = 0
    while True:
        try:
            with connections.use(fresh=True) as conn:
                status = PsycopgTx(conn, schema).rows(sql("transaction_status"), (xid,))[0][0]
            if status in ("committed", "aborted"):
                return bool(status == "committed")
        except InvalidInput:
            end = 0.0  # a server that has taken over and never heard of it: nobody can say
        except LedgerError as exc:
            if exc.__cause__ is None or not lost(exc.__cause__):
                raise
        failures += 1
        if time.monotonic() >= end:
            raise LedgerUnavailable(
                "the connection was lost while the transaction was committed, and the server cannot be asked",
                hint="look whether it took effect before doing it again",
            )
        time.sleep(backoff(failures))
