"""One worker: the loop between the mechanism and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from redrive.domain.delivery import Closing, Lease
from redrive.domain.outcome import INTERRUPTED, OWN_FAULT, UNCHARGED, Category, Outcome, OutcomeKind
from redrive.domain.policy import OnUnknown
from redrive.domain.ports import Handler, LeaseGuard, Mechanism, Withdrawn, WorkLedger
from redrive.errors import LedgerBusy, LedgerError, RedriveError
from redrive.failpoint import hit
from redrive.worker.closer import Closer
from redrive.worker.heart import Heart, lease_clock
from redrive.worker.settings import WorkerSettings

REAP_BATCH: Final = 200
_SUCCESS: Final = (OutcomeKind.DELIVERED, OutcomeKind.NO_OP)
HANDLER_RAISED: Final = Outcome(OutcomeKind.RETRYABLE, Category.HANDLER_ERROR)
_log = logging.getLogger("redrive.worker")


class Running(LeaseGuard):
    """One lease in a slot."""

    __slots__ = (
        "_lock",
        "_withdrawn",
        "dropped",
        "fence",
        "lease",
        "lost",
        "occupied",
        "on_unknown",
        "seq",
        "started",
        "task",
        "valid_until",
    )

    def __init__(self, lease: Lease, valid_until: float) -> None:
        self.lease = lease
        self.seq = lease.seq
        self.fence = lease.fence
        self.valid_until = valid_until
        self.lost = False
        self.on_unknown: OnUnknown | None = None
        self.started = False
        self.dropped = False
        """The worker itself cancelled the task."""
        self.occupied: Awaitable[object] | None = None
        self.task: asyncio.Task[None] | None = None
        self._lock = threading.Lock()
        self._withdrawn = False

    def start(self) -> None:
        """Nothing that happens from here on is uncharged."""
        with self._lock:
            if self._withdrawn:
                raise Withdrawn
            self.started = True

    def withdraw(self) -> bool:
        """Keep it from starting; False when it has started. Decided once, against a thread about to begin, too."""
        with self._lock:
            self._withdrawn = not self.started
            return self._withdrawn

    def occupy(self, until: Awaitable[object]) -> None:
        """The slot is not free before that."""
        self.occupied = until

    def drop(self) -> None:
        """Cancel the task; what is recorded, if anything, is the caller's business."""
        self.dropped = True
        if self.task is not None:
            self.task.cancel()

    def holds(self) -> bool:
        """Whether the lease is certainly still ours: a worker that was stopped past it must not send."""
        return not self.lost and lease_clock() < self.valid_until


