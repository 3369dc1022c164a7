"""``redrive verify``: fold the ledger's entries and compare them with every delivery's state, on a live file.

An entry is the delivery's own row (accepted, generation 0), a generation row, an attempt row, a transition, a
dead letter, or the open-lease columns of the state row (``leased_by``, ``leased_until``, ``started_at``). Each
chunk of deliveries is read in one snapshot, so that workers may go on meanwhile.

The columns of ``delivery_state`` that must equal the fold, and the rule that says so:

==================== =========== ==============================================================================
column               rule        what the entries say
==================== =========== ==============================================================================
``disposition``      disposition how the latest generation ended; else ``leased`` under a lease, else ``waiting``
``generation``       grant       the latest generation row's, or 0
``max_attempts``     grant       what the latest generation was granted
``deadline_at``      grant       what the latest generation was granted
``attempt``          attempt     attempts of the latest generation, and 1 for an open lease
``fence``            fence       attempts of all generations, deferrals on them and on the row, 1 for an open lease
``deferrals``        fence       reservations after the last attempt's, but for the open one
``own_faults``       deferrals   of those, the ones whose transition says ``own_fault``
``available_at``     available   the last ``next_at``, or ``first_due_at``; after deferrals not before their wait
``lane``             lane        ``retry`` after a scheduled retry; else ``redrive`` from generation 1, or ``fresh``
``hold``             hold        the last of ``first_hold``, held, released, deferred, attempt; none when not waiting
``last_category``    category    that of the last attempt, deferral, expiry or accepted late report
``ambiguous``        ambiguous   an ``unknown`` attempt, and no success since
``cancel_requested`` cancel      whether a cancel request is among the transitions
``route``, ``flow``  route       derived from handler, envelope version, destination and tenant
==================== =========== ==============================================================================

``priority`` has no other entry; a CHECK bounds it. Opening a generation changes ``disposition``, ``generation``,
``attempt``, ``max_attempts``, ``deadline_at``, ``available_at``, ``lane`` and ``hold``, and no other column.

Further rules: *identity* (identity, delivery and state are one to one, nothing hangs in the air; of what retention
took, the identity alone is left, and says so), *numbering*
(1..k without a gap in each generation), *budget* (k within what was granted), *age* (nothing starts or is
scheduled at or past its deadline), *early* (nothing starts before it is due), *terminal* (the end is the end),
*dead_letter* (one for each generation that ended badly, and what it says), *lease*, *clock* (nothing is of the
future), *repeat*, *receiver_duplicate* (each destination's count equals its flagged attempts), *event*,
*payload* (bytes equal their hash), *policy*, *audit* (the chain), and on request *file* (what the database finds
wrong with its own storage). Where the clock was set back by :func:`~redrive.ledger.repair.repair_clock`, times that
the audit row explains are not held against the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from redrive.domain.envelope import payload_hash
from redrive.domain.identity import to_text
from redrive.domain.outcome import Flag
from redrive.domain.policy import Policy
from redrive.errors import ConfigError, InvalidInput
from redrive.ledger.audit import CLOCK_REPAIRED, GENESIS, audit_digest
from redrive.ledger.base import Ledger
from redrive.ledger.entries import (
    Attempt,
    DeadLetter,
    Entries,
    Facts,
    Finding,
    Generation,
    State,
    Times,
    Transition,
)
from redrive.ledger.fold import Fold
from redrive.ledger.plans import steady
from redrive.ledger.records import Record, iso
from redrive.ledger.repair import ClockRepair as ClockRepair
from redrive.ledger.repair import repair_clock as repair_clock
from redrive.ledger.statements import sql
from redrive.ledger.tx import Row, Tx

MAX_PROBLEMS: Final = 200
"""Problems that a report lists; further ones are counted."""

_PAYLOAD_BYTES: Final = 4 * 1024 * 1024
Progress = Callable[[int, int], None]
"""Receives how far it is, of how much."""


@dataclass(frozen=True, slots=True)
class Problem(Record):
    """One rule that does not hold."""

    delivery: str | None
    """``dlv_...``; None where it is not about one delivery."""
    rule: str
    message: str


@dataclass(frozen=True, slots=True)
class Report(Record):
    """What a verification found."""

    checked: int
    """Deliveries."""
    problems: tuple[Problem, ...]
    """The first :data:`MAX_PROBLEMS`."""
    total: int
    """All problems."""

    @property
    def ok(self) -> bool:
        """Whether every rule holds."""
        return not self.total


@dataclass(slots=True)
class _Found:
    problems: list[Problem] = field(default_factory=list)
    total: int = 0

    def add(self, delivery: str | None, rule: str, message: str) -> None:
        self.total += 1
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(Problem(delivery, rule, message))


@dataclass(slots=True)
class _Chunk:
    """What one snapshot holds of a range of deliveries."""

    last: int
    times: Times
    policies: dict[int, Policy]
    identities: dict[int, tuple[bytes, bytes]]
    purged: dict[int, int]
    """When retention took the delivery of an identity."""
    facts: dict[int, Facts]
    states: dict[int, State]
    attempts: dict[int, list[Attempt]]
    generations: dict[int, list[Generation]]
    dead: dict[int, list[DeadLetter]]
    transitions: dict[int, list[Transition]]
    repeats: dict[int, list[tuple[int, int, str]]]
    totals: dict[int, tuple[int, int]]
    racing: bool
    """Whether repeats are listed by many transactions at a time."""
    broken: dict[int, str]
    """Payloads that are not what their identity says."""

    @property
    def tombstones(self) -> set[int]:
        """Identities of deliveries that retention took, of which nothing else is left."""
        left: list[Mapping[int, Any]] = [self.facts, self.states, self.attempts, self.generations, self.dead]
        left += [self.transitions, self.repeats, self.totals]
        return self.purged.keys() - set().union(*left)


def verify(
    ledger: Ledger,
    progress: Progress | None = None,
    chunk: int = 2000,
    *,
    quick_check: bool = False,
) -> Report:
    """Check every rule on the page above; never writes, and never blocks a worker.

    ``chunk`` is how many deliveries are read in one snapshot. ``quick_check`` also asks the database to check its
    own storage, where it can: SQLite does, in one snapshot that lasts as long as reading the whole file.
    """
    if chunk < 1:
        raise InvalidInput("chunk must be 1 or more", param="chunk")
    found = _Found()
    (top, top_event), said = ledger.read_sync(lambda tx: (tx.rows(sql("verify_top"))[0], _said(tx)))
    told: dict[str, int] = {}
    if quick_check:
        for line in ledger.check_structure():
            found.add(None, "file", line)
    ledger.read_sync(lambda tx: _policies(tx, found))
    checked = after = tombstones = 0
    while after < top:
        part = ledger.read_sync(lambda tx, after=after: _read(tx, after, chunk, top))  # type: ignore[misc]
        checked += _check(part, found)
        _count_told(part, told)
        tombstones += len(part.tombstones)
        after = part.last
        if progress is not None:
            progress(after, top + top_event)
    last: bytes | None = b""
    while last is not None:
        last, passed = ledger.read_sync(lambda tx, last=last: _orphans(tx, last, chunk, found))  # type: ignore[misc]
        tombstones += passed
    # The attempts of what retention took are gone, and still counted; its tombstones may be gone too.
    tombstones += ledger.read_sync(lambda tx: tx.rows(sql("retention_state"))[0][2])
    _receiver_duplicates({} if tombstones else said, told, ledger.read_sync(_said), found)
    after = 0
    while after < top_event:
        after = ledger.read_sync(lambda tx, after=after: _events(tx, after, chunk, found)) or top_event  # type: ignore[misc]
        if progress is not None:
            progress(top + min(after, top_event), top + top_event)
    _audit(ledger, found)
    return Report(checked, tuple(found.problems), found.total)


def _times(tx: Tx) -> Times:
    repairs = tx.rows(sql("audit_repairs"), (CLOCK_REPAIRED,))
    return Times(tx.rows(sql("clock_read"))[0][0], [(was, to) for was, to in repairs])


def _policies(tx: Tx, found: _Found | None = None) -> dict[int, Policy]:
    policies = {}
    for version, spec in tx.rows(sql("verify_policies")):
        try:
            policies[version] = policy = Policy.from_spec(spec)
        except ConfigError as exc:
            if found is not None:
                found.add(None, "policy", f"policy {version} cannot be read: {exc}")
            continue
        if found is not None and policy.version != version:
            found.add(None, "policy", f"policy {version} holds the contents of {policy.version}")
    return policies


def _grouped(rows: Sequence[Row], make: Callable[[Row], Any]) -> dict[int, list[Any]]:
    groups: dict[int, list[Any]] = {}
    for row in rows:
        groups.setdefault(row[0], []).append(make(row))
    return groups


def _read(tx: Tx, after: int, chunk: int, top: int) -> _Chunk:
    steady(tx)
    last = min(tx.rows(sql("verify_window"), (after, chunk, top))[0][0], top)
    span = (after, last)
    identities = tx.rows(sql("verify_identity"), span)
    part = _Chunk(
        last,
        _times(tx),
        _policies(tx),
        {row[0]: (row[1], row[2]) for row in identities},
        {row[0]: row[3] for row in identities if len(row) > 3 and row[3] is not None},
        {row[0]: Facts._make(row) for row in tx.rows(sql("verify_delivery"), span)},
        {row[0]: State._make(row) for row in tx.rows(sql("verify_state"), span)},
        _grouped(tx.rows(sql("verify_attempt"), span), Attempt._make),
        _grouped(tx.rows(sql("verify_generation"), span), Generation._make),
        _grouped(tx.rows(sql("verify_dead_letter"), span), DeadLetter._make),
        _grouped(tx.rows(sql("verify_transition"), span), Transition._make),
        _grouped(tx.rows(sql("verify_repeat"), span), lambda row: (row[1], row[2], row[3])),
        {seq: (duplicates, conflicts) for seq, duplicates, conflicts in tx.rows(sql("verify_repeat_count"), span)},
        tx.dialect == "postgres",
        {},
    )
    _payloads(tx, part)
    return part


def _batches(lengths: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Ranges of keys whose payloads are read at once: a bounded number of bytes, or a single one."""
    first: int | None = None
    last = held = 0
    for key, length in lengths:
        if first is not None and held + length > _PAYLOAD_BYTES:
            yield first, last
            first, held = None, 0
        first = key if first is None else first
        last, held = key, held + length
    if first is not None:
        yield first, last


