"""Ledger time on SQLite: microseconds UTC that never run backwards.

The file has no clock of its own, so each write transaction stores the time it used. Ledger time is
``max(process clock, what this process last used + monotonic time since, highest stored)``: setting the host's
clock back, or a second process whose clock is behind, cannot make a lease or a due time come alive again.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

ALARM_US: Final = 5_000_000
"""Ledger time this far ahead of the process clock is worth an alarm: somebody's clock was, or is, wrong."""


def wall_us() -> int:
    """This host's clock, in microseconds UTC."""
    return time.time_ns() // 1000


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1000


class LedgerClock:
    """One process's view of ledger time. ``wall`` and ``monotonic`` are passed in by tests (microseconds)."""

    def __init__(self, wall: Callable[[], int] | None = None, monotonic: Callable[[], int] | None = None) -> None:
        self._wall = wall or wall_us
        self._monotonic = monotonic or (wall if wall is not None else _monotonic_us)
        # One tuple, replaced whole: readers and the writer's thread share it.
        self._anchor = (0, self._monotonic())
        self.skew_us = 0
        """How far ledger time was ahead of the process clock when last looked at."""

    def estimate(self) -> int:
        """Ledger time as far as this process can tell without reading the ledger."""
        last, since = self._anchor
        return max(self._wall(), last + (self._monotonic() - since))

    def observed(self, now: int) -> None:
        """The ledger confirmed that its time is ``now``."""
        self._anchor = (now, self._monotonic())
        self.skew_us = now - self._wall()

    def stored(self, highest: int) -> int:
        """Ledger time for a reader that found ``highest`` on the ledger.

        A process that only reads must go on from there too: behind another one's clock it would otherwise
        never see a lease expire.
        """
        if highest > self.estimate():
            self.observed(highest)
        return self.estimate()

    def forget(self) -> None:
        """Start again from the process clock, after an operator's repair."""
        self._anchor = (0, self._monotonic())
        self.skew_us = 0
