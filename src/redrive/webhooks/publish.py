"""Publishing: one event, its frozen fan-out, one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, Final

from redrive.domain import identity
from redrive.domain.delivery import Hold, NewDelivery, NewEvent
from redrive.domain.envelope import CURRENT, payload_hash
from redrive.domain.identity import UNIQUE, Key, Unique
from redrive.domain.values import canonical_json, check_event_type, check_json_bytes, check_label, utc_us
from redrive.errors import InvalidInput, PayloadTooLarge
from redrive.ledger.base import FanOutOf
from redrive.ledger.tx import Tx
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
    names = (event.event_type, event.tenant, event.scope)
    if all(type(name) is str or name is None for name in names):
        _check_known_names(*names)
    else:
        _check_names(*names)
    content_type = event.content_type
    body = encode_body(event.payload, is_json=_check_content_type(content_type))
    if len(body) > max_payload_bytes:
        raise PayloadTooLarge(
            f"the payload is {len(body)} bytes, the limit is {max_payload_bytes}",
            param="payload",
            hint="raise max_payload_bytes, or send a reference to the data",
        )
    key: Key = unique if event.event_id is UNIQUE else event.event_id
    if key is None:
        raise InvalidInput("an event ID is missing", param="event_id", hint="give the event's own ID, or say UNIQUE")
    try:
        event_id = identity.event_id(event.tenant, key)
    except InvalidInput as exc:
        raise InvalidInput(f"event_id: {exc.message}", param="event_id", hint=exc.hint) from None
    return NewEvent(
        event_id,
        identity.key_text(key),
        event.event_type,
        event.tenant,
        body,
        payload_hash(content_type, body),
        content_type,
        event.scope,
        CURRENT,
        None if event.occurred_at is None else utc_us(event.occurred_at, "occurred_at"),
    )


def _check_names(event_type: object, tenant: object, scope: object) -> None:
    check_event_type(event_type)
    check_label(tenant, "tenant")
    if scope is not None:
        check_label(scope, "scope")


_check_known_names = lru_cache(maxsize=16_384)(_check_names)
"""The same few names come with every event; only text is remembered, and a refusal never is."""


def encode_body(payload: Any, *, is_json: bool) -> bytes:
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
    if is_json:
        check_json_bytes(body)
    return body


@lru_cache(maxsize=256)
def _check_content_type(text: object) -> bool:
    """Whether it is JSON; raises for what is no content type."""
    if (
        not isinstance(text, str)
        or not 0 < len(text) <= _MAX_CONTENT_TYPE
        or not all(32 <= ord(c) < 127 for c in text)
        or "/" not in text
    ):
        raise InvalidInput("the content type is not one", param="content_type")
    media = text.partition(";")[0].strip().lower()
    return media == _JSON[0] or media.endswith(_JSON[1])


def fan_out_of(tx: Tx, event: NewEvent, fan_out: FanOut) -> list[NewDelivery]:
    """One delivery for each destination that subscribes to the event."""
    return [
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


def fanning_out(fan_out: FanOut) -> FanOutOf:
    """The deliveries of events, for a ledger that asks for them in its transaction."""

    def deliveries_of(tx: Tx, events: Sequence[NewEvent]) -> list[list[NewDelivery]]:
        fan_out.refresh(tx)
        return [fan_out_of(tx, event, fan_out) for event in events]

    return deliveries_of
