"""Reaping: expired leases, and waiting work past its age budget. Each function is one transaction's body."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from redrive.domain.delivery import Cause, Closing, Disposition, Hold
from redrive.domain.outcome import WORKER_LOST, Category
from redrive.domain.ports import Reaped
from redrive.errors import RedriveError
from redrive.ledger.close import PolicyOf, StateRow, bury, close_one, note
from redrive.ledger.plans import steady
from redrive.ledger.statements import sql
from redrive.ledger.tx import Row, Tx

_log = logging.getLogger("redrive.ledger")


def reap(
    tx: Tx,
    now: int,
    limit: int,
    u: Sequence[float],
    known: frozenset[tuple[str, int]],
    policy_of: PolicyOf,
) -> Reaped:
    """End expired leases by the same policy as an error, and waiting work past its age budget.

    ``known`` is every (handler, envelope version) that some live worker executes: it tells an age that ran out
    in waiting for a decoder or a handler from one that simply ran out. ``u`` is cycled through.
    """
    handlers = {handler for handler, _ in known}

    def lost(index: int, lease: Row) -> None:
        seq, fence, generation, attempt, started_at, deferrals, worker = lease
        closing = Closing(
            seq,
            fence,
            generation,
            attempt,
            started_at,
            deferrals,
            WORKER_LOST,
            u[index % len(u)],
            max(0, now - started_at),
        )
        close_one(tx, now, worker, closing, policy_of)

    def aged(_: int, waiting: Row) -> None:
        seq, envelope_version = waiting
        _expire(tx, now, seq, envelope_version, handlers, known)

    steady(tx, sort=False)
    leases = _each(tx, sql("reap_leases"), now, limit, lost)
    ages = _each(tx, sql("reap_ages"), now, limit, aged)
    return Reaped(leases, ages, more=limit in (leases, ages))


def _each(tx: Tx, select: str, now: int, limit: int, act: Callable[[int, Row], None]) -> int:
    """``act`` on up to ``limit`` rows, each alone: one that the ledger refuses to change stops no other."""
    done = refused = 0
    while done < limit and (rows := tx.rows(select, (now, limit - done, refused))):
        for row in rows:
            try:
                with tx.savepoint():
                    act(done, row)
            except Exception as exc:
                if not (isinstance(exc, RedriveError) or tx.refused(exc)):
                    raise
                if not refused:
                    _log.error("delivery %d cannot be reaped: %s", row[0], exc)
                refused += 1
            else:
                done += 1
    return done


def _expire(
    tx: Tx,
    now: int,
    seq: int,
    envelope_version: int,
    handlers: set[str],
    known: frozenset[tuple[str, int]],
) -> None:
    """End waiting work whose age budget has run out; never attempted, it may have lacked a reader."""
    row = StateRow._make(tx.rows(sql("state_find"), (seq,))[0])
    category = row.last_category
    if row.attempt == 0:
        if row.handler not in handlers:
            category = Category.UNKNOWN_HANDLER
        elif (row.handler, envelope_version) not in known:
            category = Category.UNDECODABLE
        elif row.hold == Hold.DESTINATION_DISABLED:
            category = Category.DESTINATION_DISABLED
    category = category or Category.AGE
    note(tx, now, seq, "expired", row.generation, row.fence, category)
    tx.post(
        sql("state_close"),
        (
            seq,
            row.fence,
            int(Disposition.DEAD),
            row.attempt,
            row.available_at,
            None,
            0,
            row.deferrals,
            row.ambiguous,
            category,
            row.own_faults,
        ),
    )
    bury(tx, now, seq, row, Cause.AGE_EXHAUSTED, category, bool(row.ambiguous))
