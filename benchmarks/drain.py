"""``sqlite_drain``: no-op jobs that are already on the ledger, drained by one worker process.

Ours: the worker as users run it (``Redrive.run``), an async handler that does nothing, the whole ledger written
(reservation charged and fenced, attempt row, state), ``synchronous=FULL``. The clock runs from before the worker
is made until it has come back idle.

Peer: Huey's SQLite storage with ``fsync=True``, one in-process consumer with one worker thread (more threads
contend for its exclusive transaction and are slower), no results, no health check, no schedule. Its clock runs
from the consumer's start to the end of the last task. Huey takes a job off its queue before it runs it (at most
once) and keeps no record of it.
"""

from __future__ import annotations

import argparse
import logging
import threading
import time
from typing import Any

from common import (
    Figures,
    assert_all_delivered,
    assert_full,
    assert_verified,
    child,
    cpu_seconds,
    ledger_url,
    settle,
)

CHUNK = 1000


def application(arguments: argparse.Namespace) -> Any:
    from redrive import Redrive
    from redrive.worker.settings import WorkerSettings

    app = Redrive(ledger_url(arguments.file), worker=WorkerSettings(slots=arguments.slots or 100))

    @app.handler("noop")
    async def noop(context: object, payload: object) -> None:
        pass

    return app


def fill_ours(arguments: argparse.Namespace) -> None:
    from redrive.app import JobSpec

    with application(arguments) as app:
        app.init()
        for first in range(0, arguments.count, CHUNK):
            last = min(first + CHUNK, arguments.count)
            app.enqueue_many([JobSpec("noop", {"n": number}, key=number) for number in range(first, last)])
    settle(arguments.file)


def ours(arguments: argparse.Namespace) -> Figures:
    app = application(arguments)
    cpu, begun = cpu_seconds(), time.perf_counter()
    app.run(until_idle=True)
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    app.close()
    assert_all_delivered(arguments.file, arguments.count)
    assert_full(arguments.file)
    if arguments.check:
        assert_verified(arguments.file)
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


def _huey(arguments: argparse.Namespace, *, fsync: bool) -> tuple[Any, Any, threading.Event]:
    from huey import SqliteHuey

    logging.disable(logging.CRITICAL)
    huey = SqliteHuey("bench", filename=str(arguments.file), fsync=fsync, results=False)
    done = threading.Event()
    left = [arguments.count]

    @huey.task()
    def noop(n: int) -> None:
        left[0] -= 1
        if not left[0]:
            done.set()

    return huey, noop, done


def fill_peer(arguments: argparse.Namespace) -> None:
    huey, noop, _ = _huey(arguments, fsync=False)
    for number in range(arguments.count):
        noop(number)
    huey.storage.close()
    settle(arguments.file)


def peer(arguments: argparse.Namespace) -> Figures:
    huey, _, done = _huey(arguments, fsync=True)
    consumer = huey.create_consumer(
        workers=1, periodic=False, initial_delay=0.01, max_delay=0.1, check_worker_health=False
    )
    cpu, begun = cpu_seconds(), time.perf_counter()
    consumer.start()
    if not done.wait(240):
        raise SystemExit("huey did not finish")
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    consumer.stop(graceful=True)
    if huey.pending_count():
        raise SystemExit("huey left jobs behind")
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


if __name__ == "__main__":
    child({"fill-ours": fill_ours, "ours": ours, "fill-peer": fill_peer, "peer": peer})
