"""``dead``: dead letters, one by one and counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from redrive.cli.command import command
from redrive.cli.delivery import Id, timeline
from redrive.cli.filters import COMMON_FILTERS, After, All, Limit, common_filter, pages, print_pages, shown
from redrive.cli.output import ago, plural, safe, utc
from redrive.cli.session import Session
from redrive.domain.delivery import Cause, DeadLetterState
from redrive.ledger.records import DeadLetterView

if TYPE_CHECKING:
    from redrive.ledger.search import DeadFilter

group = typer.Typer(help="Dead letters: what was given up on, and why.", no_args_is_help=True)
_PANEL = "Which"
FILTERS: Mapping[str, Any] = {
    **COMMON_FILTERS,
    "cause": Annotated[Cause | None, typer.Option("--cause", help="That ended for this", rich_help_panel=_PANEL)],
    "state": Annotated[
        DeadLetterState | None, typer.Option("--state", help="In this state (open)", rich_help_panel=_PANEL)
    ],
}


def _dead_filter(session: Session, options: Mapping[str, Any]) -> DeadFilter:
    from redrive.ledger.search import DeadFilter

    cause = options["cause"]
    return DeadFilter(
        **common_filter(session, options),
        cause=None if cause is None else cause.value,
        state=options["state"] or DeadLetterState.OPEN,
    )


def list_(
    session: Session, options: dict[str, Any], after: After = None, limit: Limit = 50, every: All = False
) -> int | None:
    """List open dead letters, newest first."""
    operations = session.operations
    filters = _dead_filter(session, options)
    names = operations.destination_names()
    found = pages(lambda cursor, count: operations.dead(filters, after=cursor, limit=count), after, limit, every)
    if not session.out.is_table:
        following: dict[str, Any] = {"next": None}
        session.out.records(shown(found, names, following), following)
        return 0
    print_pages(session, found, lambda items: _table(session, items, names), "no dead letter matches")
    return 0


def _table(session: Session, items: list[DeadLetterView], names: Mapping[str, str]) -> None:
    out, now = session.out, session.now()
    if out.out.is_terminal:
        rows: list[tuple[Any, ...]] = []
        for item in items:
            to = names.get(item.destination, item.destination)
            route = f"{item.event_type or item.handler}" + (f" → {to}" if to else "")
            what = Text(item.delivery).append(f"\n{safe(route)}", style="dim")
            why = Text(item.cause, style="red").append(f"\n{item.category}", style="dim")
            stamp = Text(ago(item.died_at, now)).append(f"\n{utc(item.died_at)}", style="dim")
            rows.append((what, why, str(item.attempts), stamp))
        out.table(("DELIVERY", "WHY", "TRIES", "DIED"), rows, right=("TRIES",))
        return
    head = ("DELIVERY", "GEN", "CAUSE", "LAST", "TRIES", "WHAT", "TO", "TENANT", "SCOPE", "DIED", "UTC")
    out.table(
        head,
        [
            (
                item.delivery,
                str(item.generation),
                item.cause,
                item.category,
                str(item.attempts),
                item.event_type or item.handler,
                names.get(item.destination, item.destination) or "-",
                item.tenant,
                item.scope or "-",
                ago(item.died_at, now),
                utc(item.died_at),
            )
            for item in items
        ],
    )


def show(session: Session, delivery: Id) -> int | None:
    """Show why a delivery is dead, with its whole history."""
    return timeline(session, delivery)


def count(session: Session, options: dict[str, Any]) -> int | None:
    """Count open dead letters by destination, cause and category, the most frequent first."""
    operations = session.operations
    found = operations.dead_counts(_dead_filter(session, options))
    names = operations.destination_names()
    total = sum(item.count for item in found)
    if not session.out.is_table:
        items = [{**item.as_dict(), "destination_name": names.get(item.destination)} for item in found]
        session.out.records(items, {"total": total})
        return 0
    if not found:
        session.out.note("no dead letter matches")
        return 0
    now = session.now()
    rows = [
        (
            f"{item.count:,}",
            names.get(item.destination, item.destination) or "-",
            item.cause,
            item.category,
            Text(ago(item.newest_at, now)).append(f"\n{utc(item.newest_at)}", style="dim"),
        )
        for item in found
    ]
    session.out.table(("COUNT", "DESTINATION", "CAUSE", "LAST", "NEWEST"), rows, right=("COUNT",))
    session.out.note(f"{plural(total, 'dead letter')} in all; one by one: redrive dead list")
    return 0


command(group, "list", options=FILTERS)(list_)
command(group, "show")(show)
command(group, "count", options=FILTERS)(count)
