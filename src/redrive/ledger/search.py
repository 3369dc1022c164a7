"""Searches with dynamic filters, a page at a time, newest first.

Paging is by key: a page costs the same however deep it is, and rows that arrive meanwhile shift nothing. The
list and the count of dead letters use one predicate, so that they cannot disagree.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

import sqlalchemy as sa
from sqlalchemy.sql.expression import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from redrive.domain import identity
from redrive.domain.delivery import DeadLetterState, Disposition, Hold
from redrive.errors import InvalidInput
from redrive.ledger import schema
from redrive.ledger.audit import CLOCK_REPAIRED
from redrive.ledger.records import DeadCount, DeadLetterView, DeliveryView
from redrive.ledger.schema import compiled, dead_letter, delivery, event, state
from redrive.ledger.sqlite.tx import Row, Tx

T = TypeVar("T")
MAX_PAGE: Final = 1000
LIVE_DRIVES: Final = 200_000
"""Live deliveries up to which a search for live ones starts from them; beyond, they are found by age."""
_CURSOR_BYTES: Final = 15  # a multiple of 3: base64 without slack, so that each text stands for one cursor


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


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Some of what was found, and the cursor that the next page starts after; None at the end."""

    items: list[T]
    next: str | None


VIEW_COLUMNS: Final = (
    delivery.c.delivery_id,
    delivery.c.handler,
    delivery.c.tenant,
    delivery.c.scope,
    delivery.c.destination,
    delivery.c.key,
    event.c.event_id,
    event.c.event_type,
    event.c.event_key,
    state.c.disposition,
    state.c.hold,
    state.c.generation,
    state.c.attempt,
    state.c.max_attempts,
    state.c.deadline_at,
    state.c.available_at,
    state.c.fence,
    state.c.lane,
    state.c.priority,
    state.c.last_category,
    state.c.ambiguous,
    state.c.cancel_requested,
    state.c.deferrals,
    delivery.c.first_queued_at,
    delivery.c.first_due_at,
    delivery.c.content_type,
    delivery.c.envelope_version,
    sa.func.coalesce(schema.generation.c.policy_version, delivery.c.policy_version),
    schema.worker.c.name,
    state.c.started_at,
    state.c.leased_until,
)
DEAD_COLUMNS: Final = (
    dead_letter.c.dead_letter,
    delivery.c.delivery_id,
    dead_letter.c.generation,
    dead_letter.c.state,
    dead_letter.c.handler,
    dead_letter.c.tenant,
    dead_letter.c.scope,
    dead_letter.c.destination,
    event.c.event_id,
    event.c.event_type,
    dead_letter.c.cause,
    dead_letter.c.category,
    dead_letter.c.attempts,
    dead_letter.c.first_at,
    dead_letter.c.last_at,
    dead_letter.c.ambiguous,
    dead_letter.c.policy_version,
    dead_letter.c.died_at,
)
# In the text, not a parameter: only so does SQLite see that a partial index applies.
_INLINE_ONE: Final = sa.literal(1, literal_execute=True)
Clause = sa.ColumnElement[bool]
Select = sa.Select[Any]


def search_deliveries(tx: Tx, filters: DeliveryFilter, after: str | None = None, limit: int = 50) -> Page[DeliveryView]:
    """Deliveries that match, newest first. ``after`` is the last page's ``next``.

    Raises :class:`~redrive.errors.InvalidInput` for a limit outside 1..1000 and a cursor that is not one.
    """
    statement = delivery_statement(tx, filters, _seek("d", after), _limit(limit))
    rows = tx.rows(*compiled(statement)) if statement is not None else []
    items = [DeliveryView.from_row(row[1:]) for row in rows[:limit]]
    return Page(items, _cursor("d", rows[limit - 1][0]) if len(rows) > limit else None)


def search_dead(tx: Tx, filters: DeadFilter, after: str | None = None, limit: int = 50) -> Page[DeadLetterView]:
    """Dead letters that match, newest first. As :func:`search_deliveries`."""
    statement = dead_statement(tx, filters, _seek("x", after), _limit(limit))
    rows = tx.rows(*compiled(statement))
    items = [DeadLetterView.from_row(row) for row in rows[:limit]]
    return Page(items, _cursor("x", rows[limit - 1][0]) if len(rows) > limit else None)


def count_dead(tx: Tx, filters: DeadFilter) -> list[DeadCount]:
    """All dead letters that match, by destination x cause x category, the largest group first."""
    rows = tx.rows(*compiled(count_statement(tx, filters)))
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


# --- deliveries ---------------------------------------------------------------------------------------


