"""Retention at work: what has ended long enough ago is taken, and its identity stays as a tombstone.

A delivery is taken whole or not at all: never while it is live, never under an open dead letter. Deliveries are walked
in the order in which they were accepted, a span at a time, reading only; what is due in a span is deleted in short
transactions that lock nothing anybody works on and wait for nobody. Of each span that was looked at the ledger keeps
the earliest end of what is left, so that the next run looks only where something is due. A run that is killed has
finished some transactions; the next one goes on.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from redrive.domain.delivery import Disposition
from redrive.domain.policy import DAY, HOUR
from redrive.errors import InvalidInput, RedriveError
from redrive.ledger.audit import append_audit
from redrive.ledger.base import Ledger
from redrive.ledger.plans import steady
from redrive.ledger.retention import ENDED, Purged, RetentionRules, view
from redrive.ledger.statements import sql
from redrive.ledger.tx import Row, Tx

CHUNK: Final = 500
"""Deliveries, or tombstones, that are deleted in one transaction."""
EVERY_US: Final = HOUR
"""How often a fleet's workers do it by themselves."""
PURGED: Final = "retention.purged"
"""The action of a run that took anything, in the audit; ``after`` is the counts."""

_SPAN: Final = 2000
_SETTLED: Final = DAY
"""A span is remembered once nothing can turn up in it: no producer's transaction stays open for longer."""
_END: Final = 2**63 - 1
_NEVER: Final = -1


def take_turn(ledger: Ledger) -> bool:
    """Whether this process is to purge now: of a whole fleet one is, every :data:`EVERY_US`."""
    ran_at = ledger.read_sync(view).ran_at
    if ran_at is not None and ran_at > ledger.estimate() - EVERY_US:
        return False
    changed: int = ledger.transact_sync(lambda tx, now: tx.run(sql("retention_turn"), (now, now - EVERY_US)), "purge")
    return changed > 0


def purge(
    ledger: Ledger,
    rules: RetentionRules,
    *,
    actor: str = "redrive",
    chunk: int | None = None,
    limit: int | None = None,
    dry_run: bool = False,
    between: Callable[[float], bool] | None = None,
) -> Purged:
    """Take what is past its time: ``limit`` deliveries at most, and as many tombstones. Blocks; safe beside everything.

    ``chunk`` deliveries (:data:`CHUNK`) go in one transaction. ``between`` is called after each with the seconds that
    it took, and ends the run by returning False. A run that takes anything leaves one row in the audit, in the name of
    ``actor``. With ``dry_run`` nothing is written. Of two runs at once each takes a part. Raises :class:`InvalidInput`.
    """
    chunk = CHUNK if chunk is None else chunk
    if chunk < 1 or (limit is not None and limit < 1):
        raise InvalidInput("chunk and limit must be 1 or more", param="chunk" if chunk < 1 else "limit")
    run = _Run(ledger, rules, chunk, _END if limit is None else limit, dry_run)
    began = time.monotonic()
    try:
        for _ in run.steps():
            if between is not None and not between(time.monotonic() - began):
                run.more = True
                break
            began = time.monotonic()
    except Exception:
        with contextlib.suppress(RedriveError):  # the first error is the one to tell
            _record(ledger, run.purged(), actor)
        raise
    done = run.purged()
    _record(ledger, done, actor)
    return done


def _record(ledger: Ledger, done: Purged, actor: str) -> None:
    if done.anything and not done.dry_run:
        counts = {name: count for name, count in done.as_dict().items() if not isinstance(count, bool)}
        after = json.dumps(counts, separators=(",", ":"))
        ledger.transact_sync(lambda tx, now: append_audit(tx, now, actor, PURGED, "ledger", None, None, after), "purge")


