"""Many small orders, one statement: what waits while a commit is on its way goes together with the next.

An order is answered only after the commit that made it durable. Orders of one statement do not touch each other: each
is all or nothing by itself, and two that name the same work are never put into one statement. One that has to wait for
somebody's open transaction is put aside, so that no other order waits with it.

Orders are written in the order in which they were handed in, but for those that were put aside.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, Protocol, TypeVar

from redrive.errors import LedgerBusy, LedgerError
from redrive.ledger.base import Accept, Order
from redrive.ledger.postgres.accept import keys_of, size
from redrive.ledger.postgres.transact import PATIENCE_S

R = TypeVar("R")
MOST_ITEMS: Final = 2000
MOST_BYTES: Final = 16 * 1024 * 1024
NOTIFY_EVERY_S: Final = 0.01
"""NOTIFY makes commits wait for each other: one process sends no more than this, and the last one never gets lost."""
ASIDE: Final = 8
"""Orders that wait for others' transactions at the same time, each in a thread."""
_log = logging.getLogger("redrive.ledger")


class Waiting:
    """An order on its way."""

    __slots__ = ("deliver", "error", "loop", "maybe", "order", "rejected", "result", "since", "tries")

    def __init__(
        self,
        order: Order[Any],
        rejected: Mapping[str, int],
        deliver: Callable[[Waiting], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.order = order
        self.rejected = rejected
        self.deliver = deliver
        self.loop = loop
        self.result: Any = None
        self.error: BaseException | None = None
        self.maybe = False
        """It may have been committed already: what it finds of its own is then no repeat."""
        self.since = time.monotonic()
        self.tries = 0


class Writer(Protocol):
    """What writes orders. Both set each one's result or error, but for those that they say they did not write."""

    def write(self, group: list[Waiting], notify: bool) -> list[Waiting]:
        """Write orders together; returns those that would have to wait for somebody's open transaction."""
        ...

    def write_aside(self, waiting: Waiting, notify: bool, brief: bool) -> bool:
        """Write one that waits for somebody's transaction; False if that went on."""
        ...


class Coalescer:
    """One thread that takes orders, and a few for those that wait for others. ``wake()`` notifies workers."""

    def __init__(
        self, writer: Writer, wake: Callable[[], None] | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._writer = writer
        self._wake = wake
        self._clock = clock
        self._queue: queue.SimpleQueue[Waiting | None] = queue.SimpleQueue()
        """None: look around. There is a wake-up owed, or the end has come."""
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._notified = float("-inf")
        self._owed = False
        self._put_off: list[Waiting] = []
        self._aside: ThreadPoolExecutor | None = None
        self._aside_keys: Counter[bytes] = Counter()
        self._aside_count = 0

    def take(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        """Wait for an order, from a thread that may block."""
        future: Future[R] = Future()

        def deliver(waiting: Waiting) -> None:
            if not future.set_running_or_notify_cancel():
                return
            if waiting.error is not None:
                future.set_exception(waiting.error)
            else:
                future.set_result(waiting.result)

        self._put(Waiting(order, rejected, deliver, None))
        return future.result()

    async def take_async(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        """Wait for an order in a coroutine. Cancelling the wait does not undo the order."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()

        def deliver(waiting: Waiting) -> None:
            if future.cancelled():
                return
            if waiting.error is not None:
                future.set_exception(waiting.error)
            else:
                future.set_result(waiting.result)

        self._put(Waiting(order, rejected, deliver, loop))
        return await future

    def _put(self, waiting: Waiting) -> None:
        with self._lock:
            if self._closed:
                raise LedgerError("the ledger is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="redrive-accept", daemon=True)
                self._thread.start()
            self._queue.put(waiting)

    def close(self) -> None:
        """Finish what was taken."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        if self._aside is not None:
            self._aside.shutdown(wait=True)
        if self._owed:
            self._wake_now()

    def _work(self) -> None:
        while True:
            group = self._gather()
            if not group and self._closed and self._queue.empty():
                return
            if group:
                self._write(group)

    def _write(self, group: list[Waiting]) -> None:
        notify = self._due()
        blocked: list[Waiting] = []
        try:
            blocked = self._writer.write(group, notify)
        except BaseException as exc:
            for waiting in group:
                if waiting.result is None:  # else it is durable, whatever came after
                    waiting.error = waiting.error or exc
        left = set(map(id, blocked))
        done = [waiting for waiting in group if id(waiting) not in left]
        self._written(notify, any(waiting.error is None for waiting in done))
        self._hand_back(done)
        for waiting in blocked:
            self._put_aside(waiting)

    # Notifying.

    def may_notify(self) -> bool:
        """Whether a caller's transaction may carry a NOTIFY now; nobody makes up for one that may not."""
        return self._due()

    def _due(self) -> bool:
        with self._lock:
            now = self._clock()
            if self._wake is None or now - self._notified < NOTIFY_EVERY_S:
                return False
            self._notified = now
            return True

    def _written(self, notified: bool, something: bool) -> None:
        """What was committed is owed a notification, unless it carried one: a caller's may never be committed."""
        with self._lock:
            if something and self._wake is not None:
                self._owed = not notified

    def _wake_now(self) -> None:
        with self._lock:
            self._notified, self._owed = self._clock(), False
        assert self._wake is not None
        try:
            self._wake()
        except Exception as exc:
            _log.debug("workers were not woken: %s", exc)

    # Orders that wait for others' transactions.

    def _put_aside(self, waiting: Waiting) -> None:
        with self._lock:
            if self._aside is None:
                self._aside = ThreadPoolExecutor(ASIDE, thread_name_prefix="redrive-aside")
            self._aside_count += 1
            self._aside_keys.update(set(keys_of(waiting.order)))
        try:
            self._aside.submit(self._work_aside, waiting)
        except RuntimeError as exc:  # no thread to be had
            self._leave_aside(waiting)
            waiting.error = LedgerBusy(f"the order cannot wait for another transaction: {exc}", hint="try again")
            self._hand_back([waiting])

    def _leave_aside(self, waiting: Waiting) -> None:
        with self._lock:
            self._aside_count -= 1
            self._aside_keys.subtract(set(keys_of(waiting.order)))
            self._aside_keys = +self._aside_keys

    def _work_aside(self, waiting: Waiting) -> None:
        # With more of them than threads, none may keep a thread for long: the next may not have to wait any more.
        brief = self._aside_count > ASIDE or waiting.tries == 0
        waiting.tries += 1
        late = time.monotonic() - waiting.since >= PATIENCE_S
        notify = self._due()
        try:
            if not self._writer.write_aside(waiting, notify, brief) and not late:
                assert self._aside is not None
                try:
                    self._aside.submit(self._work_aside, waiting)
                except RuntimeError:  # closed meanwhile: this thread is the last that can do it
                    self._work_aside(waiting)
                return
        except BaseException as exc:
            waiting.error = waiting.error or exc
        self._leave_aside(waiting)
        self._written(notify, waiting.error is None)
        self._queue.put(None)
        self._hand_back([waiting])

    def _gather(self) -> list[Waiting]:
        """The next orders that may share a statement."""
        group: list[Waiting] = []
        keys: set[bytes] = set()
        put_off, self._put_off = self._put_off, []
        items = held = 0

        def fits(waiting: Waiting) -> bool:
            nonlocal items, held
            order = waiting.order
            first = group[0].order if group else order
            own = set(keys_of(order))
            if self._aside_keys and not own.isdisjoint(self._aside_keys):
                self._put_aside(waiting)
                return True
            length = _length(order)
            if (
                type(order) is not type(first)
                or (order.path, order.producer) != (first.path, first.producer)
                or not keys.isdisjoint(own)
                or (group and (items + size(order) > MOST_ITEMS or held + length > MOST_BYTES))
            ):
                return False
            items += size(order)
            held += length
            keys.update(own)
            group.append(waiting)
            return True

        for waiting in put_off:
            if not fits(waiting):
                self._put_off.append(waiting)
        while not self._put_off:
            try:
                if group or self._closed:
                    job = self._queue.get_nowait()
                else:
                    job = self._queue.get(timeout=NOTIFY_EVERY_S if self._owed else None)
            except queue.Empty:
                if not group and self._owed:
                    self._wake_now()
                break
            if job is None:
                break
            if not fits(job):
                self._put_off.append(job)
        return group

    def _hand_back(self, group: list[Waiting]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop | None, list[Waiting]] = {}
        for waiting in group:
            by_loop.setdefault(waiting.loop, []).append(waiting)
        for loop, members in by_loop.items():
            if loop is None:
                _deliver_all(members)
            else:
                with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is waiting
                    loop.call_soon_threadsafe(_deliver_all, members)


def _deliver_all(group: list[Waiting]) -> None:
    for waiting in group:
        waiting.deliver(waiting)


def _length(order: Order[Any]) -> int:
    parts: Sequence[Any] = order.items if isinstance(order, Accept) else getattr(order, "events", ())
    return sum(len(part.payload or b"") for part in parts)
