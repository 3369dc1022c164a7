"""A process at a ledger, in plain calls: the vocabulary of the conformance suite."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Coroutine, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from tests.contract.harness import (
    JOB,
    LEASE,
    Attempt,
    DeadLetter,
    Factory,
    HostClock,
    ManualTime,
    Repeat,
    State,
    Transition,
    delivery_of,
    work,
)

from redrive.domain.delivery import (
    Closed,
    Closing,
    Disposition,
    Enqueued,
    Lease,
    NewDelivery,
    NewEvent,
    Published,
)
from redrive.domain.outcome import Outcome
from redrive.domain.ports import Reaped

T = TypeVar("T")


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
            self._names = itertools.count(1)
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
        name = name or f"worker-{next(self._first._names)}"
        return self.run(self.ledger.register_worker(name, routes))

    async def reserving(self, limit: int, routes: Sequence[tuple[str, int]], lease_us: int, worker: int) -> list[Lease]:
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

    def receiver_duplicates(self) -> dict[str, int]:
        return self.run(self.ledger.receiver_duplicates())

    def rows(self, table: str) -> int:
        return self.run(self.ledger.rows(table))

    # abusing

    def tamper(self, seq: int, **columns: int | None) -> None:
        """As :meth:`force`, and nothing refuses it."""
        self.run(self.ledger.tamper(seq, **columns))

    def force(self, seq: int, **columns: int | None) -> None:
        self.run(self.ledger.force(seq, **columns))
