"""Searches with dynamic filters, a page at a time, newest first.

Paging is by key: a page costs the same however deep it is, and rows that arrive meanwhile shift nothing. The
list and the count of dead letters use one predicate, so that they cannot disagree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa

from redrive.domain.delivery import DeadLetterState
from redrive.errors import InvalidInput
from redrive.ledger.filters import (
    Clause,
    DeadFilter,
    DeliveryFilter,
    Select,
    between,
    equal,
    flag,
    keys_between,
    walk,
)
from redrive.ledger.lookup import beside, delivery_statement
from redrive.ledger.plans import steady
from redrive.ledger.records import DeadCount, DeadLetterView, DeliveryView
from redrive.ledger.schema import compiled, dead_letter, delivery, event
from redrive.ledger.tx import Tx

__all__ = [
    "DeadFilter",
    "DeliveryFilter",
    "Page",
    "count_dead",
    "count_statement",
    "dead_statement",
    "delivery_statement",
    "search_dead",
    "search_deliveries",
]

T = TypeVar("T")
MAX_PAGE: Final = 1000
_CURSOR_BYTES: Final = 15  # a multiple of 3: base64 without slack, so that each text stands for one cursor


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of what was found, and the cursor that the next page starts after; None at the end."""

    items: list[T]
    next: str | None


def search_deliveries(tx: Tx, filters: DeliveryFilter, after: str | None = None, limit: int = 50) -> Page[DeliveryView]:
    """Deliveries that match, newest first. ``after`` is the last page's ``next``.

    Raises :class:`~redrive.errors.InvalidInput` for a limit outside 1..1000 and a cursor that is not one.
    """
    steady(tx)
    statement = delivery_statement(tx, filters, _seek("d", after), _limit(limit))
    rows = tx.rows(*compiled(tx, statement)) if statement is not None else []
    items = [DeliveryView.from_row(row[1:]) for row in rows[:limit]]
    return Page(items, _cursor("d", rows[limit - 1][0]) if len(rows) > limit else None)


def search_dead(tx: Tx, filters: DeadFilter, after: str | None = None, limit: int = 50) -> Page[DeadLetterView]:
    """Dead letters that match, newest first. As :func:`search_deliveries`."""
    steady(tx)
    statement = dead_statement(tx, filters, _seek("x", after), _limit(limit))
    rows = tx.rows(*compiled(tx, statement))
    items = [DeadLetterView.from_row(row) for row in rows[:limit]]
    return Page(items, _cursor("x", rows[limit - 1][0]) if len(rows) > limit else None)


def count_dead(tx: Tx, filters: DeadFilter) -> list[DeadCount]:
    """All dead letters that match, by destination x cause x category, the largest group first."""
    steady(tx)
    rows = tx.rows(*compiled(tx, count_statement(tx, filters)))
    counts = [DeadCount(*row) for row in rows]
    return sorted(counts, key=lambda c: (-c.count, c.destination, c.cause, c.category))


def _limit(limit: int) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_PAGE:
        raise InvalidInput(f"limit must be 1 to {MAX_PAGE}", param="limit")
    return limit


# --- cursors ------------------------------------------------------------------------------------------


def _cursor(kind: str, seq: int) -> str:
    raw = seq.to_bytes(8, "big")
    check = hashlib.sha256(b"redrive cursor 1 " + kind.encode() + raw).digest()
    return base64.urlsafe_b64encode(raw + check[: _CURSOR_BYTES - 8]).decode()


def _seek(kind: str, after: str | None) -> int | None:
    if after is None:
        return None
    try:
        raw = base64.b64decode(after.encode("ascii"), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raw = b""
    if len(raw) != _CURSOR_BYTES or _cursor(kind, int.from_bytes(raw[:8], "big")) != after:
        raise InvalidInput("not a cursor of this search", param="after", hint="pass what the last page gave as next")
    return int.from_bytes(raw[:8], "big")


# --- dead letters -------------------------------------------------------------------------------------


def _dead_clauses(tx: Tx, filters: DeadFilter) -> list[Clause]:
    """The one predicate of lists and counts."""
    c = dead_letter.c
    clauses = equal(c, filters, ("tenant", "scope", "destination", "handler", "cause", "category"))
    clauses += flag(c.ambiguous, filters.ambiguous)
    if filters.state is not None:
        # In the text, not a parameter: the indexes are on open ones only.
        clauses.append(c.state == sa.literal(filters.state.value, literal_execute=True))
    clauses += between(c.died_at, filters.since, filters.until)
    return clauses + between(c.dead_letter, *keys_between(tx, c.dead_letter, c.died_at, filters.since, filters.until))


def _with_event(tx: Tx, filters: DeadFilter) -> tuple[sa.FromClause, Any, Any]:
    """Dead letters with their deliveries and events; the columns of both."""
    wanted = [] if filters.event_type is None else [event.c.event_type == filters.event_type]
    if tx.dialect == "sqlite":
        root = sa.join(dead_letter, delivery, delivery.c.seq == dead_letter.c.seq)
        on = sa.and_(event.c.event_seq == delivery.c.event_seq, *wanted)
        return root.join(event, on, isouter=not wanted), delivery.c, event.c
    d = beside(delivery, "d", delivery.c.seq == dead_letter.c.seq)
    e = beside(event, "e", event.c.event_seq == d.c.event_seq, *wanted)
    joined = sa.join(dead_letter, d, sa.true()).join(e, sa.true(), isouter=not wanted)
    return joined, d.c, e.c


def dead_statement(tx: Tx, filters: DeadFilter, before: int | None, limit: int) -> Select:
    """The search for dead letters as one statement."""
    x = dead_letter.c
    root, d, e = _with_event(tx, filters)
    columns = (
        *(x.dead_letter, d.delivery_id, x.generation, x.state, x.handler, x.tenant, x.scope, x.destination),
        *(e.event_id, e.event_type, x.cause, x.category, x.attempts, x.first_at, x.last_at, x.ambiguous),
        *(x.policy_version, x.died_at),
    )
    statement: Select = sa.select(*columns).select_from(root).where(*_dead_clauses(tx, filters))
    order: list[sa.ColumnElement[Any]] = [x.dead_letter]
    if tx.dialect == "postgres" and filters.tenant is not None and filters.state is DeadLetterState.OPEN:
        order = [x.tenant, x.dead_letter]
        statement = statement.where(walk(order, [filters.tenant], None, before))
    elif before is not None:
        statement = statement.where(x.dead_letter < before)
    return statement.order_by(*(one.desc() for one in order)).limit(limit + 1)


def count_statement(tx: Tx, filters: DeadFilter) -> Select:
    """The count as one statement. An open dead letter's group can be read from the index alone."""
    c = dead_letter.c
    root = dead_letter if filters.event_type is None else _with_event(tx, filters)[0]
    groups = (
        sa.select(
            c.destination,
            c.cause,
            c.category,
            sa.func.count().label("count"),
            sa.func.min(c.dead_letter).label("oldest"),
            sa.func.max(c.dead_letter).label("newest"),
        )
        .select_from(root)
        .where(*_dead_clauses(tx, filters))
        .group_by(c.destination, c.cause, c.category)
        .subquery("groups")
    )
    oldest, newest = dead_letter.alias("oldest"), dead_letter.alias("newest")
    g = groups.c
    return sa.select(g.destination, g.cause, g.category, g["count"], oldest.c.died_at, newest.c.died_at).select_from(
        groups.join(oldest, oldest.c.dead_letter == g.oldest).join(newest, newest.c.dead_letter == g.newest)
    )
