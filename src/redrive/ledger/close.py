"""Recording how attempts ended: the fence first, then what follows from the outcome. Each function is one
transaction's body.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from redrive.domain.decide import Decision, Entry, decide, settle
from redrive.domain.delivery import Cause, Closed, Closing, Disposition, Hold, Lane, Lease, Standing
from redrive.domain.outcome import WORKER_LOST, Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import Policy
from redrive.failpoint import hit
from redrive.ledger import registry
from redrive.ledger.statements import sql
from redrive.ledger.tx import Params, Tx

PolicyOf = Callable[[Tx, int], Policy]
_MOST: Final = 2**63 - 1
"""What a column holds: a target may ask for more, and that must not keep its attempt from being closed."""

_UNCHARGED: Final = (OutcomeKind.DEFERRED, OutcomeKind.INTERRUPTED)


class StateRow(NamedTuple):
    """``state_find``, in its order."""

    disposition: int
    generation: int
    attempt: int
    max_attempts: int
    deadline_at: int
    fence: int
    leased_by: int | None
    leased_until: int | None
    started_at: int | None
    deferrals: int
    own_faults: int
    ambiguous: int
    cancel_requested: int
    hold: int
    last_category: str | None
    available_at: int
    handler: str
    tenant: str
    scope: str | None
    destination: str
    policy_version: int


def state_of(tx: Tx, seq: int) -> StateRow | None:
    """A delivery's state, locked until the transaction ends."""
    found = tx.rows(sql("state_find"), (seq,))
    return StateRow._make(found[0]) if found else None


def _attempt_row(c: Closing, now: int, worker: int | None, next_at: int | None, flags: int) -> Params:
    o = c.outcome
    return (
        c.seq,
        c.fence,
        c.generation,
        c.attempt,
        worker,
        c.started_at,
        max(now, c.started_at),
        c.duration_us,
        o.kind,
        o.category,
        o.status,
        None if o.retry_after_us is None else min(max(o.retry_after_us, 0), _MOST),
        next_at,
        c.deferrals,
        int(flags),
        o.excerpt,
    )


def close_one(
    tx: Tx, now: int, worker: int | None, c: Closing, policy_of: PolicyOf, row: StateRow | None = None
) -> Closed:
    """Record one end against the row as it stands: the fence first, then the disposition (contract 2).

    ``row`` is the state, if the caller has read (and locked) it already.
    """
    row = row or state_of(tx, c.seq)
    if row is None:
        return Closed.MISSING
    if c.fence == row.fence and row.disposition == Disposition.LEASED:
        standing = _standing(row)
        policy = policy_of(tx, row.policy_version)
        decision = decide(standing, c.outcome, policy, now, c.u, c.min_delay_us)
        decision = settle(decision, now, row.deadline_at, bool(row.cancel_requested))
        _apply(tx, now, worker, c, row, decision)
        return Closed.APPLIED
    return _late(tx, now, c, row, policy_of)


def close_held(tx: Tx, now: int, c: Closing, policy_of: PolicyOf) -> Closed:
    """Record an end only if the lease is still held; otherwise write nothing and say ``evidence``."""
    row = state_of(tx, c.seq)
    if row is None or row.fence != c.fence or row.disposition != Disposition.LEASED:
        return Closed.EVIDENCE
    return close_one(tx, now, row.leased_by, c, policy_of)


def closing_in(
    lease: Lease, outcome: Outcome, u: float, duration_us: int, policy_of: PolicyOf
) -> Callable[[Tx, int], Closed]:
    """:func:`close_held` as the last thing that a handler does in a transaction of its own."""
    closing = Closing(
        lease.seq,
        lease.fence,
        lease.generation,
        lease.attempt,
        lease.started_at,
        lease.deferrals,
        outcome,
        u,
        duration_us,
    )

    def operation(tx: Tx, now: int) -> Closed:
        closed = close_held(tx, now, closing, policy_of)
        hit("close_in.before_commit")
        return closed

    return operation


def _standing(row: StateRow) -> Standing:
    return Standing(
        Disposition(row.disposition),
        row.attempt,
        row.max_attempts,
        row.deadline_at,
        row.own_faults,
        bool(row.ambiguous),
    )


