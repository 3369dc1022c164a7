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
_FLOOR_S: Final = 0.025
"""Seconds until work that was due and could not be had is asked for again: asking is a durable write."""


class DatabaseMechanism:
    """Hands due work from the ledger straight to a worker. Implements ``domain.ports.Mechanism``."""

    def __init__(self, ledger: WorkLedger) -> None:
        self._ledger = ledger
        self._hint = asyncio.Event()
        self._look = asyncio.Event()
        self._stamp = ledger.stamp()
        self._nothing_until: int | None = None
        """Ledger time at which there was nothing to have; None: there was."""

    def hint(self) -> None:
        """There may be work: look now. Call it in the event loop's thread."""
        self._hint.set()
        self._look.set()

    async def receive(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        """Up to ``limit`` leases, charged and durable."""
        self._hint.clear()
        asked = self._ledger.estimate()
        leases = await self._ledger.reserve(worker, routes, limit, lease_us)
        self._nothing_until = None if leases else asked
        return leases

    async def wait(self, routes: Sequence[tuple[str, int]], timeout_s: float) -> None:
        """Return when there may be work for ``routes``, or after ``timeout_s``.

        A commit elsewhere (our own closes and heartbeats among them) is a reason to look, by reading alone: an idle
        worker writes its heartbeats, and an empty claim at each ``timeout_s``. What was due already when nothing could
        be had (it is past its age budget, and not yet reaped) is no reason for the first 25 ms.
        """
        loop = asyncio.get_running_loop()
        floor = loop.time() + _FLOOR_S
        limit = max(floor, loop.time() + timeout_s)
        end = min(limit, await self._due(routes, floor))
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
                end = min(limit, await self._due(routes, floor))
            look = min(look * 1.5, _LAST_LOOK_S)

    async def _due(self, routes: Sequence[tuple[str, int]], floor: float) -> float:
        """When, by the loop's clock, the next delivery falls due; infinite when there is none."""
        due = await self._ledger.next_due(routes)
        if due is None:
            return float("inf")
        at = asyncio.get_running_loop().time() + (due - self._ledger.estimate()) / 1e6
        stuck = self._nothing_until is not None and due <= self._nothing_until
        return max(at, floor) if stuck else at
