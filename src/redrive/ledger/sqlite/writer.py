"""The one writer of a process: a thread, a queue, and group commit.

Operations that wait while a transaction is being committed share the next one, each in its own savepoint, so
that many small writes cost one flush and one failing operation undoes only itself. A result is handed back
only after the commit that made it durable.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from redrive.errors import LedgerError
from redrive.failpoint import hit
from redrive.ledger.sqlite.clock import ALARM_US, LedgerClock
from redrive.ledger.sqlite.connect import connect, translate
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx

T = TypeVar("T")
Operation = Callable[[RawTx, int], T]
"""Receives the open transaction and its ledger time (microseconds UTC)."""

_GROUP: Final = 64
_CHECKPOINT_BYTES: Final = 32 * 1024 * 1024
_log = logging.getLogger("redrive.ledger")


class _Job(Generic[T]):
    __slots__ = ("deliver", "error", "loop", "operation", "point", "result")

    def __init__(
        self,
        operation: Operation[T],
        point: str,
        deliver: Callable[[_Job[T]], None],
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self.operation = operation
        self.point = point
        self.deliver = deliver
        self.loop = loop
        self.result: T | None = None
        self.error: BaseException | None = None


def _deliver_all(jobs: list[_Job[Any]]) -> None:
    for job in jobs:
        job.deliver(job)


class Writer:
    """Runs operations one group at a time on its own connection. Safe to use from any thread or event loop."""

    def __init__(self, path: Path, clock: LedgerClock) -> None:
        self._path = path
        self._wal = path.with_name(path.name + "-wal")
        self._clock = clock
        self._queue: queue.SimpleQueue[_Job[Any] | None] = queue.SimpleQueue()
        self._conn = connect(path)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._closed = False
        self._alarmed = False
        self._commits = 0
        self.on_commit: list[Callable[[str], None]] = []
        """Called in the writer's thread with each committed operation's point."""

    def submit(self, operation: Operation[T], point: str) -> Future[T]:
        """Queue an operation; the future holds its result once it is durable."""
        future: Future[T] = Future()

        def deliver(job: _Job[T]) -> None:
            if not future.set_running_or_notify_cancel():
                return  # nobody is waiting any more
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)  # type: ignore[arg-type]

        self._put(_Job(operation, point, deliver, None))
        return future

    async def run(self, operation: Operation[T], point: str) -> T:
        """As :meth:`submit`, for a coroutine. Cancelling the wait does not undo the operation."""
        return await self.start(operation, point)

    def start(self, operation: Operation[T], point: str) -> asyncio.Future[T]:
        """As :meth:`submit`, for the running event loop."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def deliver(job: _Job[T]) -> None:
            if future.cancelled():
                return
            if job.error is not None:
                future.set_exception(job.error)
            else:
                future.set_result(job.result)  # type: ignore[arg-type]

        self._put(_Job(operation, point, deliver, loop))
        return future

    def _put(self, job: _Job[Any]) -> None:
        with self._lock:
            if self._closed:
                raise LedgerError("the ledger is closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="redrive-writer", daemon=True)
                self._thread.start()
            self._queue.put(job)

    def close(self) -> None:
        """Finish what is queued, then close the connection."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        if self._thread is not None:
            self._thread.join()
        self._conn.close()

    def _work(self) -> None:
        while True:
            job = self._queue.get()
            stop = job is None
            jobs = [] if job is None else [job]
            while not stop and len(jobs) < _GROUP:
                try:
                    job = self._queue.get_nowait()
                except queue.Empty:
                    break
                if job is None:
                    stop = True
                else:
                    jobs.append(job)
            if jobs:
                self._commit_group(jobs)
                self._hand_back(jobs)
            if stop:
                return

    def _hand_back(self, jobs: list[_Job[Any]]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop | None, list[_Job[Any]]] = {}
        for job in jobs:
            by_loop.setdefault(job.loop, []).append(job)
        for loop, group in by_loop.items():
            if loop is None:
                _deliver_all(group)
            else:
                with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is waiting
                    loop.call_soon_threadsafe(_deliver_all, group)

    def _commit_group(self, jobs: list[_Job[Any]]) -> None:
        conn = self._conn
        tx = RawTx(conn)
        try:
            conn.execute("BEGIN IMMEDIATE")
            now = self._tick(conn)
            if len(jobs) == 1:
                jobs[0].result = jobs[0].operation(tx, now)
            else:
                for job in jobs:
                    self._in_savepoint(conn, tx, job, now)
            for job in jobs:
                if job.error is None:
                    hit(job.point + ".before_commit")
            conn.execute("COMMIT")
        except BaseException as exc:
            error = translate(exc, self._path) if isinstance(exc, sqlite3.Error) else exc
            self._roll_back(conn)
            for job in jobs:
                if job.error is None:
                    job.error = error
            return
        for job in jobs:
            if job.error is None:
                hit(job.point + ".after_commit")
                self._announce(job.point)
        self._maybe_checkpoint(conn)

    def _announce(self, point: str) -> None:
        for listener in self.on_commit:
            try:
                listener(point)
            except Exception:
                # It is durable, and others wait for their results: a listener's fault is not theirs.
                _log.exception("a listener for %s failed", point)

    def _in_savepoint(self, conn: sqlite3.Connection, tx: RawTx, job: _Job[Any], now: int) -> None:
        conn.execute("SAVEPOINT operation")
        try:
            job.result = job.operation(tx, now)
        except Exception as exc:
            if not conn.in_transaction:
                raise  # SQLite itself rolled everything back (disk full, I/O error): the group failed
            conn.execute("ROLLBACK TO operation")
            job.error = translate(exc, self._path) if isinstance(exc, sqlite3.Error) else exc
        conn.execute("RELEASE operation")

    def _roll_back(self, conn: sqlite3.Connection) -> None:
        if conn.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                conn.execute("ROLLBACK")

    def _tick(self, conn: sqlite3.Connection) -> int:
        now: int = conn.execute(sql("clock_tick"), (self._clock.estimate(),)).fetchone()[0]
        self._clock.observed(now)
        ahead = self._clock.skew_us > ALARM_US
        if ahead and not self._alarmed:
            _log.warning(
                "ledger time is %.0f s ahead of this host's clock; work may wait longer than it should. "
                "If the host's clock is right, run: redrive verify --repair-clock",
                self._clock.skew_us / 1e6,
            )
        self._alarmed = ahead
        return now

    def _maybe_checkpoint(self, conn: sqlite3.Connection) -> None:
        self._commits += 1
        if self._commits % 32:
            return
        try:
            if self._wal.stat().st_size >= _CHECKPOINT_BYTES:
                self.checkpoint(conn)
        except (OSError, sqlite3.Error) as exc:
            _log.warning("checkpoint failed: %s", exc)

    def checkpoint(self, conn: sqlite3.Connection) -> bool:
        """Move the write-ahead log into the file, unless another process is doing it (contract 4: one checkpointer)."""
        lock_path = self._path.with_name(self._path.name + "-checkpoint")
        handle = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        else:
            conn.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()
            return True
        finally:
            os.close(handle)
