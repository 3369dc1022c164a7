"""Publishing: one event, its frozen fan-out, one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from redrive.domain import identity
from redrive.domain.delivery import Decided, Hold, NewDelivery, NewEvent, Published
from redrive.domain.envelope import CURRENT, payload_hash
from redrive.domain.identity import UNIQUE, Key, Unique
from redrive.domain.values import canonical_json, check_event_type, check_json_bytes, check_label, utc_us
from redrive.errors import InvalidInput, PayloadTooLarge
from redrive.ledger.sqlite.enqueue import accept_event, note_conflicts
from redrive.ledger.sqlite.tx import Tx
from redrive.webhooks.catalog import FanOut

HANDLER: Final = "webhook"
_JSON: Final = ("application/json", "+json")
_MAX_CONTENT_TYPE: Final = 200


@dataclass(frozen=True, slots=True)
class Event:
    """One event to publish. ``event_id`` is the producer's own, or ``UNIQUE``.

    ``payload`` is bytes (sent as they are), text, or a JSON value. ``occurred_at`` is an aware datetime.
    """

    event_type: str
    payload: Any
    event_id: Key | Unique
    tenant: str = "default"
    scope: str | None = None
    content_type: str = "application/json"
    occurred_at: datetime | None = None


def prepare(event: Event, unique: bytes, max_payload_bytes: int) -> NewEvent:
    """Check one event completely, before anything touches the ledger. ``unique`` stands in for ``UNIQUE``."""
    check_event_type(event.event_type)
    check_label(event.tenant, "tenant")
    if event.scope is not None:
        check_label(event.scope, "scope")
    content_type = _check_content_type(event.content_type)
    body = encode_body(event.payload, content_type)
    if len(body) > max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload is {len(body)} bytes, the limit is {max_payload_bytes}",
            param="payload",
            hint="raise max_payload_bytes, or send a reference to the data",
        )
    key: Key = unique if event.event_id is UNIQUE else event.event_id
    if key is None:
        raise InvalidInput("an event ID is missing", param="event_id", hint="give the event's own ID, or say UNIQUE")
    return NewEvent(
        identity.event_id(event.tenant, key),
        unique.hex() if event.event_id is UNIQUE else key_text(key),
        event.event_type,
        event.tenant,
        body,
        payload_hash(content_type, body),
        content_type,
        event.scope,
        CURRENT,
        None if event.occurred_at is None else utc_us(event.occurred_at, "occurred_at"),
    )


def encode_body(payload: Any, content_type: str) -> bytes:
    """The bytes that every delivery of the event will carry. JSON given as bytes or text is checked, not rewritten."""
    if isinstance(payload, bytes | bytearray | memoryview):
        body = bytes(payload)
    elif isinstance(payload, str):
        try:
            body = payload.encode()
        except UnicodeEncodeError:
            raise InvalidInput("the payload holds a lone surrogate, which is not text", param="payload") from None
    else:
        return canonical_json(payload)
    media = content_type.partition(";")[0].strip().lower()
    if media == _JSON[0] or media.endswith(_JSON[1]):
        check_json_bytes(body)
    return body


def _check_content_type(text: object) -> str:
    if (
        not isinstance(text, str)
        or not 0 < len(text) <= _MAX_CONTENT_TYPE
        or not all(32 <= ord(c) < 127 for c in text)
        or "/" not in text
    ):
        raise InvalidInput("the content type is not one", param="content_type")
    return text


def key_text(key: Key) -> str:
    """A key for people: its parts, joined. Identity never depends on it."""
    parts = identity.key_tuple(key)
    text = "/".join(part.hex() if isinstance(part, bytes) else str(part) for part in parts)
    return text[:200]


def publish(tx: Tx, now: int, event: NewEvent, fan_out: FanOut, *, path: str, producer: str) -> Published:
    """Accept the event and one delivery for each matching destination. The decision is in the result."""
    deliveries = [
        NewDelivery(
            identity.webhook_delivery_id(event.tenant, event.event_id, subscriber.destination_id),
            HANDLER,
            event.tenant,
            subscriber.destination_id,
            subscriber.policy,
            event.payload_hash,
            None,
            event.content_type,
            event.scope if event.scope is not None else subscriber.scope,
            event.envelope_version,
            hold=Hold.NONE if subscriber.enabled else Hold.DESTINATION_DISABLED,
            key_text=event.event_key,
        )
        for subscriber in fan_out.subscribers(tx, event.tenant, event.event_type)
    ]
    return accept_event(tx, now, event, deliveries, path=path, producer=producer)


def publish_all(
    tx: Tx, now: int, events: Sequence[NewEvent], fan_out: FanOut, *, path: str, producer: str
) -> list[Published]:
    """All of them, or, with one conflict among them, none. The conflicts are recorded, and are in the result."""
    tx.run("SAVEPOINT redrive_publish")
    results = [publish(tx, now, event, fan_out, path=path, producer=producer) for event in events]
    if any(result.decided is Decided.CONFLICT for result in results):
        tx.run("ROLLBACK TO redrive_publish")
        for result in results:
            if result.decided is Decided.CONFLICT:
                note_conflicts(tx, now, result.deliveries, path=path, producer=producer)
    tx.run("RELEASE redrive_publish")
    return results
