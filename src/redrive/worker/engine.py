"""One worker: the loop between the mechanism and the ledger."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from redrive.domain.delivery import Closing, Lease
from redrive.domain.outcome import INTERRUPTED, OWN_FAULT, UNCHARGED, Category, Outcome, OutcomeKind
from redrive.domain.policy import OnUnknown
from redrive.domain.ports import Extended, Grant, Handler, LeaseGuard, Mechanism, Withdrawn, WorkLedger
from redrive.errors import LedgerBusy, LedgerUnavailable, LedgerVersion, RedriveError
from redrive.failpoint import hit
from redrive.worker.closer import Closer
from redrive.worker.heart import Heart, lease_clock
from redrive.worker.reaper import Reaper, backoff, is_told
from redrive.worker.settings import WorkerSettings

_SOON_S: Final = 0.025
"""Seconds between looks of a worker that is about to end."""
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

    ``random`` returns a float in [0, 1) and spreads retries. ``sync_extend`` extends leases from the heart's thread.
    ``grants`` is what this application gives new work of its handlers. ``sync_check`` raises
    :class:`~redrive.errors.LedgerVersion` in the heart's thread once this release must leave the ledger alone. A worker
    never claims more than it has free slots: a reserved attempt is a started one.
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
        sync_extend: Callable[[int, list[tuple[int, int]], int], Extended],
        grants: Sequence[Grant] = (),
        sync_check: Callable[[], None] | None = None,
    ) -> None:
        self._ledger = ledger
        self._mechanism = mechanism
        self._handlers = dict(handlers)
        self._name = name
        self._settings = settings
        self._random = random
        self._sync_extend = sync_extend
        self._sync_check = sync_check
        self._grants = grants
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
        self.spent = False
        """A burst came to its end by itself."""
        self.next_due_at: int | None = None
        """When the next delivery of its routes was due then, in ledger microseconds; None: none waited."""
        self._linger_s: float | None = None
        self._busy_at = 0.0

    def stop(self) -> None:
        """Claim nothing more; :meth:`run` drains and returns. Call it in the event loop's thread."""
        self._stopping.set()
        self._mechanism.hint()
        self._freed.set()

    async def run(self, *, until_idle: bool = False, linger_s: float | None = None) -> None:
        """Work until :meth:`stop`, or, with ``until_idle``, until nothing of these handlers is leased or waiting.

        With ``linger_s`` it is a burst: it also ends once it has had nothing to do for that long. What waits for a
        later time, or is another worker's, does not keep it; what a lost worker left behind does, until it is reaped.
        Cancelling it drains as :meth:`stop` does, and then raises ``CancelledError``; cancelled again, it gives up
        the drain, and the leases that are left expire.
        """
        worker = await self._register()
        if worker is None:
            return
        self._worker = worker
        closer = self._closer = Closer(self._ledger, self._worker, self._mechanism.hint, self._random)
        loop = asyncio.get_running_loop()
        self._linger_s, self._busy_at = linger_s, time.monotonic()

        def refused(exc: LedgerVersion) -> None:
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(self._refused, exc)

        heart = Heart(
            lambda leases: self._sync_extend(self._worker, leases, self._lease_us),
            # In this order: an entry is among the closer's before it stops running.
            lambda: [*self._running.copy().values(), *closer.kept()],
            self._settings.lease_s,
            self._sync_check,
            refused,
        )
        heart.start()
        closing = self._close_with(closer)
        reaper = Reaper(self._ledger, self._routes, closer, self._mechanism.hint, self._settings.reap_s, self._random)
        reaping = asyncio.create_task(reaper.run())
        try:
            try:
                await self._claim(closer, until_idle)
            finally:
                self._stopping.set()
                # By whoever cancels every task of a loop, and us with it.
                if closing.cancelled() or closing.cancelling():
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

    def _refused(self, exc: LedgerVersion) -> None:
        """The ledger has gone on to a schema that this release must keep away from."""
        if self._stopping.is_set():
            return
        _log.warning("this worker claims nothing more, drains and ends: %s", exc)
        self._failed = exc
        self.stop()

    async def _register(self) -> int | None:
        """None: told to stop before the ledger could be written. Whoever has its write lock may be stopped itself."""
        failures = 0
        while not self._stopping.is_set():
            try:
                return await self._ledger.register_worker(self._name, self._routes, self._grants)
            except (LedgerBusy, LedgerUnavailable) as exc:
                failures += 1
                _log.warning("this worker cannot begin yet (%d in a row): %s", failures, exc)
                await self._pause(backoff(failures, self._random()))
        return None

    async def _claim(self, closer: Closer, until_idle: bool) -> None:
        failures = 0
        asked, wanted = 0.0, 0
        while not self._stopping.is_set():
            if self._receiving is None:
                asked, wanted = lease_clock(), self._room(closer)
                if not wanted:
                    self._freed.clear()
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._freed.wait(), 0.1 if self._free() > 0 else None)
                    continue
                self._receiving = asyncio.create_task(self._receive(wanted))
            try:
                # Cancelled meanwhile, it must not take the leases with it that the ledger has granted.
                leases = await asyncio.shield(self._receiving)
                self._receiving = None
                until, full = asked + self._settings.lease_s, len(leases) == wanted
                if full and (room := self._room(closer, len(leases))) and not self._stopping.is_set():
                    # On its way before these begin, so that the ledger works while the handlers do.
                    asked, wanted = lease_clock(), room
                    self._receiving = asyncio.create_task(self._receive(room))
                for lease in leases:
                    self._start(lease, until)
                if not full:
                    if until_idle and not leases and await self._idle(closer):
                        return
                    if self._linger_s is not None and not leases and await self._is_spent(closer, self._linger_s):
                        return
                    await self._mechanism.wait(self._routes, _SOON_S if until_idle else self._patience(closer))
            except Exception as exc:
                self._receiving = None
                failures += 1
                if is_told(failures):
                    _log.error("claiming failed (%d in a row): %s", failures, exc)
                await self._pause(backoff(failures, self._random()))
            else:
                if failures:
                    _log.warning("claiming works again, after %d failures", failures)
                failures = 0

    def _free(self) -> int:
        return self._settings.slots - len(self._running) - len(self._occupied)

    def _room(self, closer: Closer, taken: int = 0) -> int:
        """How many to claim now, with so many that are about to begin: half of the slots at most, never more than are
        free, and none while outcomes pile up.
        """
        slots = self._settings.slots
        free = self._free() - taken
        if free <= 0 or closer.backlog > 2 * slots or not closer.healthy:
            return 0
        return min(free, max(1, slots // 2))

    async def _receive(self, free: int) -> list[Lease]:
        return await self._mechanism.receive(self._worker, self._routes, free, self._lease_us)

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    async def _idle(self, closer: Closer) -> bool:
        if self._running or closer.backlog:
            return False
        return not await self._ledger.outstanding(self._routes)

    async def _is_spent(self, closer: Closer, linger_s: float) -> bool:
        if self._running or self._occupied or closer.backlog:
            self._busy_at = time.monotonic()
            return False
        if time.monotonic() < self._busy_at + linger_s or await self._ledger.overdue():
            return False
        self.next_due_at = await self._ledger.next_due(self._routes)
        self.spent = self.next_due_at is None or self.next_due_at > self._ledger.estimate()
        return self.spent

    def _patience(self, closer: Closer) -> float:
        """Seconds to wait for work at most; a burst is told when the last thing that it runs has ended."""
        poll_s = self._settings.poll_s
        if self._linger_s is None or self._running or self._occupied:
            return poll_s
        left = 0.0 if closer.backlog else self._busy_at + self._linger_s - time.monotonic()
        return min(poll_s, max(_SOON_S, left))

    def _start(self, lease: Lease, valid_until: float) -> None:
        entry = Running(lease, valid_until)
        if self._stopping.is_set():
            self._finish(entry, INTERRUPTED, 0)
            return
        self._running[lease.seq, lease.fence] = entry
        self._busy_at = time.monotonic()
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
        if self._linger_s is not None and not self._running and not self._occupied:
            self._busy_at = time.monotonic()
            self._mechanism.hint()

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
            if receiving.cancelled():  # by whoever cancels every task of a loop; the ledger has granted all the same
                bound = max(1.0, self._settings.drain_s)
                with contextlib.suppress(TimeoutError):
                    for lease in await asyncio.wait_for(self._ledger.leftover(self._worker), bound):
                        self._start(lease, 0.0)
            elif receiving.done() and receiving.exception() is None:
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
