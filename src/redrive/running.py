"""Putting a worker together and keeping it running: the event loop, the signals, the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TYPE_CHECKING, Any

from redrive.errors import LedgerBusy, LedgerError
from redrive.queues.database import DatabaseMechanism
from redrive.webhooks.catalog import Catalog
from redrive.webhooks.handler import WebhookHandler
from redrive.webhooks.sender import Sender
from redrive.worker.engine import Worker

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.domain.ports import Handler

_log = logging.getLogger("redrive.worker")
_HINTS = frozenset({"enqueue", "operator"})
RECONCILE_AGAIN_S = 60.0
"""Seconds between looks for holds and releases that somebody began and did not finish."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it runs, the standard loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on the best event loop there is."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(main)


def run(app: Redrive, *, until_idle: bool = False) -> None:
    """Work until a signal, or until idle. The first SIGTERM or SIGINT drains; the second stops at once."""

    async def main() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            if stop.is_set():
                # Leases that are held expire and are reaped: charged, recorded, never lost.
                _log.warning("second signal: stopping at once")
                sys.stderr.flush()
                os._exit(130)
            _log.info("draining")
            stop.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
                loop.add_signal_handler(number, on_signal)
        await work(app, until_idle=until_idle, stop=stop)

    # This process is the worker's own (docs/decisions/0012).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.0005)
    run_loop(main())


@contextlib.asynccontextmanager
async def _sender() -> AsyncIterator[Sender]:
    sender = Sender()
    try:
        yield sender
    finally:
        await sender.close(grace_s=0.2)


async def work(app: Redrive, *, until_idle: bool = False, stop: asyncio.Event | None = None) -> None:
    """One worker in this event loop, with every handler of the application and the webhook handler."""
    ledger = app.ledger
    loop = asyncio.get_running_loop()
    await _reconcile(app, LedgerBusy)
    catalog = Catalog(ledger, app.address_policy)
    mechanism = DatabaseMechanism(ledger)

    def committed(point: str) -> None:
        if point in _HINTS:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(mechanism.hint)

    async def gone(destination_id: str) -> None:
        await asyncio.to_thread(app.destinations.disable_gone, destination_id)
        catalog.forget()

    async with _sender() as sender:
        handlers: dict[str, Handler] = dict(app.job_handlers)
        webhook = WebhookHandler(catalog, sender, app.confirms, gone)
        handlers[webhook.name] = webhook
        worker = Worker(
            ledger,
            mechanism,
            handlers,
            name=f"wrk_{secrets.token_hex(8)}",
            settings=app.worker_settings,
            random=app.random,
            sync_extend=ledger.extend_sync,
        )
        beside = [asyncio.create_task(_reconcile_again(app))]
        if stop is not None:
            beside.append(asyncio.create_task(_stop_when(stop, worker)))
        ledger.writer.on_commit.append(committed)
        try:
            await worker.run(until_idle=until_idle)
        finally:
            ledger.writer.on_commit.remove(committed)
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)


async def _reconcile(app: Redrive, put_off: type[LedgerError]) -> None:
    """Finish what a crash left of enabling and disabling destinations. ``put_off`` errors wait for the next time."""
    try:
        await asyncio.to_thread(app.destinations.reconcile)
    except put_off as exc:
        _log.warning("unfinished holds and releases wait, to be tried again in %g s: %s", RECONCILE_AGAIN_S, exc)


async def _reconcile_again(app: Redrive) -> None:
    while True:
        await asyncio.sleep(RECONCILE_AGAIN_S)
        await _reconcile(app, LedgerError)


async def _stop_when(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.stop()
