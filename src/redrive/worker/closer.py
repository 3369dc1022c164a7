"""Closing in batches: a batch forms while the one before it is being committed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from redrive.domain.delivery import Closing
from redrive.domain.outcome import OutcomeKind
from redrive.domain.ports import WorkLedger
from redrive.errors import LedgerCorrupt, LedgerError
from redrive.failpoint import hit

MAX_BATCH: Final = 1000
_RETRY_FIRST_S: Final = 0.05
_RETRY_LAST_S: Final = 5.0
_log = logging.getLogger("redrive.worker")


class Closer:
    """Writes outcomes to the ledger, in the order they came, as fast as it takes them.

    While the ledger refuses (busy, full, read-only) the outcomes are kept and tried again with backoff, and
    :attr:`healthy` is False: the worker claims nothing that it could not close.
    """

    def __init__(self, ledger: WorkLedger, worker: int, on_rescheduled: Callable[[], None]) -> None:
        self._ledger = ledger
        self._worker = worker
        self._on_rescheduled = on_rescheduled
        self._pending: list[Closing] = []
        self._wake = asyncio.Event()
        self._settled = asyncio.Event()
        self._settled.set()
        self.healthy = True
        self.closed = 0

    @property
    def backlog(self) -> int:
        """Outcomes that are not durable yet."""
        return len(self._pending)

    def add(self, closing: Closing) -> None:
        """Take one outcome."""
        self._pending.append(closing)
        self._wake.set()
        self._settled.clear()

    async def settled(self) -> None:
        """Wait until every outcome taken so far is durable."""
        await self._settled.wait()

    async def run(self) -> None:
        """Close until cancelled."""
        delay = _RETRY_FIRST_S
        while True:
            await self._wake.wait()
            batch = self._pending[:MAX_BATCH]
            try:
                await self._close(batch)
            except LedgerError as exc:
                if self.healthy:
                    _log.error("outcomes cannot be stored, claiming stops until they can: %s", exc)
                self.healthy = False
                await asyncio.sleep(delay)
                delay = min(delay * 2, _RETRY_LAST_S)
                continue
            if not self.healthy:
                _log.warning("outcomes can be stored again")
            self.healthy = True
            delay = _RETRY_FIRST_S
            del self._pending[: len(batch)]
            self.closed += len(batch)
            if any(c.outcome.kind not in (OutcomeKind.DELIVERED, OutcomeKind.NO_OP) for c in batch):
                self._on_rescheduled()
            if not self._pending:
                self._wake.clear()
                self._settled.set()

    async def _close(self, batch: list[Closing]) -> None:
        hit("execute.after")
        try:
            await self._ledger.close_attempts(self._worker, batch)
        except Exception as exc:
            if _is_everyones(exc):
                raise
            # One row that raises must not keep the others from closing.
            _log.error("closing %d outcomes failed; closing them one by one", len(batch), exc_info=exc)
            for closing in batch:
                try:
                    await self._ledger.close_attempts(self._worker, [closing])
                except Exception as own:
                    if _is_everyones(own):
                        raise
                    _log.error("an outcome cannot be stored; its lease will expire and be reaped", exc_info=own)


def _is_everyones(exc: Exception) -> bool:
    """Whether the ledger refuses everything (busy, full, read-only), rather than one row that contradicts itself."""
    return isinstance(exc, LedgerError) and not isinstance(exc, LedgerCorrupt)
