"""The destination registry: add, change, list, enable and disable, each an audited decision."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from redrive.domain.identity import to_text
from redrive.domain.values import check_event_type, check_label, check_reason, check_slug
from redrive.errors import Conflict, NotFound
from redrive.ledger import registry
from redrive.ledger.audit import append_audit
from redrive.ledger.base import Ledger
from redrive.ledger.registry import DestinationRow
from redrive.ledger.tx import Tx
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.schemas import Schemas
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.webhooks.url import parse_url

CHUNK: Final = 1000
GONE: Final = "410 Gone"
_log = logging.getLogger("redrive.webhooks")


@dataclass(frozen=True, slots=True)
class Destination:
    """One destination as it stands. ``destination_id`` never changes and enters every delivery ID.

    ``receiver_duplicates`` counts the attempts whose answer said that the receiver had seen the delivery before.
    """

    destination_id: str
    tenant: str
    name: str
    enabled: bool
    settings: DestinationSettings
    disabled_at: int | None
    disabled_why: str | None
    created_at: int
    receiver_duplicates: int = 0

    def as_dict(self) -> dict[str, Any]:
        """For ``-o json``. The URL is shown without its path and query, which may hold a token."""
        return {
            "destination_id": self.destination_id,
            "tenant": self.tenant,
            "name": self.name,
            "origin": parse_url(self.settings.url).origin,
            "enabled": self.enabled,
            "disabled_why": self.disabled_why,
            "receiver_duplicates": self.receiver_duplicates,
            **self.settings.public(),
        }


def load(tx: Tx, row: DestinationRow) -> Destination:
    """A stored row as a destination."""
    settings = DestinationSettings.from_json(
        row.settings,
        url=row.url,
        scope=row.scope,
        event_types=tuple(registry.filters_of(tx, row.destination_id)),
    )
    return Destination(
        row.destination_id,
        row.tenant,
        row.name,
        bool(row.enabled),
        settings,
        row.disabled_at,
        row.disabled_why,
        row.created_at,
        registry.receiver_duplicates(tx, row.destination_id),
    )


class Destinations:
    """The registry's use-cases. Methods block; from a coroutine use ``asyncio.to_thread``.

    ``guard`` is the operator's address policy: a URL it refuses is refused here, and again at every dial.
    """

    def __init__(self, ledger: Ledger, guard: AddressPolicy) -> None:
        self._ledger = ledger
        self._guard = guard

    def add(
        self, name: str, settings: DestinationSettings, *, tenant: str = "default", actor: str = "library"
    ) -> Destination:
        """Register a destination. Raises :class:`Conflict` when the tenant has one of that name."""
        check_slug(name, "name")
        check_label(tenant, "tenant")
        settings.target(self._guard)
        destination_id = to_text("dst", secrets.token_bytes(16))

        def operation(tx: Tx, now: int) -> Destination:
            row = DestinationRow(
                destination_id,
                tenant,
                name,
                settings.scope,
                settings.url,
                1,
                settings.to_json(),
                None,
                None,
                now,
                now,
            )
            if not registry.insert(tx, row, settings.event_types, settings.policy):
                raise Conflict(
                    f"tenant {tenant!r} already has a destination {name!r}",
                    param="name",
                    hint="choose another name, or change the existing one",
                )
            append_audit(tx, now, actor, "destination.add", destination_id, None, None, settings.to_json())
            return load(tx, row)

        return self._ledger.transact_sync(operation, "operator")

    def change(
        self, name: str, settings: DestinationSettings, *, tenant: str = "default", actor: str = "library"
    ) -> Destination:
        """Replace a destination's settings. Deliveries that exist keep the budget and policy they were given."""
        settings.target(self._guard)

        def operation(tx: Tx, now: int) -> Destination:
            row = self._named(tx, tenant, name)
            new = row._replace(scope=settings.scope, url=settings.url, settings=settings.to_json(), updated_at=now)
            registry.update(tx, new, settings.event_types, settings.policy)
            append_audit(tx, now, actor, "destination.change", row.destination_id, None, row.settings, new.settings)
            return load(tx, new)

        return self._ledger.transact_sync(operation, "operator")

    def rotate_secret(
        self, name: str, ref: str, *, overlap_us: int, tenant: str = "default", actor: str = "library"
    ) -> Destination:
        """Sign with a new secret from now on, and with the old ones too for ``overlap_us``."""
        current = self.get(name, tenant=tenant)
        until = self._ledger.estimate() + overlap_us
        old = tuple(
            replace(secret, until=min(secret.until or until, until))
            for secret in current.settings.secrets
            if secret.until is None or secret.until > self._ledger.estimate()
        )
        settings = replace(current.settings, secrets=(SigningSecret(ref), *old))
        return self.change(name, settings, tenant=tenant, actor=actor)

    def get(self, name: str, *, tenant: str = "default") -> Destination:
        """A destination by name or ``dst_`` ID. Raises :class:`NotFound`."""
        return self._ledger.read_sync(lambda tx: load(tx, self._named(tx, tenant, name)))

    def list(self, *, tenant: str | None = None) -> list[Destination]:
        """Every destination, of one tenant or of all."""
        return self._ledger.read_sync(lambda tx: [load(tx, row) for row in registry.listed(tx, tenant)])

    def disable(
        self,
        name: str,
        *,
        reason: str,
        tenant: str = "default",
        actor: str = "library",
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Disable a destination and hold what waits for it; returns how many were held.

        Held work keeps its age deadline and costs no attempt. What is in flight ends as it ends. Raises
        :class:`InvalidInput` without a reason.
        """
        check_reason(reason)
        destination_id = self._switch(name, tenant, False, actor, reason)
        return self._hold(destination_id, True, actor, reason, progress)

    def enable(
        self,
        name: str,
        *,
        tenant: str = "default",
        actor: str = "library",
        progress: Callable[[int], None] | None = None,
    ) -> int:
        """Enable a destination and release what was held for it; returns how many were released."""
        destination_id = self._switch(name, tenant, True, actor, None)
        return self._hold(destination_id, False, actor, "enabled", progress)

    def disable_gone(self, destination_id: str) -> None:
        """410 Gone: the receiver asked never to be called again. What waits is held, not dropped."""

        def operation(tx: Tx, now: int) -> str | None:
            row = registry.find(tx, destination_id)
            if row is None or not row.enabled:
                return None
            registry.set_enabled(tx, destination_id, False, now, GONE)
            append_audit(tx, now, "redrive", "destination.disable", destination_id, GONE, None, None)
            return row.name

        name = self._ledger.transact_sync(operation, "operator")
        if name is not None:
            held = self._hold(destination_id, True, "redrive", GONE, None)
            _log.warning(
                "destination %s (%s) answered %s; disabled; %d %s held",
                destination_id,
                name,
                GONE,
                held,
                "delivery" if held == 1 else "deliveries",
            )

    def reconcile(self) -> int:
        """Finish what a crash in the middle of :meth:`enable` or :meth:`disable` left undone."""

        def query(tx: Tx) -> list[tuple[str, bool]]:
            # Looked for without the write lock. What is held has an index; what is not, but should be, can only be
            # found among a destination's deliveries, and few destinations are disabled.
            rows = registry.listed(tx, None)
            enabled = {row.destination_id for row in rows if row.enabled}
            held = sorted(registry.held_destinations(tx) & enabled)
            disabled = [row.destination_id for row in rows if not row.enabled]
            return [(one, False) for one in held] + [(one, True) for one in disabled if registry.has_waiting(tx, one)]

        unfinished = self._ledger.read_sync(query)
        return sum(self._hold(one, disabled, "redrive", "reconcile", None) for one, disabled in unfinished)

    def set_schema(self, event_type: str, schema: object | None, *, actor: str = "library") -> None:
        """Set the JSON Schema that payloads of an event type must satisfy before they leave; None removes it."""
        check_event_type(event_type)
        text = None
        if schema is not None:
            Schemas().register(event_type, schema)  # type: ignore[arg-type]
            text = schema if isinstance(schema, str) else json.dumps(schema)

        def operation(tx: Tx, now: int) -> None:
            registry.set_schema(tx, event_type, text, now)
            append_audit(tx, now, actor, "event_type.schema", event_type, None, None, text)

        self._ledger.transact_sync(operation, "operator")

    def schemas(self) -> dict[str, Any]:
        """Every event type's JSON Schema."""
        stored = self._ledger.read_sync(registry.schemas)
        return {event_type: json.loads(text) for event_type, text in stored}

    def _named(self, tx: Tx, tenant: str, name: str) -> DestinationRow:
        row = registry.find(tx, name) if name.startswith("dst_") else registry.find_named(tx, tenant, name)
        if row is None:
            raise NotFound(
                f"tenant {tenant!r} has no destination {name!r}",
                param="name",
                hint="see: redrive destination list",
            )
        return row

    def _switch(self, name: str, tenant: str, enabled: bool, actor: str, reason: str | None) -> str:
        def operation(tx: Tx, now: int) -> str:
            row = self._named(tx, tenant, name)
            if bool(row.enabled) != enabled:
                registry.set_enabled(tx, row.destination_id, enabled, now, reason)
                action = "destination.enable" if enabled else "destination.disable"
                append_audit(tx, now, actor, action, row.destination_id, reason, None, None)
            return row.destination_id

        return self._ledger.transact_sync(operation, "operator")

    def _hold(
        self, destination_id: str, hold: bool, actor: str, reason: str, progress: Callable[[int], None] | None
    ) -> int:
        """In chunks, so that a destination with a million waiting deliveries blocks nobody.

        Each chunk looks again whether the destination is still as it was switched: whoever switched it back meanwhile
        does the rest, and must not be undone.
        """
        total, after = 0, 0

        def chunk(tx: Tx, now: int) -> tuple[int, int]:
            row = registry.find(tx, destination_id)
            if row is None or bool(row.enabled) is hold:
                return 0, after
            return registry.hold_waiting(tx, now, destination_id, after, CHUNK, hold=hold, actor=actor, reason=reason)

        while True:
            changed, after = self._ledger.transact_sync(chunk, "operator")
            total += changed
            if progress is not None:
                progress(total)
            if changed < CHUNK:
                return total
