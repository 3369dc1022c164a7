"""What callers hand in and get back when they enqueue or publish, and the checks before the ledger is touched."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from redrive.domain import identity
from redrive.domain.delivery import Decided, Enqueued, NewDelivery, Published
from redrive.domain.envelope import CURRENT, payload_hash
from redrive.domain.identity import UNIQUE, Key, Unique
from redrive.domain.policy import JOBS
from redrive.domain.values import canonical_json, check_label, check_slug, duration_us, utc_us
from redrive.errors import Conflict, InvalidInput, PayloadTooLarge, UnknownHandler
from redrive.worker.jobs import JobHandler

WEBHOOK: Final = "webhook"


@dataclass(frozen=True, slots=True)
class Job:
    """What became of an enqueue. ``created`` is False when the same work was already there."""

    delivery_id: str
    created: bool


@dataclass(frozen=True, slots=True)
class Publication:
    """What became of a publish: the event, and the deliveries frozen at its first publish."""

    event_id: str
    created: bool
    deliveries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One piece of work to enqueue.

    ``key`` is the work's natural identity within (handler, tenant), or ``UNIQUE``. ``delay`` is seconds, a
    timedelta or text (``"15m"``); ``at`` an aware datetime; one of the two. ``priority`` is 0 (first) to 3.
    """

    handler: str
    payload: Any = None
    key: Key | Unique = None
    tenant: str = "default"
    scope: str | None = None
    destination: str = ""
    delay: float | timedelta | str | None = None
    at: datetime | None = None
    priority: int = 2


def prepare(spec: JobSpec, known: JobHandler | None, allow_unknown: bool, max_payload_bytes: int) -> NewDelivery:
    """Check one job completely. ``known`` is this application's handler of that name, if it has one."""
    name = check_slug(spec.handler, "handler")
    check_label(spec.tenant, "tenant")
    if spec.scope is not None:
        check_label(spec.scope, "scope")
    if spec.destination != "":
        check_label(spec.destination, "destination")
    if name == WEBHOOK:
        raise InvalidInput("webhooks are published, not enqueued", param="handler", hint="use publish()")
    if known is None and not allow_unknown:
        raise UnknownHandler(
            f"this application has no handler {name!r}",
            param="handler",
            hint="register it, or pass allow_unknown=True if another application executes it",
        )
    if isinstance(spec.priority, bool) or spec.priority not in (0, 1, 2, 3):
        raise InvalidInput("priority must be 0, 1, 2 or 3", param="priority")
    if spec.delay is not None and spec.at is not None:
        raise InvalidInput("give delay or at, not both", param="delay")
    body = canonical_json(spec.payload)
    if len(body) > max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload is {len(body)} bytes, the limit is {max_payload_bytes}",
            param="payload",
            hint="raise max_payload_bytes, or enqueue a reference to the data",
        )
    unique = secrets.token_bytes(16) if spec.key is UNIQUE else None
    key: Key = unique if spec.key is UNIQUE else spec.key
    return NewDelivery(
        identity.delivery_id(name, spec.tenant, key),
        name,
        spec.tenant,
        spec.destination,
        JOBS if known is None else known.policy,
        payload_hash("application/json", body),
        body,
        scope=spec.scope,
        envelope_version=CURRENT if known is None else known.write_version,
        priority=spec.priority,
        delay_us=0 if spec.delay is None else duration_us(spec.delay, "delay"),
        available_at=None if spec.at is None else utc_us(spec.at, "at"),
        key_text=identity.key_text(key),
    )


def jobs(specs: Sequence[JobSpec], results: list[Enqueued]) -> list[Job]:
    """The results for the caller; raises :class:`Conflict` when nothing was accepted because of one."""
    conflicts = [spec for spec, result in zip(specs, results, strict=True) if result.decided is Decided.CONFLICT]
    if conflicts:
        first = conflicts[0]
        raise Conflict(
            f"{len(conflicts)} of {len(specs)} keys were enqueued before with another payload, for example "
            f"{identity.key_text(first.key)!r} for handler {first.handler!r}",  # type: ignore[arg-type]
            param="key",
            hint="nothing was enqueued; corrected work is new work: give it a new key",
        )
    return [Job(identity.to_text("dlv", result.delivery_id), result.decided is Decided.CREATED) for result in results]


def publications(results: Sequence[Published], keys: Sequence[str]) -> list[Publication]:
    """The results for the caller; raises :class:`Conflict` when nothing was accepted because of one."""
    for result, key in zip(results, keys, strict=True):
        if result.decided is Decided.CONFLICT:
            raise Conflict(
                f"event {key!r} was published before with another type or payload",
                param="event_id",
                hint="nothing was published; a corrected payload is a new event: give it a new event ID",
            )
    return [
        Publication(
            identity.to_text("evt", result.event_id),
            result.decided is Decided.CREATED,
            tuple(identity.to_text("dlv", delivery.delivery_id) for delivery in result.deliveries),
        )
        for result in results
    ]
