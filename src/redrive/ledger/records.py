"""What people see of the ledger: plain records, made from rows, that print themselves as JSON.

Inside a record a time is integer microseconds UTC in a field named ``at`` or ``..._at``, and a length of time
is integer microseconds in a field named ``..._us``. :meth:`Record.as_dict` gives the JSON shape: times as
ISO-8601 UTC with six decimals and ``Z``, lengths as they are, IDs as text, and no integer beyond 2**53 (a
policy's version is text). No record holds a payload, a header or a response body.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

from redrive.domain.delivery import Disposition, Hold, Lane
from redrive.domain.identity import attempt_id, replay_id, to_text
from redrive.domain.outcome import Flag

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CYCLE_DAYS: Final = 146_097  # 400 Gregorian years, exactly
_DAY_US: Final = 86_400_000_000


def iso(us: int) -> str:
    """Microseconds UTC as ``2026-08-21T02:00:00.000000Z`` (ISO 8601; a year beyond 9999 as ``+10026``)."""
    cycles = 0
    while us // _DAY_US >= 2_932_897:  # 9999-12-31 is the last day that datetime knows
        us -= _CYCLE_DAYS * _DAY_US
        cycles += 1
    while us // _DAY_US < -719_162:  # 0001-01-01
        us += _CYCLE_DAYS * _DAY_US
        cycles -= 1
    moment = _EPOCH + timedelta(microseconds=us)
    year = moment.year + 400 * cycles
    shown = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"
    return f"{shown}{moment:-%m-%dT%H:%M:%S.%f}Z"


def span(us: int) -> str:
    """A length of time for people: ``250 us``, ``12.5 ms``, ``2 s``, ``15 min``, ``1 h 30 min``, ``2 d 4 h``."""
    if us < 0:
        return f"-{span(-us)}"
    if us < 1_000:
        return f"{us} us"
    if us < 1_000_000:
        return f"{us / 1_000:.3g} ms"
    if us < 60_000_000:
        return f"{us / 1_000_000:.3g} s"
    minutes = us // 60_000_000
    large, small, names = (
        (us // 60_000_000, us // 1_000_000 % 60, ("min", "s"))
        if minutes < 60
        else (minutes // 60, minutes % 60, ("h", "min"))
        if minutes < 2_880
        else (minutes // 1_440, minutes // 60 % 24, ("d", "h"))
    )
    return f"{large} {names[0]}" + (f" {small} {names[1]}" if small else "")


def flag_words(flags: int) -> tuple[str, ...]:
    """The flags of an attempt as words: ``late``, ``receiver_duplicate``, ..."""
    return tuple(str(flag.name).lower() for flag in Flag if flag and flags & flag)


def hold_word(hold: int) -> str | None:
    """Why a waiting delivery is not offered to workers, or None."""
    return None if hold == Hold.NONE else Hold(hold).name.lower()


def _plain(name: str, value: Any) -> Any:
    if isinstance(value, Record):
        return value.as_dict()
    if isinstance(value, tuple):
        return [_plain("", item) for item in value]
    if isinstance(value, int) and not isinstance(value, bool) and (name == "at" or name.endswith("_at")):
        return iso(value)
    return value


class Record:
    """Base of the records on this page."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON takes it."""
        return {f.name: _plain(f.name, getattr(self, f.name)) for f in fields(self)}  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class DeliveryView(Record):
    """One delivery as it stands."""

    id: str
    handler: str
    tenant: str
    scope: str | None
    destination: str
    key: str
    event_id: str | None
    event_type: str | None
    event_key: str | None
    disposition: str
    hold: str | None
    generation: int
    attempt: int
    """Attempts charged in this generation, the open one included."""
    max_attempts: int
    deadline_at: int
    available_at: int
    fence: int
    lane: str
    priority: int
    last_category: str | None
    ambiguous: bool
    """An effect may exist that nobody has confirmed or ruled out."""
    cancel_requested: bool
    deferrals: int
    """Reservations that cost nothing, since the last attempt."""
    first_queued_at: int
    first_due_at: int
    content_type: str
    envelope_version: int
    policy_version: str
    worker: str | None
    """Who holds the lease, while there is one."""
    started_at: int | None
    lease_expires_at: int | None

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """From the columns of ``sql/show.sql``, in its order."""
        (delivery_id, handler, tenant, scope, destination, key, event_id, event_type, event_key, *rest) = row
        (disposition, hold, generation, attempt, max_attempts, deadline_at, available_at, fence, *rest) = rest
        (lane, priority, category, ambiguous, cancel, deferrals, queued, due, content_type, *rest) = rest
        (envelope, policy, worker, started_at, leased_until) = rest
        return cls(
            id=to_text("dlv", delivery_id),
            handler=handler,
            tenant=tenant,
            scope=scope,
            destination=destination,
            key=key,
            event_id=None if event_id is None else to_text("evt", event_id),
            event_type=event_type,
            event_key=event_key,
            disposition=Disposition(disposition).label,
            hold=hold_word(hold),
            generation=generation,
            attempt=attempt,
            max_attempts=max_attempts,
            deadline_at=deadline_at,
            available_at=available_at,
            fence=fence,
            lane=Lane(lane).name.lower(),
            priority=priority,
            last_category=category,
            ambiguous=bool(ambiguous),
            cancel_requested=bool(cancel),
            deferrals=deferrals,
            first_queued_at=queued,
            first_due_at=due,
            content_type=content_type,
            envelope_version=envelope,
            policy_version=str(policy),
            worker=worker,
            started_at=started_at,
            lease_expires_at=leased_until,
        )


