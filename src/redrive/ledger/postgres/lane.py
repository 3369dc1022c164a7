"""Connections of our own: one thread with one connection, or a few that are shared. Lost ones are made anew."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from redrive.errors import LedgerError
from redrive.ledger.postgres.connect import PostgresUrl, connect, lost, refusal, translate
from redrive.ledger.postgres.statements import text_of

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")


PLANS_S: Final = 30.0
"""Seconds after which a session forgets its plans: whatever they were made for must not be outlived for long."""
PLAN_LOOK_S: Final = 1.0
"""Seconds between looks whether the tables have grown enough for plans to be kept (``plan_mode``)."""


class Plans:
    """How long one session's plans live."""

    __slots__ = ("_looked", "_made", "_mode", "_schema")

    def __init__(self, schema: str) -> None:
        self._schema = schema
        self._looked, self._made = float("-inf"), time.monotonic()
        self._mode = ""

    def tend(self, conn: psycopg.Connection[Any]) -> None:
        """Look whether plans may be kept, and drop those that were made under other circumstances, or long ago."""
        now = time.monotonic()
        if now - self._looked < PLAN_LOOK_S:
            return
        self._looked = now
        row = conn.execute(text_of("plan_mode", self._schema).dollar).fetchone()
        mode = "" if row is None else str(row[0])
        if mode != self._mode or now - self._made > PLANS_S:
            conn.execute(text_of("discard_plans", self._schema).dollar)
            self._made, self._mode = now, mode


class Connections:
    """A few connections, made when they are needed, kept for the next use, and dropped when they are lost."""

    def __init__(self, url: PostgresUrl, keep: int) -> None:
        self._url = url
        self._keep = keep
        self._idle: queue.LifoQueue[tuple[psycopg.Connection[Any], Plans]] = queue.LifoQueue()
        self._closed = False

    @contextlib.contextmanager
    def use(self, *, fresh: bool = False) -> Iterator[psycopg.Connection[Any]]:
        """A connection that no transaction is open on. With ``fresh`` it has not been idle.

        The driver's errors come out in redrive's words; what the ledger's own rules refuse as
        :class:`~redrive.errors.LedgerCorrupt`.
        """
        if self._closed:
            raise LedgerError("the ledger is closed")
        conn, plans = (None, None) if fresh else self._kept()
        if conn is None or plans is None:
            conn, plans = connect(self._url), Plans(self._url.schema)
        try:
            if not self._url.pooled:  # behind a pooler each transaction plans anew
                plans.tend(conn)
            yield conn
        except BaseException as exc:
            if lost(exc) or conn.broken or not isinstance(exc, Exception) or not _clean(conn):
                conn.close()
            self._give_back(conn, plans)
            error = translate(exc, self._url.where) or refusal(exc, self._url.where)
            if error is None:
                raise
            raise error from exc
        self._give_back(conn, plans)

    def _kept(self) -> tuple[psycopg.Connection[Any] | None, Plans | None]:
        while True:
            try:
                conn, plans = self._idle.get_nowait()
            except queue.Empty:
                return None, None
            if not conn.broken:
                return conn, plans
            conn.close()

    def _give_back(self, conn: psycopg.Connection[Any], plans: Plans) -> None:
        if conn.closed:
            return
        if self._closed or self._idle.qsize() >= self._keep:
            conn.close()
        else:
            self._idle.put((conn, plans))

    def close(self) -> None:
        """Close what is idle; what is in use is closed when it comes back."""
        self._closed = True
        while True:
            try:
                self._idle.get_nowait()[0].close()
            except queue.Empty:
                return


def _clean(conn: psycopg.Connection[Any]) -> bool:
    """End an open transaction; whether the connection can be used again."""
    try:
        if conn.info.transaction_status.name != "IDLE":
            conn.rollback()
    except Exception:
        return False
    return bool(conn.info.transaction_status.name == "IDLE")


class Lane:
    """One thread with one connection, for work that must not wait behind other work."""

    def __init__(self, url: PostgresUrl, name: str) -> None:
        self._connections = Connections(url, 1)
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"redrive-{name}")

    def _do(self, work: Callable[[psycopg.Connection[Any], bool], T]) -> T:
        """Tried once more on a new connection: an idle one may have been closed by anybody."""
        seen: list[BaseException] = []
        try:
            with self._connections.use() as conn:
                try:
                    return work(conn, False)
                except Exception as exc:
                    seen.append(exc)
                    raise
        except LedgerError as exc:
            if not lost(seen[0] if seen else exc.__cause__ or exc):
                raise
        # Where nothing was sent yet, nothing can have been committed.
        with self._connections.use(fresh=True) as conn:
            return work(conn, bool(seen))

    async def run(self, work: Callable[[psycopg.Connection[Any], bool], T]) -> T:
        """``work(connection, again)`` in the lane's thread; ``again``: an earlier try may have been committed.

        Cancelling the wait does not undo the work, nor keep it from being done.
        """
        return await asyncio.shield(self.start(work))

    def start(self, work: Callable[[psycopg.Connection[Any], bool], T]) -> asyncio.Future[T]:
        """As :meth:`run`, for who keeps the future."""
        try:
            return asyncio.get_running_loop().run_in_executor(self._threads, self._do, work)
        except RuntimeError:
            raise LedgerError("the ledger is closed") from None

    def call(self, work: Callable[[psycopg.Connection[Any], bool], T]) -> T:
        """As :meth:`run`, from a thread that may block."""
        return self._threads.submit(self._do, work).result()

    def close(self) -> None:
        """Finish what is queued and close the connection."""
        self._threads.shutdown(wait=True)
        self._connections.close()
