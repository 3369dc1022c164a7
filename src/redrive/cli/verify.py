"""``verify``: prove the ledger against itself."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.output import plural
from redrive.cli.session import Session
from redrive.ledger.records import span

Repair = Annotated[
    bool, typer.Option("--repair-clock", help="First set ledger time back to this host's; stop all workers before")
]


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "verify", settings=("actor",))(verify)


def verify(session: Session, repair_clock: Repair = False) -> int | None:
    """Fold every entry of the ledger and compare with where each delivery stands. Safe while workers run.

    Exits 1, and lists the problems, if anything contradicts anything.
    """
    operations = session.operations
    out = session.out
    if repair_clock:
        done = operations.repair_clock(actor=session.actor)
        ahead = span(done.before_at - done.after_at)
        out.note(f"ledger time was {ahead} ahead, and is set back" if done.repaired else "ledger time was not ahead")
    with out.progress("verifying") as progress:
        report = operations.verify(progress)
    session.status = 0 if report.ok else 1
    if not out.is_table:
        out.document({**report.as_dict(), "ok": report.ok})
        return session.status
    if report.ok:
        out.line(f"{plural(report.checked, 'delivery')} verified: the ledger agrees with itself", style="green")
        return 0
    out.line(f"{plural(report.total, 'problem')} in {plural(report.checked, 'delivery')}", style="bold red")
    rows = [(problem.rule, problem.delivery or "-", problem.message) for problem in report.problems]
    out.table(("RULE", "DELIVERY", "WHAT CONTRADICTS WHAT"), rows)
    more = report.total - len(report.problems)
    if more > 0:
        out.note(f"and {plural(more, 'more problem')}")
    return session.status
