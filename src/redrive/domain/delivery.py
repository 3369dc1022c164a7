"""Where a delivery stands, and the records that cross between ledger and worker."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

from redrive.domain.outcome import Outcome
from redrive.domain.policy import Policy

REPEATS_LISTED: Final = 8
"""Duplicate and conflicting enqueues of one delivery that are listed singly; further ones are counted."""


class Disposition(enum.IntEnum):
    """Where a delivery stands. Stored by number: numbers are never reused."""

    WAITING = 0
    LEASED = 1
    DELIVERED = 2
    NO_OP = 3
    DEAD = 4
    CANCELLED = 5

    @property
    def label(self) -> str:
        """The word, as every face shows it."""
        return self.name.lower()

    @property
    def terminal(self) -> bool:
        """Whether only a redrive (from dead) or nothing at all leaves it."""
        return self >= Disposition.DELIVERED


class Lane(enum.IntEnum):
    """Why the delivery is waiting. Stored by number."""

    FRESH = 0
    RETRY = 1
    REDRIVE = 2


class Hold(enum.IntEnum):
    """Why a waiting delivery is not offered to workers. Stored by number."""

    NONE = 0
    DESTINATION_DISABLED = 1


class Cause(enum.StrEnum):
    """Why a generation ended in a dead letter."""

    ATTEMPTS_EXHAUSTED = "attempts_exhausted"
    AGE_EXHAUSTED = "age_exhausted"
    PERMANENT = "permanent"
    WORKER_LOST = "worker_lost"
    """The last attempt the budget allowed took its worker with it."""
    AMBIGUOUS = "ambiguous"
    """The effect may have happened, and the policy wants a person (or a confirm function) to say."""


class Lease(NamedTuple):
    """The right to execute one attempt, and everything its handler needs. Times are microseconds UTC."""

    seq: int
    delivery_id: bytes
    handler: str
    tenant: str
    scope: str | None
    destination: str
    generation: int
    attempt: int
    max_attempts: int
    deadline_at: int
    fence: int
    started_at: int
    leased_until: int
    deferrals: int
    ambiguous: bool
    envelope_version: int
    content_type: str
    payload: bytes
    payload_hash: bytes
    policy_version: int
    event_id: bytes | None
    event_type: str | None
    occurred_at: int | None


class Standing(NamedTuple):
    """What :func:`redrive.domain.decide.decide` needs to know of a delivery's state row."""

    disposition: Disposition
    attempt: int
    max_attempts: int
    deadline_at: int
    own_faults: int = 0
    ambiguous: bool = False


class NewDelivery(NamedTuple):
    """One delivery to accept. ``delay_us`` is relative to the ledger's clock at acceptance."""

    delivery_id: bytes
    handler: str
    tenant: str
    destination: str
    policy: Policy
    payload_hash: bytes
    payload: bytes | None
    content_type: str = "application/json"
    scope: str | None = None
    envelope_version: int = 1
    priority: int = 2
    delay_us: int = 0
    available_at: int | None = None
    hold: Hold = Hold.NONE
    key_text: str = ""
    """The key as given, for people; identity is ``delivery_id``."""


class NewEvent(NamedTuple):
    """One event to accept, with the payload bytes that every delivery of it will send."""

    event_id: bytes
    event_key: str
    event_type: str
    tenant: str
    payload: bytes
    payload_hash: bytes
    content_type: str
    scope: str | None = None
    envelope_version: int = 1
    occurred_at: int | None = None


class Decided(enum.StrEnum):
    """What an enqueue or publish decided about one item."""

    CREATED = "created"
    DUPLICATE = "duplicate"
    CONFLICT = "conflict"


class Enqueued(NamedTuple):
    """What became of one enqueue: the delivery, and whether this call created it."""

    seq: int
    delivery_id: bytes
    decided: Decided


class Published(NamedTuple):
    """What became of one publish: the event, whether this call created it, and its frozen fan-out."""

    event_id: bytes
    decided: Decided
    deliveries: tuple[Enqueued, ...] = ()


class Closing(NamedTuple):
    """One attempt's end, on its way to the ledger.

    ``u`` in [0, 1) spreads the retry; ``duration_us`` is by the worker's monotonic clock. The policy is not here: the
    ledger applies the one that the delivery's generation was granted under.
    """

    seq: int
    fence: int
    generation: int
    attempt: int
    started_at: int
    deferrals: int
    outcome: Outcome
    u: float
    duration_us: int
    min_delay_us: int = 0
    """The least wait of a deferral, in microseconds."""
    delivery_id: bytes = b""
    """For the log alone."""


class Closed(enum.StrEnum):
    """What the ledger did with one closing."""

    APPLIED = "applied"
    ALREADY = "already"
    """The same outcome under the same fence was recorded before: an ambiguous commit, retried."""
    LATE_ACCEPTED = "late_accepted"
    EVIDENCE = "evidence"
    """Kept as evidence; it changed nothing."""
    MISSING = "missing"
    """The delivery is no longer on the ledger."""
    LATER = "later"
    """Not recorded: somebody else's transaction holds the delivery. Say it again."""


class DeadLetterState(enum.StrEnum):
    """The only thing about a dead letter that changes."""

    OPEN = "open"
    REDRIVEN = "redriven"
    DISCARDED = "discarded"