def _payloads(tx: Tx, part: _Chunk) -> None:
    lengths = []
    for seq, facts in sorted(part.facts.items()):
        known = part.identities.get(seq)
        if known is None:
            continue
        shared = facts.event_seq is not None
        if shared and facts.content_type == facts.event_content_type:
            # The event's own bytes are compared with its hash once, however many share them.
            if facts.event_hash != known[1]:
                part.broken[seq] = "the event's payload is not what its identity was derived with"
        elif not shared or facts.event_hash is not None:
            lengths.append((seq, facts.payload_length))
    for span in _batches(lengths):
        for seq, content_type, payload in tx.rows(sql("verify_payload"), span):
            if seq in part.identities and payload_hash(content_type, payload) != part.identities[seq][1]:
                part.broken[seq] = "the payload is not what its hash says"


def _check(part: _Chunk, found: _Found) -> int:
    """Hold a chunk against the rules; the number of deliveries in it."""
    whole = part.identities.keys() & part.facts.keys() & part.states.keys()
    tables: dict[str, Any] = {
        "identity": part.identities,
        "delivery": part.facts,
        "delivery_state": part.states,
        "attempt": part.attempts,
        "generation": part.generations,
        "dead_letter": part.dead,
        "transition": part.transitions,
        "repeat": part.repeats.keys() | part.totals.keys(),
    }
    every = set().union(*tables.values()) - part.tombstones
    for seq in sorted(every):
        if seq not in whole:
            have = [name for name, rows in tables.items() if seq in rows]
            found.add(_name(part, seq), "identity", f"delivery {seq} is only in {', '.join(have)}")
            continue
        name = _name(part, seq)
        facts = part.facts[seq]
        if part.identities[seq][0] != facts.delivery_id:
            found.add(name, "identity", "identity and delivery disagree about the delivery ID")
        if seq in part.purged:
            found.add(name, "identity", f"retention took it at {iso(part.purged[seq])}, and it is still there")
        if facts.event_seq is not None and facts.event_hash is None:
            found.add(name, "event", f"its event {facts.event_seq} is not on the ledger")
        if seq in part.broken:
            found.add(name, "payload", part.broken[seq])
        entries = Entries(
            facts,
            part.states[seq],
            part.attempts.get(seq, []),
            part.generations.get(seq, []),
            part.dead.get(seq, []),
            part.transitions.get(seq, []),
            part.repeats.get(seq, []),
            part.totals.get(seq, (0, 0)),
            part.racing,
        )
        for finding in _findings(entries, part):
            found.add(name, finding.rule, finding.message)
    return len(every)


