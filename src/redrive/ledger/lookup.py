"""The search for deliveries as one statement, started from where the fewest rows have to be looked at.

Where to start is said outright: statistics that were taken while the ledger was small must not decide it. On SQLite
by ``INDEXED BY``; on PostgreSQL by an order that one index alone can give, and by lateral subqueries, which are never
moved in front of what they look up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import sqlalchemy as sa
from sqlalchemy.sql.expression import UnaryExpression
from sqlalchemy.sql.operators import custom_op

from redrive.domain import identity
from redrive.domain.delivery import Disposition, Hold
from redrive.ledger.filters import Clause, DeliveryFilter, Select, between, flag, keys_between, walk
from redrive.ledger.schema import ENDS, compiled, dead_letter, delivery, event, generation, state, worker
from redrive.ledger.schema import identity as identities
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

LIVE_DRIVES: Final = 200_000
"""Live deliveries up to which a search for live ones starts from them; beyond, they are found by age."""
LEASE_US: Final = 3_600_000_000
"""No lease lasts longer."""
Start = Literal["seq", "tenant", "destination", "event", "dead", "leased", "live"]
# In the text, not parameters: only so is a partial index known to apply.
_ZERO: Final = sa.literal(0, literal_execute=True)
_ONE: Final = sa.literal(1, literal_execute=True)
_NO_MERGE: Final[sa.ColumnElement[int]] = sa.literal_column("0")
"""``OFFSET 0``: PostgreSQL plans the subquery by itself."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A search, taken apart: clauses by the table that they look at."""

    start: Start
    deliveries: list[Clause]
    states: list[Clause]
    events: list[Clause]
    tenant: str | None
    destination: str | None
    low: int | None
    high: int | None
    """Seqs: ``low`` or later, below ``high``."""


def delivery_statement(tx: Tx, filters: DeliveryFilter, before: int | None, limit: int) -> Select | None:
    """The deliveries that match, newest first: ``limit`` of them below ``before``, and one more.

    None when the filters contradict each other or name an event or key that is not there.
    """
    wanted = _wanted(tx, filters, before)
    if wanted is None:
        return None
    made = _on_sqlite(wanted) if tx.dialect == "sqlite" else _on_postgres(tx, wanted)
    return made.limit(limit + 1)


def view_columns(d: Any, s: Any, e: Any, policy: Any, name: Any) -> list[sa.ColumnElement[Any]]:
    """What DeliveryView.from_row reads, in its order, from each table's columns."""
    return [
        *(d.delivery_id, d.handler, d.tenant, d.scope, d.destination, d.key, e.event_id, e.event_type, e.event_key),
        *(s.disposition, s.hold, s.generation, s.attempt, s.max_attempts, s.deadline_at, s.available_at, s.fence),
        *(s.lane, s.priority, s.last_category, s.ambiguous, s.cancel_requested, s.deferrals, d.first_queued_at),
        *(d.first_due_at, d.content_type, d.envelope_version, sa.func.coalesce(policy, d.policy_version), name),
        *(s.started_at, s.leased_until),
    ]


