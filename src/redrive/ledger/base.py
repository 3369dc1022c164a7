"""What a ledger is to the rest of redrive, whichever database keeps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from redrive.domain.delivery import Enqueued, NewDelivery, NewEvent, Published
from redrive.domain.policy import Policy
from redrive.domain.ports import Extended, WorkLedger
from redrive.ledger.tx import Operation, Tx

T = TypeVar("T")
R = TypeVar("R")
FanOutOf = Callable[[Tx, Sequence[NewEvent]], Sequence[Sequence[NewDelivery]]]
"""The deliveries of each event, asked inside the transaction; for a ledger that does not fan out by itself."""


@dataclass(frozen=True, slots=True)
class Order(Generic[R]):
    """One call's worth of work to accept: all of it or, with one conflict in it, nothing but a note of the conflict.

    ``path`` and ``producer`` say where the call came from, for the list of repeats.
    """

    path: str
    producer: str


@dataclass(frozen=True, slots=True)
class Accept(Order[list[Enqueued]]):
    """Deliveries to accept; one result each, in order."""

    items: Sequence[NewDelivery]


@dataclass(frozen=True, slots=True)
class Publish(Order[list[Published]]):
    """Events to accept, each with its fan-out, which the first publish freezes; one result each, in order."""

    events: Sequence[NewEvent]
    fan_out: FanOutOf


class Ledger(WorkLedger, Protocol):
    """The authority. Usable from any thread and any event loop; every writing method is one durable transaction."""

    environment: str

    @property
    def where(self) -> str:
        """The ledger, for people: never with a password."""
        ...

    def close(self) -> None:
        """Finish queued writes and close every connection."""
        ...

    # Accepting. ``rejected`` are refused calls by error code, counted with the same write.

    def take(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        """Accept an order; when this returns it is durable. From a thread that may block."""
        ...

    async def take_async(self, order: Order[R], rejected: Mapping[str, int]) -> R:
        """As :meth:`take`, without blocking the event loop."""
        ...

    def take_in(self, connection: Any, order: Order[R]) -> R:
        """Accept an order inside the caller's own transaction, to be rolled back with it.

        Raises :class:`~redrive.errors.InvalidInput` for a connection to another database, one without a transaction,
        or an async one.
        """
        ...

    async def take_in_async(self, connection: Any, order: Order[R]) -> R:
        """As :meth:`take_in`, on an async connection."""
        ...

    # Transactions for the layers above: registry, operator decisions, reads.

    async def transact(self, operation: Operation[T], point: str = "operator") -> T:
        """Run ``operation(tx, now)`` in one durable write transaction."""
        ...

    def transact_sync(self, operation: Operation[T], point: str = "operator") -> T:
        """As :meth:`transact`, from a thread that may block."""
        ...

    def run_in(self, connection: Any, operation: Operation[T]) -> T:
        """Run ``operation(tx, now)`` inside the caller's own transaction. Raises as :meth:`take_in`."""
        ...

    async def run_in_async(self, connection: Any, operation: Operation[T]) -> T:
        """As :meth:`run_in`, on an async connection."""
        ...

    def read_sync(self, query: Callable[[Any], T]) -> T:
        """Run ``query(tx)`` on one consistent snapshot, without blocking or being blocked by writers."""
        ...

    async def read(self, query: Callable[[Any], T]) -> T:
        """As :meth:`read_sync`, without blocking the event loop."""
        ...

    def extend_sync(self, worker: int, leases: Sequence[tuple[int, int]], lease_us: int) -> Extended:
        """As ``extend``, from the heart's thread."""
        ...

    def policy_in(self, tx: Tx, version: int) -> Policy:
        """The frozen policy behind a version, read in a transaction."""
        ...

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener``, from any thread, when there may be new work; returns what ends that."""
        ...

    def check_structure(self) -> list[str]:
        """What the database itself finds wrong with the ledger's storage."""
        ...

    def repair_clock(self, operation: Callable[[Tx, int, int], T]) -> T:
        """Run ``operation(tx, ledger time, this host's time)`` and go on from this host's clock if it set it back.

        Raises :class:`~redrive.errors.InvalidInput` where ledger time is not this host's to set.
        """
        ...
