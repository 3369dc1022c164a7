"""The SQLite ledger under test."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.contract.harness import (
    JOB,
    LEASE,
    Attempt,
    DeadLetter,
    Fault,
    HostClock,
    Refused,
    Repeat,
    State,
    Transition,
    work,
)

from redrive.domain.delivery import Closed, Closing, Disposition, Enqueued, Lease, NewDelivery, NewEvent, Published
from redrive.domain.outcome import Outcome
from redrive.ledger import registry
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite.clock import LedgerClock
from redrive.ledger.sqlite.ledger import SqliteLedger, create
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx, Row, Tx

ENVIRONMENT = "test"
R = TypeVar("R", bound=NamedTuple)


def url(place: Path) -> str:
    """Where a test's ledger is."""
    return f"sqlite:///{place / 'ledger.db'}"


def ledger_clock(host: HostClock) -> LedgerClock:
    """A ledger clock that a test moves."""
    return LedgerClock(wall=host.wall, monotonic=host.monotonic)


class SqliteSubject(SqliteLedger):
    """The embedded ledger, with what the suite asks of it beside."""

    async def accept(self, items: Sequence[NewDelivery], path: str, producer: str, fail: bool) -> list[Enqueued]:
        def operation(tx: RawTx, now: int) -> list[Enqueued]:
            made = enqueue.accept(tx, now, items, path=path, producer=producer)
            if fail:
                raise Fault
            return made

        return await self.transact(operation)

    async def accept_event(self, event: NewEvent, fan_out: Sequence[NewDelivery], fail: bool) -> Published:
        def operation(tx: RawTx, now: int) -> Published:
            (made,) = enqueue.accept_events(tx, now, [(event, fan_out)], path="library", producer="tests")
            if fail:
                raise Fault
            return made

        return await self.transact(operation)

    async def count_rejections(self, counts: dict[str, int]) -> dict[str, int]:
        await self.transact(lambda tx, now: enqueue.count_rejections(tx, counts))
        return dict(await self._select("SELECT code, count FROM rejection"))

    async def hold(self, destination: str, on: bool) -> None:
        await self.transact(
            lambda tx, now: registry.hold_waiting(tx, now, destination, 0, 1000, hold=on, actor="tests", reason="tests")
        )

    async def cancel(self, seq: int) -> None:
        def operation(tx: RawTx, now: int) -> None:
            if tx.run(sql("cancel_waiting"), (seq,)):
                tx.run(sql("transition_insert"), (seq, now, "cancelled", 0, 0, None, "tests", None))
            elif tx.run(sql("cancel_request"), (seq,)):
                tx.run(sql("transition_insert"), (seq, now, "cancel_requested", 0, 0, None, "tests", None))

        await self.transact(operation)

    async def state(self, seq: int) -> State:
        (row,) = await self._rows(State, "delivery_state", seq)
        return row._replace(disposition=Disposition(row.disposition))

    async def attempts(self, seq: int) -> list[Attempt]:
        return await self._rows(Attempt, "attempt", seq)

    async def dead_letters(self, seq: int) -> list[DeadLetter]:
        return await self._rows(DeadLetter, "dead_letter", seq)

    async def transitions(self, seq: int) -> list[Transition]:
        return await self._rows(Transition, "transition", seq)

    async def repeats(self, seq: int) -> tuple[list[Repeat], int, int]:
        counts = await self._select("SELECT duplicates, conflicts FROM repeat_count WHERE seq = ?", seq)
        duplicates, conflicts = counts[0] if counts else (0, 0)
        return await self._rows(Repeat, "repeat", seq), duplicates, conflicts

    async def receiver_duplicates(self) -> dict[str, int]:
        return dict(await self.read(lambda tx: tx.rows(sql("receiver_duplicates"))))

    async def rows(self, table: str) -> int:
        count: int = (await self._select(f"SELECT count(*) FROM {table}"))[0][0]
        return count

    async def force(self, seq: int, **columns: int | None) -> None:
        changes = ", ".join(f"{name} = ?" for name in columns)
        text = f"UPDATE delivery_state SET {changes} WHERE seq = ?"
        await self._abuse(lambda tx: tx.run(text, (*columns.values(), seq)))

    async def tamper(self, seq: int, **columns: int | None) -> None:
        changes = ", ".join(f"{name} = ?" for name in columns)

        def operation(tx: RawTx, now: int) -> None:
            name = "delivery_state_legal"
            ((text,),) = tx.rows("SELECT sql FROM sqlite_schema WHERE name = ?", (name,))
            tx.run(f"DROP TRIGGER {name}")
            assert tx.run(f"UPDATE delivery_state SET {changes} WHERE seq = ?", (*columns.values(), seq)) == 1
            tx.run(text)

        await self.transact(operation)

    async def rewrite(self, table: str, column: str) -> None:
        other = f"CASE typeof({column}) WHEN 'integer' THEN {column} + 1 ELSE {column} || 'x' END"
        await self._abuse(lambda tx: tx.run(f"UPDATE {table} SET {column} = {other}"))

    async def erase(self, table: str) -> None:
        await self._abuse(lambda tx: tx.run(f"DELETE FROM {table}"))

    async def _abuse(self, act: Callable[[RawTx], int]) -> None:
        def operation(tx: RawTx, now: int) -> None:
            try:
                assert act(tx), "there was nothing to abuse"
            except sqlite3.IntegrityError as exc:
                raise Refused(str(exc)) from exc

        await self.transact(operation)

    async def _select(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        def query(tx: Tx) -> list[tuple[Any, ...]]:
            return tx.rows(text, params)

        return await self.read(query)

    async def _rows(self, kind: type[R], table: str, seq: int) -> list[R]:
        columns = ", ".join(kind._fields)
        order = {"attempt": "fence", "repeat": "number"}.get(table, "rowid")
        rows = await self._select(f"SELECT {columns} FROM {table} WHERE seq = ? ORDER BY {order}", seq)
        return [kind(*row) for row in rows]


def open_sqlite(place: Path, clock: HostClock, *, fresh: bool) -> SqliteSubject:
    """See :class:`tests.contract.harness.Factory`."""
    if fresh:
        create(url(place), ENVIRONMENT, ledger_clock(clock))
    return SqliteSubject(url(place), ENVIRONMENT, ledger_clock(clock))


# What the tests of SQLite alone say, without a bench.


def accept(subject: SqliteSubject, *keys: str, **fields: Any) -> None:
    """Accept one delivery for each key."""
    items = [work(key, **fields) for key in keys]
    subject.transact_sync(lambda tx, now: enqueue.accept(tx, now, items, path="", producer=""))


def reserve(subject: SqliteSubject, limit: int = 100) -> list[Lease]:
    """Reserve for worker 1."""
    return asyncio.run(subject.reserve(1, [JOB], limit, LEASE))


def close(subject: SqliteSubject, ends: Sequence[tuple[Lease, Outcome]]) -> list[Closed]:
    """One batch of closings."""
    return asyncio.run(subject.close_attempts(1, [closing_of(lease, outcome) for lease, outcome in ends]))


def closing_of(x: Lease, outcome: Outcome) -> Closing:
    """How a lease ended."""
    return Closing(x.seq, x.fence, x.generation, x.attempt, x.started_at, x.deferrals, outcome, 0.0, 1)


def everything(subject: SqliteSubject) -> dict[str, list[Row]]:
    """Every row but the clock's, which may go on."""

    def query(tx: Any) -> dict[str, list[Row]]:
        names = [name for (name,) in tx.rows("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        return {name: tx.rows(f"SELECT * FROM {name}") for name in names if name != "clock"}

    return subject.read_sync(query)
