"""Accepting work: one transaction for the event, its deliveries and their first entries.

Plain functions over a :class:`~redrive.ledger.sqlite.tx.Tx`, so that the same statements run in the writer's
transaction or in the caller's own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from redrive.domain import identity
from redrive.domain.delivery import REPEATS_LISTED, Decided, Enqueued, NewDelivery, NewEvent, Published
from redrive.domain.policy import Policy
from redrive.errors import Conflict
from redrive.ledger.base import FanOutOf
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import Params, Tx


@lru_cache(maxsize=4096)
def _route(handler: str, envelope_version: int) -> int:
    return identity.route_of(handler, envelope_version)


@lru_cache(maxsize=16384)
def _flow(handler: str, envelope_version: int, destination: str, tenant: str) -> int:
    return identity.flow_of(handler, envelope_version, destination, tenant)


@lru_cache(maxsize=1024)
def _policy_row(policy: Policy) -> tuple[int, str]:
    return policy.version, policy.spec()


def tick(tx: Tx, estimate: int) -> int:
    """Ledger time for the caller's own transaction. As its first statement it also takes the write lock."""
    now: int = tx.rows(sql("clock_tick"), (estimate,))[0][0]
    return now


def accept(
    tx: Tx,
    now: int,
    items: Sequence[NewDelivery],
    *,
    path: str,
    producer: str,
    event_seqs: Sequence[int] | None = None,
) -> list[Enqueued]:
    """Accept deliveries; one result per item, in order. Never raises for a duplicate or a conflict.

    ``path`` and ``producer`` say where the call came from, for the list of repeats. ``event_seqs`` are the events that
    hold the payloads, where it is not inline.
    """
    if not items:
        return []
    first = tx.rows(sql("identity_next"))[0][0]
    rows = [(first + n, item.delivery_id, item.payload_hash, now) for n, item in enumerate(items)]
    seqs = _insert_new(tx, sql("identity_insert"), rows)
    results: list[Enqueued] = []
    facts: list[Params] = []
    states: list[Params] = []
    policies: dict[int, str] = {}
    for index, (item, seq) in enumerate(zip(items, seqs, strict=True)):
        if seq is None:
            results.append(_found(tx, now, item, path=path, producer=producer))
            continue
        version, spec = _policy_row(item.policy)
        policies[version] = spec
        due = item.available_at if item.available_at is not None else now + item.delay_us
        # Waiting for its hour is not ageing: the age budget runs from the moment the work is due.
        deadline = max(due, now) + item.policy.max_age
        event_seq = None if event_seqs is None else event_seqs[index]
        facts.append(
            (
                seq,
                item.delivery_id,
                item.handler,
                item.tenant,
                item.scope,
                item.destination,
                item.key_text,
                event_seq,
                item.payload,
                item.content_type,
                item.envelope_version,
                version,
                item.policy.max_attempts,
                deadline,
                now,
                due,
                int(item.hold),
            )
        )
        states.append(
            (
                seq,
                _route(item.handler, item.envelope_version),
                _flow(item.handler, item.envelope_version, item.destination, item.tenant),
                item.priority,
                int(item.hold),
                item.policy.max_attempts,
                deadline,
                due,
            )
        )
        results.append(Enqueued(seq, item.delivery_id, Decided.CREATED))
    for version, spec in policies.items():
        tx.run(sql("policy_insert"), (version, spec))
    if facts:
        tx.many(sql("delivery_insert"), facts)
        tx.many(sql("state_insert"), states)
    return results


def _found(tx: Tx, now: int, item: NewDelivery, *, path: str, producer: str) -> Enqueued:
    seq, known_hash = tx.rows(sql("identity_find"), (item.delivery_id,))[0]
    return _repeat(tx, now, seq, item.delivery_id, same=known_hash == item.payload_hash, path=path, producer=producer)


def _repeat(tx: Tx, now: int, seq: int, delivery_id: bytes, *, same: bool, path: str, producer: str) -> Enqueued:
    decided = Decided.DUPLICATE if same else Decided.CONFLICT
    total = tx.rows(sql("repeat_count"), (seq, int(same), int(not same)))[0][0]
    if total <= REPEATS_LISTED:
        tx.run(sql("repeat_insert"), (seq, total, now, decided.value, path, producer))
    return Enqueued(seq, delivery_id, decided)


def accept_events(
    tx: Tx,
    now: int,
    events: Sequence[tuple[NewEvent, Sequence[NewDelivery]]],
    *,
    path: str,
    producer: str,
) -> list[Published]:
    """Accept events, each with its deliveries. The first publish freezes the fan-out; a repeat returns it."""
    seqs = _accept_event_rows(tx, now, events)
    deliveries: list[NewDelivery] = []
    event_seqs: list[int] = []
    for (_, fan_out), seq in zip(events, seqs, strict=True):
        if seq is not None:
            deliveries += fan_out
            event_seqs += [seq] * len(fan_out)
    made = iter(accept(tx, now, deliveries, path=path, producer=producer, event_seqs=event_seqs))
    return [
        Published(event.event_id, Decided.CREATED, tuple(next(made) for _ in fan_out))
        if seq is not None
        else _published(tx, now, event, path=path, producer=producer)
        for (event, fan_out), seq in zip(events, seqs, strict=True)
    ]


