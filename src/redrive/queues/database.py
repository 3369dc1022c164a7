"""The database as the mechanism: receiving and reserving are one statement, and nothing else carries work.

Waiting is a local hint (a commit in this process), a change stamp (a commit in another process on this file),
the moment the next delivery falls due, or a time limit, whichever comes first. Every one of them is only a
reason to look again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from redrive.domain.delivery import Lease
from redrive.domain.ports import WorkLedger

_FIRST_LOOK_S: Final = 0.002
_LAST_LOOK_S: Final = 0.025


class DatabaseMechanism:
    """Hands due work from the ledger straight to a worker. Implements ``domain.ports.Mechanism``."""

    def __init__(self, ledger: WorkLedger) -> None:
        self._ledger = ledger
        self._hint = asyncio.Event()
        self._look = asyncio.Event()
        self._stamp = ledger.stamp()

    def hint(self) -> None:
        """There may be work: look now. Call it in the event loop's thread."""
        self._hint.set()
        self._look.set()

    async def receive(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        """Up to ``limit`` leases, charged and durable."""
        self._hint.clear()
        return await self._ledger.reserve(worker, routes, limit, lease_us)

    async def wait(self, routes: Sequence[tuple[str, int]], timeout_s: float) -> None:
        """Return when there may be work for ``routes``, or after ``timeout_s``.

        A commit elsewhere (our own closes and heartbeats among them) is a reason to look, by reading alone: an idle
        worker writes nothing.
        """
        loop = asyncio.get_running_loop()
        limit = loop.time() + timeout_s
        end = min(limit, loop.time() + await self._until_due(routes))
        look = _FIRST_LOOK_S
        while not self._hint.is_set():
            left = end - loop.time()
            if left <= 0:
                return
            timer = loop.call_later(min(look, left), self._look.set)
            await self._look.wait()
            timer.cancel()
            self._look.clear()
            stamp = self._ledger.stamp()
            if stamp != self._stamp and not self._hint.is_set():
                self._stamp = stamp
                end = min(limit, loop.time() + await self._until_due(routes))
            look = min(look * 1.5, _LAST_LOOK_S)

    async def _until_due(self, routes: Sequence[tuple[str, int]]) -> float:
        """Seconds until the next delivery falls due; negative when one is overdue, infinite when there is none."""
        due = await self._ledger.next_due(routes)
        return float("inf") if due is None else (due - self._ledger.estimate()) / 1e6
