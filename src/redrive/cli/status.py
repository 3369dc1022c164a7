"""``status``: the ledger in one look."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.explain import explain_status
from redrive.cli.output import ago, counted, plural, utc, when
from redrive.cli.session import Session
from redrive.cli.work import next_due
from redrive.ledger import opening
from redrive.ledger.fleet import DueView
from redrive.ledger.records import StatusView, span
from redrive.ledger.retention import RetentionView

Due = Annotated[bool, typer.Option("--due", help="Only what is due now, and when the next is: one cheap statement")]
_ORDER = ("waiting", "leased", "delivered", "no_op", "dead", "cancelled")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "status", settings=("retention",))(status)


def status(session: Session, due: Due = False) -> int | None:
    """Say whether anything is stopped, why, and what to do; then the counts.

    With --due, for an autoscaler: workers are needed while due plus expired_leases is not 0, and again at next_due_at.
    -o json prints one line. It exits with 0 whether or not anything is due; with anything else, nothing is known.
    """
    if due:
        _due(session, session.operations.due())
        return 0
    view = session.operations.status()
    kept = session.operations.retention()
    if not session.out.is_table:
        rules = session.app().retention
        shown = {"rules": None if rules is None else rules.as_dict(), **kept.as_dict()}
        session.out.document({**view.as_dict(), "retention": shown, "explanation": explain_status(view)})
        return 0
    out = session.out
    out.line(explain_status(view), style="bold")
    out.facts([*_facts(session, view), *_retention(session, view, kept)])
    if view.workers:
        rows = [
            (
                worker.name,
                f"{worker.host}:{worker.pid}",
                ", ".join(sorted({handler for handler, _ in worker.routes})),
                when(worker.seen_at, view.now_at),
            )
            for worker in view.workers
        ]
        out.table(("WORKER", "WHERE", "HANDLERS", "SEEN"), rows)
    if view.skew_us > 1_000_000:
        out.warn(
            f"ledger time is {span(view.skew_us)} ahead of this host's clock. If the host's clock is right, stop all "
            "workers and run: redrive verify --repair-clock"
        )
    if view.wal_defect and out.verbosity > 0:
        out.note(f"note: {view.wal_defect}")
    return 0


def _due(session: Session, view: DueView) -> None:
    if not session.out.is_table:
        session.out.raw(json.dumps(view.as_dict()))
        return
    oldest = "" if view.oldest_due_us is None else f", the oldest for {span(view.oldest_due_us)}"
    lost = f", {view.expired_leases:,} of them lost" if view.expired_leases else ""
    following = next_due(view.next_due_at, view.next_due_us)
    if view.next_due_at is None:
        following = "nothing waits for a later time"
    session.out.line(f"{view.due} due{oldest}; {view.leased:,} running{lost}; {following}")


def _retention(session: Session, view: StatusView, kept: RetentionView) -> list[tuple[str, Any]]:
    rules = session.app().retention
    if rules is None or rules.shortest is None:
        return []
    text = str(rules)
    if kept.oldest_at is not None:
        text += f"; the oldest delivery is of {utc(kept.oldest_at)} ({ago(kept.oldest_at, view.now_at)})"
    return [("kept", text)]


def _facts(session: Session, view: StatusView) -> list[tuple[str, Any]]:
    counts = "  ".join(f"{word} {view.dispositions[word]}" for word in _ORDER if word in view.dispositions)
    facts: list[tuple[str, Any]] = [
        ("ledger", f"{opening.where(session.settings.ledger)} ({view.environment}), at {utc(view.now_at)}"),
        ("accepted", f"{view.accepted} in all"),
        ("now", counts),
        ("dead letters", f"{view.dead_letters_open} open"),
    ]
    if view.held.count:
        facts.append(("held", str(view.held)))
    for found in view.disabled:
        since = ""
        if found.disabled_at is not None:
            since = f" since {utc(found.disabled_at)} ({ago(found.disabled_at, view.now_at)})"
        whose = "" if found.tenant == "default" else f" of tenant {found.tenant}"
        facts.append(("disabled", f"{found.name}{whose}{since}: {found.why or 'no reason recorded'}"))
    if view.expired_leases:
        facts.append(("lost", f"{plural(view.expired_leases, 'attempt')} whose worker is gone, not reaped yet"))
    if view.duplicates.count or view.conflicts.count:
        facts.append(
            ("deliveries repeated", f"{view.duplicates} with the same payload, {counted(view.conflicts, 'conflict')}")
        )
    if view.receiver_duplicates:
        facts.append(("duplicates", f"{view.receiver_duplicates:,} reported by receivers"))
    if view.rejections:
        facts.append(("rejected", ", ".join(f"{code} {count:,}" for code, count in sorted(view.rejections.items()))))
    return facts
