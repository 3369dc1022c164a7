"""The PostgreSQL ledger, behind the methods that the rest of redrive calls."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redrive import failpoint
from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.policy import Policy
from redrive.domain.ports import LIVE_US, Extended, Grant, Reaped
from redrive.errors import EnvironmentMismatch, InvalidInput, LedgerCorrupt, LedgerError
from redrive.ledger import reap as reaping
from redrive.ledger.base import Order
from redrive.ledger.postgres import accept
from redrive.ledger.postgres.callers import Callers, begun
from redrive.ledger.postgres.coalesce import Coalescer
from redrive.ledger.postgres.connect import PostgresUrl, connect, lost, translated
from redrive.ledger.postgres.hot import HotPath, hot
from redrive.ledger.postgres.lane import Connections
from redrive.ledger.postgres.listen import Listener
from redrive.ledger.postgres.migrate import check
from redrive.ledger.postgres.orders import OrderWriter
from redrive.ledger.postgres.transact import run_transaction
from redrive.ledger.postgres.tx import PostgresTx, PsycopgTx
from redrive.ledger.statements import sql
from redrive.ledger.tx import Operation, Tx

if TYPE_CHECKING:
    import psycopg

_log = logging.getLogger("redrive.ledger")
T = TypeVar("T")
R = TypeVar("R")
_POOL: Final = 4
LOOK_S: Final = 0.25
"""Seconds after which an idle worker looks by itself: for work that nobody announced (SQL, a caller's commit)."""
_HINTS: Final = frozenset({"enqueue", "operator"})


class PostgresLedger:
    """A schema on a PostgreSQL server. Implements ``redrive.ledger.base.Ledger``.

    Each kind of hot work has a connection and a thread of its own, so that a claim never waits behind a close. Nothing
    is opened before it is needed, but for one look at the schema. ``clock`` (microseconds UTC) is for tests.
    """

    def __init__(self, url: str, environment: str, clock: Callable[[], int] | None = None) -> None:
        self.url = PostgresUrl.parse(url)
        self.environment = environment
        self._clock = clock
        self._framed = self.url.pooled or clock is not None or failpoint.ARMED
        """Whether even a single statement needs a transaction around it."""
        self._pool = Connections(self.url, _POOL)
        self._threads = ThreadPoolExecutor(_POOL, thread_name_prefix="redrive-ledger")
        self._hot_path = HotPath(self.url, self.framed_settings, self.policy_in, self._observe)
        self._orders = OrderWriter(self)
        self._callers = Callers(self.url, clock)
        self._coalescer = Coalescer(self._orders, self._wake if self.url.notify else None)
        self._listener: Listener | None = None
        self._listeners: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._policies: dict[int, Policy] = {}
        self._anchor = (0, time.monotonic_ns())
        self._heard = 0
        self.voices: set[int] = set()
        """The server processes that notify for this process."""
        self._phase = os.urandom(1)[0] / 256
        """Part of :data:`LOOK_S`: a fleet's idle workers must not all look in one instant."""
        self._closed = False
        self.stamped = ""
        """What tells this very ledger from another one of the same environment."""
        try:
            self._look_at_it()
        except BaseException:
            self.close()
            raise

    def _look_at_it(self) -> None:
        """It is there, of a schema that this release can use, and of our environment."""
        with translated(self.where), closing(connect(self.url)) as conn:
            check(conn, self.url)
            known, now, made = PsycopgTx(conn, self.url.schema).rows(sql("caller_begin"))[0]
        self._observe(now)
        self.stamped = f"{known}@{made}"
        if known != self.environment:
            raise EnvironmentMismatch(
                f"ledger {self.url} belongs to environment {known!r}, this process is configured for "
                f"{self.environment!r}",
                param="environment",
                hint="nothing was read or changed; check which ledger, or which configuration, is meant",
            )

    @property
    def where(self) -> str:
        return self.url.where

    def close(self) -> None:
        """Finish what was taken and close every connection."""
        if self._closed:
            return
        self._coalescer.close()
        self._closed = True
        if self._listener is not None:
            self._listener.stop()
        self._hot_path.close()
        self._threads.shutdown(wait=True)
        self._orders.close()
        self._pool.close()

    # Accepting.

    def take(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        return self._coalescer.take(order, rejected)

    async def take_async(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        return await self._coalescer.take_async(order, rejected)

    def take_in(self, connection: Any, order: Order[R]) -> R:
        self._orders.store_policies(accept.policies_of(order))
        return self._callers.run(connection, self._accepting(order))

    async def take_in_async(self, connection: Any, order: Order[R]) -> R:
        policies = accept.policies_of(order)
        if not self._orders.stored(policies):
            await asyncio.to_thread(self._orders.store_policies, policies)
        return await self._callers.run_async(connection, self._accepting(order))

    def _accepting(self, order: Order[R]) -> Callable[[PostgresTx], R]:
        def work(tx: PostgresTx) -> R:
            mode = accept.NOTIFY if self._coalescer.may_notify() else 0
            return accept.take_in(tx, self.stamped, order, mode)

        return work

    # Transactions.

    async def transact(self, operation: Operation[T], point: str = "operator") -> T:
        return await self._in_thread(lambda: self.transact_sync(operation, point))

    def transact_sync(self, operation: Operation[T], point: str = "operator") -> T:
        result = run_transaction(self._pool, self.framed_settings, operation, point, self.url.schema, self._observe)
        if point in _HINTS:
            self.announce()
            if self.url.notify:
                self._wake()
        return result

    def run_in(self, connection: Any, operation: Operation[T]) -> T:
        return self._callers.run(connection, lambda tx: operation(tx, begun(tx, self.stamped)))

    async def run_in_async(self, connection: Any, operation: Operation[T]) -> T:
        return await self._callers.run_async(connection, lambda tx: operation(tx, begun(tx, self.stamped)))

    def read_sync(self, query: Callable[[Any], T]) -> T:
        return self._twice(lambda fresh: self._read(query, fresh))

    def _read(self, query: Callable[[Any], T], fresh: bool) -> T:
        with self._pool.use(fresh=fresh) as conn:
            tx = PsycopgTx(conn, self.url.schema)
            tx.post(sql("read_begin"))
            try:
                settings = self.framed_settings()
                if settings is not None:
                    tx.rows(sql("transaction_settings"), settings)
                return query(tx)
            finally:
                if not conn.broken:
                    conn.rollback()

    def _peek(self, query: Callable[[PsycopgTx], T]) -> T:
        """One cheap statement, or a few that need not agree."""
        if self._framed:
            return self.read_sync(query)

        def look(fresh: bool) -> T:
            with self._pool.use(fresh=fresh) as conn:
                return query(PsycopgTx(conn, self.url.schema))

        return self._twice(look)

    def _twice(self, look: Callable[[bool], T]) -> T:
        """An idle connection may have been closed by anybody: reading is safe to try again."""
        if self._closed:
            raise LedgerError("the ledger is closed")
        try:
            return look(False)
        except LedgerError as exc:
            if exc.__cause__ is None or not lost(exc.__cause__):
                raise
            return look(True)

    async def read(self, query: Callable[[Any], T]) -> T:
        return await self._in_thread(lambda: self.read_sync(query))

    async def _in_thread(self, work: Callable[[], T]) -> T:
        if self._closed:
            raise LedgerError("the ledger is closed")
        # Cancelling the wait does not undo the work, nor keep it from being done.
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._threads, work))

    # domain.ports.WorkLedger

    async def register_worker(self, name: str, routes: Iterable[tuple[str, int]], grants: Sequence[Grant] = ()) -> int:
        from redrive import __version__

        row = (name, socket.gethostname(), os.getpid(), __version__, json.dumps(sorted(routes)))

        def operation(tx: Tx, now: int) -> int:
            for grant in sorted(grants):
                policy = grant.policy
                tx.run(sql("policy_insert"), (policy.version, policy.spec()))
                tx.run(
                    sql("handler_set"),
                    (grant.handler, grant.envelope_version, policy.version, policy.max_attempts, policy.max_age, now),
                )
            number: int = tx.rows(sql("worker_insert"), (*row, now))[0][0]
            return number

        return await self.transact(operation, "worker")

    async def retire_worker(self, worker: int) -> None:
        await self.transact(lambda tx, now: tx.run(sql("worker_stopped"), (worker, now)), "worker")

    async def reserve(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        return await self._hot_path.reserve(worker, routes, limit, lease_us)

    async def leftover(self, worker: int) -> list[Lease]:
        return await self._hot_path.leftover(worker)

    async def close_attempts(self, worker: int, closings: Sequence[Closing]) -> list[Closed]:
        return await self._hot_path.close_attempts(worker, closings)

    async def extend(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> set[int]:
        return await self._hot_path.extend(worker, leases, lease_us)

    def extend_sync(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> Extended:
        return self._hot_path.extend_sync(worker, leases, lease_us)

    async def reap(self, limit: int, u: Sequence[float], routes: Iterable[tuple[str, int]]) -> Reaped:
        own = frozenset(routes)

        def operation(tx: Tx, now: int) -> Reaped:
            known = set(own)
            for (text,) in tx.rows(sql("worker_live"), (now - LIVE_US,)):
                known.update((handler, version) for handler, version in json.loads(text))
            return reaping.reap(tx, now, limit, u, frozenset(known), self.policy_in)

        return await self.transact(operation, "reap")

    async def overdue(self) -> bool:
        return await self._in_thread(
            lambda: self._peek(lambda tx: bool(tx.rows(sql("reap_due"), (self._now_in(tx),))[0][0]))
        )

    async def next_due(self, routes: Sequence[tuple[str, int]]) -> int | None:
        numbers = "{" + ",".join(str(identity.route_of(*route)) for route in routes) + "}"

        def query(tx: PostgresTx) -> int | None:
            at: int | None = tx.rows(sql("next_due_any"), (numbers,))[0][0]
            return at

        return await self._in_thread(lambda: self._peek(query))

    async def outstanding(self, routes: Sequence[tuple[str, int]]) -> bool:
        numbers = [identity.route_of(*route) for route in routes]
        return await self._in_thread(
            lambda: self._peek(lambda tx: any(tx.rows(sql("outstanding"), (number,))[0][0] for number in numbers))
        )

    def stamp(self) -> int:
        return self._heard + int(time.monotonic() / LOOK_S + self._phase)

    def estimate(self) -> int:
        if self._clock is not None:
            return self._clock()
        now, since = self._anchor
        return now + (time.monotonic_ns() - since) // 1000

    async def now(self) -> int:
        return await self._in_thread(lambda: self._peek(self._now_in))

    def _now_in(self, tx: Tx) -> int:
        now: int = tx.rows(sql("clock_read"))[0][0]
        self._observe(now)
        return now

    def _observe(self, now: int) -> None:
        self._anchor = (now, time.monotonic_ns())

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

    # How statements are sent.

    def framed_settings(self) -> tuple[str] | None:
        """The parameters of ``transaction_settings`` where a transaction of ours has to begin with it."""
        if not self._framed:
            return None
        return ("" if self._clock is None else str(self._clock()),)

    def hot(self, conn: psycopg.Connection[Any], point: str, work: Callable[[PostgresTx], T]) -> T:
        """One statement in a transaction of its own."""
        return hot(conn, self.url.schema, self.framed_settings(), point, work)

    # Telling workers.

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        with self._lock:
            self._listeners.append(listener)
            if self.url.notify and self._listener is None and not self._closed:
                self._listener = Listener(self.url, self._on_notify, self.voices)
                self._listener.start()

        def end() -> None:
            with self._lock:
                self._listeners.remove(listener)

        return end

    def _on_notify(self) -> None:
        self._heard += 1
        self.announce()

    def announce(self) -> None:
        """Tell this process's workers that there may be work."""
        for listener in list(self._listeners):
            listener()

    def _wake(self) -> None:
        """Tell everybody else's. It is a hint: what was written is durable whether it is heard or not."""
        try:
            with self._pool.use() as conn:
                self.voices.add(conn.info.backend_pid)
                self.hot(conn, "notify", lambda tx: tx.rows(sql("notify")))
        except LedgerError as exc:
            _log.debug("workers were not woken: %s", exc)

    # What only a file could do.

    def check_structure(self) -> list[str]:
        return []

    def repair_clock(self, operation: Callable[[Tx, int, int], T]) -> T:
        raise InvalidInput(
            "ledger time on PostgreSQL is the database server's clock",
            param="ledger",
            hint="set the server's clock right",
        )
