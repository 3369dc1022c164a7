"""The built-in ``webhook`` handler: one lease, at most one request, one outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from redrive.domain.delivery import Lease
from redrive.domain.envelope import Decoders, Undecodable, decode_opaque
from redrive.domain.identity import attempt_id, to_text
from redrive.domain.outcome import (
    CONFIRM_FAILED,
    CONFIRMED,
    OWN_FAULT,
    UNCHARGED,
    Category,
    Outcome,
    OutcomeKind,
    ruled_out,
)
from redrive.domain.policy import OnUnknown
from redrive.domain.ports import LeaseGuard, Withdrawn
from redrive.errors import InvalidInput
from redrive.failpoint import hit
from redrive.webhooks.catalog import Catalog, Compiled
from redrive.webhooks.observation import Failure
from redrive.webhooks.publish import HANDLER
from redrive.webhooks.secrets import SecretUnavailable
from redrive.webhooks.sender import Prepared, Sender

_log = logging.getLogger("redrive.webhooks")
_DISABLED: Final = Outcome(OutcomeKind.DEFERRED, Category.DESTINATION_DISABLED)
_FORBIDDEN: Final = Outcome(OutcomeKind.PERMANENT, Category.FORBIDDEN_ADDRESS)
_NO_DESTINATION: Final = Outcome(OutcomeKind.PERMANENT, Category.POLICY)
_UNDECODABLE: Final = Outcome(OutcomeKind.PERMANENT, Category.UNDECODABLE)
_UNREADABLE: Final = Outcome(OutcomeKind.DEFERRED, Category.UNDECODABLE)
_PAYLOAD_INVALID: Final = Outcome(OutcomeKind.PERMANENT, Category.PAYLOAD_INVALID)
_FAULT_AFTER_ASKING: Final = Outcome(OutcomeKind.RETRYABLE, Category.OWN_FAULT)
"""A fault of our own, in an attempt that has asked a confirm function: it has started, and is charged."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What a confirm function is told: which delivery may have taken effect already."""

    delivery_id: str
    event_type: str
    event_id: str
    tenant: str
    scope: str | None
    destination: str
    generation: int
    attempt: int
    payload: bytes


Confirm = Callable[[Sent], Awaitable[bool | None]]
"""True: the effect is there. False: it is not, send again. None: cannot tell, try later."""


def wall_us() -> int:
    """This host's clock."""
    return time.time_ns() // 1000


