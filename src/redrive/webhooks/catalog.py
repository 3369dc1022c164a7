"""Destinations compiled for use: cached copies of the registry, stale for a fraction of a second at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

from redrive.domain.event_filter import matches_any
from redrive.domain.policy import OnUnknown, Policy
from redrive.errors import InvalidInput
from redrive.ledger import registry
from redrive.ledger.base import Ledger
from redrive.ledger.tx import Tx
from redrive.webhooks.destinations import Destination, load
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.headers import resolve_headers
from redrive.webhooks.outcomes import OutcomeTable
from redrive.webhooks.schemas import Schemas
from redrive.webhooks.secrets import Secret, SecretCache, SecretUnavailable, parse_ref
from redrive.webhooks.sender.request import Endpoint, Guard, Template
from redrive.webhooks.settings import DestinationSettings, filters_of, policy_of
from redrive.webhooks.signing import Signer
from redrive.webhooks.url import parse_url

STALE_S: Final = 0.25
"""How long a worker may use a destination after it was changed by another process, in seconds."""


VARYING: Final = (
    b"Content-Type",
    b"Webhook-Id",
    b"Webhook-Timestamp",
    b"Idempotency-Key",
    b"Redrive-Event-Id",
    b"Redrive-Event-Type",
    b"Redrive-Attempt",
    b"Redrive-Attempt-Id",
)
"""The headers of every request, in order; :data:`SIGNATURE` follows where the destination has secrets."""
SIGNATURE: Final = b"Webhook-Signature"


@dataclass(frozen=True, slots=True)
class Subscriber:
    """What the fan-out needs of one destination."""

    destination_id: str
    scope: str | None
    policy: Policy
    enabled: bool


class FanOut:
    """Which destinations an event goes to. Consistent with the transaction it is asked in."""

    def __init__(self) -> None:
        self._revision: int | None = None
        self._matches: dict[tuple[str, str], list[Subscriber]] = {}

    def refresh(self, tx: Tx) -> None:
        """Drop what another transaction has changed. Call it once in each transaction, before :meth:`subscribers`."""
        revision = registry.revision(tx)
        if revision != self._revision or len(self._matches) > 50_000:
            self._matches.clear()
            self._revision = revision

    def subscribers(self, tx: Tx, tenant: str, event_type: str) -> list[Subscriber]:
        """The tenant's destinations whose filters match, in order of their IDs."""
        found = self._matches.get((tenant, event_type))
        if found is None:
            found = self._matches[tenant, event_type] = self._match(tx, tenant, event_type)
        return found

    def _match(self, tx: Tx, tenant: str, event_type: str) -> list[Subscriber]:
        rows = sorted(registry.listed(tx, tenant), key=lambda row: row.destination_id)
        return [
            Subscriber(row.destination_id, row.scope, policy_of(row.settings), bool(row.enabled))
            for row in rows
            if matches_any(filters_of(registry.filters_of(tx, row.destination_id)), event_type)
        ]


@lru_cache(maxsize=256)
def _judge_of(policy: AddressPolicy) -> Guard:
    """One judge for equal policies: endpoints share connections only under the same one."""
    return policy.judge


