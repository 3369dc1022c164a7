"""Closing on PostgreSQL: plain successes in one statement for each kind, the rest by :mod:`redrive.ledger.close`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from redrive.domain.delivery import Closed, Closing, Disposition
from redrive.domain.outcome import Flag, OutcomeKind
from redrive.ledger.close import PolicyOf, StateRow, close_one
from redrive.ledger.plans import steady
from redrive.ledger.postgres.statements import array
from redrive.ledger.postgres.tx import PostgresTx
from redrive.ledger.statements import sql

_SUCCESS: Final = {
    OutcomeKind.DELIVERED: int(Disposition.DELIVERED),
    OutcomeKind.NO_OP: int(Disposition.NO_OP),
}
Group = tuple[OutcomeKind, str, int | None, int]


def successes(closings: Sequence[Closing]) -> dict[Group, list[Closing]]:
    """What can take the short way, by kind and in the order of seq: plain successes that are their delivery's first
    closing here.
    """
    groups: dict[Group, list[Closing]] = {}
    seen: set[int] = set()
    for c in closings:
        if c.seq in seen:
            continue
        seen.add(c.seq)
        o = c.outcome
        if o.kind in _SUCCESS and o.excerpt is None and not o.flags & Flag.RECEIVER_DUPLICATE:
            groups.setdefault((o.kind, o.category, o.status, int(o.flags)), []).append(c)
    for members in groups.values():
        members.sort(key=lambda c: c.seq)
    return groups


def close_group(tx: PostgresTx, worker: int, group: Group, closings: Sequence[Closing]) -> set[tuple[int, int]]:
    """Close plain successes of one kind that are under their current, unexpired leases; returns their (seq, fence)."""
    kind, category, status, flags = group
    ends = [(c.seq, c.fence, c.generation, c.attempt, c.started_at, c.deferrals, c.duration_us) for c in closings]
    arrays = [array(column) for column in zip(*ends, strict=True)]
    ((done,),) = tx.rows(
        sql("close_successes"),
        (worker, *arrays, str(kind), str(category), status, flags, _SUCCESS[kind]),
    )
    if len(done) == len(ends):
        return {end[:2] for end in ends}
    closed = set(done)
    return {(c.seq, c.fence) for c in closings if c.seq in closed}


def close_rest(tx: PostgresTx, now: int, worker: int, closings: Sequence[Closing], policy_of: PolicyOf) -> list[Closed]:
    """Record ends one by one, against states that are read and locked together; results in the order given."""
    steady(tx)
    seqs = {c.seq for c in closings}
    states = {row[0]: StateRow._make(row[1:]) for row in tx.rows(sql("states_find"), (array(sorted(seqs)),))}
    missing = seqs - states.keys()
    held = {seq for (seq,) in tx.rows(sql("states_there"), (array(sorted(missing)),))} if missing else set()
    results = []
    for c in closings:
        if c.seq in held:
            results.append(Closed.LATER)
            continue
        # A row is as it was read until its first closing.
        results.append(close_one(tx, now, worker, c, policy_of, states.pop(c.seq, None)))
    return results
