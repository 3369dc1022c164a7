"""One delivery's entries, folded, and compared with its state row. Pure: rows in, findings out.

Which columns of ``delivery_state`` must equal what is listed in :mod:`redrive.ledger.verify`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Final

from redrive.domain import identity
from redrive.domain.decide import MIN_DEFERRAL
from redrive.domain.delivery import REPEATS_LISTED, Cause, DeadLetterState, Disposition, Hold, Lane
from redrive.domain.outcome import Category, Flag, OutcomeKind
from redrive.domain.policy import Policy
from redrive.ledger.entries import Attempt, DeadLetter, Entries, Finding, Generation, Times
from redrive.ledger.records import iso

_SUCCESS: Final = {
    OutcomeKind.DELIVERED.value: Disposition.DELIVERED,
    OutcomeKind.NO_OP.value: Disposition.NO_OP,
}
_ENDS: Final = {
    "late_delivered": Disposition.DELIVERED,
    "late_no_op": Disposition.NO_OP,
    "cancelled": Disposition.CANCELLED,
    "expired": Disposition.DEAD,
}
_DEFERRALS: Final = ("deferred", "interrupted")


@lru_cache(maxsize=4096)
def _route(handler: str, envelope_version: int) -> int:
    return identity.route_of(handler, envelope_version)


@lru_cache(maxsize=16384)
def _flow(handler: str, envelope_version: int, destination: str, tenant: str) -> int:
    return identity.flow_of(handler, envelope_version, destination, tenant)


class Fold:
    """The entries of one delivery, and each rule as a method that yields its findings."""

    def __init__(self, entries: Entries, policies: Mapping[int, Policy], times: Times) -> None:
        self.e = entries
        self.facts, self.state = entries.facts, entries.state
        self.policies = policies
        self.times = times
        self.leased = entries.state.leased_by is not None
        first = Generation(
            self.facts.seq,
            0,
            b"",
            0,
            self.facts.max_attempts,
            self.facts.deadline_at,
            self.facts.policy_version,
            self.facts.first_queued_at,
        )
        self.grants = [first, *entries.generations]
        self.latest = self.grants[-1].generation
        self.by_generation: dict[int, list[Attempt]] = {}
        for attempt in entries.attempts:
            self.by_generation.setdefault(attempt.generation, []).append(attempt)
        self.current = self.by_generation.get(self.latest, [])
        self.last = entries.attempts[-1] if entries.attempts else None
        self.deferred = [t for t in entries.transitions if t.kind in _DEFERRALS]

    def findings(self) -> Iterator[Finding]:
        """Every rule's findings."""
        for rule in (
            self.grant,
            self.numbering,
            self.fence,
            self.age,
            self.early,
            self.terminal,
            self.disposition,
            self.dead_letter,
            self.available,
            self.columns,
            self.deferrals,
            self.lease,
            self.clock,
            self.repeats,
        ):
            yield from rule()

    def grant(self) -> Iterator[Finding]:
        facts, state = self.facts, self.state
        for number, grant in enumerate(self.grants):
            if grant.generation != number or (number and grant.parent != number - 1):
                yield Finding("grant", f"generation {grant.generation} does not follow {number - 1}")
            elif number and grant.replay_id != identity.replay_id(facts.delivery_id, number):
                yield Finding("grant", f"generation {number} carries another replay ID than its own")
            if grant.policy_version not in self.policies:
                yield Finding("policy", f"policy {grant.policy_version} is not on the ledger")
        policy = self.policies.get(facts.policy_version)
        if policy is not None:
            deadline = max(facts.first_due_at, facts.first_queued_at) + policy.max_age
            if (facts.max_attempts, facts.deadline_at) != (policy.max_attempts, deadline):
                yield Finding("grant", "the first budget is not the one of its policy")
        latest = self.grants[-1]
        want = (latest.generation, latest.max_attempts, latest.deadline_at)
        have = (state.generation, state.max_attempts, state.deadline_at)
        if have != want:
            names = ("generation", "max_attempts", "deadline_at")
            wrong = [f"{n} is {h}, not {w}" for n, h, w in zip(names, have, want, strict=True) if h != w]
            yield Finding("grant", f"{', '.join(wrong)}, as generation {self.latest} was granted")

    def numbering(self) -> Iterator[Finding]:
        reached = 0
        for attempt in self.e.attempts:
            if not reached <= attempt.generation <= self.latest:
                yield Finding("numbering", f"fence {attempt.fence} is of generation {attempt.generation}")
            reached = max(reached, attempt.generation)
        for generation, attempts in self.by_generation.items():
            numbers = [a.number for a in attempts]
            if numbers != list(range(1, len(numbers) + 1)):
                yield Finding("numbering", f"attempts of generation {generation} are numbered {numbers}")
        for grant in self.grants:
            count = len(self.by_generation.get(grant.generation, ()))
            if count > grant.max_attempts:
                text = f"{count} attempts in generation {grant.generation}, {grant.max_attempts} granted"
                yield Finding("budget", text)
        want = len(self.current) + self.leased
        if self.state.attempt != want:
            yield Finding("attempt", f"attempt is {self.state.attempt}, {want} were charged")

    def fence(self) -> Iterator[Finding]:
        before = 0
        started = None
        for a in self.e.attempts:
            if a.fence != before + 1 + a.deferrals:
                text = f"fence {a.fence} follows {before} with {a.deferrals} deferrals between"
                yield Finding("fence", text)
            if started is not None and self.times.backwards(started, a.started_at):
                yield Finding("fence", f"fence {a.fence} started before the fence below it")
            before, started = a.fence, a.started_at
        want = before + self.state.deferrals + self.leased
        if self.state.fence != want:
            yield Finding("fence", f"fence is {self.state.fence}, {want} reservations are accounted for")
        top = max((t.fence for t in self.e.transitions), default=0)
        if top > max(self.state.fence, want):
            yield Finding("fence", f"a transition has fence {top}, which was never given out")

    def age(self) -> Iterator[Finding]:
        deadlines = {g.generation: g.deadline_at for g in self.grants}
        for a in self.e.attempts:
            deadline = deadlines.get(a.generation)
            if deadline is None:
                continue
            if a.started_at >= deadline:
                yield Finding("age", f"attempt {a.number} started at or after its deadline")
            if a.next_at is not None and a.next_at >= deadline:
                yield Finding("age", f"attempt {a.number} scheduled a retry at or after the deadline")
        started = self.state.started_at
        if started is not None and started >= self.grants[-1].deadline_at:
            yield Finding("age", "the open attempt started at or after its deadline")

    def early(self) -> Iterator[Finding]:
        opened = {g.generation: g.opened_at for g in self.grants}
        opened[0] = self.facts.first_due_at
        before: Attempt | None = None
        for a in self.e.attempts:
            yield from self._not_before(f"attempt {a.number}", a.fence, a.generation, a.started_at, before, opened)
            before = a
        if self.state.started_at is not None:
            what, generation = "the open attempt", self.latest
            started = self.state.started_at
            if self.times.backwards(self.state.available_at, started):
                yield Finding("early", f"{what} started before {iso(self.state.available_at)}")
            yield from self._not_before(what, self.state.fence, generation, started, before, opened)

    def _not_before(
        self,
        what: str,
        fence: int,
        generation: int,
        started_at: int,
        before: Attempt | None,
        opened: Mapping[int, int],
    ) -> Iterator[Finding]:
        due = [opened.get(generation, 0)]
        floor = 0
        if before is not None:
            floor = before.fence
            if before.generation == generation and before.next_at is not None:
                due.append(before.next_at)
        due += [t.at + MIN_DEFERRAL for t in self.deferred if floor < t.fence < fence]
        for at in due:
            if self.times.backwards(at, started_at):
                yield Finding("early", f"{what} started at {iso(started_at)}, not due before {iso(at)}")
                return

    def terminal(self) -> Iterator[Finding]:
        for generation, attempts in self.by_generation.items():
            for a in attempts:
                final = a.outcome in _SUCCESS or a.outcome == OutcomeKind.PERMANENT
                if final and a.next_at is not None:
                    yield Finding("terminal", f"attempt {a.number} ended {a.outcome} and scheduled a retry")
                elif a.next_at is None and a is not attempts[-1]:
                    text = f"attempt {a.number} of generation {generation} was the last, and others followed"
                    yield Finding("terminal", text)
                elif a.outcome in _SUCCESS and generation < self.latest:
                    yield Finding("terminal", f"generation {generation} succeeded, and another was opened")
        for t in self.e.transitions:
            end = _ENDS.get(t.kind)
            if end is None:
                continue
            after = [a for a in self.by_generation.get(t.generation, ()) if a.fence > t.fence]
            if after or (end is not Disposition.DEAD and t.generation < self.latest):
                yield Finding("terminal", f"{t.kind} was the end, and more attempts or a generation followed")

    def _end(self, generation: int) -> Disposition | None:
        """How a generation ended by its attempts and transitions, or None while it has not."""
        for t in self.e.transitions:
            if t.generation == generation and t.kind in _ENDS:
                return _ENDS[t.kind]
        attempts = self.by_generation.get(generation)
        if attempts and attempts[-1].outcome in _SUCCESS:
            return _SUCCESS[attempts[-1].outcome]
        if attempts and attempts[-1].next_at is None:
            return Disposition.DEAD
        if self.state.deferrals and any(d.generation == generation for d in self.e.dead):
            return Disposition.DEAD  # a deferral that no longer fitted before the deadline leaves only this
        return None

    def disposition(self) -> Iterator[Finding]:
        end = self._end(self.latest)
        want = end if end is not None else Disposition.LEASED if self.leased else Disposition.WAITING
        if self.state.disposition != want:
            shown = _word(self.state.disposition)
            yield Finding("disposition", f"disposition is {shown}, the entries say {want.label}")

    def dead_letter(self) -> Iterator[Finding]:
        letters = {letter.generation: letter for letter in self.e.dead}
        for grant in self.grants:
            generation = grant.generation
            bad = generation < self.latest or self._end(generation) is Disposition.DEAD
            letter = letters.pop(generation, None)
            if bad and letter is None:
                yield Finding("dead_letter", f"generation {generation} ended badly and left no dead letter")
            elif letter is not None and not bad:
                yield Finding("dead_letter", f"generation {generation} has a dead letter and did not end badly")
            elif letter is not None:
                yield from self._letter(letter, grant)
        for generation in letters:
            yield Finding("dead_letter", f"a dead letter of generation {generation}, which was never opened")

    def _letter(self, letter: DeadLetter, grant: Generation) -> Iterator[Finding]:
        attempts = self.by_generation.get(grant.generation, [])
        facts = self.facts
        want: dict[str, object] = {
            "handler": facts.handler,
            "tenant": facts.tenant,
            "scope": facts.scope,
            "destination": facts.destination,
            "attempts": len(attempts),
            "first_at": min((a.started_at for a in attempts), default=None),
            "last_at": max((a.ended_at for a in attempts), default=None),
            "policy_version": grant.policy_version,
        }
        if grant.generation == self.latest:
            want["category"] = self._category()
            want["ambiguous"] = self._ambiguous()
        for name, value in want.items():
            if getattr(letter, name) != value:
                yield Finding("dead_letter", f"{name} is {getattr(letter, name)!r}, the entries say {value!r}")
        spent = len(attempts) == grant.max_attempts
        permanent = bool(attempts) and attempts[-1].outcome == OutcomeKind.PERMANENT
        believable = {
            Cause.ATTEMPTS_EXHAUSTED: spent,
            Cause.WORKER_LOST: spent,
            Cause.PERMANENT: permanent,
            Cause.AMBIGUOUS: bool(letter.ambiguous),
            Cause.AGE_EXHAUSTED: not permanent,
        }
        if not believable.get(letter.cause, False):  # type: ignore[call-overload]
            yield Finding("dead_letter", f"the attempts do not bear out the cause {letter.cause}")
        left = grant.generation < self.latest
        if letter.state == (DeadLetterState.OPEN if left else DeadLetterState.REDRIVEN):
            yield Finding("dead_letter", f"it is {letter.state}, and generation {self.latest} is the latest")

    def available(self) -> Iterator[Finding]:
        """Exact where an entry says it; after coalesced deferrals, the least that it can be."""
        have = self.state.available_at
        want: int | None = self.facts.first_due_at if self.latest == 0 else None
        least = self.grants[-1].opened_at if self.latest else 0
        for a in self.current:
            if a.deferrals:
                want = None
            if a.next_at is not None:
                want = a.next_at
        if self.state.deferrals:
            want = None
            floor = self.last.fence if self.last else 0
            if self.state.disposition <= Disposition.LEASED:
                since = [t.at + MIN_DEFERRAL for t in self.deferred if t.fence > floor]
                least = max([least, *since])
        if want is not None and have != want:
            yield Finding("available", f"available_at is {iso(have)}, the entries say {iso(want)}")
        elif want is None and self.times.backwards(least, have):
            yield Finding("available", f"available_at is {iso(have)}, before the wait that {iso(least)} ends")

    def _category(self) -> str | None:
        marks = [(a.fence, 0, a.category) for a in self.e.attempts]
        for t in self.e.transitions:
            if t.kind in _DEFERRALS or t.kind == "expired" or t.kind.startswith("late_"):
                marks.append((t.fence, t.transition, t.category or ""))
        return max(marks)[2] if marks else None

    def _ambiguous(self) -> int:
        ambiguous = 0
        for a in self.e.attempts:
            if a.outcome in _SUCCESS:
                ambiguous = 0
            elif a.outcome == OutcomeKind.UNKNOWN:
                ambiguous = 1
            elif a.flags & Flag.RULED_OUT:
                ambiguous = 0
        if any(t.kind in ("late_delivered", "late_no_op") for t in self.e.transitions):
            ambiguous = 0
        return ambiguous

    def _hold(self) -> int:
        if self._end(self.latest) is not None or self.leased:
            return int(Hold.NONE)
        hold = self.facts.first_hold if self.latest == 0 and not self.current else int(Hold.NONE)
        floor = self.last.fence if self.last else 0
        for t in self.e.transitions:
            if t.generation != self.latest or t.fence < floor:
                continue
            if t.kind == "held":
                hold = int(Hold.DESTINATION_DISABLED)
            elif t.kind == "released":
                hold = int(Hold.NONE)
            elif t.kind in _DEFERRALS:
                parked = t.category == Category.DESTINATION_DISABLED
                hold = int(Hold.DESTINATION_DISABLED if parked else Hold.NONE)
        return hold

    def columns(self) -> Iterator[Finding]:
        facts = self.facts
        lane = Lane.REDRIVE if self.latest else Lane.FRESH
        if any(a.next_at is not None for a in self.current):
            lane = Lane.RETRY
        cancel = any(t.kind == "cancel_requested" for t in self.e.transitions)
        route = _route(facts.handler, facts.envelope_version)
        flow = _flow(facts.handler, facts.envelope_version, facts.destination, facts.tenant)
        for rule, name, want in (
            ("category", "last_category", self._category()),
            ("ambiguous", "ambiguous", self._ambiguous()),
            ("hold", "hold", self._hold()),
            ("lane", "lane", int(lane)),
            ("cancel", "cancel_requested", int(cancel)),
            ("route", "route", route),
            ("route", "flow", flow),
        ):
            have = getattr(self.state, name)
            if have != want:
                yield Finding(rule, f"{name} is {have!r}, the entries say {want!r}")

    def deferrals(self) -> Iterator[Finding]:
        """Coalesced as they are, deferrals can be counted: a run goes on until an entry has another fence."""
        before = 0
        for a in self.e.attempts:
            yield from self._series(before, a.fence)
            before = a.fence
        top = min(self.state.fence + (not self.leased), before + self.state.deferrals + 1)
        yield from self._series(before, top)
        runs = [t for t in self.deferred if before < t.fence < top]
        ends = [t.fence for t in runs[1:]] + [top]
        own = sum(end - t.fence for t, end in zip(runs, ends, strict=False) if t.category == Category.OWN_FAULT)
        if self.state.own_faults != own:
            yield Finding("deferrals", f"own_faults is {self.state.own_faults}, the entries say {own}")

    def _series(self, before: int, until: int) -> Iterator[Finding]:
        fences = [t.fence for t in self.deferred if before < t.fence < until]
        if until > before + 1 and (not fences or fences[0] != before + 1):
            yield Finding("deferrals", f"the reservation with fence {before + 1} ended without an entry")
        if any(t.fence == before for t in self.deferred) and before:
            yield Finding("deferrals", f"fence {before} is both an attempt and a deferral")

    def lease(self) -> Iterator[Finding]:
        state = self.state
        columns = (state.leased_by, state.leased_until, state.started_at)
        if any(c is None for c in columns) and any(c is not None for c in columns):
            yield Finding("lease", "the lease is half open")
        if state.started_at is None or state.leased_until is None:
            return
        if self.times.future(state.started_at):
            yield Finding("lease", "the open attempt started in the future")
        if state.leased_until <= state.started_at:
            yield Finding("lease", "the lease ended before it began")

    def clock(self) -> Iterator[Finding]:
        e = self.e
        stored = [self.facts.first_queued_at]
        for a in e.attempts:
            stored += (a.started_at, a.ended_at)
            if a.ended_at < a.started_at:
                yield Finding("clock", f"attempt {a.number} ended before it started")
            if a.next_at is not None and self.times.backwards(a.ended_at, a.next_at):
                yield Finding("clock", f"attempt {a.number} scheduled a retry into the past")
        stored += [t.at for t in e.transitions] + [g.opened_at for g in e.generations]
        stored += [d.died_at for d in e.dead] + [at for _, at, _ in e.repeats]
        ahead = [at for at in stored if self.times.future(at)]
        if ahead:
            yield Finding("clock", f"an entry of {iso(max(ahead))}, ledger time is {iso(self.times.now)}")

    def repeats(self) -> Iterator[Finding]:
        listed = self.e.repeats
        duplicates, conflicts = self.e.totals
        numbers = [number for number, _, _ in listed]
        duplicate = sum(decided == "duplicate" for _, _, decided in listed)
        least = min(duplicates + conflicts, REPEATS_LISTED)
        if (
            numbers != list(range(1, max(least, len(numbers) if self.e.racing else 0) + 1))
            or duplicate > duplicates
            or len(listed) - duplicate > conflicts
        ):
            text = f"repeats {numbers} are listed of {duplicates} duplicates and {conflicts} conflicts"
            yield Finding("repeat", text)


def _word(disposition: int) -> str:
    try:
        return Disposition(disposition).label
    except ValueError:
        return str(disposition)