def _accept_event_rows(tx: Tx, now: int, events: Sequence[tuple[NewEvent, Sequence[NewDelivery]]]) -> list[int | None]:
    """A seq for each new event, None for each known one."""
    first = tx.rows(sql("event_next"))[0][0]
    rows = [
        (
            first + n,
            event.event_id,
            event.event_key,
            event.event_type,
            event.tenant,
            event.scope,
            event.content_type,
            event.payload,
            event.payload_hash,
            event.envelope_version,
            event.occurred_at,
            now,
            len(fan_out),
        )
        for n, (event, fan_out) in enumerate(events)
    ]
    return _insert_new(tx, sql("event_insert"), rows)


def _insert_new(tx: Tx, statement: str, rows: Sequence[tuple[Any, ...]]) -> list[int | None]:
    """Insert rows that begin with dealt seqs, all at once if all are new, else one by one; None for known ones.

    The writer is alone, so seqs are dealt from the highest there is, without gaps.
    """
    if len(rows) > 1:
        tx.run("SAVEPOINT redrive_rows")
        all_new = tx.many(statement, rows) == len(rows)
        if not all_new:
            tx.run("ROLLBACK TO redrive_rows")
        tx.run("RELEASE redrive_rows")
        if all_new:
            return [row[0] for row in rows]
    seqs: list[int | None] = []
    next_seq = rows[0][0] if rows else 0
    for row in rows:
        new = tx.run(statement, (next_seq, *row[1:]))
        seqs.append(next_seq if new else None)
        next_seq += new
    return seqs


def _published(tx: Tx, now: int, event: NewEvent, *, path: str, producer: str) -> Published:
    """An event that is already there, with the fan-out that its first publish froze."""
    event_seq, event_type, known_hash = tx.rows(sql("event_find"), (event.event_id,))[0]
    same = known_hash == event.payload_hash and event_type == event.event_type
    repeats = [
        _repeat(tx, now, seq, delivery_id, same=same, path=path, producer=producer)
        for seq, delivery_id in tx.rows(sql("event_deliveries"), (event_seq,))
    ]
    if not same and not repeats:
        count_unlisted_conflicts(tx, 1)
    return Published(event.event_id, Decided.DUPLICATE if same else Decided.CONFLICT, tuple(repeats))


def accept_all(tx: Tx, now: int, items: Sequence[NewDelivery], *, path: str, producer: str) -> list[Enqueued]:
    """As :func:`accept`, but all or nothing: with one conflict among them nothing is accepted.

    The conflicts themselves are recorded, and are in the result.
    """
    tx.run("SAVEPOINT redrive_accept")
    results = accept(tx, now, items, path=path, producer=producer)
    if any(result.decided is Decided.CONFLICT for result in results):
        tx.run("ROLLBACK TO redrive_accept")
        note_conflicts(tx, now, results, path=path, producer=producer)
    tx.run("RELEASE redrive_accept")
    return results


def note_conflicts(tx: Tx, now: int, results: Sequence[Enqueued], *, path: str, producer: str) -> None:
    """Record conflicts with deliveries that are on the ledger, after what came with them was rolled back."""
    for result in results:
        if result.decided is Decided.CONFLICT and tx.rows(sql("identity_find"), (result.delivery_id,)):
            _repeat(tx, now, result.seq, result.delivery_id, same=False, path=path, producer=producer)


def count_unlisted_conflicts(tx: Tx, count: int) -> None:
    """Conflicts with events that went to nobody: there is no delivery to list them with."""
    count_rejections(tx, {Conflict.code: count})


def publish_all(
    tx: Tx, now: int, events: Sequence[NewEvent], fan_out: FanOutOf, *, path: str, producer: str
) -> list[Published]:
    """All of them, or, with one conflict among them, none. The conflicts are recorded, and are in the result."""
    tx.run("SAVEPOINT redrive_publish")
    accepted = list(zip(events, fan_out(tx, events), strict=True))
    results = accept_events(tx, now, accepted, path=path, producer=producer)
    if any(result.decided is Decided.CONFLICT for result in results):
        tx.run("ROLLBACK TO redrive_publish")
        for result in results:
            if result.decided is Decided.CONFLICT:
                note_conflicts(tx, now, result.deliveries, path=path, producer=producer)
                if not result.deliveries:
                    count_unlisted_conflicts(tx, 1)
    tx.run("RELEASE redrive_publish")
    return results


def count_rejections(tx: Tx, counts: Mapping[str, int]) -> None:
    """Add to the counts of enqueues that were refused before they reached the ledger, by error code."""
    for code, count in counts.items():
        tx.run(sql("rejection_count"), (code, count))