def _wanted(tx: Tx, filters: DeliveryFilter, before: int | None) -> _Wanted | None:
    d, s = delivery.c, state.c
    states, events = flag(s.ambiguous, filters.ambiguous), []
    if filters.category is not None:
        states.append(s.last_category == filters.category)
    if filters.event_type is not None:
        events.append(event.c.event_type == filters.event_type)
    dispositions = set(Disposition) if filters.dispositions is None else set(filters.dispositions)
    # hold + 0, disposition + 0: rows are found by what leads to them, not through an index on live or held ones.
    hold = _unindexed(tx, s.hold)
    if filters.held is not None:
        states.append(hold != int(Hold.NONE) if filters.held else hold == int(Hold.NONE))
    if filters.hold is not None:
        states.append(hold == int(filters.hold))
    if filters.held or filters.hold:
        dispositions &= {Disposition.WAITING}
    if not dispositions:
        return None
    if len(dispositions) < len(Disposition):
        states.append(_unindexed(tx, s.disposition).in_([int(w) for w in sorted(dispositions)]))
    deliveries: list[Clause] = []
    start: Start | None = None
    if filters.key is not None:
        deliveries.append(d.key == filters.key)
        if filters.handler is not None and filters.tenant is not None and filters.key:
            raw = identity.delivery_id(filters.handler, filters.tenant, filters.key)
            found = tx.rows(*compiled(tx, sa.select(identities.c.seq).where(identities.c.delivery_id == raw)))
            deliveries += [d.seq == row[0] for row in found]
            start = "seq" if found else None
    if filters.event_key is not None:
        found = []
        if filters.tenant is not None and filters.event_key:
            raw = identity.event_id(filters.tenant, filters.event_key)
            found = tx.rows(*compiled(tx, sa.select(event.c.event_seq).where(event.c.event_id == raw)))
        if found:
            deliveries.append(d.event_seq == found[0][0])
            start = start or "event"
        else:
            events.append(event.c.event_key == filters.event_key)
    start = start or _start(tx, filters, dispositions)
    for name in ("tenant", "scope", "destination", "handler"):
        value = getattr(filters, name)
        if value is not None and name != start:
            column = d[name] if name in ("scope", "handler") else _unindexed(tx, d[name])
            deliveries.append(column == value)
    low, high = keys_between(tx, d.seq, d.first_queued_at, filters.since, filters.until)
    deliveries += between(d.first_queued_at, filters.since, filters.until)
    bounds = [b for b in (before, high) if b is not None]
    high = min(bounds) if bounds else None
    return _Wanted(start, deliveries, states, events, filters.tenant, filters.destination, low, high)


def _start(tx: Tx, filters: DeliveryFilter, dispositions: set[Disposition]) -> Start:
    if dispositions == {Disposition.DEAD}:
        # Each dead delivery has one dead letter of its current generation, and dead letters are few.
        return "dead"
    if dispositions == {Disposition.LEASED}:
        return "leased"
    live = dispositions <= {Disposition.WAITING, Disposition.LEASED}
    if live and tx.rows(sql("count_live"), (LIVE_DRIVES + 1,))[0][0] <= LIVE_DRIVES:
        return "live"
    if filters.destination is not None:
        return "destination"
    return "tenant" if filters.tenant is not None else "seq"


