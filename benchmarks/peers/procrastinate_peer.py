"""Procrastinate: psycopg pool, uvloop, LISTEN/NOTIFY on, jobs kept when they end (its default)."""

from __future__ import annotations

import argparse
import json
import logging
from typing import Any

import child
import procrastinate

POOL = 20


class ProcrastinatePeer:
    """``slots`` is the worker's concurrency."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._slots = arguments.slots
        connector = procrastinate.PsycopgConnector(conninfo=arguments.url, min_size=4, max_size=POOL)
        self._app = procrastinate.App(connector=connector)
        self._opened = False
        self._work = child.Work(0, 0)
        self._pickup = child.Pickup()

        @self._app.task(name="noop")
        async def noop(n: int) -> None:
            await self._work.noop()

        @self._app.task(name="hook")
        async def hook(number: int, data: str) -> None:
            await self._work.post(str(number), json.dumps({"id": number, "data": data}).encode())

        @self._app.task(name="stamp")
        async def stamp(at: int) -> None:
            self._pickup.handled(at)

        self._tasks: dict[str, Any] = {"noop": noop, "hook": hook, "stamp": stamp}

    async def _open(self) -> None:
        if not self._opened:
            await self._app.open_async()
            self._opened = True

    async def install(self) -> None:
        await self._open()
        await self._app.schema_manager.apply_schema_async()

    async def enqueue(self, job: str, numbers: range) -> None:
        arguments: list[dict[str, Any]]
        if job == "hook":
            arguments = [{"number": n, "data": json.loads(child.body(n))["data"]} for n in numbers]
        else:
            arguments = [{"n": n} for n in numbers]
        await self._tasks[job].batch_defer_async(*arguments)

    async def enqueue_stamp(self, sent_ns: int) -> object:
        result: object = await self._tasks["stamp"].defer_async(at=sent_ns)
        return result

    async def connect(self, work: child.Work, pickup: child.Pickup) -> None:
        self._work, self._pickup = work, pickup
        await self._open()

    async def run(self, job: str) -> None:
        await self._app.run_worker_async(concurrency=self._slots, install_signal_handlers=False)


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    child.main(ProcrastinatePeer)
