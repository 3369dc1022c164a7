"""``redrive verify --repair-clock``: ledger time set back to where it should be, once and on record."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass

from redrive.domain.ports import LIVE_US
from redrive.errors import Conflict
from redrive.ledger.audit import CLOCK_REPAIRED, append_audit
from redrive.ledger.base import Ledger
from redrive.ledger.records import Record
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx


@dataclass(frozen=True, slots=True)
class ClockRepair(Record):
    """What :func:`repair_clock` did. ``repaired`` is False when ledger time was not ahead."""

    repaired: bool
    before_at: int
    after_at: int


def repair_clock(ledger: Ledger, actor: str, reason: str | None = None, *, force: bool = False) -> ClockRepair:
    """Set ledger time to this host's, where it has run ahead; the act is audited.

    Ledger time runs ahead after a host's clock was wrong for a while, and never comes back by itself. Leases,
    retries and deadlines that were written meanwhile keep the times they were given. Every process remembers
    ledger time, so all workers must have been stopped: raises :class:`~redrive.errors.Conflict` while one still
    runs on this host, unless ``force``; and :class:`~redrive.errors.InvalidInput` where ledger time is the
    database server's clock.
    """

    def operation(tx: Tx, now: int, host: int) -> ClockRepair:
        if now <= host:
            return ClockRepair(False, now, now)
        running = [] if force else [pid for pid in _running(tx, now) if pid != os.getpid() and _alive(pid)]
        if running:
            raise Conflict(
                f"{len(running)} worker process(es) still run and would bring the old time back",
                param="workers",
                hint="stop all workers, repair, and start them again",
            )
        # The audit row bears the time that was; it explains everything written until then.
        append_audit(tx, now, actor, CLOCK_REPAIRED, "clock", reason, str(now), str(host))
        tx.run(sql("clock_set"), (host,))
        return ClockRepair(True, now, host)

    return ledger.repair_clock(operation)


def _running(tx: Tx, now: int) -> list[int]:
    here = socket.gethostname()
    return [pid for host, pid in tx.rows(sql("workers_running"), (now - LIVE_US,)) if host == here]


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, OverflowError):
        try:
            os.kill(pid, 0)
        except PermissionError:
            return True
        return True
    return False
