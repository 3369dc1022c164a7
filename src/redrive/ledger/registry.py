"""Destinations, their subscriptions and event schemas, as rows. What they mean is the webhooks layer's business.

Every change draws a new random registry number, so that a cached copy is known to be stale, and one taken from a
transaction that was rolled back is never mistaken for a later one.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import NamedTuple

from redrive.domain.delivery import Hold
from redrive.domain.policy import Policy
from redrive.ledger.plans import steady
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx


class DestinationRow(NamedTuple):
    """One destination, as stored. ``settings`` is JSON."""

    destination_id: str
    tenant: str
    name: str
    scope: str | None
    url: str
    enabled: int
    settings: str
    disabled_at: int | None
    disabled_why: str | None
    created_at: int
    updated_at: int


def revision(tx: Tx) -> int:
    """The registry's number: another one after every change."""
    number: int = tx.rows(sql("registry_revision"))[0][0]
    return number


def touch(tx: Tx) -> None:
    """Say that the registry changed."""
    tx.run(sql("registry_touch"), (secrets.randbits(62),))


def insert(tx: Tx, row: DestinationRow, filters: Sequence[str], policy: Policy) -> bool:
    """Add a destination whose deliveries are granted ``policy``; False when the tenant has one of that name."""
    if not tx.run(sql("destination_insert"), row):
        return False
    _grant(tx, row.destination_id, policy)
    tx.many(sql("subscription_insert"), [(row.destination_id, text) for text in filters])
    touch(tx)
    return True


def update(tx: Tx, row: DestinationRow, filters: Sequence[str], policy: Policy) -> None:
    """Replace a destination's settings, subscriptions and policy; its ID, tenant and name stay."""
    tx.run(
        sql("destination_update"),
        (row.destination_id, row.scope, row.url, row.settings, row.updated_at),
    )
    _grant(tx, row.destination_id, policy)
    tx.run(sql("subscription_clear"), (row.destination_id,))
    tx.many(sql("subscription_insert"), [(row.destination_id, text) for text in filters])
    touch(tx)


def _grant(tx: Tx, destination_id: str, policy: Policy) -> None:
    """Where the database fans events out by itself, it has to know what each destination grants."""
    if tx.dialect == "postgres":
        version = policy.version
        tx.run(sql("policy_insert"), (version, policy.spec()))
        tx.run(sql("destination_policy"), (destination_id, version, policy.max_attempts, policy.max_age))


def find(tx: Tx, destination_id: str) -> DestinationRow | None:
    """A destination by its ID."""
    rows = tx.rows(sql("destination_find"), (destination_id,))
    return DestinationRow._make(rows[0]) if rows else None


def find_named(tx: Tx, tenant: str, name: str) -> DestinationRow | None:
    """A tenant's destination by name."""
    rows = tx.rows(sql("destination_find_named"), (tenant, name))
    return DestinationRow._make(rows[0]) if rows else None


def listed(tx: Tx, tenant: str | None) -> list[DestinationRow]:
    """Every destination, of one tenant or of all, by tenant and name."""
    return [DestinationRow._make(row) for row in tx.rows(sql("destination_list"), (tenant,))]


def filters_of(tx: Tx, destination_id: str) -> list[str]:
    """The event-type filters of a destination."""
    return [row[0] for row in tx.rows(sql("subscription_list"), (destination_id,))]


def set_enabled(tx: Tx, destination_id: str, enabled: bool, now: int, why: str | None) -> None:
    """Enable or disable a destination."""
    tx.run(sql("destination_enable"), (destination_id, int(enabled), None if enabled else now, why, now))
    touch(tx)


def hold_waiting(
    tx: Tx, now: int, destination_id: str, after: int, limit: int, *, hold: bool, actor: str, reason: str
) -> tuple[int, int]:
    """Hold, or release, up to ``limit`` waiting deliveries of a destination with a seq beyond ``after``.

    Returns how many changed and the last seq; fewer than ``limit`` means that none are left.
    """
    steady(tx, sort=False)
    off, on = int(Hold.NONE), int(Hold.DESTINATION_DISABLED)
    changed = tx.rows(sql("hold_destination"), (destination_id, limit, on if hold else off, off if hold else on, after))
    kind = "held" if hold else "released"
    tx.many(
        sql("transition_insert"),
        [(seq, now, kind, generation, fence, None, actor, reason) for seq, generation, fence in changed],
    )
    return len(changed), max((row[0] for row in changed), default=after)


def has_waiting(tx: Tx, destination_id: str) -> bool:
    """Whether anything waits for a destination and is not held."""
    steady(tx, sort=False)
    return bool(tx.rows(sql("hold_pending"), (destination_id,))[0][0])


def held_destinations(tx: Tx) -> set[str]:
    """The destinations that work is held for; as cheap as they are few, however much is held."""
    steady(tx, sort=False)
    return {row[0] for row in tx.rows(sql("hold_destinations"))}


def receiver_duplicates(tx: Tx, destination_id: str) -> int:
    """How many attempts a destination's receiver called duplicates."""
    return sum(row[0] for row in tx.rows(sql("receiver_duplicate_find"), (destination_id,)))


def schemas(tx: Tx) -> list[tuple[str, str]]:
    """Every event type's JSON Schema, as stored."""
    return [(row[0], row[1]) for row in tx.rows(sql("event_schema_list"))]


def set_schema(tx: Tx, event_type: str, schema: str | None, now: int) -> None:
    """Set or (with None) remove an event type's schema."""
    if schema is None:
        tx.run(sql("event_schema_remove"), (event_type,))
    else:
        tx.run(sql("event_schema_set"), (event_type, schema, now))
    touch(tx)