def _findings(entries: Entries, part: _Chunk) -> Iterator[Finding]:
    yield from Fold(entries, part.policies, part.times).findings()


def _name(part: _Chunk, seq: int) -> str:
    if seq in part.facts:
        return to_text("dlv", part.facts[seq].delivery_id)
    if seq in part.identities:
        return to_text("dlv", part.identities[seq][0])
    return f"seq {seq}"


def _orphans(tx: Tx, after: bytes, chunk: int, found: _Found) -> tuple[bytes | None, int]:
    """Where identities are not read by seq: the next chunk of them, by ID. The last ID, and how many are tombstones."""
    if tx.dialect == "sqlite":
        return None, 0
    steady(tx)
    rows = tx.rows(sql("verify_orphans"), (after, chunk))
    tombstones = 0
    for raw, seq, purged_at, known in rows:
        if known is not None and known != raw:
            found.add(to_text("dlv", raw), "identity", "identity and delivery disagree about the delivery ID")
        elif known is None and purged_at is None:
            found.add(to_text("dlv", raw), "identity", f"delivery {seq} has an identity, and no delivery")
        tombstones += purged_at is not None
    return (rows[-1][0] if rows else None), tombstones


def _events(tx: Tx, after: int, chunk: int, found: _Found) -> int:
    """Check the next chunk of events; the last one's number, or 0 when there are none left."""
    steady(tx)
    times = _times(tx)
    rows = tx.rows(sql("verify_event"), (after, chunk))
    hashes = {}
    for number, raw, digest, length, accepted_at, fan_out, deliveries, *retention in rows:
        name = to_text("evt", raw)
        purged_at, taken = retention or (None, False)
        if purged_at is None:
            hashes[number] = digest, name
        elif length or deliveries:
            text = f"{name}: retention took its payload, and {length} bytes and {deliveries} deliveries are there"
            found.add(None, "event", text)
        # Retention takes deliveries one by one, and the payload with the last.
        if fan_out != deliveries and not (fan_out > deliveries and (taken or purged_at is not None)):
            found.add(None, "event", f"{name} was fanned out to {fan_out}, and has {deliveries} deliveries")
        if times.future(accepted_at):
            found.add(None, "clock", f"{name} is of {iso(accepted_at)}, ledger time is {iso(times.now)}")
    for span in _batches([(row[0], row[3]) for row in rows]):
        for number, content_type, payload in tx.rows(sql("verify_event_payload"), span):
            digest, name = hashes.get(number, (None, ""))
            if digest is not None and payload_hash(content_type, payload) != digest:
                found.add(None, "payload", f"{name}: the payload is not what its hash says")
    return int(rows[-1][0]) if rows else 0