class Worker:
    """Claims, runs, closes, extends, reaps and drains, until told to stop.

    ``random`` returns a float in [0, 1) and spreads retries. ``sync_extend`` extends leases from the heart's
    thread. A worker never claims more than it has free slots: a reserved attempt is a started one.
    """

    def __init__(
        self,
        ledger: WorkLedger,
        mechanism: Mechanism,
        handlers: Mapping[str, Handler],
        *,
        name: str,
        settings: WorkerSettings,
        random: Callable[[], float],
        sync_extend: Callable[[int, list[tuple[int, int]], int], set[int]],
    ) -> None:
        self._ledger = ledger
        self._mechanism = mechanism
        self._handlers = dict(handlers)
        self._name = name
        self._settings = settings
        self._random = random
        self._sync_extend = sync_extend
        self._routes = tuple(
            (handler.name, version) for handler in handlers.values() for version in sorted(handler.envelope_versions)
        )
        self._running: dict[tuple[int, int], Running] = {}
        self._occupied: set[Running] = set()
        """Recorded, but with a thread that is not back yet."""
        self._freed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._lease_us = int(settings.lease_s * 1e6)
        self._worker = 0
        self._closer: Closer | None = None
        self._failed: BaseException | None = None
        self._receiving: asyncio.Task[list[Lease]] | None = None
        self.started = 0
        """Attempts started since the worker began."""

    def stop(self) -> None:
        """Claim nothing more; :meth:`run` drains and returns. Call it in the event loop's thread."""
        self._stopping.set()
        self._mechanism.hint()
        self._freed.set()

    async def run(self, *, until_idle: bool = False) -> None:
        """Work until :meth:`stop`, or, with ``until_idle``, until nothing of these handlers is leased or waiting.

        Cancelling it drains as :meth:`stop` does, and then raises ``CancelledError``; cancelled again, it gives up
        the drain, and the leases that are left expire.
        """
        worker = await self._register()
        if worker is None:
            return
        self._worker = worker
        closer = self._closer = Closer(self._ledger, self._worker, self._mechanism.hint)
        heart = Heart(
            lambda leases: self._sync_extend(self._worker, leases, self._lease_us),
            # In this order: an entry is among the closer's before it stops running.
            lambda: [*self._running.copy().values(), *closer.kept()],
            self._settings.lease_s,
        )
        heart.start()
        closing = self._close_with(closer)
        reaping = asyncio.create_task(self._reap(closer))
        try:
            try:
                await self._claim(closer, until_idle)
            finally:
                self._stopping.set()
                if closing.cancelled():  # by whoever cancels every task of a loop, and us with it
                    closing = self._close_with(closer)
                await self._drain(closer, closing)
        finally:
            closing.cancel()
            reaping.cancel()
            await asyncio.gather(closing, reaping, return_exceptions=True)
            await self._abandon()
            await asyncio.to_thread(heart.stop)
            with contextlib.suppress(RedriveError):
                await self._ledger.retire_worker(self._worker)
        if self._failed is not None:
            raise self._failed

    def _close_with(self, closer: Closer) -> asyncio.Task[None]:
        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (exc := task.exception()) is not None:
                _log.critical("outcomes cannot be recorded any more: this worker stops", exc_info=exc)
                self._failed = exc
                self.stop()

        task = asyncio.create_task(closer.run())
        task.add_done_callback(ended)
        return task

    async def _register(self) -> int | None:
        """None: told to stop before the ledger could be written. Whoever has its write lock may be stopped itself."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return await self._ledger.register_worker(self._name, self._routes)
            except LedgerBusy as exc:
                failures += 1
                _log.warning("this worker cannot begin yet (%d in a row): %s", failures, exc)
                await self._pause(min(0.05 * 2 ** min(failures, 10), 5.0))
        return None

    async def _claim(self, closer: Closer, until_idle: bool) -> None:
        slots = self._settings.slots
        failures = 0
        while not self._stopping.is_set():
            free = slots - len(self._running) - len(self._occupied)
            if free <= 0 or closer.backlog > 2 * slots or not closer.healthy:
                self._freed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._freed.wait(), 0.1 if free > 0 else None)
                continue
            asked = lease_clock()
            try:
                # Cancelled meanwhile, it must not take the leases with it that the ledger has granted.
                self._receiving = asyncio.create_task(self._receive(free))
                leases = await asyncio.shield(self._receiving)
                self._receiving = None
                for lease in leases:
                    self._start(lease, asked + self._settings.lease_s)
                if len(leases) < free:
                    if until_idle and not leases and await self._idle(closer):
                        return
                    await self._mechanism.wait(self._routes, 0.025 if until_idle else self._settings.poll_s)
            except Exception as exc:
                failures += 1
                if failures in (1, 10) or failures % 100 == 0:
                    _log.error("claiming failed (%d in a row): %s", failures, exc)
                await self._pause(min(0.05 * 2 ** min(failures, 10), 5.0))
            else:
                failures = 0

    async def _receive(self, free: int) -> list[Lease]:
        return await self._mechanism.receive(self._worker, self._routes, free, self._lease_us)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _idle(self, closer: Closer) -> bool:
        if self._running or closer.backlog:
            return False
        return not await self._ledger.outstanding(self._routes)

    def _start(self, lease: Lease, valid_until: float) -> None:
        entry = Running(lease, valid_until)
        if self._stopping.is_set():
            self._finish(entry, INTERRUPTED, 0)
            return
        self._running[lease.seq, lease.fence] = entry
        self.started += 1
        entry.task = asyncio.create_task(self._execute(entry))

    async def _execute(self, entry: Running) -> None:
        lease = entry.lease
        begun = time.monotonic()
        try:
            hit("execute.before")
            outcome = await self._outcome(entry)
        except KeyboardInterrupt:
            raise
        except BaseException as exc:
            if entry.dropped:
                # Drained or abandoned. Whoever cancelled decides what, if anything, is recorded.
                self._running.pop((lease.seq, lease.fence), None)
                self._freed.set()
                raise
            # A cancellation that we did not ask for, or SystemExit: the handler's, and no reason to stop the others.
            _log.error("handler %s raised outside its own guard", lease.handler, exc_info=exc)
            outcome = HANDLER_RAISED
        if outcome is not None:
            if entry.started and outcome.kind in UNCHARGED:
                _log.error("handler %s said %s of what it had started: charged", lease.handler, outcome.kind)
                outcome = HANDLER_RAISED
            self._finish(entry, outcome, int((time.monotonic() - begun) * 1e6))
        self._running.pop((lease.seq, lease.fence), None)
        if entry.occupied is None:
            self._freed.set()
        else:
            entry.lost = True  # what still runs must not believe that it holds the lease
            self._occupied.add(entry)
            try:
                await entry.occupied
            finally:
                self._occupied.discard(entry)
                self._freed.set()

    async def _outcome(self, entry: Running) -> Outcome | None:
        lease = entry.lease
        if lease.ambiguous:
            try:
                entry.on_unknown = (await self._ledger.policy(lease.policy_version)).on_unknown
            except RedriveError as exc:
                _log.error("policy %d cannot be read: %s", lease.policy_version, exc)
                return OWN_FAULT
        return await self._handlers[lease.handler].execute(lease, entry)

    def _finish(self, entry: Running, outcome: Outcome, duration_us: int) -> None:
        lease = entry.lease
        assert self._closer is not None
        self._closer.add(
            Closing(
                lease.seq,
                lease.fence,
                lease.generation,
                lease.attempt,
                lease.started_at,
                lease.deferrals,
                outcome,
                0.0 if outcome.kind in _SUCCESS else self._random(),
                duration_us,
                delivery_id=lease.delivery_id,
            )
        )

    async def _reap(self, closer: Closer) -> None:
        while True:
            # Spread over the fleet, so that a hundred workers do not look in the same instant.
            await asyncio.sleep(self._settings.reap_s * (0.5 + self._random()))
            try:
                while await self._ledger.overdue():
                    # What this worker knows comes first, and while the ledger takes no outcome, nothing is reaped.
                    await closer.caught_up()
                    u = [self._random() for _ in range(REAP_BATCH)]
                    done = await self._ledger.reap(REAP_BATCH, u, self._routes)
                    if done.expired_leases:
                        _log.warning("%d leases had expired: their workers were lost", done.expired_leases)
                    self._mechanism.hint()
                    if not done.more:
                        break
            except LedgerError as exc:
                _log.error("reaping failed: %s", exc)
            except Exception:
                _log.exception("reaping failed")

    async def _drain(self, closer: Closer, closing: asyncio.Task[None]) -> None:
        """Bounded time for what is in flight; what never started goes back uncharged; the rest will expire."""
        end = time.monotonic() + self._settings.drain_s
        for entry in list(self._running.values()):
            if entry.withdraw():
                entry.drop()
                self._finish(entry, INTERRUPTED, 0)
        receiving, self._receiving = self._receiving, None
        if receiving is not None:
            await asyncio.wait({receiving}, timeout=max(1.0, self._settings.drain_s))
            if receiving.done() and not receiving.cancelled() and receiving.exception() is None:
                for lease in receiving.result():
                    self._start(lease, 0.0)
        while self._running and time.monotonic() < end:
            self._freed.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._freed.wait(), max(0.0, end - time.monotonic()))
        if self._running:
            _log.warning("%d attempts outlived the drain; their leases will expire", len(self._running))
        settled = asyncio.create_task(closer.settled())
        try:
            left = max(1.0, end - time.monotonic())
            await asyncio.wait({settled, closing}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        finally:
            settled.cancel()

    async def _abandon(self) -> None:
        entries = [*self._running.values(), *self._occupied]
        for entry in entries:
            entry.drop()
        await asyncio.gather(*[entry.task for entry in entries if entry.task is not None], return_exceptions=True)
