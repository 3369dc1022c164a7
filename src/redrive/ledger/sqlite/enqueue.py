"""Accepting work: one transaction for the event, its deliveries and their first entries.

Plain functions over a :class:`~redrive.ledger.sqlite.tx.Tx`, so that the same statements run in the writer's
transaction or in the caller's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from redrive.domain import identity
from redrive.domain.delivery import Decided, Enqueued, NewDelivery, NewEvent, Published
from redrive.domain.policy import Policy
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import Params, Tx

REPEATS_LISTED: Final = 8
"""Duplicate and conflicting enqueues of one delivery that are listed singly; further ones are counted."""


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
    event_seq: int | None = None,
) -> list[Enqueued]:
    """Accept deliveries; one result per item, in order. Never raises for a duplicate or a conflict.

    ``path`` and ``producer`` say where the call came from, for the list of repeats.
    """
    results: list[Enqueued] = []
    facts: list[Params] = []
    states: list[Params] = []
    policies: dict[int, str] = {}
    insert_identity, find_identity = sql("identity_insert"), sql("identity_find")
    for item in items:
        new = tx.rows(insert_identity, (item.delivery_id, item.payload_hash, now))
        if not new:
            seq, known_hash = tx.rows(find_identity, (item.delivery_id,))[0]
            same = known_hash == item.payload_hash
            results.append(_repeat(tx, now, seq, item.delivery_id, same=same, path=path, producer=producer))
            continue
        seq = new[0][0]
        version, spec = _policy_row(item.policy)
        policies[version] = spec
        due = item.available_at if item.available_at is not None else now + item.delay_us
        # Waiting for its hour is not ageing: the age budget runs from the moment the work is due.
        deadline = max(due, now) + item.policy.max_age
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
                item.payload if event_seq is None else None,
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


def _repeat(tx: Tx, now: int, seq: int, delivery_id: bytes, *, same: bool, path: str, producer: str) -> Enqueued:
    decided = Decided.DUPLICATE if same else Decided.CONFLICT
    total = tx.rows(sql("repeat_count"), (seq, int(same), int(not same)))[0][0]
    if total <= REPEATS_LISTED:
        tx.run(sql("repeat_insert"), (seq, total, now, decided.value, path, producer))
    return Enqueued(seq, delivery_id, decided)


def accept_event(
    tx: Tx,
    now: int,
    event: NewEvent,
    fan_out: Sequence[NewDelivery],
    *,
    path: str,
    producer: str,
) -> Published:
    """Accept an event and its deliveries. The first publish freezes the fan-out; a repeat returns it."""
    new = tx.rows(
        sql("event_insert"),
        (
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
        ),
    )
    if new:
        made = accept(tx, now, fan_out, path=path, producer=producer, event_seq=new[0][0]) if fan_out else []
        return Published(event.event_id, Decided.CREATED, tuple(made))
    event_seq, event_type, known_hash = tx.rows(sql("event_find"), (event.event_id,))[0]
    same = known_hash == event.payload_hash and event_type == event.event_type
    repeats = [
        _repeat(tx, now, seq, delivery_id, same=same, path=path, producer=producer)
        for seq, delivery_id in tx.rows(sql("event_deliveries"), (event_seq,))
    ]
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


def count_rejections(tx: Tx, counts: dict[str, int]) -> None:
    """Add to the counts of enqueues that were refused before they reached the ledger, by error code."""
    for code, count in counts.items():
        tx.run(sql("rejection_count"), (code, count))