class WebhookHandler:
    """Sends an event's bytes to its destination, signed, and reads the answer by the destination's table.

    Request headers: ``webhook-id`` and ``idempotency-key`` carry the delivery ID, the same on every attempt;
    ``webhook-timestamp`` and ``webhook-signature`` are of this attempt (Standard Webhooks); ``redrive-event-id``,
    ``redrive-event-type``, ``redrive-attempt`` (``generation.number``) and ``redrive-attempt-id``, unique for each
    request, say what and which one it is.

    ``clock`` is the time that is signed and that answers are read by, in microseconds UTC: a database server's, where
    there is one, so that a host whose clock is wrong signs nothing that receivers must refuse.
    """

    name = HANDLER

    def __init__(
        self,
        catalog: Catalog,
        sender: Sender,
        confirms: Mapping[str, Confirm],
        on_gone: Callable[[str], Awaitable[None]],
        clock: Callable[[], int] = wall_us,
    ) -> None:
        self._clock = clock
        self._catalog = catalog
        self._sender = sender
        self._confirms = confirms
        self._on_gone = on_gone
        self._decoders = Decoders({1: decode_opaque})

    @property
    def envelope_versions(self) -> frozenset[int]:
        return self._decoders.versions

    async def execute(self, lease: Lease, guard: LeaseGuard) -> Outcome | None:
        try:
            destination = self._catalog.destination(lease.destination)
        except InvalidInput as exc:
            # Written by a newer release: left, uncharged, for a worker that can read it.
            _log.error("destination %s cannot be used by this release: %s", lease.destination, exc)
            return _UNREADABLE
        if destination is None:
            return _NO_DESTINATION
        if not destination.enabled:
            return _DISABLED
        if destination.forbidden:
            return _FORBIDDEN
        try:
            body: bytes = self._decoders.decode(
                lease.envelope_version, lease.content_type, lease.payload, lease.payload_hash
            )
        except Undecodable:
            return _UNDECODABLE
        where = self._catalog.schemas().check(lease.event_type or "", body)
        if where is not None:
            _log.info("delivery refused by the schema of %s at %s", lease.event_type, where)
            return _PAYLOAD_INVALID
        asked = False
        try:
            if guard.on_unknown is OnUnknown.CONFIRM:
                destination.ready(self._clock())  # what is missing here costs no attempt: look before asking
                verdict = await self._confirm(lease, destination, body, guard)
                if verdict is not None:
                    return verdict
                asked = True
            request = self.request(lease, destination, body, guard)
        except SecretUnavailable as exc:
            _log.error("destination %s: %s", lease.destination, exc)
            return ruled_out(_FAULT_AFTER_ASKING) if asked else OWN_FAULT
        outcome = await self._send(lease, destination, request, guard)
        if outcome is None or not asked:
            return outcome
        return ruled_out(_FAULT_AFTER_ASKING if outcome.kind in UNCHARGED else outcome)

    async def _send(self, lease: Lease, destination: Compiled, request: Prepared, guard: LeaseGuard) -> Outcome | None:
        if not guard.holds():
            return None
        hit("connect.before")
        try:
            observation = await self._sender.send(request)
        except (_LeaseGone, Withdrawn):
            return None
        hit("send.after")
        outcome = destination.table.classify(observation, self._clock(), destination.settings.excerpt)
        if isinstance(observation, Failure) and _log.isEnabledFor(logging.DEBUG):
            _log.debug("delivery to %s failed: %s", lease.destination, observation)
        if outcome.disable_destination:
            try:
                await self._on_gone(lease.destination)
            except Exception:
                # What the receiver said is worth more than this: the next 410 disables it.
                _log.exception("destination %s answered 410 Gone and could not be disabled", lease.destination)
        return outcome

    def request(self, lease: Lease, destination: Compiled, body: bytes, guard: LeaseGuard) -> Prepared:
        """The request of this attempt. Raises :class:`SecretUnavailable`."""
        now_us = self._clock()
        timestamp = now_us // 1_000_000
        template, signer = destination.ready(now_us)
        text = to_text("dlv", lease.delivery_id)
        delivery = text.encode()
        values = [
            lease.content_type.encode(),
            delivery,
            b"%d" % timestamp,
            b'"%b"' % delivery,
            to_text("evt", lease.event_id or b"").encode(),
            (lease.event_type or "").encode(),
            b"%d.%d" % (lease.generation, lease.attempt),
            to_text("att", attempt_id(lease.delivery_id, lease.fence)).encode(),
        ]
        if signer is not None:
            values.append(signer.sign(text, timestamp, body).encode())
        return template.request(values, body, partial(_before_write, guard), _HEAD_POINT)

    async def _confirm(self, lease: Lease, destination: Compiled, body: bytes, guard: LeaseGuard) -> Outcome | None:
        """Ask whether an earlier attempt's effect is there; None means that it is not, and may be sent."""
        confirm = self._confirms.get(destination.settings.confirm or "")
        if confirm is None:
            _log.error("destination %s: no confirm function of that name here", lease.destination)
            return OWN_FAULT
        guard.start()
        sent = Sent(
            to_text("dlv", lease.delivery_id),
            lease.event_type or "",
            to_text("evt", lease.event_id or b""),
            lease.tenant,
            lease.scope,
            lease.destination,
            lease.generation,
            lease.attempt,
            body,
        )
        total = destination.settings.timeouts.total
        try:
            async with asyncio.timeout(total) as limit:
                there = await confirm(sent)
        except Exception as exc:
            if limit.expired():
                _log.error("confirm function of destination %s ran over %g s", lease.destination, total)
            else:
                _log.error("confirm function of destination %s raised", lease.destination, exc_info=exc)
            return CONFIRM_FAILED
        if there is None:
            return CONFIRM_FAILED
        return CONFIRMED if there else None


class _LeaseGone(Exception):
    """The lease ended between the reservation and the write: another worker may have the next fence by now."""


def _before_write(guard: LeaseGuard) -> None:
    """The last moment at which nothing has been sent: connecting takes time, and a stopped process takes more."""
    hit("send.before")
    if not guard.holds():
        raise _LeaseGone
    guard.start()


def _head_point() -> None:
    hit("receive.head")


_HEAD_POINT: Final = _head_point
