"""Destinations compiled for use: cached copies of the registry, stale for a fraction of a second at most."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from redrive.domain.policy import OnUnknown, Policy
from redrive.domain.values import matches_any
from redrive.errors import InvalidInput
from redrive.ledger.sqlite import registry
from redrive.ledger.sqlite.ledger import SqliteLedger
from redrive.ledger.sqlite.tx import Tx
from redrive.webhooks.destinations import Destination, load
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.headers import resolve_headers
from redrive.webhooks.outcomes import OutcomeTable
from redrive.webhooks.schemas import Schemas
from redrive.webhooks.secrets import SecretCache, SecretUnavailable, parse_ref
from redrive.webhooks.sender.request import Endpoint
from redrive.webhooks.settings import DestinationSettings
from redrive.webhooks.signing import Signer
from redrive.webhooks.url import parse_url

STALE_S: Final = 0.25
"""How long a worker may use a destination after it was changed by another process, in seconds."""


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
        matching = []
        for destination in (load(tx, row) for row in rows):
            settings = destination.settings
            if matches_any(settings.filters(), event_type):
                matching.append(
                    Subscriber(destination.destination_id, settings.scope, settings.policy, destination.enabled)
                )
        return matching


class Compiled:
    """One destination, ready to send to. Secrets are read when asked for, never kept in the clear for long."""

    def __init__(self, destination: Destination, guard: AddressPolicy, secrets: SecretCache) -> None:
        settings = destination.settings
        self.destination = destination
        self.settings: DestinationSettings = settings
        self.enabled = destination.enabled
        self.table: OutcomeTable = settings.table()
        self.fresh = settings.policy.on_unknown is OnUnknown.HOLD
        """Where an unknown outcome costs a person's time, no idle connection is worth its risk."""
        self._secrets = secrets
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
        self._signer: tuple[list[object], Signer] | None = None
        self._endpoint: tuple[bytes | None, Endpoint] | None = None
        self._plain = (
            None
            if any(value.startswith(("env:", "file:")) for _, value in settings.headers)
            else resolve_headers(settings.headers, secrets.resolve)
        )

    def endpoint(self) -> Endpoint:
        """Where to connect. Raises ``SecretUnavailable`` when the proxy's credentials cannot be read."""
        settings = self.settings
        authorization = None
        if settings.proxy_authorization is not None:
            authorization = self._secrets.resolve(parse_ref(settings.proxy_authorization)).reveal()
        if self._endpoint is None or self._endpoint[0] != authorization:
            target = self._target
            self._endpoint = (
                authorization,
                Endpoint(
                    target.scheme,
                    target.host,
                    target.port,
                    self._guard.judge,
                    settings.tls(),
                    settings.proxy_address(authorization),
                ),
            )
        return self._endpoint[1]

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The static headers, references resolved. Raises ``SecretUnavailable``."""
        if self._plain is not None:
            return self._plain
        return resolve_headers(self.settings.headers, self._secrets.resolve)

    def signer(self, now_us: int) -> Signer | None:
        """Signs with every secret that has not run out; None where there are none. Raises ``SecretUnavailable``."""
        current = [self._secrets.resolve(ref) for ref, until in self._refs if until is None or until > now_us]
        if not current:
            return None
        # The cache hands back the same object while a secret's bytes are the same.
        if self._signer is None or any(a is not b for a, b in zip(self._signer[0], current, strict=False)):
            self._signer = None
        if self._signer is None or len(self._signer[0]) != len(current):
            try:
                self._signer = (list(current), Signer(current))
            except InvalidInput as exc:
                # What the reference leads to is no signing secret: ours to mend, like one that is not there.
                raise SecretUnavailable(f"a signing secret cannot be used: {exc.message}", param="secrets") from None
        return self._signer[1]


class Catalog:
    """The worker's view of the registry: destinations by ID, and the event schemas."""

    def __init__(self, ledger: SqliteLedger, guard: AddressPolicy, clock: Callable[[], float] = time.monotonic) -> None:
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
