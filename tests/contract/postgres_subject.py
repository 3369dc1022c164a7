"""The PostgreSQL ledger under test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from tests.contract.harness import (
    Attempt,
    DeadLetter,
    Factory,
    Fault,
    HostClock,
    Refused,
    Repeat,
    State,
    Transition,
)
from tests.contract.postgres_schemas import Schemas

from redrive.domain.delivery import Disposition, Enqueued, NewDelivery, NewEvent, Published
from redrive.errors import LedgerCorrupt
from redrive.ledger import registry
from redrive.ledger.base import Publish
from redrive.ledger.postgres import accept
from redrive.ledger.postgres.ledger import PostgresLedger
from redrive.ledger.sqlite.clock import LedgerClock
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

ENVIRONMENT = "test"
R = TypeVar("R", bound=NamedTuple)


class ServerClock:
    """One database server's clock, which the suite moves through the hosts that it lets speak for it.

    On PostgreSQL a host's clock means nothing. The suite says what ledger time does when a host is ahead or behind, so
    here every host that asks also sets the server's clock, forward only: as the SQLite ledger keeps its time.
    """

    known: dict[str, int] = {}  # noqa: RUF012 - shared by the hosts of a place on purpose

    def __init__(self, name: str, host: HostClock) -> None:
        self._name = name
        self._clock = LedgerClock(wall=host.wall, monotonic=host.monotonic)

    def __call__(self) -> int:
        return self._clock.stored(self.known.get(self._name, 0))

    def used(self) -> int:
        """As a writing transaction: its time is kept."""
        now = self()
        self._clock.observed(now)
        self.known[self._name] = max(now, self.known.get(self._name, 0))
        return now


class PostgresSubject(PostgresLedger):
    """The PostgreSQL ledger, with what the suite asks of it beside."""

    async def accept(self, items: Sequence[NewDelivery], path: str, producer: str, fail: bool) -> list[Enqueued]:
        def operation(tx: Tx, now: int) -> list[Enqueued]:
            made = accept.accept_each(tx, self.environment, items, path, producer)
            if fail:
                raise Fault
            return made

        return await self.transact(operation, "enqueue")

    async def accept_event(self, event: NewEvent, fan_out: Sequence[NewDelivery], fail: bool) -> Published:
        def operation(tx: Tx, now: int) -> Published:
            if fan_out:
                _subscribe(tx, now, event, fan_out)
            (made,) = accept.take_in(tx, self.environment, Publish("library", "tests", [event], lambda tx, events: []))
            if fail:
                raise Fault
            return made

        return await self.transact(operation, "enqueue")

    async def count_rejections(self, counts: dict[str, int]) -> dict[str, int]:
        await self.transact(lambda tx, now: tx.many(sql("rejection_count"), sorted(counts.items())))
        return dict(await self.read(lambda tx: tx.rows(sql("rejections"))))

    async def hold(self, destination: str, on: bool) -> None:
        await self.transact(
            lambda tx, now: registry.hold_waiting(tx, now, destination, 0, 1000, hold=on, actor="tests", reason="tests")
        )

    async def cancel(self, seq: int) -> None:
        def operation(tx: Tx, now: int) -> None:
            if tx.run(sql("cancel_waiting"), (seq,)):
                tx.run(sql("transition_insert"), (seq, now, "cancelled", 0, 0, None, "tests", None))
            elif tx.run(sql("cancel_request"), (seq,)):
                tx.run(sql("transition_insert"), (seq, now, "cancel_requested", 0, 0, None, "tests", None))

        await self.transact(operation)

    async def state(self, seq: int) -> State:
        (row,) = await self._records(State, "delivery_state", seq, "seq")
        return row._replace(disposition=Disposition(row.disposition))

    async def attempts(self, seq: int) -> list[Attempt]:
        return await self._records(Attempt, "attempt", seq, "fence")

    async def dead_letters(self, seq: int) -> list[DeadLetter]:
        return await self._records(DeadLetter, "dead_letter", seq, "dead_letter")

    async def transitions(self, seq: int) -> list[Transition]:
        return await self._records(Transition, "transition", seq, "transition")

    async def repeats(self, seq: int) -> tuple[list[Repeat], int, int]:
        counts = await self.read(lambda tx: tx.rows(sql("repeats_of"), (seq,)))
        duplicates, conflicts = counts[0] if counts else (0, 0)
        listed = await self.read(lambda tx: tx.rows(sql("repeats"), (seq,)))
        return [Repeat(*row) for row in listed], duplicates, conflicts

    async def receiver_duplicates(self) -> dict[str, int]:
        return dict(await self.read(lambda tx: tx.rows(sql("receiver_duplicates"))))

    async def rows(self, table: str) -> int:
        count: int = (await self._select(f"SELECT count(*) FROM {{schema}}.{table}"))[0][0]
        return count

    async def force(self, seq: int, **columns: int | None) -> None:
        changes = ", ".join(f"{name} = ${n}" for n, name in enumerate(columns, 2))
        text = f"UPDATE {{schema}}.delivery_state SET {changes} WHERE seq = $1"
        await self._abuse(lambda tx: tx.run(text, (seq, *columns.values())))

    async def tamper(self, seq: int, **columns: int | None) -> None:
        changes = ", ".join(f"{name} = ${n}" for n, name in enumerate(columns, 2))

        def operation(tx: Tx, now: int) -> None:
            tx.run("ALTER TABLE {schema}.delivery_state DISABLE TRIGGER delivery_state_legal")
            text = f"UPDATE {{schema}}.delivery_state SET {changes} WHERE seq = $1"
            assert tx.run(text, (seq, *columns.values())) == 1
            tx.run("ALTER TABLE {schema}.delivery_state ENABLE TRIGGER delivery_state_legal")

        await self.transact(operation)

    async def rewrite(self, table: str, column: str) -> None:
        kinds = await self._select(
            "SELECT data_type FROM information_schema.columns "
            f"WHERE table_schema = '{self.url.schema}' AND table_name = '{table}' AND column_name = '{column}'"
        )
        other = {"text": f"{column} || 'x'", "bytea": f"{column} || '\\x00'"}.get(kinds[0][0], f"{column} + 1")
        await self._abuse(lambda tx: tx.run(f"UPDATE {{schema}}.{table} SET {column} = {other}"))

    async def erase(self, table: str) -> None:
        await self._abuse(lambda tx: tx.run(f"DELETE FROM {{schema}}.{table}"))

    async def _abuse(self, act: Callable[[Tx], int]) -> None:
        def operation(tx: Tx, now: int) -> None:
            assert act(tx), "there was nothing to abuse"

        try:
            await self.transact(operation)
        except LedgerCorrupt as exc:
            raise Refused(str(exc)) from exc

    async def _select(self, text: str, *params: Any) -> list[tuple[Any, ...]]:
        def query(tx: Tx) -> list[tuple[Any, ...]]:
            return tx.rows(text, params)

        return await self.read(query)

    async def _records(self, kind: type[R], table: str, seq: int, order: str) -> list[R]:
        columns = ", ".join(kind._fields)
        rows = await self._select(f"SELECT {columns} FROM {{schema}}.{table} WHERE seq = $1 ORDER BY {order}", seq)
        return [kind(*row) for row in rows]


def _subscribe(tx: Tx, now: int, event: NewEvent, fan_out: Sequence[NewDelivery]) -> None:
    """What makes the ledger's own fan-out of a first publish come out as the suite wants it."""
    for item in fan_out:
        policy = item.policy
        tx.run(sql("policy_insert"), (policy.version, policy.spec()))
        row = registry.DestinationRow(
            item.destination,
            event.tenant,
            item.destination,
            item.scope,
            "https://example.com/",
            1,
            "{}",
            None,
            None,
            now,
            now,
        )
        tx.run(sql("destination_insert"), row)
        tx.run(sql("destination_policy"), (item.destination, policy.version, policy.max_attempts, policy.max_age))
        tx.run(sql("subscription_insert"), (item.destination, event.event_type))


def factory(url: str) -> Factory:
    """Opens ledgers in schemas of one database, a schema for each place of a test."""
    schemas = Schemas(url, ENVIRONMENT)

    def open_postgres(place: Path, clock: HostClock, *, fresh: bool) -> PostgresSubject:
        def begun(schema: str) -> ServerClock:
            ServerClock.known.pop(f"{url} {schema}", None)
            return ServerClock(f"{url} {schema}", clock)

        schema = schemas.fresh(place, begun) if fresh else schemas.known(place)
        server = begun(schema) if fresh else ServerClock(f"{url} {schema}", clock)
        subject = PostgresSubject(schemas.url(schema), ENVIRONMENT, server.used)
        schemas.opened(place, subject)
        return subject

    return open_postgres
