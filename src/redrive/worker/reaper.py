"""Ending what lost workers left behind, at intervals, and less often while the ledger fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from redrive.domain.ports import WorkLedger
from redrive.errors import LedgerError
from redrive.worker.closer import Closer

REAP_BATCH: Final = 200
_FIRST_S: Final = 0.05
_LAST_S: Final = 5.0
_log = logging.getLogger("redrive.worker")


def backoff(failures: int, u: float) -> float:
    """Seconds before the next try: doubling, capped, and spread by ``u`` in [0, 1) for a fleet's ledger's sake."""
    return float(min(_FIRST_S * 2 ** min(failures, 10), _LAST_S) * (0.5 + u))


def is_told(failures: int) -> bool:
    """Whether this failure in a row is worth a line of the log: the first, the tenth and every hundredth."""
    return failures in (1, 10) or failures % 100 == 0


class Reaper:
    """One worker's reaping. ``random`` returns a float in [0, 1); ``reaped`` is called after each batch."""

    def __init__(
        self,
        ledger: WorkLedger,
        routes: Sequence[tuple[str, int]],
        closer: Closer,
        reaped: Callable[[], None],
        interval_s: float,
        random: Callable[[], float],
    ) -> None:
        self._ledger = ledger
        self._routes = routes
        self._closer = closer
        self._reaped = reaped
        self._interval_s = interval_s
        self._random = random
        self.failures = 0
        """In a row."""

    async def run(self) -> None:
        """Reap until cancelled."""
        while True:
            await asyncio.sleep(self.pause())
            await self.look()

    def pause(self) -> float:
        """Seconds until the next look: never sooner for failures."""
        # Spread over the fleet, so that a hundred workers do not look in the same instant.
        usual = self._interval_s * (0.5 + self._random())
        return max(usual, backoff(self.failures, self._random())) if self.failures else usual

    async def look(self) -> None:
        """Reap what there is. Failures are logged, and counted until one look succeeds."""
        try:
            await self._reap()
        except Exception as exc:
            self.failures += 1
            if is_told(self.failures):
                unexpected = None if isinstance(exc, LedgerError) else exc
                _log.error("reaping failed (%d in a row): %s", self.failures, exc, exc_info=unexpected)
        else:
            if self.failures:
                _log.warning("reaping works again, after %d failures", self.failures)
            self.failures = 0

    async def _reap(self) -> None:
        while await self._ledger.overdue():
            # What this worker knows comes first, and while the ledger takes no outcome, nothing is reaped.
            await self._closer.caught_up()
            u = [self._random() for _ in range(REAP_BATCH)]
            done = await self._ledger.reap(REAP_BATCH, u, self._routes)
            if done.expired_leases:
                _log.warning("%d leases had expired: their workers were lost", done.expired_leases)
            self._reaped()
            if not done.more:
                break
