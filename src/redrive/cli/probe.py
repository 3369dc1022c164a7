"""``destination test``: one real request, signed and judged like any other, that leaves nothing on the ledger."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from redrive.cli.session import Session
from redrive.domain.delivery import Lease
from redrive.domain.envelope import CURRENT, payload_hash
from redrive.domain.outcome import Outcome, OutcomeKind
from redrive.domain.ports import LeaseGuard
from redrive.errors import ForbiddenAddress
from redrive.ledger.records import iso, span
from redrive.webhooks.observation import Failure, Observation

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.webhooks.catalog import Compiled
    from redrive.webhooks.destinations import Destination

EVENT_TYPE: Final = "redrive.test"


@dataclass(frozen=True, slots=True)
class Tried:
    """What became of one test request."""

    observation: Observation
    outcome: Outcome
    duration_us: int


class _Nobodys(LeaseGuard):
    """No lease stands behind a test: nobody can take it away."""

    def start(self) -> None:
        """Nothing is charged."""

    def occupy(self, until: Awaitable[object]) -> None:
        """There is no slot."""

    def holds(self) -> bool:
        """Always."""
        return True


def run(session: Session, name: str) -> int:
    """The command. Returns 0 if the destination acknowledged the request."""
    app = session.app()
    found = app.destinations.get(name, tenant=session.tenant)
    tried = send(app, found)
    outcome = tried.outcome
    delivered = outcome.kind is OutcomeKind.DELIVERED
    failure = tried.observation if isinstance(tried.observation, Failure) else None
    shown = {
        "destination": found.name,
        "delivered": delivered,
        "outcome": outcome.kind.value,
        "category": outcome.category.value,
        "status": outcome.status,
        "phase": "response" if failure is None else failure.phase.value,
        "fault": None if failure is None else failure.fault.value,
        "detail": None if failure is None else failure.detail or None,
        "sent": failure is None or failure.sent,
        "duration_us": tried.duration_us,
    }
    if not session.out.is_table:
        session.out.document(shown)
        return 0 if delivered else 1
    took = span(tried.duration_us)
    if failure is None:
        verdict = f"status {outcome.status} in {took}"
        text = f"delivered: {found.name} answered with {verdict}" if delivered else f"not delivered: {verdict}"
        if not delivered:
            text += f", which means {outcome.kind.value} ({outcome.category.value}) for {found.name}"
    else:
        detail = f" ({failure.detail})" if failure.detail else ""
        text = f"not delivered: {failure.fault.value} in phase {failure.phase.value}{detail} after {took}; "
        text += "the request was sent, and may have been received" if failure.sent else "nothing was sent"
        text += f". Outcome: {outcome.kind.value} ({outcome.category.value})"
    session.out.line(text, style="green" if delivered else "red")
    if not found.enabled:
        session.out.note(f"{found.name} is disabled: deliveries for it are held")
    return 0 if delivered else 1


def send(app: Redrive, destination: Destination) -> Tried:
    """Send the test event. Raises ``ForbiddenAddress`` and ``SecretUnavailable``."""
    from redrive.running import run_loop
    from redrive.webhooks.catalog import Catalog

    compiled = Catalog(app.ledger, app.address_policy).destination(destination.destination_id)
    assert compiled is not None
    if compiled.forbidden:
        destination.settings.target(app.address_policy)
        raise ForbiddenAddress("the address guard refuses this destination", param="url")
    result: list[Tried] = []

    async def main() -> None:
        result.append(await _exchange(app, destination, compiled))

    run_loop(main())
    return result[0]


async def _exchange(app: Redrive, destination: Destination, compiled: Compiled) -> Tried:
    from redrive.webhooks.catalog import Catalog
    from redrive.webhooks.handler import WebhookHandler
    from redrive.webhooks.sender import Sender

    async def gone(destination_id: str) -> None:
        """A test disables nothing."""

    sender = Sender()
    try:
        handler = WebhookHandler(Catalog(app.ledger, app.address_policy), sender, {}, gone)
        body = _body()
        request = handler.request(_lease(destination, body), compiled, body, _Nobodys())
        begun = time.monotonic()
        observation = await sender.send(request)
        duration_us = int((time.monotonic() - begun) * 1e6)
    finally:
        await sender.close()
    return Tried(observation, compiled.table.classify(observation, time.time_ns() // 1000, 0), duration_us)


def _lease(destination: Destination, body: bytes) -> Lease:
    """A delivery that is on no ledger: new IDs each time, so that no receiver takes it for one it knows."""
    now = time.time_ns() // 1000
    return Lease(
        seq=0,
        delivery_id=secrets.token_bytes(16),
        handler="webhook",
        tenant=destination.tenant,
        scope=destination.settings.scope,
        destination=destination.destination_id,
        generation=0,
        attempt=1,
        max_attempts=1,
        deadline_at=now,
        fence=1,
        started_at=now,
        leased_until=now,
        deferrals=0,
        ambiguous=False,
        envelope_version=CURRENT,
        content_type="application/json",
        payload=body,
        payload_hash=payload_hash("application/json", body),
        policy_version=0,
        event_id=secrets.token_bytes(16),
        event_type=EVENT_TYPE,
        occurred_at=now,
    )


def _body() -> bytes:
    data = {"message": "A test event, sent by a person. It stands for nothing that happened."}
    return json.dumps({"type": EVENT_TYPE, "timestamp": iso(time.time_ns() // 1000), "data": data}).encode()
