"""Putting a worker together and keeping it running: the event loop, the signals, the shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import random
import secrets
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from redrive.domain.envelope import CURRENT
from redrive.domain.ports import Grant
from redrive.domain.values import duration_us
from redrive.errors import InvalidInput, LedgerBusy, LedgerError, RedriveError
from redrive.ledger import fleet
from redrive.ledger.migrate import check_running
from redrive.ledger.opening import is_postgres
from redrive.ledger.purge import purge, take_turn
from redrive.ledger.records import NONE, Count, Record
from redrive.ledger.retention import RetentionRules
from redrive.queues.database import DatabaseMechanism
from redrive.webhooks.catalog import Catalog
from redrive.webhooks.handler import WebhookHandler, wall_us
from redrive.webhooks.sender import Sender
from redrive.worker.engine import Worker

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.domain.ports import Handler

T = TypeVar("T")
_log = logging.getLogger("redrive.worker")
RECONCILE_AGAIN_S = 60.0
"""Seconds between looks for holds and releases that somebody began and did not finish."""
PURGE_LOOK_S = 300.0
"""Seconds, about, between looks whether retention has a turn to take."""


@dataclass(frozen=True, slots=True)
class Rest(Record):
    """How a burst of work ended: nothing of its handlers is due."""

    next_due_at: int | None
    """When the next delivery of these handlers is due, in ledger microseconds UTC; None: nothing waits."""
    next_due_us: int | None
    """How long until then."""
    due_elsewhere: Count = NONE
    """What is due for handlers, or envelope versions of them, that this worker does not have."""


def loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it runs, the standard loop elsewhere."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def run_loop(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on the best event loop there is."""
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


def run(
    app: Redrive, *, until_idle: bool = False, burst: bool = False, linger: float | timedelta | str = 0.0
) -> Rest | None:
    """Work as :func:`work` until a signal, too. The first SIGTERM or SIGINT drains; the second stops at once."""

    async def main() -> Rest | None:
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
        return await work(app, until_idle=until_idle, burst=burst, linger=linger, stop=stop)

    # This process is the worker's own (docs/decisions/0012).
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    sys.setswitchinterval(0.0005)
    return run_loop(main())


@contextlib.asynccontextmanager
async def _sender() -> AsyncIterator[Sender]:
    sender = Sender()
    try:
        yield sender
    finally:
        await sender.close(grace_s=0.2)


async def work(
    app: Redrive,
    *,
    until_idle: bool = False,
    burst: bool = False,
    linger: float | timedelta | str = 0.0,
    stop: asyncio.Event | None = None,
) -> Rest | None:
    """One worker in this event loop, with every handler of the application and the webhook handler.

    A :class:`Rest` when a ``burst`` ended by itself, else None. Raises :class:`~redrive.errors.LedgerVersion`, after a
    drain, once the ledger has a breaking step of a newer release.
    """
    if until_idle and burst:
        raise InvalidInput("until_idle waits for what is due later, and burst does not: give one", param="burst")
    linger_s = duration_us(linger, "linger") / 1e6
    if linger_s and not burst:
        raise InvalidInput("linger is how long a burst stays without work", param="linger", hint="give burst too")
    ledger = app.ledger
    loop = asyncio.get_running_loop()
    await _reconcile(app, LedgerBusy)
    catalog = Catalog(ledger, app.address_policy)
    mechanism = DatabaseMechanism(ledger)

    def told() -> None:
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(mechanism.hint)

    async def gone(destination_id: str) -> None:
        await asyncio.to_thread(app.destinations.disable_gone, destination_id)
        catalog.forget()

    async with _sender() as sender:
        handlers: dict[str, Handler] = dict(app.job_handlers)
        # A file's ledger time is this host's clock, or what that once said.
        clock = ledger.estimate if is_postgres(app.url) else wall_us
        webhook = WebhookHandler(catalog, sender, app.confirms, gone, clock)
        handlers[webhook.name] = webhook
        worker = Worker(
            ledger,
            mechanism,
            handlers,
            name=f"wrk_{secrets.token_hex(8)}",
            settings=app.worker_settings,
            random=app.random,
            sync_extend=ledger.extend_sync,
            sync_check=lambda: ledger.read_sync(lambda tx: check_running(tx, ledger.where)),
            grants=[Grant(job.name, job.write_version, job.policy) for job in app.job_handlers.values()],
        )
        beside = [asyncio.create_task(_reconcile_again(app)), asyncio.create_task(_purge_again(app))]
        if stop is not None:
            beside.append(asyncio.create_task(_stop_when(stop, worker)))
        unsubscribe = ledger.subscribe(told)
        try:
            await worker.run(until_idle=until_idle, linger_s=linger_s if burst else None)
        finally:
            unsubscribe()
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
    if not worker.spent:
        return None
    elsewhere = await asyncio.to_thread(due_elsewhere, app)
    return rest(worker.next_due_at, ledger.estimate(), elsewhere)


def rest(next_due_at: int | None, now: int, elsewhere: Count) -> Rest:
    """When there is more to do, seen from ``now`` (ledger microseconds)."""
    return Rest(next_due_at, None if next_due_at is None else max(0, next_due_at - now), elsewhere)


def due_elsewhere(app: Redrive) -> Count:
    """How much is due that this application cannot execute. Blocks."""
    ledger = app.ledger
    return ledger.read_sync(lambda tx: fleet.due_elsewhere(tx, ledger.estimate(), _routes(app)))


def _routes(app: Redrive) -> list[fleet.Route]:
    """What a worker of this application executes."""
    routes = [(job.name, version) for job in app.job_handlers.values() for version in sorted(job.envelope_versions)]
    return [*routes, (WebhookHandler.name, CURRENT)]


def next_due(app: Redrive) -> Rest:
    """When the next delivery that this application can execute is due. Blocks."""
    ledger = app.ledger
    return rest(asyncio.run(ledger.next_due(_routes(app))), ledger.estimate(), due_elsewhere(app))


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


async def _purge_again(app: Redrive) -> None:
    """Retention, where it is set: one worker of all takes what is past its time, resting as long as it deletes."""
    stop = threading.Event()

    def turn(rules: RetentionRules) -> None:
        try:
            if take_turn(app.ledger):
                purge(app.ledger, rules, between=lambda took: not stop.wait(took))
        except RedriveError as exc:
            _log.warning("retention stopped, and goes on in about an hour: %s", exc)
        except Exception:
            _log.exception("retention failed, and is tried again in about an hour")

    while True:
        await asyncio.sleep(PURGE_LOOK_S * (0.5 + random.random()))  # noqa: S311 - spreads a fleet, guards nothing
        if app.retention is None or app.retention.shortest is None:
            continue
        working = asyncio.create_task(asyncio.to_thread(turn, app.retention))
        try:
            await asyncio.shield(working)
        finally:
            stop.set()  # ends a run that this wait was cancelled in; the ledger must not be closed under it
            await asyncio.wait([working])
            stop.clear()


async def _stop_when(stop: asyncio.Event, worker: Worker) -> None:
    await stop.wait()
    worker.stop()