class Compiled:
    """One destination, ready to send to. Secrets are read when asked for, never kept in the clear for long."""

    def __init__(
        self,
        destination: Destination,
        guard: AddressPolicy,
        secrets: SecretCache,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        settings = destination.settings
        self.destination = destination
        self.settings: DestinationSettings = settings
        self.enabled = destination.enabled
        self.table: OutcomeTable = settings.table()
        self.fresh = settings.policy.on_unknown is OnUnknown.HOLD
        """Where an unknown outcome costs a person's time, no idle connection is worth its risk."""
        self._secrets = secrets
        self._clock = clock
        self._guard = replace(guard, allow_http=guard.allow_http and settings.allow_http)
        target = parse_url(settings.url)
        self.forbidden = False
        try:
            self._guard.check_target(target)
        except Exception:
            self.forbidden = True
        self.path = target.target
        self._target = target
        self._refs = [(parse_ref(secret.ref), secret.until) for secret in settings.secrets]
        self._signer: tuple[list[Secret], Signer] | None = None
        self._made: tuple[tuple[bytes | None, tuple[tuple[bytes, bytes], ...], bool], Template] | None = None
        self._ready: tuple[Template, Signer | None] | None = None
        self._ready_until = 0.0

    def ready(self, now_us: int) -> tuple[Template, Signer | None]:
        """What makes the requests and what signs them. Raises ``SecretUnavailable``.

        Secrets are looked at again every :data:`STALE_S`; what was made from them is kept while they are the same.
        """
        now = self._clock()
        if self._ready is None or now >= self._ready_until:
            self._ready = None  # a secret that went away must not leave the old one in use
            signer = self._sign_with(now_us)
            self._ready = (self._template(signed=signer is not None), signer)
            self._ready_until = now + STALE_S
        return self._ready

    def _template(self, *, signed: bool) -> Template:
        settings = self.settings
        authorization = None
        if settings.proxy_authorization is not None:
            authorization = self._secrets.resolve(parse_ref(settings.proxy_authorization)).reveal()
        made_from = (authorization, tuple(resolve_headers(settings.headers, self._secrets.resolve)), signed)
        if self._made is None or self._made[0] != made_from:
            target = self._target
            endpoint = Endpoint(
                target.scheme,
                target.host,
                target.port,
                _judge_of(self._guard),
                settings.tls(),
                settings.proxy_address(authorization),
            )
            # Equal endpoints share their connections, and only the authorization can make this one another.
            if self._made is not None and self._made[0][0] == authorization:
                endpoint = self._made[1].endpoint
            template = Template(
                endpoint,
                self.path,
                VARYING + ((SIGNATURE,) if signed else ()),
                made_from[1],
                settings.timeouts,
                fresh=self.fresh,
                max_response_body=settings.max_response_body,
            )
            self._made = (made_from, template)
        return self._made[1]

    def _sign_with(self, now_us: int) -> Signer | None:
        """Signs with every secret that has not run out; None where there are none."""
        current = [self._secrets.resolve(ref) for ref, until in self._refs if until is None or until > now_us]
        if not current:
            return None
        # The cache hands back the same object while a secret's bytes are the same.
        held = self._signer
        if (
            held is None
            or len(held[0]) != len(current)
            or any(a is not b for a, b in zip(*held[:1], current, strict=True))
        ):
            try:
                held = self._signer = (current, Signer(current))
            except InvalidInput as exc:
                # What the reference leads to is no signing secret: ours to mend, like one that is not there.
                raise SecretUnavailable(f"a signing secret cannot be used: {exc.message}", param="secrets") from None
        return held[1]


class Catalog:
    """The worker's view of the registry: destinations by ID, and the event schemas."""

    def __init__(self, ledger: Ledger, guard: AddressPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._guard = guard
        self._clock = clock
        self._secrets = SecretCache()
        self._revision: int | None = None
        self._checked = float("-inf")
        self._destinations: dict[str, Compiled | None] = {}
        self._schemas: Schemas | None = None

    def forget(self) -> None:
        """Look at the registry again at the next use."""
        self._checked = float("-inf")

    def destination(self, destination_id: str) -> Compiled | None:
        """A destination ready to send to, or None when there is none of that ID."""
        self._refresh()
        try:
            return self._destinations[destination_id]
        except KeyError:
            pass

        def query(tx: Tx) -> Compiled | None:
            row = registry.find(tx, destination_id)
            return None if row is None else Compiled(load(tx, row), self._guard, self._secrets)

        compiled = self._destinations[destination_id] = self._ledger.read_sync(query)
        return compiled

    def schemas(self) -> Schemas:
        """The event types' schemas."""
        self._refresh()
        if self._schemas is None:
            schemas = Schemas()
            for event_type, text in self._ledger.read_sync(registry.schemas):
                schemas.register(event_type, text)
            self._schemas = schemas
        return self._schemas

    def _refresh(self) -> None:
        now = self._clock()
        if now - self._checked < STALE_S:
            return
        self._checked = now
        revision = self._ledger.read_sync(registry.revision)
        if revision != self._revision:
            self._revision = revision
            self._destinations.clear()
            self._schemas = None
