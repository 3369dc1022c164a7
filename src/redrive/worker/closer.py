"""Closing in batches: a batch forms while the one before it is being committed."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from typing import Final

from redrive.domain.delivery import Closed, Closing
from redrive.domain.identity import to_text
from redrive.domain.outcome import OutcomeKind
from redrive.domain.ports import WorkLedger
from redrive.errors import LedgerCorrupt, LedgerError
from redrive.failpoint import hit

MAX_BATCH: Final = 1000
_RETRY_FIRST_S: Final = 0.05
_RETRY_LAST_S: Final = 5.0
_MOST_LINES: Final = 20
"""Attempts of one batch that are told one by one; the rest is counted."""
_SUCCESS: Final = (OutcomeKind.DELIVERED, OutcomeKind.NO_OP)
_log = logging.getLogger("redrive.worker")
_attempts = logging.getLogger("redrive.worker.attempts")
"""At INFO: attempts that did not simply succeed, once they are durable, and in the end how all of them ended."""


class Kept:
    """The lease of an outcome that is not durable yet. Implements ``heart.Held``."""

    __slots__ = ("fence", "lost", "seq", "valid_until")

    def __init__(self, seq: int, fence: int) -> None:
        self.seq = seq
        self.fence = fence
        self.valid_until = 0.0
        self.lost = False


class Closer:
    """Writes outcomes to the ledger, in the order they came, as fast as it takes them.

    While the ledger refuses (busy, full, read-only) the outcomes are kept and tried again with backoff, which
    ``random`` (a float in [0, 1)) spreads, and :attr:`healthy` is False: the worker claims nothing that it could not
    close.
    """

    def __init__(
        self,
        ledger: WorkLedger,
        worker: int,
        on_rescheduled: Callable[[], None],
        random: Callable[[], float] = lambda: 0.5,
    ) -> None:
        self._ledger = ledger
        self._worker = worker
        self._on_rescheduled = on_rescheduled
        self._random = random
        self._pending: list[Closing] = []
        self._put_off: list[Closing] = []
        """Outcomes of deliveries that somebody else's transaction holds: they keep no other from being stored."""
        self._wait_s = _RETRY_FIRST_S
        self._passed = 0
        """Outcomes that are durable, refused for good, or put off."""
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self.healthy = True
        self.closed = 0
        """Outcomes that are durable, or that the ledger has refused for good."""
        self._closed_some = asyncio.Event()
        self._ended: Counter[OutcomeKind] = Counter()

    @property
    def backlog(self) -> int:
        """Outcomes that are not durable yet."""
        return len(self._pending) + len(self._put_off)

    def add(self, closing: Closing) -> None:
        """Take one outcome."""
        self._pending.append(closing)
        self._wake.set()
        self._settled.clear()

    async def settled(self) -> None:
        """Wait until every outcome taken so far is durable."""
        await self._settled.wait()

    def kept(self) -> list[Kept]:
        """The leases to hold on to: what is known must not lose to a reaper. Safe to call from any thread."""
        return [Kept(closing.seq, closing.fence) for closing in [*self._pending, *self._put_off]]

    async def caught_up(self) -> None:
        """Wait until every outcome taken before is durable, or put off; while the ledger refuses, that is long."""
        end = self._passed + len(self._pending)
        while self._passed < end:
            self._closed_some.clear()
            await self._closed_some.wait()

    async def run(self) -> None:
        """Close until cancelled."""
        try:
            await self._run()
        finally:
            if self._ended:
                _attempts.info("%s", _summary(self._ended))

    async def _run(self) -> None:
        delay = _RETRY_FIRST_S
        while True:
            await self._wake.wait()
            batch = self._pending[:MAX_BATCH]
            try:
                later = await self._close(batch)
            except LedgerError as exc:
                if self.healthy:
                    _log.error("outcomes cannot be stored, claiming stops until they can: %s", exc)
                self.healthy = False
                # Spread, so that a fleet does not come back to its ledger in one instant.
                await asyncio.sleep(delay * (0.5 + self._random()))
                delay = min(delay * 2, _RETRY_LAST_S)
                continue
            if not self.healthy:
                _log.warning("outcomes can be stored again")
            self.healthy = True
            delay = _RETRY_FIRST_S
            self._set_aside(later)
            del self._pending[: len(batch)]
            self._passed += len(batch)
            self.closed += len(batch) - len(later)
            self._closed_some.set()
            if later:
                left = set(map(id, later))
                batch = [c for c in batch if id(c) not in left]
            if _attempts.isEnabledFor(logging.INFO):
                self._tell(batch)
            if any(c.outcome.kind not in _SUCCESS for c in batch):
                self._on_rescheduled()
            if not self._pending:
                self._wake.clear()
                if not self._put_off:
                    self._settled.set()

    def _set_aside(self, later: list[Closing]) -> None:
        if not later:
            self._wait_s = _RETRY_FIRST_S
            return
        if not self._put_off:
            asyncio.get_running_loop().call_later(self._wait_s, self._again)
            self._wait_s = min(self._wait_s * 2, _RETRY_LAST_S)
        self._put_off += later

    def _again(self) -> None:
        again, self._put_off = self._put_off, []
        self._pending += again
        self._wake.set()

    def _tell(self, batch: list[Closing]) -> None:
        self._ended.update(c.outcome.kind for c in batch)
        told = [c for c in batch if c.attempt > 1 or c.outcome.kind not in _SUCCESS]
        for c in told[:_MOST_LINES]:
            seen = c.outcome.category if c.outcome.status is None else f"{c.outcome.category}, {c.outcome.status}"
            run = f" of generation {c.generation}" if c.generation else ""
            delivery = to_text("dlv", c.delivery_id) if c.delivery_id else f"delivery {c.seq}"
            _attempts.info("%s: attempt %d%s ended %s: %s", delivery, c.attempt, run, c.outcome.kind, seen)
        if len(told) > _MOST_LINES:
            _attempts.info("and %d more that did not simply succeed", len(told) - _MOST_LINES)

    async def _close(self, batch: list[Closing]) -> list[Closing]:
        """Returns those that are to be tried again later."""
        hit("execute.after")
        try:
            results = await self._ledger.close_attempts(self._worker, batch)
            return [c for c, closed in zip(batch, results, strict=True) if closed is Closed.LATER]
        except Exception as exc:
            if _is_everyones(exc):
                raise
            # One row that raises must not keep the others from closing.
            _log.error("closing %d outcomes failed; closing them one by one", len(batch), exc_info=exc)
            later = []
            for closing in batch:
                try:
                    results = await self._ledger.close_attempts(self._worker, [closing])
                    later += [closing] if results == [Closed.LATER] else []
                except Exception as own:
                    if _is_everyones(own):
                        raise
                    _log.error("an outcome cannot be stored; its lease will expire and be reaped", exc_info=own)
            return later


def _summary(ended: Counter[OutcomeKind]) -> str:
    kinds = ", ".join(f"{ended[kind]:,} {kind}" for kind in OutcomeKind if ended[kind])
    total = ended.total()
    return f"{total:,} attempt{'' if total == 1 else 's'} ended: {kinds}"


def _is_everyones(exc: Exception) -> bool:
    """Whether the ledger refuses everything (busy, full, read-only), rather than one row that contradicts itself."""
    return isinstance(exc, LedgerError) and not isinstance(exc, LedgerCorrupt)
