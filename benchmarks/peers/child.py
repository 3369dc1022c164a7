"""The Python side of a peer's process: arguments, the lines it speaks with the harness, what its handlers do.

A child prints JSON lines and reads words from its standard input:

    child    {"event": "ready"}                                 the schema is there, connections are open
    harness  go
    child    {"event": "progress", "handled": n, "first": ns}   while it works; first: the first handler's start
    child    {"event": "done", ...}                             what it measured, where it times itself
    harness  (closes the input)                                 leave, at once

Times are CLOCK_MONOTONIC's nanoseconds, which all processes of a machine share.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import hmac
import json
import os
import random
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

BATCH = 1000
"""Jobs in one call of a peer's batch enqueue."""
CONNECTIONS = 100
PATH = "/hooks/orders"
PROGRESS_S = 0.01
SAMPLE_TIMEOUT_S = 10.0
WARM = 5
BODY_BYTES = 1024

now_ns = time.monotonic_ns


def body(number: int) -> bytes:
    """Exactly 1024 bytes of JSON, as ours sends."""
    head = json.dumps({"id": number, "data": ""}).encode()
    return head[:-2] + b"x" * (BODY_BYTES - len(head)) + head[-2:]


def tell(event: str, **fields: object) -> None:
    """One line to the harness."""
    print(json.dumps({"event": event, **fields}), flush=True)


async def heard() -> str:
    """The next line from the harness, empty when it has closed the input."""
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


class Signer:
    """Signs as Standard Webhooks 1.0 does: HMAC-SHA256 over ``id.timestamp.body``, base64."""

    def __init__(self, secret: str) -> None:
        self._key = base64.b64decode(secret.removeprefix("whsec_"))

    def headers(self, message: str, content: bytes) -> dict[str, str]:
        """The headers of one request."""
        stamp = str(int(time.time()))
        mac = hmac.digest(self._key, f"{message}.{stamp}.".encode() + content, "sha256")
        return {
            "content-type": "application/json",
            "webhook-id": message,
            "webhook-timestamp": stamp,
            "webhook-signature": "v1," + base64.b64encode(mac).decode(),
        }


class Work:
    """Counts the jobs that handlers finished, and POSTs for those that do."""

    def __init__(self, count: int, port: int) -> None:
        self._count = count
        self._port = port
        self._signer = Signer(os.environ.get("REDRIVE_BENCH_SECRET", ""))
        self._session: Any = None
        self._url: Any = None
        self.handled = 0
        self.first = 0

    async def open(self) -> None:
        """Make the HTTP session that all POSTs share."""
        import aiohttp
        from yarl import URL

        self._url = URL(f"http://127.0.0.1:{self._port}{PATH}")
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, limit_per_host=CONNECTIONS, keepalive_timeout=60)
        self._session = aiohttp.ClientSession(
            connector=connector, timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
        )

    async def noop(self) -> None:
        """The job that does nothing."""
        if not self.handled:
            self.first = now_ns()
        self._finished()

    async def post(self, message: str, content: bytes) -> None:
        """The job that delivers a webhook."""
        if not self.first:
            self.first = now_ns()
        headers = self._signer.headers(message, content)
        async with self._session.post(self._url, data=content, headers=headers) as answer:
            await answer.read()
            if answer.status != 200:
                raise RuntimeError(f"the sink answered {answer.status}")
        self._finished()

    def _finished(self) -> None:
        self.handled += 1
        if self.handled == self._count:
            self._report()

    def _report(self) -> None:
        tell("progress", handled=self.handled, first=self.first)

    async def report(self) -> None:
        """Tell how far it is, every few milliseconds: with several workers none of them knows when all is done."""
        last = 0
        while True:
            await asyncio.sleep(PROGRESS_S)
            if self.handled != last:
                last = self.handled
                self._report()


class Pickup:
    """Samples from the start of an enqueue call to the start of the handler, one at a time on an idle worker."""

    def __init__(self) -> None:
        self._samples: list[float] = []
        self._started = asyncio.Event()

    def handled(self, sent_ns: int) -> None:
        """To be called first thing by the handler."""
        self._samples.append((now_ns() - sent_ns) / 1e6)
        self._started.set()

    async def measure(self, count: int, enqueue: Callable[[int], Awaitable[object]]) -> list[float]:
        """``count`` samples in milliseconds; a few more before them are not counted."""
        spread = random.Random(1)
        for _ in range(count + WARM):
            self._started.clear()
            await enqueue(now_ns())
            await asyncio.wait_for(self._started.wait(), SAMPLE_TIMEOUT_S)
            await asyncio.sleep(spread.uniform(0.020, 0.030))
        return self._samples[WARM:]


class Peer(Protocol):
    """What each Python peer writes."""

    async def install(self) -> None:
        """Connect, and make the peer's schema."""

    async def enqueue(self, job: str, numbers: range) -> None:
        """One call of the batch enqueue: ``noop`` or ``hook`` jobs."""

    async def enqueue_stamp(self, sent_ns: int) -> object:
        """Enqueue one ``stamp`` job."""

    async def connect(self, work: Work, pickup: Pickup) -> None:
        """Connect a worker and register its handlers."""

    async def run(self, job: str) -> None:
        """Work until cancelled."""


async def _enqueue(peer: Peer, arguments: argparse.Namespace) -> None:
    await peer.install()
    tell("ready")
    await heard()
    begun = now_ns()
    for first in range(0, arguments.count, BATCH):
        await peer.enqueue(arguments.job, range(first, min(first + BATCH, arguments.count)))
    tell("done", took_s=(now_ns() - begun) / 1e9)
    await heard()


def _ended(task: asyncio.Task[None]) -> None:
    """A worker that stops by itself must not leave the harness waiting."""
    if not task.cancelled() and (error := task.exception()) is not None:
        print(f"the worker failed: {error!r}", file=sys.stderr, flush=True)
        os._exit(1)


async def _work(peer: Peer, arguments: argparse.Namespace) -> None:
    work = Work(arguments.count, arguments.port)
    if arguments.job == "hook":
        await work.open()
    await peer.connect(work, Pickup())
    tell("ready")
    await heard()
    tasks = [asyncio.create_task(peer.run(arguments.job)), asyncio.create_task(work.report())]
    tasks[0].add_done_callback(_ended)
    await heard()


async def _pickup(peer: Peer, arguments: argparse.Namespace) -> None:
    await peer.install()
    pickup = Pickup()
    await peer.connect(Work(0, 0), pickup)
    worker = asyncio.create_task(peer.run("stamp"))
    worker.add_done_callback(_ended)
    await asyncio.sleep(1)
    tell("ready")
    await heard()
    begun = now_ns()
    samples = await pickup.measure(arguments.count, peer.enqueue_stamp)
    tell("done", took_s=(now_ns() - begun) / 1e9, samples=samples)
    await heard()


def main(make: Callable[[argparse.Namespace], Peer]) -> None:
    """A peer script's main function."""
    import uvloop

    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("enqueue", "work", "pickup"))
    parser.add_argument("--url", required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--slots", type=int, required=True)
    parser.add_argument("--job", choices=("noop", "hook", "stamp"), default="noop")
    parser.add_argument("--port", type=int, default=0, help="the sink's")
    arguments = parser.parse_args()
    role = {"enqueue": _enqueue, "work": _work, "pickup": _pickup}[arguments.role]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(role(make(arguments), arguments))
        os._exit(0)  # a peer's graceful shutdown is not what is measured
