"""Claims whose wait was cancelled: what they brought is charged, and must not be forgotten."""

from __future__ import annotations

import asyncio

from redrive.domain.delivery import Lease


class Leftovers:
    """By worker. Used in one event loop for each worker."""

    def __init__(self) -> None:
        self._left: dict[int, list[asyncio.Future[list[Lease]]]] = {}

    async def wait(self, worker: int, claim: asyncio.Future[list[Lease]]) -> list[Lease]:
        """What the claim brings. A cancelled wait leaves it for :meth:`take`."""
        try:
            return await asyncio.shield(claim)
        except asyncio.CancelledError:
            self._left.setdefault(worker, []).append(claim)
            raise

    async def take(self, worker: int) -> list[Lease]:
        """What was left, once; a claim that failed brought nothing."""
        claims = self._left.pop(worker, [])
        found = await asyncio.gather(*claims, return_exceptions=True)
        return [lease for leases in found if not isinstance(leases, BaseException) for lease in leases]