class _Run:
    """One run. Its steps are transactions: after each the ledger is whole, and another run may go on from there."""

    def __init__(self, ledger: Ledger, rules: RetentionRules, chunk: int, limit: int, dry_run: bool) -> None:
        self.ledger = ledger
        self.rules = rules
        self.chunk = chunk
        self.left = self.left_tombstones = limit
        self.dry_run = dry_run
        self.more = False
        self.counts = dict.fromkeys(ENDED, 0)
        self.events = self.identities_forgotten = self.events_forgotten = 0
        self.now, self.event_after, self.frontier = ledger.read_sync(self._begin)
        self.cuts = {d: self._cut(rules.of(d)) for d in ENDED}
        self.youngest = self._cut(rules.shortest)
        """Nothing that was accepted later can be due."""

    def _begin(self, tx: Tx) -> tuple[int, int, int]:
        now: int = tx.rows(sql("clock_read"))[0][0]
        if tx.dialect == "sqlite":  # what it stores is the time of the last write
            now = max(now, self.ledger.estimate())
        _, event_after, _, _, frontier, _ = tx.rows(sql("retention_state"))[0]
        return now, event_after, frontier

    def _cut(self, kept: int | None) -> int:
        return _NEVER if kept is None else self.now - kept

    def purged(self) -> Purged:
        return Purged(
            **{d.label: count for d, count in self.counts.items()},
            events=self.events,
            identities_forgotten=self.identities_forgotten,
            events_forgotten=self.events_forgotten,
            more=self.more,
            dry_run=self.dry_run,
        )

    def steps(self) -> Iterator[None]:
        if self.rules.shortest is not None:
            yield from self._known_spans()
            yield from self._new_spans()
        if self.rules.delivered is not None and not self.dry_run:
            yield from self._lone_events()
        if self.rules.identity is not None:
            yield from self._tombstones()

    # Deliveries.

    def _known_spans(self) -> Iterator[None]:
        cuts = (*(self.cuts[d] for d in ENDED), self.youngest)
        for after, last in self.ledger.read_sync(lambda tx: tx.rows(sql("retention_due"), cuts)):
            if self.left <= 0:
                self.more = True
                return
            span = _Span(self, after, self._look(after, last, _END))
            yield from span.take()
            if not self.dry_run:
                row = span.summary(last)
                known = sql("retention_span_update" if span.stay else "retention_span_delete")
                self._write(lambda tx, now: tx.run(known, row if span.stay else row[:2]))  # noqa: B023 - run at once
                yield

    def _new_spans(self) -> Iterator[None]:
        after, recording = self.frontier, not self.dry_run
        while True:
            if self.left <= 0:
                self.more = True
                return
            rows = self._look(after, _END, _SPAN)
            due = [row for row in rows if row[2] <= self.youngest]
            span = _Span(self, after, due)
            yield from span.take()
            if len(due) < _SPAN:
                return
            after = rows[-1][0]
            recording = recording and max(row[2] for row in rows) <= self.now - _SETTLED
            if recording:
                row = span.summary(after)
                # Another run may be here too, and its spans end elsewhere: then the chain is its own to go on with.
                recording = self._write(lambda tx, now: tx.run(sql("retention_span_insert"), row)) > 0  # noqa: B023
                yield

    def _look(self, after: int, last: int, limit: int) -> list[Row]:
        def query(tx: Tx) -> list[Row]:
            steady(tx)
            return tx.rows(sql("retention_look"), (after, last, limit))

        return self.ledger.read_sync(query)

    def _write(self, operation: Callable[[Tx, int], int]) -> int:
        return self.ledger.transact_sync(operation, "purge")

    def take(self, ripe: list[tuple[int, Disposition]]) -> set[int]:
        """Delete deliveries, in one transaction; returns those that were there to be taken."""
        looked = dict(ripe)
        found: list[Row] = []
        emptied = 0

        def operation(tx: Tx, now: int) -> int:
            nonlocal found, emptied
            steady(tx)
            tx.rows(sql("purge_begin"))
            locked = tx.rows(sql("purge_lock"), (_array(tx, looked),))
            found = [row for row in locked if row[1] == looked[row[0]]]
            emptied = _delete(tx, now, found) if found else 0
            tx.rows(sql("purge_end"))
            return len(found)

        self._write(operation)
        for _, disposition, _ in found:
            self.counts[Disposition(disposition)] += 1
        self.events += emptied
        self.left -= len(found)
        return {row[0] for row in found}

    # Events and tombstones.

    def _lone_events(self) -> Iterator[None]:
        """Events that have a payload and no delivery, each looked at once in its life."""
        after, cut = self.event_after, min(self.cuts[Disposition.DELIVERED], self.now - _SETTLED)
        while True:
            rows = self.ledger.read_sync(lambda tx, after=after: tx.rows(sql("retention_events"), (after, _SPAN)))  # type: ignore[misc]
            due = [row for row in rows if row[1] <= cut]
            if not due:
                return
            last = due[-1][0]
            whole = [number for number, _, there in due if there]
            emptied = 0

            def operation(tx: Tx, now: int, after: int = after, last: int = last, whole: list[int] = whole) -> int:
                nonlocal emptied
                steady(tx)
                tx.rows(sql("purge_begin"))
                emptied = tx.run(sql("purge_event"), (_array(tx, whole), now))
                tx.rows(sql("purge_end"))
                return tx.run(sql("retention_events_passed"), (after, last))

            passed = self._write(operation)
            self.events += emptied
            yield
            if len(due) < _SPAN or not passed:
                return
            after = last

    def _tombstones(self) -> Iterator[None]:
        cut = self._cut(self.rules.identity)
        if self.dry_run:
            row = self.ledger.read_sync(lambda tx: tx.rows(sql("retention_tombstones"), (cut,)))[0]
            self.identities_forgotten, self.events_forgotten = row
            return
        for name in ("forget_identities", "forget_events"):
            while True:
                if self.left_tombstones <= 0:
                    self.more = True
                    return
                want = min(self.chunk, self.left_tombstones)
                gone = self._forget(name, cut, want)
                self.left_tombstones -= gone
                if name == "forget_identities":
                    self.identities_forgotten += gone
                else:
                    self.events_forgotten += gone
                if gone:
                    yield
                if gone < want:
                    break

    def _forget(self, name: str, cut: int, want: int) -> int:
        def operation(tx: Tx, now: int) -> int:
            steady(tx)
            tx.rows(sql("purge_begin"))
            gone = tx.rows(sql(name), (cut, want))
            if gone and name == "forget_identities":
                tx.run(sql("retention_count"), (0, max(row[0] for row in gone)))
            tx.rows(sql("purge_end"))
            return len(gone)

        return self._write(operation)


