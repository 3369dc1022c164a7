"""One delivery's whole history, in order: what was accepted, tried, put off, decided and asked.

Everything is read from entries that are on the ledger anyway (contract 2.8); nothing is kept for display. An
entry's ``facts`` always name its ``generation``: a redrive adds a chapter and changes none before it.
"""

from __future__ import annotations

from typing import Any, Final

from redrive.domain.delivery import Disposition, Hold
from redrive.domain.identity import from_text, to_text
from redrive.domain.outcome import Category
from redrive.errors import NotFound
from redrive.ledger.records import AttemptView, DeliveryView, TimelineEntry, hold_word, iso, span
from redrive.ledger.statements import sql
from redrive.ledger.tx import Row, Tx

TOMBSTONE: Final = "only its identity is kept"
"""What is said of a delivery that retention took."""
_FLAG_TEXT: Final = {
    "late": "after its lease had expired",
    "receiver_duplicate": "receiver reported duplicate",
    "response_truncated": "response body cut short",
    "confirmed": "confirmed without sending",
    "closed_in_handler": "closed in the handler's own transaction",
    "ruled_out": "no earlier attempt had taken effect",
}


def find(tx: Tx, text_id: str) -> int:
    """The seq of the delivery printed as ``dlv_...``.

    Raises :class:`~redrive.errors.NotFound`, and :class:`~redrive.errors.InvalidInput` for text that is no
    delivery ID at all.
    """
    rows = tx.rows(sql("identity_find"), (from_text("dlv", text_id.strip()),))
    if not rows:
        raise NotFound(
            f"no delivery {text_id.strip()} on this ledger",
            param="id",
            hint="is it the right ledger and environment? redrive delivery list shows what there is",
        )
    return int(rows[0][0])


def show(tx: Tx, seq: int) -> DeliveryView:
    """The delivery as it stands. Raises :class:`~redrive.errors.NotFound`."""
    rows = tx.rows(sql("show"), (seq,))
    if not rows:
        raise NotFound("the delivery is no longer on the ledger", param="id", hint=TOMBSTONE)
    return DeliveryView.from_row(rows[0])


def attempts(tx: Tx, seq: int) -> list[AttemptView]:
    """Its attempts that have ended, of all generations, oldest first."""
    named = tx.rows(sql("delivery_named"), (seq,))
    if not named:
        show(tx, seq)  # says so
    return [AttemptView.from_row(named[0][0], row) for row in tx.rows(sql("attempts"), (seq,))]


def timeline(tx: Tx, seq: int) -> list[TimelineEntry]:
    """Everything that happened to it, in order of time, then of the ledger.

    Raises :class:`~redrive.errors.NotFound`.
    """
    return _Timeline(tx, seq).entries()