def _apply(tx: Tx, now: int, worker: int | None, c: Closing, row: StateRow, decision: Decision) -> None:
    charged = decision.entry is Entry.ATTEMPT
    waiting = decision.disposition is Disposition.WAITING
    next_at = now + decision.delay_us if waiting else None
    if charged:
        late = Flag.LATE if row.leased_until is not None and now >= row.leased_until and worker == row.leased_by else 0
        if c.outcome is WORKER_LOST:
            late = 0
        assert row.started_at is not None  # it is leased
        deferred = c._replace(
            deferrals=row.deferrals,
            attempt=row.attempt,
            generation=row.generation,
            started_at=row.started_at,
        )
        tx.post(sql("attempt_insert"), _attempt_row(deferred, now, worker, next_at, decision.flags | late))
        if decision.flags & Flag.RECEIVER_DUPLICATE:
            tx.post(sql("receiver_duplicate_add"), (json.dumps({c.seq: 1}),))
    elif row.deferrals == 0 or row.last_category != decision.category or decision.hold:
        # Repeated deferrals are coalesced: the count is on the state row, then on the attempt that follows.
        kind = "interrupted" if c.outcome.kind is OutcomeKind.INTERRUPTED else "deferred"
        note(tx, now, c.seq, kind, row.generation, c.fence, decision.category)
    tx.post(
        sql("state_close"),
        (
            c.seq,
            c.fence,
            int(decision.disposition),
            row.attempt if charged else row.attempt - 1,
            next_at if next_at is not None else row.available_at,
            int(Lane.RETRY) if charged and waiting else None,
            int(decision.hold),
            0 if charged else row.deferrals + 1,
            int(decision.ambiguous),
            decision.category,
            0 if charged else row.own_faults + (c.outcome.category is Category.OWN_FAULT),
        ),
    )
    if decision.hold is Hold.DESTINATION_DISABLED and waiting:
        _release_if_enabled(tx, now, c.seq, row.destination)
    if decision.disposition is Disposition.DEAD:
        assert decision.cause is not None
        bury(tx, now, c.seq, row, decision.cause, decision.category, decision.ambiguous)
    elif decision.disposition is Disposition.CANCELLED:
        note(tx, now, c.seq, "cancelled", row.generation, c.fence, decision.category)


def _release_if_enabled(tx: Tx, now: int, seq: int, destination: str) -> None:
    """A worker may have looked before the destination was enabled; nobody would release the row after this."""
    found = registry.find(tx, destination)
    if found is not None and found.enabled:
        registry.hold_waiting(tx, now, destination, seq - 1, 1, hold=False, actor="redrive", reason="enabled")


def bury(tx: Tx, now: int, seq: int, row: StateRow, cause: Cause, category: str, ambiguous: bool) -> None:
    """Write the dead letter: the evidence that this generation ended without success."""
    attempts, first_at, last_at = tx.rows(sql("attempt_span"), (seq, row.generation))[0]
    tx.post(
        sql("dead_letter_insert"),
        (
            seq,
            row.generation,
            row.handler,
            row.tenant,
            row.scope,
            row.destination,
            cause,
            category,
            attempts,
            first_at,
            last_at,
            int(ambiguous),
            row.policy_version,
            now,
        ),
    )


def note(
    tx: Tx,
    now: int,
    seq: int,
    kind: str,
    generation: int,
    fence: int,
    category: str | None = None,
    actor: str | None = None,
    reason: str | None = None,
) -> None:
    tx.post(sql("transition_insert"), (seq, now, kind, generation, fence, category, actor, reason))


def _late(tx: Tx, now: int, c: Closing, row: StateRow, policy_of: PolicyOf) -> Closed:
    """A report about a reservation that has already ended, or whose fence has been passed."""
    recorded = tx.rows(sql("attempt_find"), (c.seq, c.fence))
    if recorded and recorded[0][0] == c.outcome.kind:
        return Closed.ALREADY
    if not recorded and 0 < c.fence <= row.fence and c.outcome.kind in _UNCHARGED:
        return Closed.ALREADY  # a reservation that has ended and left no attempt row ended just so
    current = c.fence == row.fence and row.disposition != Disposition.LEASED
    policy = policy_of(tx, row.policy_version)
    decision = decide(_standing(row), c.outcome, policy, now, c.u) if current else None
    if decision is not None and decision.disposition != row.disposition:
        tx.post(
            sql("state_close"),
            (
                c.seq,
                c.fence,
                int(decision.disposition),
                row.attempt,
                row.available_at,
                None,
                0,
                row.deferrals,
                0,
                c.outcome.category,
                row.own_faults,
            ),
        )
        note(tx, now, c.seq, f"late_{c.outcome.kind}", row.generation, c.fence, c.outcome.category)
        return Closed.LATE_ACCEPTED
    kind = f"evidence_{c.outcome.kind}"
    for known in (kind, f"late_{c.outcome.kind}"):
        if tx.rows(sql("transition_known"), (c.seq, known, c.fence, c.outcome.category)):
            return Closed.ALREADY
    note(tx, now, c.seq, kind, row.generation, c.fence, c.outcome.category)
    return Closed.EVIDENCE