class _Span:
    """A look at deliveries: what of them is due, and what stays."""

    def __init__(self, run: _Run, after: int, rows: Iterable[Row]) -> None:
        self._run = run
        self._after = after
        self.stay = False
        self._unfinished = 0
        self._oldest: dict[Disposition, int] = {}
        self._ripe: list[tuple[int, Disposition, int]] = []
        for seq, disposition, _, is_open, ended_at in rows:
            if ended_at is None or is_open:
                self.stay, self._unfinished = True, 1
                continue
            end = Disposition(disposition)
            if ended_at <= run.cuts[end]:
                self._ripe.append((seq, end, ended_at))
            else:
                self._keep(end, ended_at)

    def _keep(self, end: Disposition, ended_at: int) -> None:
        self.stay = True
        self._oldest[end] = min(ended_at, self._oldest.get(end, ended_at))

    def take(self) -> Iterator[None]:
        """Take what is due, as far as the limit goes; a step for each transaction."""
        run, ripe = self._run, self._ripe
        if run.dry_run:
            for _, end, _ in ripe[: run.left]:
                run.counts[end] += 1
            run.more = run.more or len(ripe) > run.left
            run.left -= min(len(ripe), run.left)
            return
        while ripe and run.left > 0:
            part, ripe = ripe[: min(run.chunk, run.left)], ripe[min(run.chunk, run.left) :]
            taken = run.take([(seq, end) for seq, end, _ in part])
            for seq, end, ended_at in part:
                if seq not in taken:
                    self._keep(end, ended_at)  # somebody is at it: the next run sees
            yield
        for _, end, ended_at in ripe:
            self._keep(end, ended_at)
            run.more = True

    def summary(self, last: int) -> tuple[int | None, ...]:
        """The row that is kept of it."""
        return (self._after, last, self._run.now, self._unfinished, *(self._oldest.get(end) for end in ENDED))


def _array(tx: Tx, numbers: Iterable[int]) -> str:
    """Many numbers as one parameter."""
    inside = ",".join(map(str, numbers))
    return f"[{inside}]" if tx.dialect == "sqlite" else f"{{{inside}}}"


def _delete(tx: Tx, now: int, found: list[Row]) -> int:
    """Everything of these deliveries but their identities; the number of events that lost their payload."""
    seqs = _array(tx, (row[0] for row in found))
    events = {row[2] for row in found if row[2] is not None}
    shared = _array(tx, sorted(events))
    if events:
        tx.rows(sql("purge_event_lock"), (shared,))
    tx.run(sql("purge_identity"), (seqs, now))
    for name in ("attempt", "generation", "dead_letter", "transition", "repeat", "repeat_count", "state", "delivery"):
        tx.run(sql(f"purge_{name}"), (seqs,))
    emptied = tx.run(sql("purge_event"), (shared, now)) if events else 0
    tx.run(sql("retention_count"), (len(found), 0))
    return emptied
