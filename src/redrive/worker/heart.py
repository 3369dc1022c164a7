"""Heartbeats: a thread that extends leases at a third of their time, or sooner.

A thread, so that a handler that blocks the event loop does not lose every lease of the worker with it. It stops
last of all, after the drain.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from redrive.domain.ports import Extended
from redrive.errors import LedgerVersion, RedriveError

_log = logging.getLogger("redrive.worker")
_BOOTTIME: Final[int | None] = getattr(time, "CLOCK_BOOTTIME", None)


def lease_clock() -> float:
    """Seconds that only grow, and grow while the host sleeps where it can tell: a lease ends in its sleep, too."""
    return time.monotonic() if _BOOTTIME is None else time.clock_gettime(_BOOTTIME)


MOST_S: Final = 30.0
"""Seconds between beats at most: a live worker is always well within ``ports.LIVE_US``, whatever its lease time."""


class Held(Protocol):
    """A lease that this worker holds."""

    seq: int
    fence: int
    valid_until: float
    """Seconds of :func:`lease_clock` up to which the lease is certainly this worker's."""
    lost: bool


class Heart:
    """Extends what ``held()`` lists, every ``lease_s / 3``, and at least every :data:`MOST_S`.

    After each beat ``check()`` may raise :class:`~redrive.errors.LedgerVersion`: this release must not go on with the
    ledger. ``refused(error)`` is told once, in this thread, and leases are extended all the same while it drains.
    """

    def __init__(
        self,
        extend: Callable[[list[tuple[int, int]]], Extended],
        held: Callable[[], Sequence[Held]],
        lease_s: float,
        check: Callable[[], None] | None = None,
        refused: Callable[[LedgerVersion], None] | None = None,
    ) -> None:
        self._extend = extend
        self._held = held
        self._lease_s = lease_s
        self._check = check
        self._refused = refused
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="redrive-heart", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating and wait for a beat in progress."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(min(self._lease_s / 3, MOST_S)):
            try:
                self.beat()
            except RedriveError as exc:
                _log.warning("heartbeat failed: %s", exc)
            except Exception:
                _log.exception("heartbeat failed")
            self._look()

    def _look(self) -> None:
        if self._check is None:
            return
        try:
            self._check()
        except LedgerVersion as exc:
            self._check = None
            if self._refused is not None:
                self._refused(exc)
        except Exception as exc:
            _log.debug("the ledger's schema could not be checked: %s", exc)

    def beat(self) -> None:
        """Extend every lease that is held now, and mark those that turn out to be lost."""
        before = lease_clock()
        held = self._held()
        # A delivery that was reaped and claimed again may be here under two fences: only the later one can be held.
        newest: dict[int, int] = {}
        for entry in held:
            newest[entry.seq] = max(entry.fence, newest.get(entry.seq, 0))
        lost, untouched = self._extend(list(newest.items()))
        for entry in held:
            if entry.seq in lost or entry.fence != newest[entry.seq]:
                entry.lost = True
            elif entry.seq not in untouched:
                entry.valid_until = before + self._lease_s
