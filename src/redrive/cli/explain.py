"""One sentence first: where a delivery, or the whole ledger, stands, why, and what happens next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text

from redrive.cli.output import ago, counted, plural, safe, utc
from redrive.domain.outcome import OutcomeKind
from redrive.ledger.records import AttemptView, Count, DeliveryView, StatusView, TimelineEntry, span

_STYLES: Final = {
    "dead_letter": "bold red",
    "held": "yellow",
    "retry": "cyan",
    OutcomeKind.DELIVERED.value: "green",
    OutcomeKind.NO_OP.value: "green",
    OutcomeKind.RETRYABLE.value: "yellow",
    OutcomeKind.UNKNOWN.value: "yellow",
    OutcomeKind.PERMANENT.value: "red",
}


@dataclass(frozen=True, slots=True)
class Known:
    """What an explanation is made from."""

    view: DeliveryView
    attempts: Sequence[AttemptView]
    entries: Sequence[TimelineEntry]
    names: Mapping[str, str]
    """Destination IDs to names."""
    now: int
    served: bool | None = None
    """Whether a live worker executes its handler; None if that was not looked up."""

    @property
    def target(self) -> str:
        """The destination's name, or what was given as one; the handler where there is none."""
        view = self.view
        return self.names.get(view.destination, view.destination) or f"handler {view.handler}"


def explain(known: Known) -> str:
    """``why | next``, in the words of the ledger."""
    why, then = _WHY[known.view.disposition](known)
    return f"{why} | {then}"


def reason(attempt: AttemptView) -> str:
    """``http_503``, or the category where there was no answer."""
    return attempt.category if attempt.status is None else f"http_{attempt.status}"


def _at(us: int, now: int) -> str:
    return f"at {utc(us)} ({ago(us, now)})"


def _last(known: Known) -> str:
    """``, last http_503 from orders at ...``; nothing if no attempt has ended."""
    mine = [attempt for attempt in known.attempts if attempt.generation == known.view.generation]
    if not mine:
        return ""
    last = mine[-1]
    return f", last {reason(last)} from {known.target} {_at(last.ended_at, known.now)}"


def _of(view: DeliveryView) -> str:
    run = f" in generation {view.generation}" if view.generation else ""
    return f"{view.attempt} of {plural(view.max_attempts, 'attempt')}{run}"


def _dead(known: Known) -> tuple[str, str]:
    view = known.view
    letters = [entry for entry in known.entries if entry.kind == "dead_letter"]
    facts = letters[-1].facts if letters else {}
    cause = facts.get("cause", "dead")
    why = f"dead: {cause} after {_of(view)}{_last(known)}"
    if cause == "age_exhausted":
        why += f"; its age budget ran out {_at(view.deadline_at, known.now)}"
    elif not _last(known) and facts.get("category"):
        why += f", {facts['category']}"
    if facts.get("destination_disabled"):
        why += f"; it answered 410 Gone, which disabled destination {known.target}"
    put_aside = "it is quarantined, and nothing sends it again"
    if view.handler == "webhook":
        put_aside += " (corrected work is a new event, with another webhook-id)"
    return why, f"{put_aside}; {_effect(known)}"


def _effect(known: Known) -> str:
    """Whether a dead delivery may have taken effect all the same, and what to do before it is done by other means."""
    webhook = known.view.handler == "webhook"
    confirmed = [entry.at for entry in known.entries if entry.kind in ("evidence_delivered", "evidence_no_op")]
    if confirmed:
        late = _at(confirmed[-1], known.now)
        if webhook:
            return f"the receiver did confirm it late, {late}: do not send it again"
        return f"handler {known.view.handler} did report success late, {late}: do not run it again"
    unsure: list[AttemptView] = []
    for a in known.attempts:
        if "ruled_out" in a.flags:  # a confirm function was asked, and said that the effect is not there
            unsure.clear()
        if a.outcome == OutcomeKind.UNKNOWN or "late" in a.flags:
            unsure.append(a)
    if unsure:
        numbers = ", ".join(f"{a.generation}.{a.number}" if a.generation else str(a.number) for a in unsure)
        which = f"attempt{'' if len(unsure) == 1 else 's'} {numbers} may have taken effect"
        if webhook:
            return f"{which}: check with the receiver, or rely on its deduplication by webhook-id"
        return f"{which}: check what handler {known.view.handler} did, or rely on its deduplication by delivery ID"
    if webhook or not known.attempts:
        return "no attempt can have taken effect"
    return f"no attempt can have taken effect, by what handler {known.view.handler} reported"


def _waiting(known: Known) -> tuple[str, str]:
    view = known.view
    ends = f"it is dead-lettered if that is not done by {utc(view.deadline_at)}"
    if view.hold == "destination_disabled":
        why = f"held: destination {known.target} is disabled, after {_of(view)}{_last(known)}"
        return why, f"it goes out once it is enabled (redrive destination enable {known.target}); {ends}"
    if view.hold is not None:
        return f"held: {view.hold}, after {_of(view)}{_last(known)}", f"it goes out once it is released; {ends}"
    following = view.attempt + 1
    if view.attempt == 0:
        why = "waiting: not attempted yet"
        if view.deferrals:
            why += f", put off {plural(view.deferrals, 'time')} at no charge ({view.last_category})"
    else:
        why = f"waiting: {_of(view)} failed{_last(known)}"
    if view.available_at > known.now:
        then = f"attempt {following} of {view.max_attempts} is due {_at(view.available_at, known.now)}"
    else:
        since = f"{utc(view.available_at)} ({ago(view.available_at, known.now)})"
        then = f"attempt {following} of {view.max_attempts} is due since {since}"
        if known.served is False:
            then += f", and no running worker executes handler {view.handler!r}: start one with redrive up"
    if view.cancel_requested:
        then += "; its cancellation was requested"
    return why, then


