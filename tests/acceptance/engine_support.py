"""What the in-process tests of the engine share: applications on files of their own, clocks, a receiver, the fold."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from redrive import Policy, Redrive
from redrive.app import JobSpec
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.ports import Extended
from redrive.ledger.records import AttemptView, DeadLetterView, DeliveryView
from redrive.ledger.sqlite.ledger import SqliteLedger
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.worker.settings import WorkerSettings

MS = 1000
"""Microseconds in a millisecond."""
FAST = Policy(max_attempts=3, base=MS, cap=5 * MS)
"""Three attempts, milliseconds apart."""
ONCE = Policy(max_attempts=1)
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
DEADLINE_S = 20.0
"""No test waits longer than this for anything."""


def make(folder: Path, *, name: str = "ledger.db", init: bool = True, **options: Any) -> Redrive:
    """An application on a ledger in ``folder``, with a worker that is quick to notice things."""
    options.setdefault("worker", WorkerSettings(slots=20, reap_s=0.05, drain_s=5, poll_s=0.5))
    app = Redrive(f"sqlite:///{folder / name}", **options)
    if init:
        app.init()
    return app


def drain(app: Redrive) -> None:
    """Work until nothing is left."""

    async def main() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await app.work(until_idle=True)

    asyncio.run(main())


@contextlib.asynccontextmanager
async def working(app: Redrive) -> Any:
    """A worker for as long as the block lasts; then it is told to stop and must come to an end."""
    stop = asyncio.Event()
    task = asyncio.create_task(app.work(stop=stop))
    try:
        yield stop
    finally:
        stop.set()
        async with asyncio.timeout(DEADLINE_S):
            await task


async def until(condition: Callable[[], Any]) -> None:
    """Wait until something is so; fails after :data:`DEADLINE_S`."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.005)


def seen(app: Redrive, delivery: str) -> DeliveryView:
    return app.operations.show(delivery)


def tries(app: Redrive, delivery: str) -> list[tuple[str, str]]:
    """(outcome, category) of each attempt."""
    return [(attempt.outcome, attempt.category) for attempt in attempts(app, delivery)]


def attempts(app: Redrive, delivery: str) -> list[AttemptView]:
    return list(app.operations.attempts(delivery))


def dead(app: Redrive) -> list[DeadLetterView]:
    return list(app.operations.dead().items)