class _Timeline:
    def __init__(self, tx: Tx, seq: int) -> None:
        self.tx = tx
        self.view = show(tx, seq)
        self.attempts = attempts(tx, seq)
        self.first = tx.rows(sql("first_budget"), (seq,))[0]
        self.generations = tx.rows(sql("generations"), (seq,))
        self.transitions = tx.rows(sql("transitions"), (seq,))
        self.dead = tx.rows(sql("dead_letters"), (seq,))
        self.repeats = tx.rows(sql("repeats"), (seq,))
        self.totals = next(iter(tx.rows(sql("repeats_of"), (seq,))), (0, 0))
        self.budgets = {0: self.first[0], **{row[0]: row[3] for row in self.generations}}
        self._found: list[tuple[tuple[int, int, int], TimelineEntry]] = []

    def add(self, at: int, kind: str, text: str, *, fence: int, rank: int, generation: int, **facts: Any) -> None:
        """Ledger order is by reservation (fence), then by what can follow what within one (rank)."""
        known = {"generation": generation, "fence": fence or None, **facts}
        entry = TimelineEntry(at, kind, text, {key: value for key, value in known.items() if value is not None})
        self._found.append(((at, fence, rank), entry))

    def entries(self) -> list[TimelineEntry]:
        self._accepted()
        self._repeats()
        for attempt in self.attempts:
            self._attempt(attempt)
        self._open()
        deferred = self._deferral_counts()
        for row in self.transitions:
            self._transition(row, deferred)
        for letter in self.dead:
            self._dead(letter)
        for generation in self.generations:
            self._generation(generation)
        self._found.sort(key=lambda pair: pair[0])
        return [entry for _, entry in self._found]

    def _accepted(self) -> None:
        view, (budget, deadline, first_hold) = self.view, self.first
        source = f" for event {view.event_type}" if view.event_type else ""
        due = f", due {iso(view.first_due_at)}" if view.first_due_at > view.first_queued_at else ""
        hold = hold_word(first_hold)
        held = f", held ({hold})" if hold else ""
        self.add(
            view.first_queued_at,
            "accepted",
            f"accepted{source}: up to {_attempts(budget)} until {iso(deadline)}{due}{held}",
            fence=0,
            rank=0,
            generation=0,
            event_id=view.event_id,
            event_type=view.event_type,
            max_attempts=budget,
            deadline_at=iso(deadline),
            first_due_at=iso(view.first_due_at),
            hold=hold,
        )

    def _repeats(self) -> None:
        for number, at, decided, path, producer in self.repeats:
            text = (
                "enqueued again with the same payload: the first one stands"
                if decided == "duplicate"
                else "enqueued again with another payload: refused as a conflict"
            )
            self.add(
                at,
                decided,
                f"{text} ({path}, {producer})",
                fence=0,
                rank=number,
                generation=0,
                number=number,
                path=path,
                producer=producer,
            )
        more = sum(self.totals) - len(self.repeats)
        if more > 0:
            duplicates = self.totals[0] - sum(row[2] == "duplicate" for row in self.repeats)
            self.add(
                self.repeats[-1][1] if self.repeats else self.view.first_queued_at,
                "repeats",
                f"and {more:,} more: {duplicates:,} with the same payload, {more - duplicates:,} conflicts",
                fence=0,
                rank=1_000_000,
                generation=0,
                duplicates=duplicates,
                conflicts=more - duplicates,
            )

    def _attempt(self, a: AttemptView) -> None:
        budget = self.budgets.get(a.generation, self.view.max_attempts)
        what = f"attempt {a.number} of {budget}"
        by = f" by {a.worker}" if a.worker else ""
        common = {"generation": a.generation, "fence": a.fence, "number": a.number}
        self.add(a.started_at, "reserved", f"{what} reserved{by}", rank=0, attempt=a.id, worker=a.worker, **common)
        notes = [_FLAG_TEXT.get(flag, flag) for flag in a.flags]
        said = f" ({', '.join(notes)})" if notes else ""
        detail = f"{a.category}, {a.status}" if a.status is not None else a.category
        self.add(
            a.ended_at,
            "attempt",
            f"{what} ended {a.outcome}: {detail}, after {span(a.duration_us)}{said}",
            rank=2,
            attempt=a.id,
            outcome=a.outcome,
            category=a.category,
            status=a.status,
            duration_us=a.duration_us,
            worker=a.worker,
            flags=list(a.flags) or None,
            excerpt=a.excerpt,
            **common,
        )
        if a.next_at is not None:
            asked = f", Retry-After {span(a.retry_after_us)}" if a.retry_after_us is not None else ""
            reason = f"http_{a.status}" if a.status is not None else a.category
            self.add(
                a.ended_at,
                "retry",
                f"next attempt at {iso(a.next_at)} because {reason}, {what}{asked}",
                rank=3,
                next_at=iso(a.next_at),
                because=reason,
                retry_after_us=a.retry_after_us,
                **common,
            )

    def _open(self) -> None:
        view = self.view
        if view.started_at is None or view.lease_expires_at is None:
            return
        by = f" by {view.worker}" if view.worker else ""
        self.add(
            view.started_at,
            "leased",
            f"attempt {view.attempt} of {view.max_attempts} reserved{by}, open; "
            f"its lease runs until {iso(view.lease_expires_at)}",
            fence=view.fence,
            rank=0,
            generation=view.generation,
            number=view.attempt,
            worker=view.worker,
            lease_expires_at=iso(view.lease_expires_at),
        )

    def _deferral_counts(self) -> dict[int, int]:
        """How many reservations each deferral entry stands for, by its number on the ledger.

        A run goes on until an entry with another fence: the next deferral of its series, or the attempt.
        """
        marks = [(row[4], row[0]) for row in self.transitions if row[2] in ("deferred", "interrupted")]
        stops = sorted({fence for fence, _ in marks} | {a.fence for a in self.attempts})
        open_lease = self.view.disposition == Disposition.LEASED.label
        stops.append(self.view.fence + (0 if open_lease else 1))
        return {number: next(s for s in stops if s > fence) - fence for fence, number in marks}

    def _transition(self, row: Row, deferred: dict[int, int]) -> None:
        number, at, kind, generation, fence, category, actor, reason = row
        count = deferred.get(number)
        because = f": {reason}" if reason else ""
        who = f" by {actor}" if actor else ""
        if kind == "deferred":
            text = f"put off at no charge: {category}"
        elif kind == "interrupted":
            text = f"returned before it started, at no charge: {category}"
        elif kind == "expired":
            text = f"the age budget ran out while it waited: {category}"
        elif kind == "cancel_requested":
            text = f"cancel requested{who}{because}; the open attempt decides"
        elif kind == "cancelled":
            text = f"cancelled{who}{because}"
        elif kind == "held":
            text = f"held{who}{because}"
        elif kind == "released":
            text = f"released{who}{because}"
        elif kind.startswith("late_"):
            text = f"a late report was accepted: {kind[5:]} ({category})"
        elif kind.startswith("evidence_"):
            text = f"a late report is kept as evidence: {kind[9:]} ({category})"
        else:
            text = f"{kind.replace('_', ' ')}{who}{because}"
        if count is not None and count > 1:
            text += f" ({count} times)"
        self.add(
            at,
            kind,
            text,
            fence=fence,
            rank=1 if kind == "cancel_requested" else 10 + number,  # it came while the attempt was open
            generation=generation,
            category=category,
            actor=actor,
            reason=reason,
            count=count,
            hold=hold_word(Hold.DESTINATION_DISABLED) if kind == "held" else None,
        )

    def _dead(self, row: Row) -> None:
        number, generation, state, cause, category, count, died_at, ambiguous = row
        unsure = "; an effect may exist all the same" if ambiguous else ""
        gone = category == Category.GONE and bool(self.tx.rows(sql("destination_gone"), (self.view.destination,))[0][0])
        disabled = "; 410 Gone disabled its destination" if gone else ""
        self.add(
            died_at,
            "dead_letter",
            f"dead letter {number}: {cause} after {_attempts(count)}, last {category}{disabled}{unsure}",
            fence=self._last_fence(generation),
            rank=1 << 61,
            generation=generation,
            dead_letter=number,
            state=state,
            cause=cause,
            category=category,
            attempts=count,
            ambiguous=bool(ambiguous),
            destination_disabled=True if gone else None,
        )

    def _generation(self, row: Row) -> None:
        generation, replay_id, parent, budget, deadline, opened_at = row
        self.add(
            opened_at,
            "generation",
            f"generation {generation} opened: up to {_attempts(budget)} until {iso(deadline)}",
            fence=self._last_fence(generation - 1),
            rank=1 << 62,
            generation=generation,
            parent=parent,
            replay_id=to_text("gen", replay_id),
            max_attempts=budget,
            deadline_at=iso(deadline),
        )

    def _last_fence(self, generation: int) -> int:
        """The last reservation of a generation, so that its end sorts after it."""
        later = [a.fence - a.deferrals for a in self.attempts if a.generation > generation]
        return min(later, default=self.view.fence + 1) - 1


def _attempts(count: int) -> str:
    return f"{count} attempt{'' if count == 1 else 's'}"