@dataclass(frozen=True, slots=True)
class AttemptView(Record):
    """One attempt that has ended."""

    id: str
    number: int
    generation: int
    fence: int
    worker: str | None
    started_at: int
    ended_at: int
    duration_us: int
    """By the worker's monotonic clock."""
    outcome: str
    category: str
    status: int | None
    retry_after_us: int | None
    """What the target asked for."""
    next_at: int | None
    """The retry that this attempt scheduled."""
    deferrals: int
    """Reservations that cost nothing, between the attempt before and this one."""
    flags: tuple[str, ...]
    excerpt: str | None

    @classmethod
    def from_row(cls, delivery: bytes, row: Sequence[Any]) -> Self:
        """From the columns of ``sql/attempts.sql``, in its order."""
        (number, generation, fence, worker, started_at, ended_at, duration, outcome, category, *rest) = row
        status, retry_after, next_at, deferrals, flags, excerpt = rest
        return cls(
            id=to_text("att", attempt_id(delivery, fence)),
            number=number,
            generation=generation,
            fence=fence,
            worker=worker,
            started_at=started_at,
            ended_at=ended_at,
            duration_us=duration,
            outcome=outcome,
            category=category,
            status=status,
            retry_after_us=retry_after,
            next_at=next_at,
            deferrals=deferrals,
            flags=flag_words(flags),
            excerpt=excerpt,
        )


@dataclass(frozen=True, slots=True)
class DeadLetterView(Record):
    """The evidence that one generation of a delivery ended without success."""

    number: int
    """Grows in the order of death."""
    delivery: str
    generation: int
    replay_id: str | None
    """The generation's own ID; None for the original."""
    state: str
    handler: str
    tenant: str
    scope: str | None
    destination: str
    event_id: str | None
    event_type: str | None
    cause: str
    category: str
    attempts: int
    first_at: int | None
    last_at: int | None
    ambiguous: bool
    policy_version: str
    died_at: int

    @classmethod
    def from_row(cls, row: Sequence[Any]) -> Self:
        """From ``search.DEAD_COLUMNS``, in their order."""
        (
            number,
            delivery,
            generation,
            state,
            handler,
            tenant,
            scope,
            destination,
            event,
            event_type,
            *rest,
        ) = row
        cause, category, attempts, first_at, last_at, ambiguous, policy, died_at = rest
        return cls(
            number=number,
            delivery=to_text("dlv", delivery),
            generation=generation,
            replay_id=to_text("gen", replay_id(delivery, generation)) if generation else None,
            state=state,
            handler=handler,
            tenant=tenant,
            scope=scope,
            destination=destination,
            event_id=None if event is None else to_text("evt", event),
            event_type=event_type,
            cause=cause,
            category=category,
            attempts=attempts,
            first_at=first_at,
            last_at=last_at,
            ambiguous=bool(ambiguous),
            policy_version=str(policy),
            died_at=died_at,
        )


@dataclass(frozen=True, slots=True)
class DeadCount(Record):
    """How many dead letters there are of one destination, cause and category."""

    destination: str
    cause: str
    category: str
    count: int
    oldest_at: int
    newest_at: int


@dataclass(frozen=True, slots=True)
class TimelineEntry(Record):
    """One thing that happened to a delivery. ``facts`` holds what ``text`` says, in the JSON shape."""

    at: int
    kind: str
    text: str
    facts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Count(Record):
    """A count that stops at a cap: with ``more``, there are at least ``count``."""

    count: int
    more: bool = False

    def __str__(self) -> str:
        return f"{self.count:,}{'+' if self.more else ''}"


NONE: Final = Count(0)


@dataclass(frozen=True, slots=True)
class WorkerView(Record):
    """A worker process that was seen lately."""

    name: str
    host: str
    pid: int
    version: str
    routes: tuple[tuple[str, int], ...]
    """(handler, envelope version) that it executes."""
    started_at: int
    seen_at: int


@dataclass(frozen=True, slots=True)
class Unclaimed(Record):
    """Waiting deliveries that no live worker can execute."""

    handler: str
    envelope_version: int
    waiting: Count


@dataclass(frozen=True, slots=True)
class DisabledDestination(Record):
    """A destination that receives nothing until somebody enables it."""

    destination: str
    tenant: str
    name: str
    disabled_at: int | None
    why: str | None


@dataclass(frozen=True, slots=True)
class StatusView(Record):
    """The ledger in one look. Cheap at any size: counts are capped, or read from indexes on live work."""

    environment: str
    schema_version: int
    created_at: int
    now_at: int
    """Ledger time."""
    skew_us: int
    """How far ledger time is ahead of this host's clock."""
    accepted: Count
    """Deliveries that the ledger knows, those that retention has left a tombstone of included."""
    dispositions: dict[str, Count]
    due: Count
    """Waiting, not held, and their time has come."""
    oldest_due_us: int | None
    """How long the oldest due delivery has been due. Work that is not due yet has no age."""
    oldest_lease_us: int | None
    expired_leases: int
    """Leases that have run out and that no reaper has ended yet."""
    held: Count
    disabled: tuple[DisabledDestination, ...]
    """Destinations that are disabled, whether or not anything waits for them; the first hundred by name."""
    dead_letters_open: Count
    workers: tuple[WorkerView, ...]
    unclaimed: tuple[Unclaimed, ...]
    rejections: dict[str, int]
    """Enqueues refused before they reached the ledger, by error code."""
    duplicates: Count
    conflicts: Count
    receiver_duplicates: int
    """Attempts whose answer said that the receiver had seen the delivery before."""
    wal_defect: str | None

    def as_dict(self) -> dict[str, Any]:
        """The record as JSON takes it."""
        shown = Record.as_dict(self)
        shown["dispositions"] = {word: count.as_dict() for word, count in self.dispositions.items()}
        return shown
