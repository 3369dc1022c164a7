"""Ours on PostgreSQL, in a process of its own: it speaks with the harness as the peers do (``peers/child.py``).

The worker is the one that users run (``Redrive.run``), with the whole ledger written: the reservation is charged,
fenced and durable before the handler starts, and every attempt leaves a row. An async handler does nothing; a webhook
is signed and sent by the worker's own sender.

    enqueue    ``enqueue_many`` or ``publish_many`` in batches of 1,000; ``single``: ``enqueue_async`` from many tasks
    work       until the ledger is idle
    serve      until the input closes, whether there is work or not
    pickup     one job at a time on an idle worker, in one event loop with it
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from common import SECRET_NAME
from peers.child import BATCH, PATH, Pickup, body, heard, tell

from redrive import Redrive
from redrive.app import JobSpec
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.outcome import Outcome
from redrive.domain.ports import LeaseGuard
from redrive.running import loop_factory
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.handler import WebhookHandler
from redrive.webhooks.publish import Event
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.worker.settings import WorkerSettings

CA_FILE = "REDRIVE_BENCH_CA_FILE"
"""The variable that says what the sink's certificate is verified with."""
PROGRESS_S = 0.01
SINGLE_TASKS = 200
"""Tasks that each await one enqueue after another."""
SETTLE_S = 0.5

now_ns = time.monotonic_ns


class Progress:
    """Counts what handlers finished, and tells the harness as often as the peers' children do."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._handled = 0
        self._first = 0
        self._task: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """First thing in a handler."""
        if not self._first:
            self._first = now_ns()
            self._task = asyncio.get_running_loop().create_task(self._report())

    def end(self) -> None:
        """Last thing in a handler."""
        self._handled += 1
        if self._handled == self._count:
            self._tell()

    def _tell(self) -> None:
        tell("progress", handled=self._handled, first=self._first)

    async def _report(self) -> None:
        last = 0
        while True:
            await asyncio.sleep(PROGRESS_S)
            if self._handled != last:
                last = self._handled
                self._tell()


def count_webhooks(progress: Progress) -> None:
    """Webhooks are executed by redrive's own handler, which has no place for a counter."""
    execute = WebhookHandler.execute

    async def counted(self: WebhookHandler, lease: Lease, guard: LeaseGuard) -> Outcome | None:
        progress.begin()
        outcome = await execute(self, lease, guard)
        progress.end()
        return outcome

    WebhookHandler.execute = counted  # type: ignore[method-assign]


def application(arguments: argparse.Namespace) -> Redrive:
    guard = AddressPolicy.build(["127.0.0.0/8"], [arguments.port], True) if arguments.port else None
    return Redrive(arguments.url, worker=WorkerSettings(slots=arguments.slots or 100), address_policy=guard)


def with_noop(app: Redrive, progress: Progress | None) -> None:
    @app.handler("noop")
    async def noop(context: object, payload: object) -> None:
        if progress is not None:
            progress.begin()
            progress.end()


def wait_for_go() -> None:
    tell("ready")
    sys.stdin.readline()


# -- enqueue -----------------------------------------------------------------------------------------


def enqueue(arguments: argparse.Namespace) -> None:
    with application(arguments) as app:
        app.init()
        with_noop(app, None)
        if arguments.job in ("hook", "hook_tls"):
            scheme = "https" if arguments.job == "hook_tls" else "http"
            app.destinations.add(
                "sink",
                DestinationSettings(
                    f"{scheme}://127.0.0.1:{arguments.port}{PATH}",
                    allow_http=scheme == "http",
                    secrets=(SigningSecret(f"env:{SECRET_NAME}"),),
                    ca_file=os.environ.get(CA_FILE),
                ),
            )
        assert app.ledger
        if arguments.job == "single":
            with asyncio.Runner(loop_factory=loop_factory()) as runner:
                runner.run(_enqueue_single(app, arguments.count))
            return
        wait_for_go()
        begun = now_ns()
        for first in range(0, arguments.count, BATCH):
            numbers = range(first, min(first + BATCH, arguments.count))
            if arguments.job == "noop":
                app.enqueue_many([JobSpec("noop", {"n": number}, key=number) for number in numbers])
            else:
                app.publish_many([Event("order.paid", body(number), number) for number in numbers])
        tell("done", took_s=(now_ns() - begun) / 1e9)
        sys.stdin.readline()


async def _enqueue_single(app: Redrive, count: int) -> None:
    numbers = iter(range(count))

    async def producer() -> None:
        for number in numbers:
            await app.enqueue_async("noop", {"n": number}, key=number)

    tell("ready")
    await heard()
    begun = now_ns()
    await asyncio.gather(*(producer() for _ in range(SINGLE_TASKS)))
    tell("done", took_s=(now_ns() - begun) / 1e9)
    await heard()


# -- work --------------------------------------------------------------------------------------------


def work(arguments: argparse.Namespace) -> None:
    progress = Progress(arguments.count)
    with application(arguments) as app:
        with_noop(app, progress)
        count_webhooks(progress)
        assert app.ledger  # opened, as a peer's connections are
        wait_for_go()
        if arguments.role == "serve":
            threading.Thread(target=_leave_with_the_harness, daemon=True).start()
            app.run()
            return
        app.run(until_idle=True)
        sys.stdin.readline()


def _leave_with_the_harness() -> None:
    sys.stdin.readline()
    os.kill(os.getpid(), signal.SIGTERM)


# -- pickup ------------------------------------------------------------------------------------------


def pickup(arguments: argparse.Namespace) -> None:
    with application(arguments) as app, asyncio.Runner(loop_factory=loop_factory()) as runner:
        app.init()
        runner.run(_pickup(app, arguments.count))


async def _pickup(app: Redrive, count: int) -> None:
    pickup = Pickup()
    ended: list[int] = []
    closed: list[float] = []

    @app.handler("stamp")
    async def stamp(context: object, payload: int) -> None:
        pickup.handled(payload)
        ended.append(now_ns())

    # The call returns once the outcome is committed.
    close_attempts = app.ledger.close_attempts

    async def clocked(worker: int, closings: Sequence[Closing]) -> list[Closed]:
        result = await close_attempts(worker, closings)
        now = now_ns()
        closed.extend((now - at) / 1e6 for at in ended)
        ended.clear()
        return result

    app.ledger.close_attempts = clocked  # type: ignore[method-assign]
    stop = asyncio.Event()
    worker = asyncio.create_task(app.work(stop=stop))
    await asyncio.sleep(SETTLE_S)
    tell("ready")
    await heard()

    async def one(sent_ns: int) -> Any:
        return await app.enqueue_async("stamp", sent_ns, key=sent_ns)

    begun = now_ns()
    samples = await pickup.measure(count, one)
    took_s = (now_ns() - begun) / 1e9
    tell("done", took_s=took_s, samples=samples, closed=closed[len(closed) - len(samples) :])
    await heard()
    stop.set()
    await worker


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("enqueue", "work", "serve", "pickup"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--job", choices=("noop", "single", "hook", "hook_tls", "stamp"), default="noop")
    parser.add_argument("--port", type=int, default=0, help="the sink's")
    arguments = parser.parse_args()
    {"enqueue": enqueue, "work": work, "serve": work, "pickup": pickup}[arguments.role](arguments)


if __name__ == "__main__":
    main()