def _said(tx: Tx) -> dict[str, int]:
    return dict(tx.rows(sql("receiver_duplicates")))


def _count_told(part: _Chunk, told: dict[str, int]) -> None:
    for seq, attempts in part.attempts.items():
        flagged = sum(bool(attempt.flags & Flag.RECEIVER_DUPLICATE) for attempt in attempts)
        if flagged and seq in part.facts:
            destination = part.facts[seq].destination
            told[destination] = told.get(destination, 0) + flagged


def _receiver_duplicates(before: dict[str, int], told: dict[str, int], after: dict[str, int], found: _Found) -> None:
    """Attempts were read while more ended: there are no fewer than were counted before, nor more than after."""
    for name in sorted(told.keys() | after.keys()):
        low, flagged, high = before.get(name, 0), told.get(name, 0), after.get(name, 0)
        if not low <= flagged <= high:
            text = f"{high} attempts of {name} are counted as duplicates by its receiver, {flagged} say so"
            found.add(None, "receiver_duplicate", text)


def _audit(ledger: Ledger, found: _Found) -> None:
    previous, last = GENESIS, 0
    while rows := ledger.read_sync(lambda tx, last=last: tx.rows(sql("audit_after"), (last, 1000))):  # type: ignore[misc]
        for number, *row, digest in rows:
            if number != last + 1:
                found.add(None, "audit", f"audit row {number} follows {last}")
            elif audit_digest(previous, *row) != digest:
                found.add(None, "audit", f"audit row {number} or the one before it was changed")
            previous, last = digest, number
    times, latest = ledger.read_sync(lambda tx: (_times(tx), tx.rows(sql("verify_latest"))[0][0]))
    if times.future(latest):
        found.add(None, "clock", f"a worker or audit row is of {iso(latest)}, ledger time is {iso(times.now)}")
