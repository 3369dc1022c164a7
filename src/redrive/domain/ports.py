"""Protocols through which the layers meet; they are wired together in ``redrive.app``."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.outcome import Outcome
from redrive.domain.policy import OnUnknown, Policy

LIVE_US: Final = 120_000_000
"""A worker counts as live while it was seen within this many microseconds; it is seen with every heartbeat."""


class Withdrawn(Exception):
    """The worker has taken the lease back before anything started; nothing may start now."""


class LeaseGuard(Protocol):
    """What a handler asks about the lease it works under. Safe to use from any thread."""

    @property
    def on_unknown(self) -> OnUnknown | None:
        """What follows an unknown outcome by the policy that this delivery was granted, not by today's.

        None while no earlier attempt may have taken effect: there is nothing to ask then.
        """
        return None

    def start(self) -> None:
        """Say that execution begins: from here on the attempt is charged whatever happens.

        Raises :class:`Withdrawn` when the worker, which is shutting down, has given the lease back uncharged.
        """
        ...

    def occupy(self, until: Awaitable[object]) -> None:
        """Keep the slot taken until then, though the outcome is recorded before: a thread cannot be stopped."""
        ...

    def holds(self) -> bool:
        """Whether the lease is certainly still held; ask before anything that cannot be taken back."""
        ...


class Handler(Protocol):
    """What executes deliveries of one name."""

    @property
    def name(self) -> str:
        """The name that deliveries carry."""
        ...

    @property
    def envelope_versions(self) -> frozenset[int]:
        """The payload versions that this handler can decode; others are never claimed for it."""
        ...

    async def execute(self, lease: Lease, guard: LeaseGuard) -> Outcome | None:
        """Run one attempt. May raise: the worker turns that into ``retryable``/``handler_error``.

        None says that there is nothing to record: the effect and its outcome were committed together, or the
        lease was lost before anything started.
        """
        ...


@dataclass(frozen=True, slots=True)
class Reaped:
    """What one pass of the reaper did."""

    expired_leases: int = 0
    expired_ages: int = 0
    more: bool = False
    """The pass was full: there may be more."""


class Grant(NamedTuple):
    """What a handler's new work is granted, and which envelope version is written for it."""

    handler: str
    envelope_version: int
    policy: Policy


class Extended(NamedTuple):
    """What became of leases that were to be extended; the others were."""

    lost: set[int]
    """No longer held."""
    untouched: frozenset[int] = frozenset()
    """Held, and not extended: somebody else's transaction was at them."""


class WorkLedger(Protocol):
    """What a worker asks of a ledger. Every method is one durable transaction, and safe to repeat."""

    async def register_worker(self, name: str, routes: Iterable[tuple[str, int]], grants: Sequence[Grant] = ()) -> int:
        """A new worker's number, for its leases. ``grants`` are kept where SQL alone can enqueue."""
        ...

    async def retire_worker(self, worker: int) -> None:
        """The worker stopped; its unexpired leases stay and will expire."""
        ...

    async def reserve(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        """Charge and lease up to ``limit`` due deliveries of these (handler, envelope version) routes."""
        ...

    async def leftover(self, worker: int) -> list[Lease]:
        """What claims brought whose wait was cancelled; waits for one that is still on its way. Each is given once."""
        ...

    async def close_attempts(self, worker: int, closings: Sequence[Closing]) -> list[Closed]:
        """Record outcomes, one result per closing, in order; what is answered ``later`` is to be said again."""
        ...

    async def extend(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> set[int]:
        """Extend (seq, fence) leases; returns the seqs that are no longer held."""
        ...

    async def reap(self, limit: int, u: Sequence[float], routes: Iterable[tuple[str, int]]) -> Reaped:
        """End expired leases as ``unknown``/``worker_lost`` and waiting work past its age budget."""
        ...

    async def overdue(self) -> bool:
        """Whether any lease or age budget has run out."""
        ...

    async def next_due(self, routes: Sequence[tuple[str, int]]) -> int | None:
        """When the next waiting delivery of these routes is due, in ledger microseconds; None if none."""
        ...

    async def outstanding(self, routes: Sequence[tuple[str, int]]) -> bool:
        """Whether anything of these routes is leased, or waits without being held."""
        ...

    def stamp(self) -> int:
        """A number that changes when another process commits; cheap enough to read every few milliseconds."""
        ...

    def estimate(self) -> int:
        """Ledger time as far as this process can tell without asking."""
        ...

    async def now(self) -> int:
        """Ledger time, in microseconds UTC."""
        ...

    async def policy(self, version: int) -> Policy:
        """The frozen policy behind a version."""
        ...


class Mechanism(Protocol):
    """What hands due work to a worker. The ledger stays the authority: each lease was won in it."""

    def hint(self) -> None:
        """There may be work: look now."""
        ...

    async def receive(self, worker: int, routes: Sequence[tuple[str, int]], limit: int, lease_us: int) -> list[Lease]:
        """Up to ``limit`` leases, charged and durable."""
        ...

    async def wait(self, routes: Sequence[tuple[str, int]], timeout_s: float) -> None:
        """Return when there may be work for ``routes``, or after ``timeout_s`` seconds."""
        ...
