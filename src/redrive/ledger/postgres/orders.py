"""Writing groups of orders: each answered once it is durable, through lost connections and lost answers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from redrive.errors import LedgerError, LedgerReadOnly
from redrive.ledger.base import Order
from redrive.ledger.postgres import accept
from redrive.ledger.postgres.coalesce import Waiting
from redrive.ledger.postgres.connect import lost, state_of
from redrive.ledger.postgres.lane import Connections
from redrive.ledger.postgres.transact import PATIENCE_S, backoff
from redrive.ledger.postgres.tx import PostgresTx
from redrive.ledger.statements import sql

if TYPE_CHECKING:
    from redrive.ledger.postgres.ledger import PostgresLedger

MOST_STOPS: Final = 8
"""Times that one group is stopped by others' transactions before all that is left of it is put aside."""


class OrderWriter:
    """Writes for one ledger, from the coalescer's threads."""

    def __init__(self, ledger: PostgresLedger) -> None:
        self._ledger = ledger
        self._connections = Connections(ledger.url, 2)
        self._stored: set[int] = set()
        self._uncounted: Counter[str] = Counter()
        self._lock = threading.Lock()

    def close(self) -> None:
        """Close the connection."""
        self._connections.close()

    def stored(self, policies: Iterable[int]) -> bool:
        """Whether these policies are known to be on the ledger."""
        return self._stored.issuperset(policies)

    def store_policies(self, policies: dict[int, str]) -> None:
        """Put policies on the ledger in a transaction of our own: in a caller's, others would have to wait for it."""
        missing = {version: spec for version, spec in policies.items() if version not in self._stored}
        if missing:
            self._ledger.transact_sync(lambda tx, now: tx.many(sql("policy_insert"), sorted(missing.items())), "policy")
            self._stored.update(missing)

    def write(self, group: list[Waiting], notify: bool) -> list[Waiting]:
        """Accept a group's orders in one statement; sets each one's result or error.

        Returns those that would have to wait for somebody's open transaction: they were not written, nor were others
        kept waiting for them. Orders that the database cannot take keep no other out.
        """
        blocked: list[Waiting] = []
        parts = [group]
        stops = 0
        while parts:
            part = parts.pop()
            half = len(part) // 2
            try:
                self._write(part, accept.BRIEF | (accept.NOTIFY if notify else 0))
            except Exception as exc:
                if _blocked(exc):
                    stops += 1
                    if half and stops <= MOST_STOPS:
                        parts += [part[half:], part[:half]]
                    else:
                        blocked += part
                elif half and not _gone(exc):
                    parts += [part[half:], part[:half]]
                else:
                    for waiting in part if not _gone(exc) else sum(parts, part):
                        waiting.error = exc
                    if _gone(exc):
                        break
            else:
                notify = False
                self._ledger.announce()
        return blocked

    def write_aside(self, waiting: Waiting, notify: bool, brief: bool) -> bool:
        """Accept one order, waiting a second for others' transactions, or only briefly; its result or error is set.

        False: it is not written, since somebody's transaction went on.
        """
        waiting.error = None
        try:
            self._write([waiting], (accept.NOTIFY if notify else 0) | (accept.BRIEF if brief else accept.PATIENT))
        except Exception as exc:
            waiting.error = exc
            return not _blocked(exc)
        self._ledger.announce()
        return True

    def _write(self, group: list[Waiting], mode: int) -> None:
        ledger = self._ledger
        orders = [waiting.order for waiting in group]
        policies: dict[int, str] = {}
        for order in orders:
            policies.update(accept.policies_of(order))
        missing = {version: spec for version, spec in policies.items() if version not in self._stored}
        began = time.monotonic()
        failures = 0
        while True:
            try:
                with self._connections.use(fresh=failures > 0) as conn:
                    ledger.voices.add(conn.info.backend_pid)
                    maybe = any(waiting.maybe for waiting in group)
                    since = min(waiting.since for waiting in group)
                    now = mode | (accept.again(time.monotonic() - since) if maybe else 0)
                    results = ledger.hot(conn, "enqueue", partial(self._take_all, orders, now, missing))
                break
            except LedgerError as exc:
                gone = _gone(exc) or isinstance(exc, LedgerReadOnly)
                if not (gone or _again(exc)) or time.monotonic() >= began + PATIENCE_S:
                    raise
                for waiting in group:
                    waiting.maybe = waiting.maybe or gone
                failures += 1
                time.sleep(backoff(failures))
        with self._lock:
            self._stored.update(missing)
            for waiting in group:
                self._uncounted.update(waiting.rejected)
            uncounted, self._uncounted = self._uncounted, Counter()
        for waiting, result in zip(group, results, strict=True):
            waiting.result = result
        if uncounted:
            self._count(uncounted)

    def _take_all(self, orders: list[Order[Any]], mode: int, policies: dict[int, str], tx: PostgresTx) -> list[Any]:
        return accept.take_all(tx, self._ledger.stamped, orders, mode, policies)

    def _count(self, counts: Counter[str]) -> None:
        """Count refused calls. What cannot be counted now goes with the next write."""
        try:
            with self._connections.use() as conn:
                self._ledger.hot(conn, "count", lambda tx: tx.many(sql("rejection_count"), sorted(counts.items())))
        except LedgerError:
            with self._lock:
                self._uncounted.update(counts)


def _state(exc: BaseException) -> str | None:
    return None if exc.__cause__ is None else state_of(exc.__cause__)


def _gone(exc: BaseException) -> bool:
    return isinstance(exc, LedgerError) and exc.__cause__ is not None and lost(exc.__cause__)


def _blocked(exc: BaseException) -> bool:
    return _state(exc) == "55P03"


def _again(exc: BaseException) -> bool:
    """Whether the server has undone it, for the sake of others: a deadlock, a serialization failure."""
    return (_state(exc) or "").startswith("40")
