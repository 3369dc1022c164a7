"""Decide, then act: one attempt's outcome becomes one frozen decision.

:func:`decide` is pure and total over every (disposition, outcome, budgets, clock). It returns a *relative*
delay; whoever writes the decision passes it through :func:`settle` with the ledger's own time and the row's
*current* deadline, so that a worker's skew or stale object cannot leak in.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from redrive.domain.delivery import Cause, Disposition, Hold, Standing
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import SECOND, OnUnknown, Policy

MAX_DEFERRALS: Final = 20
"""The own-fault deferral in a row that is charged all the same (contract 2.9)."""

MIN_DEFERRAL: Final = SECOND
"""The least wait after ``deferred`` and ``interrupted``, in microseconds (contract 2.9)."""


class Entry(enum.Enum):
    """Which kind of ledger entry records the decision."""

    ATTEMPT = "attempt"
    DEFERRAL = "deferral"
    """Nothing had started: the charge is given back."""
    EVIDENCE = "evidence"
    """A late report, kept beside the attempt row that the reaper wrote."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What one write will do to a delivery.

    ``delay_us`` counts only for WAITING and is relative to the ledger's time at the write; under the cause
    ``age_exhausted`` it is the wait that did not fit, for :func:`settle`. ``cause`` is set exactly when the
    decision ends a generation as DEAD, so never for EVIDENCE. ``ambiguous`` says that an effect may exist
    that nobody has confirmed or ruled out.
    """

    disposition: Disposition
    entry: Entry
    category: Category
    delay_us: int = 0
    cause: Cause | None = None
    hold: Hold = Hold.NONE
    ambiguous: bool = False
    flags: Flag = Flag.NONE


_SUCCESS: Final = {OutcomeKind.DELIVERED: Disposition.DELIVERED, OutcomeKind.NO_OP: Disposition.NO_OP}


def decide(delivery: Standing, outcome: Outcome, policy: Policy, now: int, u: float, min_delay_us: int = 0) -> Decision:
    """What follows from ``outcome`` for a delivery that stands as ``delivery``.

    ``now`` is microseconds UTC, ``u`` uniform in [0, 1). Never raises. Never schedules beyond either
    budget, before ``now``, or after a permanent outcome; ``deferred`` and ``interrupted`` never charge,
    except the 20th own-fault deferral in a row.
    """
    if delivery.disposition is not Disposition.LEASED:
        return _late(delivery, outcome)
    kind = outcome.kind
    success = _SUCCESS.get(kind)
    if success is not None:
        return Decision(success, Entry.ATTEMPT, outcome.category, flags=outcome.flags)
    if kind in (OutcomeKind.DEFERRED, OutcomeKind.INTERRUPTED):
        # Only our own fault is ever charged: a pause, or a version for a newer worker, may wait long.
        own_fault = kind is OutcomeKind.DEFERRED and outcome.category is Category.OWN_FAULT
        if not (own_fault and delivery.own_faults + 1 >= MAX_DEFERRALS):
            decision = Decision(
                Disposition.WAITING,
                Entry.DEFERRAL,
                outcome.category,
                delay_us=max(MIN_DEFERRAL, min_delay_us),
                hold=_hold(Entry.DEFERRAL, outcome.category),
                ambiguous=delivery.ambiguous,
            )
            return settle(decision, now, delivery.deadline_at)
    return settle(_charged(delivery, outcome, policy, u), now, delivery.deadline_at)


def _hold(entry: Entry, category: Category) -> Hold:
    parked = entry is Entry.DEFERRAL and category is Category.DESTINATION_DISABLED
    return Hold.DESTINATION_DISABLED if parked else Hold.NONE


def _charged(delivery: Standing, outcome: Outcome, policy: Policy, u: float) -> Decision:
    """A charged failure: another attempt if the budget and the outcome allow one, else a dead letter."""
    unknown = outcome.kind is OutcomeKind.UNKNOWN
    # An earlier attempt's effect stays possible until something confirms it or rules it out.
    ambiguous = unknown or (delivery.ambiguous and Flag.RULED_OUT not in outcome.flags)
    cause: Cause | None = None
    if outcome.kind is OutcomeKind.PERMANENT:
        cause = Cause.PERMANENT
    elif unknown and policy.on_unknown is OnUnknown.HOLD:
        cause = Cause.AMBIGUOUS
    elif delivery.attempt >= delivery.max_attempts:
        if ambiguous and policy.on_unknown is not OnUnknown.RETRY:
            cause = Cause.AMBIGUOUS
        elif outcome.category is Category.WORKER_LOST:
            cause = Cause.WORKER_LOST
        else:
            cause = Cause.ATTEMPTS_EXHAUSTED
    if cause is not None:
        return Decision(
            Disposition.DEAD,
            Entry.ATTEMPT,
            outcome.category,
            cause=cause,
            ambiguous=ambiguous,
            flags=outcome.flags,
        )
    delay = policy.delay(delivery.attempt, u, outcome.retry_after_us)
    return Decision(
        Disposition.WAITING,
        Entry.ATTEMPT,
        outcome.category,
        delay_us=delay,
        ambiguous=ambiguous,
        flags=outcome.flags,
    )


def _late(delivery: Standing, outcome: Outcome) -> Decision:
    """A report about an attempt that the ledger has already ended, under the latest fence."""
    if delivery.disposition is Disposition.WAITING and outcome.kind in _SUCCESS:
        # Anything else would buy a second effect.
        return Decision(_SUCCESS[outcome.kind], Entry.EVIDENCE, outcome.category, flags=outcome.flags | Flag.LATE)
    return Decision(
        delivery.disposition,
        Entry.EVIDENCE,
        outcome.category,
        ambiguous=delivery.ambiguous,
        flags=outcome.flags | Flag.LATE,
    )


def settle(decision: Decision, now: int, deadline_at: int, cancel_requested: bool = False) -> Decision:
    """``decision`` against the row as it is *now*: its current deadline, and a cancellation asked meanwhile.

    A retry that would land on or past the deadline ends the generation as ``age_exhausted``; one that was
    judged so by an earlier deadline or a faster clock, and fits after all, waits. A requested cancellation
    ends whatever did not succeed. Settling again with the same arguments changes nothing.
    """
    if decision.entry is Entry.EVIDENCE:
        return decision
    if cancel_requested and decision.disposition in (Disposition.WAITING, Disposition.DEAD):
        return replace(decision, disposition=Disposition.CANCELLED, delay_us=0, cause=None, hold=Hold.NONE)
    fits = now + decision.delay_us < deadline_at
    if decision.disposition is Disposition.WAITING and not fits:
        return replace(decision, disposition=Disposition.DEAD, cause=Cause.AGE_EXHAUSTED, hold=Hold.NONE)
    if decision.cause is Cause.AGE_EXHAUSTED and fits:
        hold = _hold(decision.entry, decision.category)
        return replace(decision, disposition=Disposition.WAITING, cause=None, hold=hold)
    return decision
