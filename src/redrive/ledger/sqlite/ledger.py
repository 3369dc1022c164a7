"""The embedded ledger, behind the methods that the rest of redrive calls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import socket
import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.policy import Policy
from redrive.domain.ports import LIVE_US, Extended, Grant, Reaped
from redrive.errors import LedgerCorrupt, LedgerError, LedgerReadOnly
from redrive.ledger import reap as reaping
from redrive.ledger.base import Accept, Order, Publish
from redrive.ledger.leftover import Leftovers
from redrive.ledger.migrate import Migration
from redrive.ledger.sqlite import close as closing
from redrive.ledger.sqlite import enqueue, migrate
from redrive.ledger.sqlite import reserve as reserving
from redrive.ledger.sqlite.callers import run_in, run_in_async
from redrive.ledger.sqlite.clock import LedgerClock
from redrive.ledger.sqlite.connect import connect, identify, path_of, translated
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx, Tx
from redrive.ledger.sqlite.writer import Operation, Writer
from redrive.ledger.tx import Operation as AnyOperation
from redrive.ledger.tx import Tx as AnyTx

T = TypeVar("T")
R = TypeVar("R")
_READERS = 4
_HINTS: Final = frozenset({"enqueue", "operator"})


def create(
    url: str, environment: str, clock: LedgerClock | None = None, *, finish: bool = False, force: bool = False
) -> list[Migration]:
    """Create the ledger file, or bring an existing one to this release's schema; returns the steps applied.

    ``finish`` applies the second phase too, see :func:`redrive.ledger.sqlite.migrate.apply`.
    """
    path = path_of(url)
    if not path.parent.is_dir():
        raise LedgerError(f"the folder {path.parent} does not exist", param="ledger", hint="create it first")
    if not path.exists() and not os.access(path.parent, os.W_OK | os.X_OK):
        raise LedgerReadOnly(
            f"the folder {path.parent} cannot be written", param="ledger", hint="check its permissions"
        )
    with contextlib.closing(connect(path, create=True)) as conn:
        if identify(conn, path):
            migrate.check_environment(conn, path, environment)  # before anything is changed, too
        now = (clock or LedgerClock()).estimate()
        steps = migrate.apply(conn, path, now, environment, finish=finish, force=force)
        migrate.check_environment(conn, path, environment)
        return steps


class SqliteLedger:
    """One SQLite file: a writer thread, a pool of read-only connections, and the statements between them.

    Implements ``redrive.ledger.base.Ledger``. Usable from any thread and any event loop. Every writing method is one
    durable transaction. Opening checks that the file is a ledger of ``environment`` that this release can use.
    """

    def __init__(self, url: str, environment: str, clock: LedgerClock | None = None) -> None:
        self.path = path_of(url)
        self.environment = environment
        self.clock = clock or LedgerClock()
        with contextlib.closing(connect(self.path)) as conn:
            migrate.check(conn, self.path)
            migrate.check_environment(conn, self.path, environment)
        self.writer = Writer(self.path, self.clock)
        self._readers: queue.LifoQueue[sqlite3.Connection] = queue.LifoQueue()
        self._pool: ThreadPoolExecutor | None = None
        self._policies: dict[int, Policy] = {}
        self._turn = 0
        self._leftovers = Leftovers()
        self._watcher: sqlite3.Connection | None = None
        self._closed = False

    def close(self) -> None:
        """Finish queued writes and close every connection."""
        if self._closed:
            return
        self._closed = True
        self.writer.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True)
        if self._watcher is not None:
            self._watcher.close()
        while True:
            try:
                self._readers.get_nowait().close()
            except queue.Empty:
                return

    @property
    def where(self) -> str:
        return str(self.path)

    # Accepting.

    def take(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        return self.transact_sync(_taking(order, rejected), "enqueue")

    async def take_async(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        return await self.transact(_taking(order, rejected), "enqueue")

    def take_in(self, connection: Any, order: Order[R]) -> R:
        return self.run_in(connection, _taking(order, {}))

    async def take_in_async(self, connection: Any, order: Order[R]) -> R:
        return await self.run_in_async(connection, _taking(order, {}))

    def run_in(self, connection: Any, operation: AnyOperation[T]) -> T:
        return run_in(connection, self.path, self.environment, self.clock, operation)

    async def run_in_async(self, connection: Any, operation: AnyOperation[T]) -> T:
        return await run_in_async(connection, self.path, self.environment, self.clock, operation)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        def committed(point: str) -> None:
            if point in _HINTS:
                listener()

        self.writer.on_commit.append(committed)
        return lambda: self.writer.on_commit.remove(committed)

    # Transactions for the layers above: enqueue, publish, registry, operator decisions.

    async def transact(self, operation: Operation[T], point: str = "operator") -> T:
        """Run ``operation(tx, now)`` in one durable write transaction."""
        return await self.writer.run(operation, point)

    def transact_sync(self, operation: Operation[T], point: str = "operator") -> T:
        """As :meth:`transact`, from a thread that may block."""
        return self.writer.submit(operation, point).result()

    def read_sync(self, query: Callable[[Tx], T]) -> T:
        """Run ``query(tx)`` on one consistent snapshot, without blocking or being blocked by writers."""
        if self._closed:
            raise LedgerError("the ledger is closed")
        try:
            conn = self._readers.get_nowait()
        except queue.Empty:
            conn = connect(self.path)
            conn.execute("PRAGMA query_only = ON")
        try:
            with translated(self.path):
                conn.execute("BEGIN")
                try:
                    return query(RawTx(conn))
                finally:
                    conn.execute("ROLLBACK")
        finally:
            if self._closed or self._readers.qsize() >= _READERS:
                conn.close()
            else:
                self._readers.put(conn)

    async def read(self, query: Callable[[Tx], T]) -> T:
        """As :meth:`read_sync`, without blocking the event loop."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_READERS, thread_name_prefix="redrive-reader")
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.read_sync, query)

    # domain.ports.WorkLedger

    async def register_worker(self, name: str, routes: Iterable[tuple[str, int]], grants: Sequence[Grant] = ()) -> int:
        from redrive import __version__

        row = (name, socket.gethostname(), os.getpid(), __version__, json.dumps(sorted(routes)))

        def operation(tx: RawTx, now: int) -> int:
            number: int = tx.rows(sql("worker_insert"), (*row, now))[0][0]
            return number

        return await self.writer.run(operation, "worker")

    async def retire_worker(self, worker: int) -> None:
        await self.writer.run(lambda tx, now: tx.run(sql("worker_stopped"), (worker, now)), "worker")

    async def reserve(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        if limit <= 0 or not routes:
            return []
        self._turn += 1
        first = self._turn % len(routes)
        # No handler's backlog may keep the others from ever being claimed: each claim starts at another one.
        numbers = [identity.route_of(*route) for route in (*routes[first:], *routes[:first])]
        claim = self.writer.start(
            lambda tx, now: reserving.reserve(tx, now, worker, numbers, limit, lease_us), "reserve"
        )
        return await self._leftovers.wait(worker, claim)

    async def leftover(self, worker: int) -> list[Lease]:
        return await self._leftovers.take(worker)

    async def close_attempts(self, worker: int, closings: Sequence[Closing]) -> list[Closed]:
        return await self.writer.run(lambda tx, now: closing.close(tx, now, worker, closings, self.policy_in), "close")

    async def extend(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> set[int]:
        return await self.writer.run(lambda tx, now: reserving.extend(tx, now, worker, leases, lease_us), "extend")

    def extend_sync(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> Extended:
        """As :meth:`extend`, from the heart's thread."""
        operation = partial(_extending, worker, leases, lease_us)
        return Extended(self.transact_sync(operation, "extend"))

    async def reap(self, limit: int, u: Sequence[float], routes: Iterable[tuple[str, int]]) -> Reaped:
        own = frozenset(routes)

        def operation(tx: RawTx, now: int) -> Reaped:
            known = set(own)
            for (text,) in tx.rows(sql("worker_live"), (now - LIVE_US,)):
                known.update((handler, version) for handler, version in json.loads(text))
            return reaping.reap(tx, now, limit, u, frozenset(known), self.policy_in)

        return await self.writer.run(operation, "reap")

    async def overdue(self) -> bool:
        """Whether the reaper has anything to do: one cheap read, so that an idle worker need not write to find out."""
        return await self.read(lambda tx: bool(tx.rows(sql("reap_due"), (self._now_in(tx),))[0][0]))

    async def next_due(self, routes: Sequence[tuple[str, int]]) -> int | None:
        numbers = [identity.route_of(*route) for route in routes]

        def query(tx: Tx) -> int | None:
            times = [tx.rows(sql("next_due"), (number,))[0][0] for number in numbers]
            return min((at for at in times if at is not None), default=None)

        return await self.read(query)

    async def outstanding(self, routes: Sequence[tuple[str, int]]) -> bool:
        numbers = [identity.route_of(*route) for route in routes]
        return await self.read(lambda tx: any(tx.rows(sql("outstanding"), (number,))[0][0] for number in numbers))

    def stamp(self) -> int:
        if self._watcher is None:
            self._watcher = connect(self.path)
        stamp: int = self._watcher.execute("PRAGMA data_version").fetchone()[0]
        return stamp

    def estimate(self) -> int:
        return self.clock.estimate()

    async def now(self) -> int:
        return await self.read(self._now_in)

    def _now_in(self, tx: Tx) -> int:
        return self.clock.stored(tx.rows(sql("clock_read"))[0][0])

    async def policy(self, version: int) -> Policy:
        known = self._policies.get(version)
        return known if known is not None else await self.read(lambda tx: self.policy_in(tx, version))

    def policy_in(self, tx: Tx, version: int) -> Policy:
        known = self._policies.get(version)
        if known is None:
            rows = tx.rows(sql("policy_find"), (version,))
            if not rows:
                raise LedgerCorrupt(f"policy {version} is not on the ledger")
            known = self._policies[version] = Policy.from_spec(rows[0][0])
        return known

    # What only a file can do.

    def check_structure(self) -> list[str]:
        return [line for (line,) in self.read_sync(lambda tx: tx.rows("PRAGMA quick_check")) if line != "ok"]

    def repair_clock(self, operation: Callable[[AnyTx, int, int], T]) -> T:
        was = 0

        def repair(tx: RawTx, now: int) -> T:
            nonlocal was
            was = now
            self.clock.forget()
            host = self.clock.estimate()
            try:
                return operation(tx, now, host)
            finally:
                self.clock.observed(now)

        done = self.transact_sync(repair, "clock")
        if self.read_sync(lambda tx: tx.rows(sql("clock_read"))[0][0]) < was:
            self.clock.forget()  # a reader may have looked at the old time before the commit
        return done


def _extending(worker: int, leases: Sequence[tuple[int, int]], lease_us: int, tx: RawTx, now: int) -> set[int]:
    return reserving.extend(tx, now, worker, leases, lease_us)


def _taking(order: Order[R], rejected: Mapping[str, int]) -> Operation[R]:
    """An order as one transaction's operation."""

    def operation(tx: Tx, now: int) -> Any:
        enqueue.count_rejections(tx, rejected)
        if isinstance(order, Accept):
            return enqueue.accept_all(tx, now, order.items, path=order.path, producer=order.producer)
        assert isinstance(order, Publish)
        return enqueue.publish_all(tx, now, order.events, order.fan_out, path=order.path, producer=order.producer)

    return operation
