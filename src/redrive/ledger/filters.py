"""What a search asks for, and the clauses that searches share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import sqlalchemy as sa

from redrive.domain.delivery import DeadLetterState, Disposition, Hold
from redrive.ledger import schema
from redrive.ledger.audit import CLOCK_REPAIRED
from redrive.ledger.schema import compiled
from redrive.ledger.tx import Row, Tx

Clause = sa.ColumnElement[bool]
Select = sa.Select[Any]
_APART_US: Final = 600_000_000
"""How far the order of keys and the order of times may differ where transactions run side by side: each takes its
time and its keys while it waits for others, and no statement of ours lasts longer than a minute."""
HIGHEST: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class DeliveryFilter:
    """Which deliveries. None means any; times are microseconds UTC, ``until`` exclusive."""

    tenant: str | None = None
    scope: str | None = None
    destination: str | None = None
    handler: str | None = None
    dispositions: Sequence[Disposition] | None = None
    held: bool | None = None
    """Waiting and not offered to workers."""
    hold: Hold | None = None
    event_type: str | None = None
    event_key: str | None = None
    """The producer's own event ID. With ``tenant`` it is found by its identity."""
    key: str | None = None
    """The delivery's key. With ``handler`` and ``tenant`` it is found by its identity."""
    category: str | None = None
    """The last category."""
    since: int | None = None
    until: int | None = None
    """By when the delivery was first queued."""
    ambiguous: bool | None = None


@dataclass(frozen=True, slots=True)
class DeadFilter:
    """Which dead letters. None means any; times are microseconds UTC, ``until`` exclusive."""

    tenant: str | None = None
    scope: str | None = None
    destination: str | None = None
    handler: str | None = None
    cause: str | None = None
    category: str | None = None
    state: DeadLetterState | None = DeadLetterState.OPEN
    event_type: str | None = None
    since: int | None = None
    until: int | None = None
    """By when the generation died."""
    ambiguous: bool | None = None


def equal(columns: Any, filters: object, names: Sequence[str]) -> list[Clause]:
    """A clause for each named field that the filter gives."""
    values = [(name, getattr(filters, name)) for name in names]
    return [columns[name] == value for name, value in values if value is not None]


def flag(column: sa.ColumnElement[Any], wanted: bool | None) -> list[Clause]:
    """A clause on a column that is 0 or 1."""
    return [] if wanted is None else [column == int(wanted)]


def between(column: sa.ColumnElement[Any], since: int | None, until: int | None) -> list[Clause]:
    """Clauses on a time; ``until`` is exclusive."""
    clauses: list[Clause] = []
    if since is not None:
        clauses.append(column >= since)
    if until is not None:
        clauses.append(column < until)
    return clauses


def walk(columns: Sequence[sa.ColumnElement[Any]], values: Sequence[str], low: int | None, high: int | None) -> Clause:
    """The rows of an index on ``columns`` that begin with ``values``, the last column from ``low`` to below ``high``.

    For PostgreSQL: written as row comparisons, not as equalities, only this very index can give the order as well.
    """
    row = sa.tuple_(*columns)
    least = sa.tuple_(*map(sa.literal, values), sa.literal(-1 if low is None else low))
    most = sa.tuple_(*map(sa.literal, values), sa.literal(HIGHEST if high is None else high))
    return sa.and_(row >= least, row < most)


def keys_between(
    tx: Tx,
    key: sa.ColumnElement[int],
    time: sa.ColumnElement[int],
    since: int | None,
    until: int | None,
) -> tuple[int | None, int | None]:
    """The keys that two instants fall between: keys and ledger time grow together.

    No row between the instants lies outside; where transactions run side by side, some rows around them lie inside.
    Not where somebody set the clock back: then the times alone decide.
    """
    if since is None and until is None:
        return None, None
    apart = _APART_US if tx.dialect == "postgres" else 0
    repaired = sa.select(schema.audit.c.audit).where(schema.audit.c.action == CLOCK_REPAIRED).limit(1)
    if tx.dialect == "sqlite" and tx.rows(*compiled(tx, repaired)):
        return None, None
    low, high = (tx.rows(*compiled(tx, sa.select(end(key))))[0][0] for end in (sa.func.min, sa.func.max))
    if low is None:
        return None, None
    probe = sa.select(key, time).where(key >= 0).order_by(key).limit(1)
    text, values = compiled(tx, probe)

    def first_at(instant: int) -> int:
        """The lowest key whose time is ``instant`` or later."""
        lower, upper = int(low), int(high) + 1
        while lower < upper:
            middle = (lower + upper) // 2
            found: Row = tx.rows(text, (middle, *values[1:]))[0]
            if found[1] >= instant:
                upper = middle
            else:
                lower = found[0] + 1
        return lower

    return (
        None if since is None else first_at(since - apart),
        None if until is None else first_at(until + apart),
    )