def query(app: Redrive, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """Rows straight from the file."""
    with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        return conn.execute(sql, params).fetchall()


def tamper(app: Redrive, sql: str, *params: Any) -> None:
    """Change what triggers protect, as a bug, a bad disk or a person with a shell would."""
    with contextlib.closing(sqlite3.connect(app.ledger.path)) as conn:
        triggers = conn.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            conn.execute(f"DROP TRIGGER {name}")
        conn.execute(sql, params)
        for _, text in triggers:
            conn.execute(text)
        conn.commit()


def assert_verified(app: Redrive) -> None:
    """The fold of the ledger agrees with every row."""
    report = app.operations.verify()
    assert report.ok, report.problems


class FastClock:
    """A clock that runs ``speed`` times as fast as the host's, in microseconds UTC."""

    def __init__(self, speed: int) -> None:
        self._speed = speed
        self._wall = time.time_ns() // 1000
        self._since = time.monotonic_ns()

    def __call__(self) -> int:
        return self._wall + (time.monotonic_ns() - self._since) * self._speed // 1000


class ManualClock:
    """A clock that moves when it is told to."""

    def __init__(self) -> None:
        self.now = time.time_ns() // 1000

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += round(seconds * 1e6)


def filled(app: Redrive, count: int, handler: str = "job") -> list[str]:
    return [job.delivery_id for job in app.enqueue_many([JobSpec(handler, n, ("n", n)) for n in range(count)])]


def environ() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


# --- a ledger that refuses ---------------------------------------------------------------------------------


class Faulty:
    """A ledger that refuses some calls; everything else goes to the real one."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger
        self.refuse: dict[str, Exception] = {}
        self.refused: dict[str, int] = {}
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ledger, name)

    def _check(self, name: str) -> None:
        self.calls.append(name)
        if name in self.refuse:
            self.refused[name] = self.refused.get(name, 0) + 1
            raise self.refuse[name]

    async def reserve(self, *arguments: Any) -> list[Lease]:
        self._check("reserve")
        return await self._ledger.reserve(*arguments)

    async def close_attempts(self, worker: int, closings: list[Closing]) -> list[Closed]:
        self._check("close_attempts")
        return await self._ledger.close_attempts(worker, closings)

    async def next_due(self, routes: Any) -> int | None:
        self._check("next_due")
        return await self._ledger.next_due(routes)

    async def overdue(self) -> bool:
        self._check("overdue")
        return await self._ledger.overdue()

    def extend_sync(self, *arguments: Any) -> Extended:
        self._check("extend_sync")
        return self._ledger.extend_sync(*arguments)


def faulty(app: Redrive) -> Faulty:
    """Put a faulty ledger between the application's worker and its file."""
    wrapper = Faulty(app.ledger)
    app._ledger = wrapper  # type: ignore[assignment]
    return wrapper


# --- a receiver ------------------------------------------------------------------------------------------


@dataclass
class Got:
    """One request as it arrived."""

    path: str
    headers: dict[str, str]
    body: bytes
    at: float = field(default_factory=time.monotonic)

    @property
    def delivery(self) -> str:
        return self.headers["webhook-id"]


Reply = int | tuple[int, dict[str, str], bytes] | bytes | None
"""A status; status, headers and body; raw bytes after which the connection closes; None: no answer at all."""


class Receiver:
    """An HTTP receiver in a thread. ``answer(got, number)`` says what each request gets, 200 unless told otherwise."""

    def __init__(self, answer: Callable[[Got, int], Reply] | None = None) -> None:
        self.got: list[Got] = []
        self.connections = 0
        self._answer = answer or (lambda got, number: 200)
        self._lock = threading.Lock()
        self._over = threading.Event()

    def __enter__(self) -> Receiver:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                receiver.connections += 1

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                got = Got(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
                with receiver._lock:
                    receiver.got.append(got)
                    number = len(receiver.got)
                self.reply(receiver._answer(got, number))

            def reply(self, reply: Reply) -> None:
                if reply is None:
                    receiver._over.wait(DEADLINE_S)
                    self.close_connection = True
                elif isinstance(reply, bytes):
                    self.wfile.write(reply)
                    self.close_connection = True
                else:
                    status, headers, body = (reply, {}, b"") if isinstance(reply, int) else reply
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    if "Content-Length" not in headers:
                        self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    self.wfile.write(body)

            def log_message(self, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.port: int = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def to(self, path: str) -> list[Got]:
        return [got for got in self.got if got.path == path]


def opened(*ports: int) -> AddressPolicy:
    """An operator's policy for tests: loopback, these ports, plain HTTP."""
    return AddressPolicy.build(["127.0.0.0/8"], ports, True)


HOOKS = Policy(max_attempts=4, base=MS, cap=5 * MS, retry_after_cap=60_000_000)


def settings(url: str, **options: Any) -> DestinationSettings:
    """A destination's settings with a quick policy and the test's secret."""
    options.setdefault("policy", HOOKS)
    options.setdefault("secrets", (SigningSecret("env:HOOK_SECRET"),))
    return DestinationSettings(url, allow_http=True, **options)


@contextlib.contextmanager
def rig(
    folder: Path, answer: Callable[[Got, int], Reply] | None = None, **options: Any
) -> Iterator[tuple[Redrive, Receiver]]:
    """A receiver and an application that may send to it."""
    with Receiver(answer) as receiver, make(folder, address_policy=opened(receiver.port), **options) as app:
        yield app, receiver