def delivery_statement(tx: Tx, filters: DeliveryFilter, before: int | None, limit: int) -> Select | None:
    """The search as one statement, started from where the fewest rows have to be looked at.

    None when the filters contradict each other or name an event or key that is not there.
    """
    d, s = delivery.c, state.c
    clauses = _flag(s.ambiguous, filters.ambiguous)
    if filters.category is not None:
        clauses.append(s.last_category == filters.category)
    if filters.event_type is not None:
        clauses.append(event.c.event_type == filters.event_type)
    wanted = set(Disposition) if filters.dispositions is None else set(filters.dispositions)
    if filters.held is not None:
        clauses.append(s.hold != int(Hold.NONE) if filters.held else s.hold == int(Hold.NONE))
    if filters.hold is not None:
        clauses.append(s.hold == int(filters.hold))
    if filters.held or filters.hold:
        wanted &= {Disposition.WAITING}
    if not wanted:
        return None
    if len(wanted) < len(Disposition):
        clauses.append(s.disposition.in_([int(w) for w in sorted(wanted)]))
    pinned = _pins(tx, filters)
    if pinned is None:
        return None
    clauses += pinned
    root: sa.FromClause = sa.join(delivery, state, s.seq == d.seq)
    hint: tuple[sa.Table, str] | None = None
    order: Any = d.seq
    if wanted == {Disposition.DEAD} and not pinned:
        # Each dead delivery has one dead letter of its current generation, and dead letters are few.
        letter = dead_letter.c
        same = sa.and_(s.seq == _unindexed(letter.seq), s.generation == _unindexed(letter.generation))
        root = sa.join(dead_letter, state, same)
        root = root.join(delivery, d.seq == s.seq)
        order = letter.seq
    elif wanted == {Disposition.LEASED} and not pinned:
        hint = (state, "INDEXED BY delivery_state_leased")
        clauses.append(s.disposition == _INLINE_ONE)
        order = s.seq
    elif wanted <= {Disposition.WAITING, Disposition.LEASED} and not pinned and _few_live(tx):
        hint = (state, "INDEXED BY delivery_state_deadline")
        clauses.append(s.disposition <= _INLINE_ONE)
        order = s.seq
    driven = hint is not None or order is not d.seq
    if not driven and not pinned:
        # Said outright: statistics taken while the ledger was small must not decide it.
        if filters.destination is not None:
            hint = (delivery, "INDEXED BY delivery_by_destination")
        elif filters.tenant is not None:
            hint = (delivery, "INDEXED BY delivery_by_tenant")
    for name in ("tenant", "scope", "destination", "handler"):
        value = getattr(filters, name)
        if value is not None:
            clauses.append((_unindexed(d[name]) if driven else d[name]) == value)
    root = root.outerjoin(event, event.c.event_seq == d.event_seq)
    root = root.outerjoin(
        schema.generation,
        sa.and_(schema.generation.c.seq == s.seq, schema.generation.c.generation == s.generation),
    )
    root = root.outerjoin(schema.worker, schema.worker.c.worker == s.leased_by)
    low, high = _queued_between(tx, delivery, d.seq, d.first_queued_at, filters.since, filters.until)
    clauses += _between(d.first_queued_at, filters.since, filters.until)
    if low is not None:
        clauses.append(order >= low)
    bounds = [b for b in (before, high) if b is not None]
    if bounds:
        clauses.append(order < min(bounds))
    statement: Select = sa.select(d.seq, *VIEW_COLUMNS).select_from(root).where(*clauses)
    if hint is not None:
        statement = statement.with_hint(*hint)
    return statement.order_by(order.desc()).limit(limit + 1)


def _pins(tx: Tx, filters: DeliveryFilter) -> list[Clause] | None:
    """Clauses for a named key or event, by its identity where the filters say enough; None: it is not there."""
    clauses: list[Clause] = []
    if filters.key is not None:
        clauses.append(delivery.c.key == filters.key)
        if filters.handler is not None and filters.tenant is not None and filters.key:
            raw = identity.delivery_id(filters.handler, filters.tenant, filters.key)
            found = tx.rows(*compiled(_one(schema.identity.c.seq, schema.identity.c.delivery_id == raw)))
            clauses += [delivery.c.seq == row[0] for row in found]
    if filters.event_key is not None:
        if filters.tenant is not None and filters.event_key:
            raw = identity.event_id(filters.tenant, filters.event_key)
            found = tx.rows(*compiled(_one(event.c.event_seq, event.c.event_id == raw)))
            if found:
                return [*clauses, delivery.c.event_seq == found[0][0]]
        clauses.append(event.c.event_key == filters.event_key)
    return clauses


