"""PgQueuer: one asyncpg connection to work on and one to enqueue on, uvloop, jobs moved to its log when they end."""

from __future__ import annotations

import argparse
import logging

import asyncpg
import child
from pgqueuer import PgQueuer
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries


class PgQueuerPeer:
    """``slots`` is the batch of a claim and of a close; for webhooks at most twice as many jobs are taken at once."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._url = arguments.url
        self._slots = arguments.slots
        self._queries: Queries
        self._queuer: PgQueuer

    async def install(self) -> None:
        self._queries = Queries(AsyncpgDriver(await asyncpg.connect(self._url)))
        await self._queries.install()

    async def enqueue(self, job: str, numbers: range) -> None:
        payloads: list[bytes | None] = [child.body(n) if job == "hook" else b"%d" % n for n in numbers]
        await self._queries.enqueue([job] * len(numbers), payloads, [0] * len(numbers))

    async def enqueue_stamp(self, sent_ns: int) -> object:
        return await self._queries.enqueue("stamp", b"%d" % sent_ns)

    async def connect(self, work: child.Work, pickup: child.Pickup) -> None:
        self._queuer = PgQueuer(AsyncpgDriver(await asyncpg.connect(self._url)))

        @self._queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            await work.noop()

        @self._queuer.entrypoint("hook")
        async def hook(job: Job) -> None:
            await work.post(str(job.id), job.payload or b"")

        @self._queuer.entrypoint("stamp")
        async def stamp(job: Job) -> None:
            pickup.handled(int(job.payload or b"0"))

    async def run(self, job: str) -> None:
        # Without a bound it claims the whole backlog before the first answer is in.
        most = 2 * self._slots if job == "hook" else None
        await self._queuer.qm.run(batch_size=self._slots, max_concurrent_tasks=most)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    child.main(PgQueuerPeer)
