"""What the tests of a fleet share: both kinds of ledger by URL, rows planted as another release would."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import sqlite3
from collections.abc import Sequence
from typing import Any

import psycopg
from tests.acceptance.engine_support import DEADLINE_S

from redrive import Context, Policy, Redrive
from redrive.running import Rest
from redrive.worker.settings import WorkerSettings

POLICY = Policy(max_attempts=3, base=1000, cap=5000)
LATER = Policy(max_attempts=2, base=3_600_000_000, cap=3_600_000_000)
QUICK = WorkerSettings(slots=10, lease_s=2.0, reap_s=0.05, poll_s=0.5, drain_s=5.0)
Route = tuple[str, int]


def execute(url: str, text: str) -> list[tuple[Any, ...]]:
    """Run one statement on the ledger itself; ``{s}`` stands for what precedes a table's name."""
    if url.startswith("sqlite:"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as conn:
            rows = conn.execute(text.format(s="")).fetchall()
            conn.commit()
            return rows
    with psycopg.connect(url.partition("?")[0], autocommit=True) as conn:
        cursor = conn.execute(text.format(s="redrive."))
        return cursor.fetchall() if cursor.description else []


def plant_step(url: str, version: int, *, breaking: bool) -> None:
    """Record a step of the schema that this release does not know."""
    execute(
        url,
        "INSERT INTO {s}schema_migration (version, name, digest, breaking, applied_at) "
        f"VALUES ({version}, 'later', 'x', {'true' if breaking else 'false'}, 1)",
    )
    if url.startswith("sqlite:"):
        execute(url, f"PRAGMA user_version = {version}")


def registered(app: Redrive, *routes: Route, name: str | None = None) -> int:
    """A worker of this process, on the register alone; its number."""
    return asyncio.run(app.ledger.register_worker(name or f"wrk_{secrets.token_hex(4)}", routes))


def reserved(app: Redrive, worker: int, routes: Sequence[Route], limit: int, lease_s: float = 60.0) -> int:
    """Have a registered worker take up to ``limit`` deliveries; how many it got."""
    return len(asyncio.run(app.ledger.reserve(worker, routes, limit, int(lease_s * 1e6))))


def made(url: str, *, init: bool = True, **options: Any) -> Redrive:
    app = Redrive(url, worker=options.pop("worker", QUICK), **options)
    if init:
        app.init()
    return app


def job(app: Redrive, ran: list[Any] | None = None, name: str = "job", **options: Any) -> None:
    """Give an application a handler that notes what it is given."""

    @app.handler(name, policy=options.pop("policy", POLICY), **options)
    async def handle(context: Context, payload: Any) -> None:
        if ran is not None:
            ran.append(payload)


def burst(app: Redrive, **options: Any) -> Rest | None:
    async def main() -> Rest | None:
        async with asyncio.timeout(DEADLINE_S):
            return await app.work(burst=True, **options)

    return asyncio.run(main())
