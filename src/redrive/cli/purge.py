"""``purge``: retention, now and by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.output import plural
from redrive.cli.session import Session
from redrive.errors import InvalidInput
from redrive.ledger.retention import ENDED, Purged

DryRun = Annotated[bool, typer.Option("--dry-run", help="Count what would be taken, and take nothing")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="At most so many deliveries, and tombstones", metavar="N")
]


def register(app: typer.Typer) -> None:
    """Add the command to the root."""
    command(app, "purge", settings=("retention", "actor"))(purge)


def purge(session: Session, dry_run: DryRun = False, limit: Limit = None) -> int | None:
    """Take deliveries that ended longer ago than the setting "retention" keeps them. Safe while workers run.

    Workers do the same by themselves, about once an hour. Nothing is taken under an open dead letter. The identity of
    what was taken goes on keeping duplicates out.
    """
    # An application may have rules of its own.
    rules = session.app(handlers=not session.settings.is_set("retention")).retention
    if rules is None or rules.shortest is None:
        if dry_run:
            _would_take_nothing(session)
            return 0
        raise InvalidInput(
            "nothing is to be taken: retention is not set",
            param="retention",
            hint='for example, in redrive.toml: [retention] with delivered = "90d"',
        )
    done = session.operations.purge(rules, actor=session.actor, limit=limit, dry_run=dry_run)
    if not session.out.is_table:
        session.out.document({**done.as_dict(), "rules": rules.as_dict()})
        return 0
    session.out.line(f"{'would take' if dry_run else 'took'} {_told(done)}")
    if done.more:
        session.out.note("there is more: it stopped at its limit")
    return 0


def _would_take_nothing(session: Session) -> None:
    if session.out.is_table:
        session.out.line("nothing would be taken: retention is not set")
    else:
        session.out.document({**Purged(dry_run=True).as_dict(), "rules": None})


def _told(done: Purged) -> str:
    each = [f"{getattr(done, end.label):,} {end.label}" for end in ENDED if getattr(done, end.label)]
    told = plural(done.deliveries, "delivery") + (f" ({', '.join(each)})" if each else "")
    if done.events:
        told += f", the payload of {plural(done.events, 'event')}"
    forgotten = done.identities_forgotten + done.events_forgotten
    return told + (f", and {plural(forgotten, 'tombstone')}" if forgotten else "")
