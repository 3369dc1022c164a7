"""Drivers compared on the ledger's own statements: psycopg and asyncpg, alone and under SQLAlchemy.

    python benchmarks/drivers.py [--count 40000] [--runs 3]

One connection, one claim and one close in turn, as a worker sends them; nothing is executed in between. Prints what
each costs this process in CPU and in time for a delivery. The decision that rests on it is
``docs/decisions/0013-psycopg-on-threads.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from postgres_server import benchmark_server

from redrive.app import JobSpec, Redrive
from redrive.domain import identity
from redrive.domain.delivery import Lease
from redrive.ledger.postgres.connect import PostgresUrl
from redrive.ledger.postgres.statements import Text, text_of

Row = Sequence[Any]
Ask = Callable[[Text, Sequence[Any]], Awaitable[list[Row]]]
BATCHES = (1, 10, 100, 500)


def array(values: Sequence[int] | Any) -> str:
    return "{" + ",".join(map(str, values)) + "}"


async def drain(ask: Ask, schema: str, batch: int, count: int) -> None:
    reserve, close = text_of("reserve", schema), text_of("close_successes", schema)
    route = array([identity.route_of("job", 1)])
    since = 0
    for _ in range(count // batch):
        rows = await ask(reserve, (1, route, "{0}", batch, 30_000_000, since, False))
        leases = [Lease._make(row[:-1]) for row in rows]
        assert len(leases) == batch, f"{len(leases)} of {batch}"
        since = leases[-1].started_at
        leases.sort()
        columns = zip(
            *[(x.seq, x.fence, x.generation, x.attempt, x.started_at, x.deferrals, 5) for x in leases], strict=True
        )
        arrays = [array(column) for column in columns]
        ((done,),) = await ask(close, (1, *arrays, "delivered", "ok", None, 0, 2))
        assert len(done) == batch


async def psycopg_sync(url: PostgresUrl, run: Callable[[Ask], Awaitable[None]]) -> None:
    import psycopg

    with psycopg.connect(
        url.conninfo, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.RawCursor
    ) as conn:

        async def ask(text: Text, params: Sequence[Any]) -> list[Row]:
            return conn.execute(text.dollar, params).fetchall()

        await run(ask)


async def psycopg_async(url: PostgresUrl, run: Callable[[Ask], Awaitable[None]]) -> None:
    import psycopg

    conn = await psycopg.AsyncConnection.connect(
        url.conninfo, autocommit=True, prepare_threshold=None, cursor_factory=psycopg.AsyncRawCursor
    )

    async def ask(text: Text, params: Sequence[Any]) -> list[Row]:
        return await (await conn.execute(text.dollar, params)).fetchall()

    await run(ask)
    await conn.close()


async def asyncpg_alone(url: PostgresUrl, run: Callable[[Ask], Awaitable[None]]) -> None:
    import asyncpg

    conn = await asyncpg.connect(url.conninfo.partition("?")[0])

    async def ask(text: Text, params: Sequence[Any]) -> list[Row]:
        found: list[Row] = await conn.fetch(text.dollar, *params)
        return found

    await run(ask)
    await conn.close()


def alchemy(driver: str) -> Callable[[PostgresUrl, Callable[[Ask], Awaitable[None]]], Awaitable[None]]:
    async def way(url: PostgresUrl, run: Callable[[Ask], Awaitable[None]]) -> None:
        from sqlalchemy.ext.asyncio import create_async_engine

        bare = url.conninfo.partition("?")[0].replace("postgresql://", f"postgresql+{driver}://")
        engine = create_async_engine(bare, isolation_level="AUTOCOMMIT")
        async with engine.connect() as conn:

            async def ask(text: Text, params: Sequence[Any]) -> list[Row]:
                if driver == "asyncpg":
                    return list((await conn.exec_driver_sql(text.dollar, tuple(params))).fetchall())
                values = tuple(params[index] for index in text.order)
                return list((await conn.exec_driver_sql(text.percent, values)).fetchall())

            await run(ask)
        await engine.dispose()

    return way


WAYS = {
    "psycopg, synchronous": psycopg_sync,
    "psycopg, async": psycopg_async,
    "asyncpg": asyncpg_alone,
    "SQLAlchemy over psycopg, async": alchemy("psycopg"),
    "SQLAlchemy over asyncpg": alchemy("asyncpg"),
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    import uvloop

    with tempfile.TemporaryDirectory() as folder, benchmark_server(Path(folder)) as server:
        address = server.url(server.create_database())
        url = PostgresUrl.parse(address)
        app = Redrive(address)
        app.init()
        app.handler("job")(lambda context, payload: None)
        made = 0
        print(f"{'':32}" + "".join(f"{f'batch {batch}':>22}" for batch in BATCHES) + "   us of CPU here / us in all")
        for name, way in WAYS.items():
            cells = []
            for batch in BATCHES:
                count = min(arguments.count, batch * 500)
                spent, took = [], []
                for _ in range(arguments.runs):
                    for _ in range(0, count, 1000):
                        app.enqueue_many([JobSpec("job", {"n": n}, key=made + n) for n in range(1000)])
                        made += 1000
                    cpu, begun = time.process_time(), time.perf_counter()
                    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                        runner.run(way(url, lambda ask, b=batch, c=count: drain(ask, url.schema, b, c)))
                    spent.append((time.process_time() - cpu) / count * 1e6)
                    took.append((time.perf_counter() - begun) / count * 1e6)
                cells.append(f"{median(spent):.1f} / {median(took):.1f}")
            print(f"{name:32}" + "".join(f"{cell:>22}" for cell in cells), flush=True)
        app.close()


if __name__ == "__main__":
    main()