def _plus(column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    return UnaryExpression(column, operator=custom_op("+"), type_=column.type)


def _unindexed(tx: Tx, column: sa.Column[Any]) -> sa.ColumnElement[Any]:
    """The same value, and no index on the column will be looked for."""
    if tx.dialect == "sqlite":
        return _plus(column)
    if isinstance(column.type, sa.Text):
        return column + sa.literal("", literal_execute=True)
    return column + _ZERO


def _within(key: sa.ColumnElement[Any], wanted: _Wanted) -> list[Clause]:
    return between(key, wanted.low, wanted.high)


def _on_sqlite(wanted: _Wanted) -> Select:
    d, s = delivery.c, state.c
    root: sa.FromClause = sa.join(delivery, state, s.seq == d.seq)
    hint: tuple[sa.Table, str] | None = None
    clauses = [*wanted.states, *wanted.events, *wanted.deliveries]
    order: Any = d.seq
    if wanted.start == "dead":
        letter = dead_letter.c
        same = sa.and_(s.seq == _plus(letter.seq), s.generation == _plus(letter.generation))
        root = sa.join(dead_letter, state, same).join(delivery, d.seq == s.seq)
        order = letter.seq
    elif wanted.start == "leased":
        hint = (state, "INDEXED BY delivery_state_leased")
        clauses.append(s.disposition == _ONE)
        order = s.seq
    elif wanted.start == "live":
        hint = (state, "INDEXED BY delivery_state_deadline")
        clauses.append(s.disposition <= _ONE)
        order = s.seq
    elif wanted.start == "destination":
        hint = (delivery, "INDEXED BY delivery_by_destination")
        clauses.append(d.destination == wanted.destination)
    elif wanted.start == "tenant":
        hint = (delivery, "INDEXED BY delivery_by_tenant")
        clauses.append(d.tenant == wanted.tenant)
    g = generation.c
    root = root.outerjoin(event, event.c.event_seq == d.event_seq)
    root = root.outerjoin(generation, sa.and_(g.seq == s.seq, g.generation == s.generation))
    root = root.outerjoin(worker, worker.c.worker == s.leased_by)
    columns = view_columns(d, s, event.c, g.policy_version, worker.c.name)
    statement = sa.select(d.seq, *columns).select_from(root).where(*clauses, *_within(order, wanted))
    if hint is not None:
        statement = statement.with_hint(*hint, dialect_name="sqlite")
    return statement.order_by(order.desc())


def beside(table: sa.Table, name: str, *clauses: Clause) -> Any:
    """What a table says of the row at hand."""
    return sa.select(*table.c).where(*clauses).offset(_NO_MERGE).correlate_except(table).lateral(name)


def _on_postgres(tx: Tx, wanted: _Wanted) -> Select:
    where: list[Clause] = []
    order: list[sa.ColumnElement[Any]]
    root: sa.FromClause
    d: Any = delivery.c
    s: Any
    states: Any
    if wanted.start in ("dead", "leased", "live"):
        if wanted.start == "dead":
            letter = dead_letter.c
            same = (state.c.seq == letter.seq, state.c.generation == letter.generation)
            states = beside(state, "s", *same, *wanted.states)
            root, order, where = sa.join(dead_letter, states, sa.true()), [letter.seq], _within(letter.seq, wanted)
        else:
            states = _live(tx, wanted)
            root, order = states, [states.c.place]
        s = states.c
        deliveries = beside(delivery, "d", delivery.c.seq == s.seq, *wanted.deliveries)
        root, d = root.join(deliveries, sa.true()), deliveries.c
    else:
        if wanted.start == "destination" or wanted.start == "tenant":
            order = [d[wanted.start], d.seq]
            where = [walk(order, [getattr(wanted, wanted.start)], wanted.low, wanted.high)]
        else:
            # An event's few deliveries are sorted; by their key they would be looked for among all.
            order = [d.seq if wanted.start == "seq" else d.seq + _ZERO]
            where = _within(d.seq if wanted.start == "seq" else order[0], wanted)
        where += wanted.deliveries
        states = beside(state, "s", state.c.seq == d.seq, *wanted.states)
        root, s = sa.join(delivery, states, sa.true()), states.c
    events = beside(event, "e", event.c.event_seq == d.event_seq, *wanted.events)
    root = root.join(events, sa.true(), isouter=not wanted.events)
    g = generation.c
    policy: Select = sa.select(g.policy_version).where(g.seq == s.seq, g.generation == s.generation)
    label: Select = sa.select(worker.c.name).where(worker.c.worker == s.leased_by)
    columns = view_columns(d, s, events.c, _one(policy, generation), _one(label, worker))
    return sa.select(d.seq, *columns).select_from(root).where(*where).order_by(*(one.desc() for one in order))


def _one(statement: Select, table: sa.Table) -> sa.ScalarSelect[Any]:
    return statement.correlate_except(table).scalar_subquery()


def _live(tx: Tx, wanted: _Wanted) -> Any:
    """Live rows, the newest first. ``seq + 0``: by their own index, then sorted, never along the key through all."""
    place = state.c.seq + _ZERO
    clauses = [state.c.disposition <= _ONE, *wanted.states, *_within(place, wanted)]
    if wanted.start == "leased":
        until = tx.rows(sql("clock_read"))[0][0] + LEASE_US
        clauses.append(until >= ENDS)
    live = sa.select(*state.c, place.label("place")).where(*clauses)
    return live.order_by(place.desc()).offset(_NO_MERGE).subquery("s")