def _leased(known: Known) -> tuple[str, str]:
    view = known.view
    since = f" since {utc(view.started_at)} ({ago(view.started_at, known.now)})" if view.started_at is not None else ""
    why = f"running: {_of(view)} is open{since} at {view.worker or 'a worker'}"
    if view.lease_expires_at is None:
        return why, "its worker records how it ends"
    if view.lease_expires_at <= known.now:
        lost = f"its lease ran out {_at(view.lease_expires_at, known.now)}"
        return why, f"{lost}: a running worker's reaper records it as unknown (worker_lost)"
    then = f"its worker records how it ends; if it is lost, the reaper does from {utc(view.lease_expires_at)}"
    if view.cancel_requested:
        then += "; a cancellation takes effect then, unless the attempt delivers"
    return why, then


def _delivered(known: Known) -> tuple[str, str]:
    view = known.view
    mine = [a for a in known.attempts if a.outcome in ("delivered", "no_op")]
    if not mine:
        return f"{view.disposition}: after {_of(view)}", "nothing more happens"
    last = mine[-1]
    word = "delivered" if view.disposition == "delivered" else "no_op: there was nothing to do"
    shown = f"{word} at attempt {last.number} of {view.max_attempts}"
    shown += f", {reason(last)} from {known.target}" if last.status is not None else f", by {known.target}"
    return f"{shown} {_at(last.ended_at, known.now)}", "nothing more happens"


def _cancelled(known: Known) -> tuple[str, str]:
    ends = [entry for entry in known.entries if entry.kind in ("cancelled", "cancel_requested")]
    who = ""
    if ends:
        actor, why = ends[-1].facts.get("actor"), ends[-1].facts.get("reason")
        who = f" by {actor}" if actor else ""
        who += f" {_at(ends[-1].at, known.now)}"
        who += f": {why}" if why else ""
    return f"cancelled{who}, after {_of(known.view)}", "nothing more happens; cancelled work is not redriven"


_WHY = {
    "waiting": _waiting,
    "leased": _leased,
    "delivered": _delivered,
    "no_op": _delivered,
    "dead": _dead,
    "cancelled": _cancelled,
}


def explain_status(view: StatusView) -> str:
    """``cause | what to do``: the worst thing first."""
    due, dead = view.due, view.dead_letters_open
    oldest = f", the oldest for {span(_whole(view.oldest_due_us))}" if view.oldest_due_us else ""
    letters = f"{dead} open dead {'letter' if dead.count == 1 and not dead.more else 'letters'}"
    open_letters = f"; {letters}" if dead.count else ""
    if view.expired_leases and not view.workers:
        lost = plural(view.expired_leases, "attempt")
        return f"stopped: {lost} lost their worker, and none is running{open_letters} | start one: redrive up"
    if due.count and not view.workers:
        return f"stopped: {due} due{oldest}, and no worker is running{open_letters} | start one: redrive up"
    missing = [
        f"{item.handler} (envelope {item.envelope_version}), for which {_wait(item.waiting)}" for item in view.unclaimed
    ]
    if missing and view.workers:
        known = ", ".join(missing)
        return f"partly stopped: no running worker executes {known}{open_letters} | start one that does"
    if view.held.count:
        return f"partly held: {view.held} wait for a disabled destination{open_letters} | redrive destination list"
    if due.count:
        return f"working: {due} due{oldest}, {plural(len(view.workers), 'worker')}{open_letters} | nothing to do"
    live = view.dispositions["waiting"].count + view.dispositions["leased"].count
    if live:
        waits = f"{view.dispositions['waiting']} waiting for their time, {view.dispositions['leased']} running"
        rest = "nothing to do" if view.workers else "no worker is running; start one: redrive up"
        return f"on time: {waits}{open_letters} | {rest}"
    if dead.count:
        return f"idle: nothing waits; {letters} | see why: redrive dead count"
    if not view.accepted.count:
        return "empty: nothing was ever accepted | redrive publish or redrive enqueue adds work"
    return "idle: everything has ended | nothing to do"


def _wait(count: Count) -> str:
    return f"{counted(count, 'delivery')} {'waits' if count == Count(1) else 'wait'}"


def _whole(us: int | None) -> int:
    """Whole seconds, where there are any: for people."""
    value = us or 0
    return value if value < 10_000_000 else value - value % 1_000_000


def entry_line(entry: TimelineEntry, now: int) -> tuple[str, str, Text]:
    """When, how long ago, and what."""
    kind = entry.kind if entry.kind != "attempt" else str(entry.facts.get("outcome", ""))
    return utc(entry.at, digits=3), ago(entry.at, now), Text(safe(entry.text), style=_STYLES.get(kind, ""))
