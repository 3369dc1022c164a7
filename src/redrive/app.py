"""``Redrive``: the one object a user makes, and the place where the layers are wired together."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random as random_module
import secrets
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from redrive.accepting import WEBHOOK, Job, JobSpec, Publication, Rejections, jobs, prepare, publications
from redrive.domain.delivery import Closed, Lease
from redrive.domain.envelope import CURRENT, Decoder, Decoders
from redrive.domain.identity import Key, Unique
from redrive.domain.outcome import Outcome
from redrive.domain.policy import JOBS, OnUnknown, Policy
from redrive.domain.signals import NoOp, Permanent, Retry, Unknown
from redrive.domain.values import check_label, check_slug, duration_us
from redrive.errors import ConfigError, RedriveError
from redrive.ledger import opening
from redrive.ledger.base import Accept, Ledger, Order, Publish
from redrive.ledger.close import closing_in
from redrive.ledger.retention import RetentionRules
from redrive.ledger.sqlite.clock import wall_us
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx
from redrive.worker.jobs import (
    ConfirmFunction,
    Context,
    JobHandler,
    check_function,
    check_outcomes,
    is_async,
    with_unknown,
)
from redrive.worker.settings import WorkerSettings
from redrive.worker.threads import Threads

if TYPE_CHECKING:
    from redrive.recovery.operations import Operations
    from redrive.running import Rest
    from redrive.webhooks.destinations import Destinations
    from redrive.webhooks.guard import AddressPolicy
    from redrive.webhooks.handler import Confirm
    from redrive.webhooks.publish import Event

__all__ = ["Context", "Job", "JobSpec", "Publication", "Redrive"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
MIB: Final = 1024 * 1024


class Redrive:
    """An application on one ledger. Making one opens nothing; the first use does.

    ``environment`` must be the name that the ledger is stamped with. ``address_policy`` says which addresses
    webhooks may be sent to beside the public internet on port 443. ``retention``, for example
    ``{"delivered": "90d"}``, lets workers take what ended that long ago; without it all is kept. ``path`` and
    ``producer`` say on the ledger where an enqueue came from (inside the caller's own transaction the path is
    ``connection``). ``clock`` (microseconds UTC) and ``random`` are for tests.
    """

    def __init__(
        self,
        ledger: str = "sqlite:///redrive.db",
        *,
        environment: str = "development",
        worker: WorkerSettings | None = None,
        max_payload_bytes: int = MIB,
        address_policy: AddressPolicy | None = None,
        retention: RetentionRules | Mapping[str, Any] | None = None,
        producer: str | None = None,
        path: str = "library",
        clock: Callable[[], int] | None = None,
        random: Callable[[], float] | None = None,
    ) -> None:
        check_slug(environment, "environment")
        if isinstance(max_payload_bytes, bool) or not 1 <= max_payload_bytes <= 256 * MIB:
            raise ConfigError("max_payload_bytes must be 1 byte to 256 MiB", param="max_payload_bytes")
        self.url = ledger
        self.environment = environment
        self.worker_settings = worker or WorkerSettings()
        self.max_payload_bytes = max_payload_bytes
        self.path = check_slug(path, "path")
        if producer is not None:
            check_label(producer, "producer")
        self.producer = producer or f"{socket.gethostname()}:{os.getpid()}"
        self._clock = clock
        self._random = random or random_module.Random(secrets.randbits(128)).random  # noqa: S311 - spreads retries, guards nothing
        self._guard = address_policy
        self.retention = None if retention is None else RetentionRules.parse(retention)
        self._ledger: Ledger | None = None
        self._opening = threading.Lock()
        self._handlers: dict[str, JobHandler] = {}
        self._confirms: dict[str, Confirm] = {}
        self._pool: Threads | None = None
        self.rejections = Rejections()
        self._fan_out: Any = None

    # Opening and closing.

    def init(self) -> list[str]:
        """Create the ledger, or bring it to this release's schema; returns the names of the steps applied."""
        self.close()
        steps = opening.create(self.url, self.environment, self._clock)
        return [f"{step.version:04}_{step.name}" for step in steps]

    @property
    def ledger(self) -> Ledger:
        """The opened ledger. Raises a :class:`~redrive.errors.LedgerError` that says what is wrong with it."""
        ledger = self._ledger
        if ledger is None:
            with self._opening:  # two threads' first calls must not open two
                ledger = self._ledger
                if ledger is None:
                    ledger = self._ledger = opening.open_ledger(self.url, self.environment, self._clock)
        return ledger

    def close(self) -> None:
        """Finish queued writes and close the ledger. The object can be used again afterwards."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self.rejections:
            # Refused before the ledger was needed: it is opened now, if it can be, to count them.
            with contextlib.suppress(RedriveError):
                _ = self.ledger
        if self._ledger is not None:
            ledger, self._ledger = self._ledger, None
            try:
                # What cannot be counted now is kept: it must not hide the error that a ``with`` block ends with.
                with contextlib.suppress(RedriveError):
                    if self.rejections:
                        with self.rejections.flushed() as counts:
                            ledger.take(Accept(self.path, self.producer, ()), counts)
            finally:
                ledger.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @property
    def address_policy(self) -> AddressPolicy:
        """What the address guard allows."""
        if self._guard is None:
            from redrive.webhooks.guard import AddressPolicy

            self._guard = AddressPolicy()
        return self._guard

    @address_policy.setter
    def address_policy(self, allowed: AddressPolicy) -> None:
        """A worker that runs keeps the one that it began with."""
        self._guard = allowed

    @property
    def destinations(self) -> Destinations:
        """The registry of webhook destinations."""
        from redrive.webhooks.destinations import Destinations

        return Destinations(self.ledger, self.address_policy)

    @property
    def operations(self) -> Operations:
        """What an operator asks and does: search, show, timeline, cancel, counts, status, verify."""
        from redrive.recovery.operations import Operations

        return Operations(self.ledger)

    # Handlers.

    def handler(
        self,
        name: str,
        *,
        policy: Policy = JOBS,
        timeout: float | timedelta | str | None = None,
        unknown: OnUnknown | str | None = None,
        confirm: ConfirmFunction | None = None,
        outcomes: dict[type[BaseException], Retry | Permanent | NoOp | Unknown] | None = None,
        decoders: dict[int, Decoder] | None = None,
        envelope_version: int = CURRENT,
    ) -> Callable[[F], F]:
        """Make an async or sync function ``(context, payload)`` the handler of deliveries named ``name``.

        Returning means delivered; raising ``Retry``, ``Permanent``, ``NoOp`` or ``Unknown`` says otherwise; any other
        exception is looked up in ``outcomes`` and is retryable if it is not there. ``timeout`` bounds one attempt;
        what runs past it may have taken effect, so its outcome is ``unknown``, and ``unknown`` (``retry``,
        ``hold`` or ``confirm``) says what follows. ``decoders`` reads each envelope version this application knows,
        ``envelope_version`` is the one it writes. The function itself is returned unchanged.
        """
        check_slug(name, "name")
        if name == WEBHOOK or name in self._handlers:
            raise ConfigError(f"there is already a handler {name!r}", param="name")
        spec = policy if unknown is None else with_unknown(policy, unknown)
        if spec.on_unknown is OnUnknown.CONFIRM and confirm is None:
            raise ConfigError("unknown = confirm needs a confirm function", param="confirm")

        mapped = check_outcomes(outcomes or {})
        limit = None if timeout is None else duration_us(timeout, "timeout") / 1e6
        if limit == 0:
            raise ConfigError("a timeout of 0 lets nothing run", param="timeout")
        readers = Decoders(decoders)
        if envelope_version not in readers.versions:
            raise ConfigError(
                "envelope_version is not one that this handler can decode",
                param="envelope_version",
                hint="add its decoder everywhere before anything writes it",
            )

        def attach(function: F) -> F:
            check_function(function)
            self._handlers[name] = JobHandler(
                name,
                function,
                policy=spec,
                timeout_s=limit,
                decoders=readers,
                write_version=envelope_version,
                outcomes=mapped,
                confirm=confirm,
                threads=self._threads,
                close_in=self._close_in,
                close_in_async=self._close_in_async,
                was_closed=self._was_closed,
            )
            return function

        return attach

    def confirm(self, name: str) -> Callable[[Confirm], Confirm]:
        """Make an async function the confirm function ``name`` that webhook destinations can refer to."""
        check_slug(name, "name")
        if name in self._confirms:
            raise ConfigError(f"there is already a confirm function {name!r}", param="name")

        def attach(function: Confirm) -> Confirm:
            if not is_async(function):
                raise ConfigError("a webhook's confirm function is async", param="confirm")
            self._confirms[name] = function
            return function

        return attach

    @property
    def handlers(self) -> tuple[str, ...]:
        """The names this application can execute, ``webhook`` among them."""
        return (*sorted(self._handlers), WEBHOOK)

    @property
    def job_handlers(self) -> Mapping[str, JobHandler]:
        """The Python handlers, by name."""
        return self._handlers

    @property
    def confirms(self) -> Mapping[str, Confirm]:
        """The confirm functions that destinations can refer to, by name."""
        return self._confirms

    @property
    def random(self) -> Callable[[], float]:
        """What spreads retries: a float in [0, 1)."""
        return self._random

    def _threads(self) -> Threads:
        if self._pool is None:
            self._pool = Threads(self.worker_settings.thread_limit, "redrive-job")
        return self._pool

    # Enqueue.

    def enqueue(
        self,
        handler: str,
        payload: Any = None,
        *,
        key: Key | Unique,
        tenant: str = "default",
        scope: str | None = None,
        destination: str = "",
        delay: float | timedelta | str | None = None,
        at: datetime | None = None,
        priority: int = 2,
        policy: Policy | None = None,
        connection: Any = None,
        allow_unknown: bool = False,
    ) -> Job:
        """Accept one job; when this returns it is durable. See :class:`JobSpec` for the arguments.

        With ``connection`` it happens inside the caller's own transaction on the ledger's file, and is rolled
        back with it. The same key with the same payload returns the first delivery; with another payload it
        raises :class:`~redrive.errors.Conflict`. An unknown handler is an error unless ``allow_unknown``, which
        needs a ``policy``.
        """
        spec = JobSpec(handler, payload, key, tenant, scope, destination, delay, at, priority, policy)
        return self.enqueue_many([spec], connection=connection, allow_unknown=allow_unknown)[0]

    def enqueue_many(
        self, specs: Sequence[JobSpec], *, connection: Any = None, allow_unknown: bool = False
    ) -> list[Job]:
        """Accept jobs in one transaction: all of them, or, on any error or conflict, none."""
        return jobs(specs, self._take(self._accepting(specs, allow_unknown, connection), connection))

    async def enqueue_async(self, handler: str, payload: Any = None, **arguments: Any) -> Job:
        """As :meth:`enqueue`, without blocking the event loop; ``connection`` may be an async SQLAlchemy one."""
        connection = arguments.pop("connection", None)
        allow_unknown = arguments.pop("allow_unknown", False)
        spec = JobSpec(handler, payload, **arguments)
        return (await self.enqueue_many_async([spec], connection=connection, allow_unknown=allow_unknown))[0]

    async def enqueue_many_async(
        self, specs: Sequence[JobSpec], *, connection: Any = None, allow_unknown: bool = False
    ) -> list[Job]:
        """As :meth:`enqueue_many`, without blocking the event loop."""
        order = self._accepting(specs, allow_unknown, connection)
        return jobs(specs, await self._take_async(order, connection))

    def _accepting(self, specs: Sequence[JobSpec], allow_unknown: bool, connection: Any) -> Accept:
        clock, limit, known = self._clock or wall_us, self.max_payload_bytes, self._handlers
        items = self.rejections.noting(
            lambda: [prepare(spec, known.get(spec.handler), allow_unknown, limit, clock) for spec in specs]
        )
        return Accept(self._path_of(connection), self.producer, items)

    # Publish.

    def publish(
        self,
        event_type: str,
        payload: Any,
        *,
        event_id: Key | Unique,
        tenant: str = "default",
        scope: str | None = None,
        content_type: str = "application/json",
        occurred_at: datetime | None = None,
        connection: Any = None,
    ) -> Publication:
        """Accept an event and one delivery for each of the tenant's destinations that subscribes to its type.

        ``payload`` bytes are stored once and sent byte for byte. Publishing the same ``event_id`` again returns the
        first; with another type or payload it raises :class:`~redrive.errors.Conflict`. ``connection`` as in
        :meth:`enqueue`.
        """
        from redrive.webhooks.publish import Event

        event = Event(event_type, payload, event_id, tenant, scope, content_type, occurred_at)
        return self.publish_many([event], connection=connection)[0]

    def publish_many(self, events: Sequence[Event], *, connection: Any = None) -> list[Publication]:
        """Accept events in one transaction: all of them, or, on any error or conflict, none."""
        order = self._publishing(events, connection)
        return publications(self._take(order, connection), order.events)

    async def publish_async(
        self, event_type: str, payload: Any, *, connection: Any = None, **arguments: Any
    ) -> Publication:
        """As :meth:`publish`, without blocking the event loop."""
        from redrive.webhooks.publish import Event

        event = Event(event_type, payload, **arguments)
        return (await self.publish_many_async([event], connection=connection))[0]

    async def publish_many_async(self, events: Sequence[Event], *, connection: Any = None) -> list[Publication]:
        """As :meth:`publish_many`, without blocking the event loop."""
        order = self._publishing(events, connection)
        return publications(await self._take_async(order, connection), order.events)

    def _publishing(self, events: Sequence[Event], connection: Any) -> Publish:
        from redrive.webhooks import publish
        from redrive.webhooks.catalog import FanOut

        fan_out = self._fan_out = self._fan_out or publish.fanning_out(FanOut())
        prepared = self.rejections.noting(
            lambda: [publish.prepare(event, secrets.token_bytes(16), self.max_payload_bytes) for event in events]
        )
        return Publish(self._path_of(connection), self.producer, prepared, fan_out)

    def _take(self, order: Order[T], connection: Any) -> T:
        if connection is not None:
            return self.ledger.take_in(connection, order)
        with self.rejections.flushed() as counts:
            return self.ledger.take(order, counts)

    async def _take_async(self, order: Order[T], connection: Any) -> T:
        if connection is not None:
            return await self.ledger.take_in_async(connection, order)
        with self.rejections.flushed() as counts:
            return await self.ledger.take_async(order, counts)

    def _path_of(self, connection: Any) -> str:
        return self.path if connection is None else "connection"

    # Work.

    def run(
        self, *, until_idle: bool = False, burst: bool = False, linger: float | timedelta | str = 0.0
    ) -> Rest | None:
        """Work in this process until SIGTERM or SIGINT, or until nothing of these handlers is left to do.

        A ``burst`` ends once nothing is due and nothing runs here, and that for ``linger`` (seconds, or as ``30s``);
        work that waits for a later time does not keep it. It returns when the next is due; otherwise None is returned.
        """
        from redrive.running import run

        return run(self, until_idle=until_idle, burst=burst, linger=linger)

    async def work(
        self,
        *,
        until_idle: bool = False,
        burst: bool = False,
        linger: float | timedelta | str = 0.0,
        stop: asyncio.Event | None = None,
    ) -> Rest | None:
        """As :meth:`run`, in the caller's event loop; set ``stop`` to drain and return. Installs no signal handlers."""
        from redrive.running import work

        return await work(self, until_idle=until_idle, burst=burst, linger=linger, stop=stop)

    # Effects in the ledger's own database.

    def _closing(self, lease: Lease, outcome: Outcome) -> Callable[[Tx, int], Closed]:
        duration_us = max(0, self.ledger.estimate() - lease.started_at)
        return closing_in(lease, outcome, self._random(), duration_us, self.ledger.policy_in)

    def _close_in(self, connection: Any, lease: Lease, outcome: Outcome) -> Closed:
        return self.ledger.run_in(connection, self._closing(lease, outcome))

    async def _close_in_async(self, connection: Any, lease: Lease, outcome: Outcome) -> Closed:
        return await self.ledger.run_in_async(connection, self._closing(lease, outcome))

    async def _was_closed(self, lease: Lease) -> bool:
        return await self.ledger.read(lambda tx: bool(tx.rows(sql("attempt_find"), (lease.seq, lease.fence))))
