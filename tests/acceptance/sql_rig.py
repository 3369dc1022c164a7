"""What the tests of the SQL functions share: a ledger, and the session of a program that is not Python's."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg

from redrive import Policy, Redrive
from redrive.domain import identity
from redrive.webhooks.settings import DestinationSettings

Conn = psycopg.Connection[tuple[Any, ...]]
FACTS = """d.handler, d.tenant, d.scope, d.destination, d.content_type, d.envelope_version, d.policy_version, d.payload,
    d.payload_hash, d.max_attempts, d.deadline_at - d.first_due_at AS age, d.first_hold, s.route, s.flow, s.priority,
    s.lane, s.attempt, s.hold, s.available_at - d.first_due_at AS early"""
RETRIED = Policy(max_attempts=3, factor=1.5)


class Ledger:
    """A ledger, an application in Python whose worker has registered its handlers, and a session of somebody else."""

    def __init__(self, app: Redrive, conn: Conn) -> None:
        self.app = app
        self.conn = conn
        self.ran: list[tuple[str, Any]] = []

    def rows(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        return self.conn.execute(query, params).fetchall()

    def row(self, query: str, *params: object) -> tuple[Any, ...]:
        (found,) = self.rows(query, *params)
        return found

    def count(self, table: str = "delivery") -> int:
        number: int = self.row(f"SELECT count(*) FROM redrive.{table}")[0]
        return number

    def facts(self, delivery: str) -> tuple[Any, ...]:
        """What the ledger holds of a delivery, but for its identity and its times."""
        joined = f"SELECT {FACTS} FROM redrive.delivery d JOIN redrive.delivery_state s USING (seq)"
        return self.row(f"{joined} WHERE d.delivery_id = %s", identity.from_text("dlv", delivery))

    def work(self) -> None:
        async def main() -> None:
            async with asyncio.timeout(20):
                await self.app.work(until_idle=True)

        asyncio.run(main())


@contextlib.contextmanager
def opened(database: str) -> Iterator[Ledger]:
    with Redrive(database, environment="shop") as app:
        app.init()
        with psycopg.connect(database, autocommit=True, application_name="shop-frontend") as conn:
            made = Ledger(app, conn)

            @app.handler("job", policy=RETRIED)
            async def job(context: Any, payload: Any) -> None:
                made.ran.append((context.delivery_id, payload))

            made.work()
            yield made


def subscribe(ledger: Ledger, name: str, *filters: str, tenant: str = "default") -> str:
    settings = DestinationSettings(url=f"https://hooks.example.org/{name}", event_types=filters)
    return ledger.app.destinations.add(name, settings, tenant=tenant).destination_id
