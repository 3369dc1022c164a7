"""What a ledger brings so that the conformance suite runs on it, and the words the suite is written in.

A ledger joins by implementing :class:`Subject` (a :class:`~redrive.domain.ports.WorkLedger` and a few ways to
look at it and to abuse it) and by a :class:`Factory` in ``conftest.LEDGERS``. The tests use :class:`Bench`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar

from redrive.domain import identity
from redrive.domain.delivery import (
    Closed,
    Closing,
    Disposition,
    Enqueued,
    Hold,
    Lease,
    NewDelivery,
    NewEvent,
    Published,
)
from redrive.domain.outcome import Category, Outcome, OutcomeKind
from redrive.domain.policy import DAY, SECOND, Jitter, Policy
from redrive.domain.ports import Reaped, WorkLedger

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

    async def accept(
        self, items: Sequence[NewDelivery], path: str, producer: str, fail: bool
    ) -> list[Enqueued]: ...

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

    async def rows(self, table: str) -> int:
        """How many rows a table has."""
        ...

    async def force(self, seq: int, **columns: int | None) -> None:
        """Set columns of a delivery's state row behind the code's back. Raises :class:`Refused`."""
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


class Bench:
    """One process at a ledger, in plain calls. Times are microseconds."""

    def __init__(
        self,
        factory: Factory,
        place: Path,
        *,
        time: ManualTime | None = None,
        skew: int = 0,
        first: Bench | None = None,
    ) -> None:
        self._factory = factory
        self._place = place
        self._first = first or self
        self.time = time or ManualTime()
        self.clock = HostClock(self.time, skew)
        self.ledger = factory(place, self.clock, fresh=first is None)
        if first is None:
            self._runner = asyncio.Runner()
            self._others: list[Bench] = []
            self._holders: dict[tuple[int, int], int] = {}
        self.worker = self.join()

    def host(self, skew: int = 0) -> Bench:
        """Another process at the same ledger, on a host whose clock is off by ``skew``."""
        other = Bench(self._factory, self._place, time=self.time, skew=skew, first=self._first)
        self._first._others.append(other)
        return other

    def shut(self) -> None:
        """Close every process's ledger."""
        for bench in (*self._others, self):
            bench.ledger.close()
        self._runner.close()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self._first._runner.run(doing)

    def together(self, *doing: Awaitable[T]) -> list[T]:
        """All of these at the same time; their results in order."""

        async def gather() -> list[T]:
            return await asyncio.gather(*doing)

        return self.run(gather())

    def advance(self, us: int) -> None:
        self.time.now += us

    def advance_to(self, at: int) -> None:
        self.time.now = at

    # accepting

    def enqueue(self, key: str = "k", **fields: Any) -> Enqueued:
        return self.enqueue_all([work(key, **fields)])[0]

    def enqueue_all(
        self, items: Sequence[NewDelivery], *, producer: str = "tests", fail: bool = False
    ) -> list[Enqueued]:
        return self.run(self.ledger.accept(items, "library", producer, fail))

    def publish(self, source: NewEvent, destinations: Sequence[str] = (), *, fail: bool = False) -> Published:
        fan_out = [delivery_of(source, destination) for destination in destinations]
        return self.run(self.ledger.accept_event(source, fan_out, fail))

    # working

    def join(self, name: str | None = None, routes: Iterable[tuple[str, int]] = (JOB, ("webhook", 1))) -> int:
        """Register a worker; its number."""
        first = self._first
        first_names = first.__dict__.setdefault("_names", 0) + 1
        first.__dict__["_names"] = first_names
        return self.run(self.ledger.register_worker(name or f"worker-{first_names}", routes))

    async def reserving(
        self, limit: int, routes: Sequence[tuple[str, int]], lease_us: int, worker: int
    ) -> list[Lease]:
        leases = await self.ledger.reserve(worker, routes, limit, lease_us)
        for lease in leases:
            self._first._holders[lease.seq, lease.fence] = worker
        return leases

    def reserve(
        self,
        limit: int = 10,
        *,
        routes: Sequence[tuple[str, int]] = (JOB,),
        lease_us: int = LEASE,
        worker: int | None = None,
    ) -> list[Lease]:
        return self.run(self.reserving(limit, routes, lease_us, worker or self.worker))

    def lease(self, lease_us: int = LEASE) -> Lease:
        """The one delivery that is due, leased."""
        (lease,) = self.reserve(2, lease_us=lease_us)
        return lease

    def closing(self, lease: Lease, outcome: Outcome, u: float = 0.0, min_delay_us: int = 0) -> Closing:
        return Closing(
            lease.seq,
            lease.fence,
            lease.generation,
            lease.attempt,
            lease.started_at,
            lease.deferrals,
            outcome,
            u,
            1234,
            min_delay_us,
        )

    def close(
        self,
        lease: Lease,
        outcome: Outcome,
        *,
        u: float = 0.0,
        min_delay_us: int = 0,
        worker: int | None = None,
    ) -> Closed:
        worker = worker or self._first._holders[lease.seq, lease.fence]
        closing = self.closing(lease, outcome, u, min_delay_us)
        return self.run(self.ledger.close_attempts(worker, [closing]))[0]

    def close_all(self, ends: Sequence[tuple[Lease, Outcome]], worker: int | None = None) -> list[Closed]:
        """One batch of closings; one result each."""
        closings = [self.closing(lease, outcome) for lease, outcome in ends]
        return self.run(self.ledger.close_attempts(worker or self.worker, closings))

    def extend(self, *leases: Lease, lease_us: int = LEASE, worker: int | None = None) -> set[int]:
        held = [(lease.seq, lease.fence) for lease in leases]
        return self.run(self.ledger.extend(worker or self.worker, held, lease_us))

    def reap(self, limit: int = 100, u: Sequence[float] = (0.0,)) -> Reaped:
        return self.run(self.ledger.reap(limit, u, [JOB]))

    def lose(self, lease: Lease) -> None:
        """The lease's worker is gone for good: its lease runs out, and the reaper comes."""
        until = self.state(lease.seq).leased_until
        assert until is not None
        self.advance_to(max(until, self.time.now))
        self.reap()

    def until_due(self, seq: int) -> None:
        self.advance_to(max(self.time.now, self.state(seq).available_at))

    def overdue(self) -> bool:
        return self.run(self.ledger.overdue())

    def next_due(self, *routes: tuple[str, int]) -> int | None:
        return self.run(self.ledger.next_due(routes or (JOB,)))

    def now(self) -> int:
        return self.run(self.ledger.now())

    def cancel(self, seq: int) -> None:
        self.run(self.ledger.cancel(seq))

    def hold(self, destination: str, on: bool = True) -> None:
        self.run(self.ledger.hold(destination, on))

    # looking

    def state(self, seq: int) -> State:
        return self.run(self.ledger.state(seq))

    def standing(self, seq: int) -> Disposition:
        return self.state(seq).disposition

    def attempts(self, seq: int) -> list[Attempt]:
        return self.run(self.ledger.attempts(seq))

    def outcomes(self, seq: int) -> list[tuple[str, str]]:
        return [(attempt.outcome, attempt.category) for attempt in self.attempts(seq)]

    def dead_letters(self, seq: int) -> list[DeadLetter]:
        return self.run(self.ledger.dead_letters(seq))

    def dead_letter(self, seq: int) -> DeadLetter:
        """The one dead letter of a delivery that is dead."""
        assert self.standing(seq) is Disposition.DEAD
        (letter,) = self.dead_letters(seq)
        return letter

    def transitions(self, seq: int) -> list[Transition]:
        return self.run(self.ledger.transitions(seq))

    def kinds(self, seq: int) -> list[str]:
        return [transition.kind for transition in self.transitions(seq)]

    def everything(self, seq: int) -> tuple[object, ...]:
        """All that the ledger says about a delivery: equal before and after means that nothing changed."""
        return (
            self.state(seq),
            self.attempts(seq),
            self.dead_letters(seq),
            self.transitions(seq),
        )

    def repeats(self, seq: int) -> tuple[list[Repeat], int, int]:
        return self.run(self.ledger.repeats(seq))

    def rows(self, table: str) -> int:
        return self.run(self.ledger.rows(table))

    # abusing

    def force(self, seq: int, **columns: int | None) -> None:
        self.run(self.ledger.force(seq, **columns))


HELD = int(Hold.DESTINATION_DISABLED)
