"""What a ledger brings so that the conformance suite runs on it, and the words the suite is written in.

A ledger joins by implementing :class:`Subject` (a :class:`~redrive.domain.ports.WorkLedger` and a few ways to
look at it and to abuse it) and by a :class:`Factory` in ``conftest.LEDGERS``. The tests speak through
:class:`tests.contract.bench.Bench`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import (
    Disposition,
    Enqueued,
    Hold,
    NewDelivery,
    NewEvent,
    Published,
)
from redrive.domain.outcome import Category, Outcome, OutcomeKind
from redrive.domain.policy import DAY, SECOND, Jitter, Policy
from redrive.domain.ports import WorkLedger

T = TypeVar("T")

START = 1_800_000_000 * SECOND
LEASE = 30 * SECOND
PATIENT = Policy(max_attempts=3, max_age=DAY, base=4 * SECOND, jitter=Jitter.NONE)
"""Three attempts, 4 s and 8 s apart, within a day: no chance in it."""
JOB = ("job", 1)

DELIVERED = Outcome(OutcomeKind.DELIVERED, Category.OK, status=200)
NO_OP = Outcome(OutcomeKind.NO_OP, Category.NOTHING_TO_DO)
RETRYABLE = Outcome(OutcomeKind.RETRYABLE, Category.HTTP_5XX, status=503)
PERMANENT = Outcome(OutcomeKind.PERMANENT, Category.HTTP_4XX, status=400)
UNKNOWN = Outcome(OutcomeKind.UNKNOWN, Category.TIMEOUT_SENT)
INTERRUPTED = Outcome(OutcomeKind.INTERRUPTED, Category.SHUTDOWN)
OWN_FAULT = Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT)
DISABLED = Outcome(OutcomeKind.DEFERRED, Category.DESTINATION_DISABLED)
HELD = int(Hold.DESTINATION_DISABLED)


class Refused(Exception):
    """The database itself would not do it."""


class Fault(Exception):
    """A fault that a test plants inside a transaction."""


class ManualTime:
    """The true time, in microseconds UTC, which only a test moves."""

    def __init__(self) -> None:
        self.now = START


class HostClock:
    """One host's clocks: its wall clock may be wrong by ``skew`` microseconds, its monotonic one runs true."""

    def __init__(self, time: ManualTime, skew: int = 0) -> None:
        self._time = time
        self.skew = skew

    def wall(self) -> int:
        return self._time.now + self.skew

    def monotonic(self) -> int:
        return self._time.now - START


class State(NamedTuple):
    """Everything about a delivery that changes."""

    disposition: Disposition
    lane: int
    priority: int
    hold: int
    generation: int
    attempt: int
    max_attempts: int
    deadline_at: int
    available_at: int
    fence: int
    leased_by: int | None
    leased_until: int | None
    started_at: int | None
    deferrals: int
    ambiguous: int
    cancel_requested: int
    last_category: str | None


class Attempt(NamedTuple):
    """One attempt row."""

    fence: int
    generation: int
    number: int
    worker: int | None
    started_at: int
    ended_at: int
    duration: int
    outcome: str
    category: str
    status: int | None
    retry_after: int | None
    next_at: int | None
    deferrals: int
    flags: int
    excerpt: str | None


class DeadLetter(NamedTuple):
    """One dead letter."""

    generation: int
    state: str
    handler: str
    tenant: str
    scope: str | None
    destination: str
    cause: str
    category: str
    attempts: int
    first_at: int | None
    last_at: int | None
    ambiguous: int
    policy_version: int
    died_at: int


class Transition(NamedTuple):
    """One transition row."""

    at: int
    kind: str
    generation: int
    fence: int
    category: str | None


class Repeat(NamedTuple):
    """One listed repeat of an enqueue."""

    number: int
    at: int
    decided: str
    path: str
    producer: str


class Subject(WorkLedger, Protocol):
    """A ledger under test. ``fail`` raises :class:`Fault` as the last act inside the same transaction."""

    async def accept(self, items: Sequence[NewDelivery], path: str, producer: str, fail: bool) -> list[Enqueued]: ...

    async def accept_event(self, event: NewEvent, fan_out: Sequence[NewDelivery], fail: bool) -> Published: ...

    async def count_rejections(self, counts: dict[str, int]) -> dict[str, int]:
        """Add to the counts of refused enqueues; returns all counts."""
        ...

    async def hold(self, destination: str, on: bool) -> None:
        """Hold or release a destination's waiting deliveries."""
        ...

    async def cancel(self, seq: int) -> None:
        """Cancel a waiting delivery, or ask for it if it is leased."""
        ...

    async def state(self, seq: int) -> State: ...

    async def attempts(self, seq: int) -> list[Attempt]: ...

    async def dead_letters(self, seq: int) -> list[DeadLetter]: ...

    async def transitions(self, seq: int) -> list[Transition]: ...

    async def repeats(self, seq: int) -> tuple[list[Repeat], int, int]:
        """The listed repeats; how many duplicates and conflicts there were in all."""
        ...

    async def receiver_duplicates(self) -> dict[str, int]:
        """Attempts that receivers called duplicates, by destination."""
        ...

    async def rows(self, table: str) -> int:
        """How many rows a table has."""
        ...

    async def force(self, seq: int, **columns: int | None) -> None:
        """Set columns of a delivery's state row behind the code's back. Raises :class:`Refused`."""
        ...

    async def tamper(self, seq: int, **columns: int | None) -> None:
        """As :meth:`force`, with the schema's own guard against illegal moves out of the way."""
        ...

    async def rewrite(self, table: str, column: str) -> None:
        """Change a column of every row of a table to another value. Raises :class:`Refused`."""
        ...

    async def erase(self, table: str) -> None:
        """Delete every row of a table. Raises :class:`Refused`."""
        ...

    def close(self) -> None: ...


class Factory(Protocol):
    """Opens the ledger kept at ``place`` as a process of its own would; ``fresh`` makes it first."""

    def __call__(self, place: Path, clock: HostClock, *, fresh: bool) -> Subject: ...


def work(key: str = "k", **other: Any) -> NewDelivery:
    """A delivery of handler ``job``, by its key. Fields of :class:`NewDelivery` can be given by name."""
    payload = other.pop("payload", b'{"n":1}')
    fields: dict[str, Any] = {
        "handler": "job",
        "tenant": "acme",
        "destination": "dst_1",
        "policy": PATIENT,
        "payload": payload,
        "payload_hash": identity.derive("test-payload", payload),
        "key_text": key,
        **other,
    }
    made = identity.delivery_id(fields["handler"], fields["tenant"], key)
    return NewDelivery(delivery_id=made, **fields)


def event(key: str = "evt", payload: bytes = b'{"order": 7}', event_type: str = "order.paid") -> NewEvent:
    """An event of tenant ``acme``, by the producer's own ID."""
    return NewEvent(
        event_id=identity.event_id("acme", key),
        event_key=key,
        event_type=event_type,
        tenant="acme",
        payload=payload,
        payload_hash=identity.derive("test-payload", payload),
        content_type="application/json",
        occurred_at=START - SECOND,
    )


def delivery_of(source: NewEvent, destination: str) -> NewDelivery:
    """The delivery of an event to one destination."""
    return NewDelivery(
        delivery_id=identity.webhook_delivery_id(source.tenant, source.event_id, destination),
        handler="webhook",
        tenant=source.tenant,
        destination=destination,
        policy=PATIENT,
        payload_hash=source.payload_hash,
        payload=None,
    )
