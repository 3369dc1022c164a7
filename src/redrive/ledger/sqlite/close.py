"""Closing on SQLite: plain successes in bulk, the rest by the rules of :mod:`redrive.ledger.close`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from redrive.domain.delivery import Closed, Closing, Disposition
from redrive.domain.outcome import Flag, OutcomeKind
from redrive.ledger.close import PolicyOf, close_one
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx

_DURATION_BITS: Final = 40
_DURATION_MAX: Final = (1 << _DURATION_BITS) - 1
_SUCCESS: Final = {
    OutcomeKind.DELIVERED: int(Disposition.DELIVERED),
    OutcomeKind.NO_OP: int(Disposition.NO_OP),
}


def close(tx: RawTx, now: int, worker: int, closings: Sequence[Closing], policy_of: PolicyOf) -> list[Closed]:
    """Record how attempts ended. Plain successes under a current lease take the short way, in bulk."""
    plain = [c.outcome.kind in _SUCCESS and c.outcome.excerpt is None for c in closings]
    short = [c for c, is_plain in zip(closings, plain, strict=True) if is_plain]
    if not short or not _close_successes(tx, now, short):
        return [close_one(tx, now, worker, c, policy_of) for c in closings]
    return [
        Closed.APPLIED if is_plain else close_one(tx, now, worker, c, policy_of)
        for c, is_plain in zip(closings, plain, strict=True)
    ]


def _close_successes(tx: RawTx, now: int, closings: Sequence[Closing]) -> bool:
    """All of them, or none: False when any is late, repeated or fenced off.

    Two statements for each kind of success, whatever the size of the batch: the attempt row is made from the open
    attempt on the state row, and the fence and the duration travel packed in one integer.
    """
    groups: dict[tuple[str, str, int | None, int], dict[int, int]] = {}
    for c in closings:
        o = c.outcome
        group = groups.setdefault((o.kind, o.category, o.status, int(o.flags)), {})
        group[c.seq] = c.fence << _DURATION_BITS | min(c.duration_us, _DURATION_MAX)
    if sum(map(len, groups.values())) != len(closings):
        return False  # the same delivery twice
    tx.conn.execute("SAVEPOINT successes")
    for (kind, category, status, flags), group in groups.items():
        packed = json.dumps(group)
        if tx.run(sql("success_attempts"), (packed, now, kind, category, status, flags)) != len(group):
            tx.conn.execute("ROLLBACK TO successes")
            tx.conn.execute("RELEASE successes")
            return False
        tx.run(sql("success_states"), (packed, _SUCCESS[OutcomeKind(kind)], category))
        if flags & Flag.RECEIVER_DUPLICATE:
            tx.run(sql("receiver_duplicate_add"), (packed,))
    tx.conn.execute("RELEASE successes")
    return True
