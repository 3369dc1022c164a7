"""``envelope``: which payload formats live work has, and who still reads them."""

from __future__ import annotations

from typing import Any

import typer

from redrive.cli.command import command
from redrive.cli.output import ago, plural
from redrive.cli.session import Session
from redrive.ledger.fleet import Envelopes, EnvelopeView

group = typer.Typer(help="Envelope versions: which ones live work has, and who decodes them.", no_args_is_help=True)


def list_(session: Session) -> int | None:
    """List live deliveries by handler, envelope version and policy version, and who decodes them.

    A decoder may go from the application once no live delivery has its version, and no dead letter of that version is
    to be redriven.
    """
    view = session.operations.envelopes()
    out = session.out
    if not out.is_table:
        shown = view.as_dict()
        out.records(shown.pop("items"), shown)
        return 0
    if not view.items:
        out.note("no delivery is live, and no worker is running")
        return 0
    head = ("HANDLER", "ENVELOPE", "POLICY", "WAITING", "LEASED", "HELD", "OLDEST", "DECODED BY")
    out.table(head, [_row(item, view.now_at) for item in view.items], right=("WAITING", "LEASED", "HELD"))
    if not view.complete:
        out.warn("there is more live work than was looked at: versions may be missing from this list")
    elif spare := _spare(view):
        out.note(f"no live delivery needs these decoders: {', '.join(spare)}; dead letters may, if they are redriven")
    return 0


def _row(item: EnvelopeView, now: int) -> tuple[Any, ...]:
    decoded = "no live worker"
    if item.workers:
        decoded = f"{plural(item.workers, 'worker')} ({', '.join(item.worker_versions)})"
    return (
        item.handler,
        f"v{item.envelope_version}",
        item.policy_version or "-",
        str(item.waiting),
        str(item.leased),
        str(item.held),
        "-" if item.oldest_at is None else ago(item.oldest_at, now),
        decoded,
    )


def _spare(view: Envelopes) -> list[str]:
    """Decoders beside which their handler has another one: with a single one, its work has only ended."""
    decoded: dict[str, set[int]] = {}
    for item in view.items:
        if item.workers:
            decoded.setdefault(item.handler, set()).add(item.envelope_version)
    return [
        f"{item.handler} v{item.envelope_version}"
        for item in view.items
        if item.policy_version is None and len(decoded[item.handler]) > 1
    ]


command(group, "list")(list_)