def _one(column: sa.ColumnElement[Any], where: Clause) -> Select:
    return sa.select(column).where(where)


def _few_live(tx: Tx) -> bool:
    live: Select = sa.select(sa.literal_column("1")).select_from(state)
    live = live.with_hint(state, "INDEXED BY delivery_state_deadline")
    live = live.where(state.c.disposition <= _INLINE_ONE).limit(LIVE_DRIVES + 1)
    counted = tx.rows(*compiled(sa.select(sa.func.count()).select_from(live.subquery())))
    return int(counted[0][0]) <= LIVE_DRIVES


def _unindexed(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """``+column``: the same value, and SQLite will not look for an index on it."""
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _equal(columns: Any, filters: object, names: Sequence[str]) -> list[Clause]:
    values = [(name, getattr(filters, name)) for name in names]
    return [columns[name] == value for name, value in values if value is not None]


def _flag(column: sa.ColumnElement[Any], wanted: bool | None) -> list[Clause]:
    return [] if wanted is None else [column == int(wanted)]


def _between(column: sa.ColumnElement[Any], since: int | None, until: int | None) -> list[Clause]:
    clauses: list[Clause] = []
    if since is not None:
        clauses.append(column >= since)
    if until is not None:
        clauses.append(column < until)
    return clauses


def _queued_between(
    tx: Tx,
    table: sa.Table,
    key: sa.ColumnElement[int],
    time: sa.ColumnElement[int],
    since: int | None,
    until: int | None,
) -> tuple[int | None, int | None]:
    """The keys that two instants fall between: keys and ledger time grow together.

    Not where somebody set the clock back: then the times alone decide.
    """
    if since is None and until is None:
        return None, None
    repaired = sa.select(schema.audit.c.audit).where(schema.audit.c.action == CLOCK_REPAIRED).limit(1)
    if tx.rows(*compiled(repaired)):
        return None, None
    low, high = tx.rows(*compiled(sa.select(sa.func.min(key)))), tx.rows(*compiled(sa.select(sa.func.max(key))))
    if low[0][0] is None:
        return None, None
    probe = sa.select(key, time).where(key >= 0).order_by(key).limit(1)
    text, values = compiled(probe)

    def first_at(instant: int) -> int:
        """The lowest key whose time is ``instant`` or later."""
        lower, upper = int(low[0][0]), int(high[0][0]) + 1
        while lower < upper:
            middle = (lower + upper) // 2
            found: Row = tx.rows(text, (middle, *values[1:]))[0]
            if found[1] >= instant:
                upper = middle
            else:
                lower = found[0] + 1
        return lower

    return (
        None if since is None else first_at(since),
        None if until is None else first_at(until),
    )


# --- dead letters -------------------------------------------------------------------------------------


def _dead_clauses(tx: Tx, filters: DeadFilter) -> list[Clause]:
    """The one predicate of lists and counts."""
    c = dead_letter.c
    clauses = _equal(c, filters, ("tenant", "scope", "destination", "handler", "cause", "category"))
    clauses += _flag(c.ambiguous, filters.ambiguous)
    if filters.state is not None:
        # In the text, not a parameter: the indexes are on open ones only.
        clauses.append(c.state == sa.literal(filters.state.value, literal_execute=True))
    if filters.event_type is not None:
        clauses.append(event.c.event_type == filters.event_type)
    low, high = _queued_between(tx, dead_letter, c.dead_letter, c.died_at, filters.since, filters.until)
    clauses += _between(c.died_at, filters.since, filters.until)
    if low is not None:
        clauses.append(c.dead_letter >= low)
    if high is not None:
        clauses.append(c.dead_letter < high)
    return clauses


def _with_event() -> sa.FromClause:
    root = sa.join(dead_letter, delivery, delivery.c.seq == dead_letter.c.seq)
    return root.outerjoin(event, event.c.event_seq == delivery.c.event_seq)


def dead_statement(tx: Tx, filters: DeadFilter, before: int | None, limit: int) -> Select:
    """The search for dead letters as one statement."""
    statement: Select = sa.select(*DEAD_COLUMNS).select_from(_with_event()).where(*_dead_clauses(tx, filters))
    if before is not None:
        statement = statement.where(dead_letter.c.dead_letter < before)
    return statement.order_by(dead_letter.c.dead_letter.desc()).limit(limit + 1)


def count_statement(tx: Tx, filters: DeadFilter) -> Select:
    """The count as one statement. An open dead letter's group can be read from the index alone."""
    c = dead_letter.c
    root = dead_letter if filters.event_type is None else _with_event()
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
