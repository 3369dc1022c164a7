"""``status``: the ledger in one look."""

from __future__ import annotations

from typing import Any

import typer

from redrive.cli.command import command
from redrive.cli.explain import explain_status
from redrive.cli.output import ago, plural, utc, when
from redrive.cli.session import Session
from redrive.ledger.records import StatusView, span

_ORDER = ("waiting", "leased", "delivered", "no_op", "dead", "cancelled")


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "status")(status)


def status(session: Session) -> int | None:
    """Say whether anything is stopped, why, and what to do; then the counts."""
    view = session.operations.status()
    if not session.out.is_table:
        session.out.document({**view.as_dict(), "explanation": explain_status(view)})
        return 0
    out = session.out
    out.line(explain_status(view), style="bold")
    out.facts(_facts(session, view))
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


def _facts(session: Session, view: StatusView) -> list[tuple[str, Any]]:
    counts = "  ".join(f"{word} {view.dispositions[word]}" for word in _ORDER if word in view.dispositions)
    facts: list[tuple[str, Any]] = [
        ("ledger", f"{session.settings.ledger} ({view.environment}), at {utc(view.now_at)}"),
        ("accepted", f"{view.accepted:,} in all"),
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
        facts.append(("deliveries repeated", f"{view.duplicates} with the same payload, {view.conflicts} conflicts"))
    if view.receiver_duplicates:
        facts.append(("duplicates", f"{view.receiver_duplicates:,} reported by receivers"))
    if view.rejections:
        facts.append(("rejected", ", ".join(f"{code} {count:,}" for code, count in sorted(view.rejections.items()))))
    return facts
