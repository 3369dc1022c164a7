"""The rows that :mod:`redrive.ledger.verify` reads, delivery by delivery."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Facts(NamedTuple):
    """The delivery's own row: accepted, generation 0."""

    seq: int
    delivery_id: bytes
    handler: str
    tenant: str
    scope: str | None
    destination: str
    event_seq: int | None
    payload_length: int
    content_type: str
    envelope_version: int
    policy_version: int
    max_attempts: int
    deadline_at: int
    first_queued_at: int
    first_due_at: int
    first_hold: int
    event_hash: bytes | None
    event_content_type: str | None


class State(NamedTuple):
    """The one row that changes."""

    seq: int
    route: int
    flow: int
    lane: int
    disposition: int
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
    own_faults: int
    ambiguous: int
    cancel_requested: int
    last_category: str | None


class Attempt(NamedTuple):
    """One charged reservation that has ended."""

    seq: int
    fence: int
    generation: int
    number: int
    started_at: int
    ended_at: int
    outcome: str
    category: str
    next_at: int | None
    deferrals: int
    flags: int


class Generation(NamedTuple):
    """One run under one budget; 0 is made from the delivery's own row."""

    seq: int
    generation: int
    replay_id: bytes
    parent: int
    max_attempts: int
    deadline_at: int
    policy_version: int
    opened_at: int


class DeadLetter(NamedTuple):
    """The evidence that one generation ended without success."""

    seq: int
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
    """What the other rows do not already say."""

    seq: int
    transition: int
    at: int
    kind: str
    generation: int
    fence: int
    category: str | None


class Finding(NamedTuple):
    """A rule that does not hold, and how."""

    rule: str
    message: str


@dataclass(slots=True)
class Entries:
    """Everything the ledger says of one delivery."""

    facts: Facts
    state: State
    attempts: list[Attempt] = field(default_factory=list)
    generations: list[Generation] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    repeats: list[tuple[int, int, str]] = field(default_factory=list)
    """(number, at, decided)"""
    totals: tuple[int, int] = (0, 0)
    """(duplicates, conflicts)"""
    racing: bool = False
    """Whether producers list repeats without waiting for one another: then more than the bound may be listed."""


@dataclass(frozen=True, slots=True)
class Times:
    """Ledger time, and how often it was set back by hand (from, to)."""

    now: int
    repairs: Sequence[tuple[int, int]] = ()

    def backwards(self, earlier: int, later: int) -> bool:
        """Whether ``later`` lies before ``earlier`` and no repair of the clock explains it."""
        return later < earlier and not any(to <= later and earlier <= was for was, to in self.repairs)

    def future(self, at: int) -> bool:
        """Whether ``at`` has not come yet and no repair of the clock explains it."""
        return at > self.now and not any(to <= at <= was for was, to in self.repairs)
