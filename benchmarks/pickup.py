"""``sqlite_pickup``: how long an idle worker takes to start a job that was just enqueued in the same process.

From the start of the enqueue call to the first line of the handler, so it includes the flush that makes the job
durable and the one that charges the reservation. Samples are spaced 20 to 30 ms, so that the worker is idle at each.

Ours: ``enqueue_async`` in the event loop that the worker runs in. Peer: Huey, ``fsync=True``, one consumer thread
in the process that looks every millisecond; at that rate it polls without backing off, and burns the CPU shown.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import threading
import time

from common import (
    Figures,
    assert_all_delivered,
    assert_full,
    assert_verified,
    child,
    cpu_seconds,
    ledger_url,
    percentile,
    run_on_uvloop,
)

WARM = 5
HUEY_DELAY_S = 0.001


def _figures(samples: list[float], cpu: float, took: float) -> Figures:
    measured = samples[WARM:]
    return {
        "value": percentile(measured, 0.5),
        "p99": percentile(measured, 0.99),
        "cpu_us": cpu / len(samples) * 1e6,
        "busy": cpu / took,
    }


def _pause(spread: random.Random) -> float:
    return spread.uniform(0.020, 0.030)


def ours(arguments: argparse.Namespace) -> Figures:
    figures: Figures = run_on_uvloop(_ours(arguments))
    assert_all_delivered(arguments.file, arguments.count + WARM)
    assert_full(arguments.file)
    if arguments.check:
        assert_verified(arguments.file)
    return figures


async def _ours(arguments: argparse.Namespace) -> Figures:
    from redrive import Redrive
    from redrive.worker.settings import WorkerSettings

    app = Redrive(ledger_url(arguments.file), worker=WorkerSettings(slots=arguments.slots or 100))
    samples: list[float] = []
    started = asyncio.Event()
    spread = random.Random(1)

    @app.handler("stamp")
    async def stamp(context: object, payload: int) -> None:
        samples.append((time.perf_counter_ns() - payload) / 1e6)
        started.set()

    app.init()
    stop = asyncio.Event()
    worker = asyncio.create_task(app.work(stop=stop))
    await asyncio.sleep(0.3)
    cpu, begun = cpu_seconds(), time.perf_counter()
    for number in range(arguments.count + WARM):
        started.clear()
        await app.enqueue_async("stamp", time.perf_counter_ns(), key=number)
        await asyncio.wait_for(started.wait(), 5)
        await asyncio.sleep(_pause(spread))
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    stop.set()
    await worker
    app.close()
    return _figures(samples, cpu, took)


def peer(arguments: argparse.Namespace) -> Figures:
    from huey import SqliteHuey

    logging.disable(logging.CRITICAL)
    huey = SqliteHuey("bench", filename=str(arguments.file), fsync=True, results=False)
    samples: list[float] = []
    started = threading.Event()
    spread = random.Random(1)

    @huey.task()
    def stamp(at: int) -> None:
        samples.append((time.perf_counter_ns() - at) / 1e6)
        started.set()

    consumer = huey.create_consumer(
        workers=1,
        periodic=False,
        initial_delay=HUEY_DELAY_S,
        max_delay=HUEY_DELAY_S,
        backoff=1.0,
        check_worker_health=False,
    )
    consumer.start()
    time.sleep(0.3)
    cpu, begun = cpu_seconds(), time.perf_counter()
    for _ in range(arguments.count + WARM):
        started.clear()
        stamp(time.perf_counter_ns())
        if not started.wait(5):
            raise SystemExit("huey did not start a job")
        time.sleep(_pause(spread))
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    consumer.stop(graceful=True)
    return _figures(samples, cpu, took)


if __name__ == "__main__":
    child({"ours": ours, "peer": peer})
