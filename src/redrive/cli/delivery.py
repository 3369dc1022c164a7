"""``delivery``: find deliveries, read one's whole history, cancel one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.text import Text

from redrive.cli.command import Reason, Yes, check_reason, command
from redrive.cli.explain import Known, entry_line, explain
from redrive.cli.filters import (
    LIST_FILTERS,
    After,
    All,
    Limit,
    delivery_filter,
    named,
    pages,
    print_pages,
    shown,
    unregistered,
)
from redrive.cli.output import ago, safe, utc, when
from redrive.cli.session import Session
from redrive.ledger.records import DeliveryView

group = typer.Typer(help="Deliveries: find them, read one's history, cancel one.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="dlv_...", metavar="ID")]


def list_(
    session: Session, options: dict[str, Any], after: After = None, limit: Limit = 50, every: All = False
) -> int | None:
    """List deliveries, newest first. With --all -o jsonl it streams every one."""
    operations = session.operations
    filters = delivery_filter(session, options)
    names = operations.destination_names()
    found = pages(
        lambda cursor, count: operations.search(filters, after=cursor, limit=count), after, limit, every=every
    )
    if not session.out.is_table:
        following: dict[str, Any] = {"next": None}
        session.out.records(shown(found, names, following), following)
        return 0
    nothing = "no delivery matches" + unregistered(session, options["destination"], options["tenant"])
    print_pages(session, found, lambda items: _table(session, items, names), nothing)
    return 0


def _table(session: Session, items: list[DeliveryView], names: Mapping[str, str]) -> None:
    out, now = session.out, session.now()
    if out.out.is_terminal:
        rows = []
        for item in items:
            state = out.mark(_standing(item)).append(f"\n{safe(item.last_category or '')}", style="dim")
            what = Text(item.id).append(f"\n{safe(_route(item, names))}", style="dim")
            moment = _moment(item)
            stamp = Text(f"{moment[0]} {ago(moment[1], now)}").append(f"\n{utc(moment[1])}", style="dim")
            rows.append((what, state, f"{item.attempt}/{item.max_attempts}", stamp))
        out.table(("DELIVERY", "STATE", "TRIES", "WHEN"), rows)
        return
    head = ("DELIVERY", "STATE", "TRIES", "LAST", "WHAT", "TO", "TENANT", "SCOPE", "WHEN", "UTC")
    out.table(
        head,
        [
            (
                item.id,
                _standing(item),
                f"{item.attempt}/{item.max_attempts}",
                item.last_category or "-",
                _what(item),
                _to(item, names),
                item.tenant,
                item.scope or "-",
                f"{_moment(item)[0]} {ago(_moment(item)[1], now)}",
                utc(_moment(item)[1]),
            )
            for item in items
        ],
    )


def _standing(view: DeliveryView) -> str:
    return "held" if view.hold and view.disposition == "waiting" else view.disposition


def _what(view: DeliveryView) -> str:
    if view.event_type is not None:
        return f"{view.event_type} {view.event_key}"
    return f"{view.handler} {view.key}"


def _to(view: DeliveryView, names: Mapping[str, str]) -> str:
    return names.get(view.destination, view.destination) or "-"


def _route(view: DeliveryView, names: Mapping[str, str]) -> str:
    return f"{_what(view)} → {_to(view, names)}" if view.destination else _what(view)


def _moment(view: DeliveryView) -> tuple[str, int]:
    """The instant that matters in a list: when it is due, when it began, or when it was accepted."""
    if view.disposition == "waiting":
        return "due", view.available_at
    if view.disposition == "leased" and view.started_at is not None:
        return "started", view.started_at
    return "accepted", view.first_queued_at


def known(session: Session, delivery: str) -> Known:
    """Everything an explanation of one delivery needs."""
    operations = session.operations
    view = operations.show(delivery)
    served = None
    if view.disposition == "waiting":
        missing = {(item.handler, item.envelope_version) for item in operations.status().unclaimed}
        served = (view.handler, view.envelope_version) not in missing
    return Known(
        view,
        operations.attempts(delivery),
        operations.timeline(delivery),
        operations.destination_names(),
        session.now(),
        served,
    )


def show(
    session: Session,
    delivery: Id,
    payload: Annotated[
        bool, typer.Option("--payload", help="Print its payload, byte for byte, and nothing else")
    ] = False,
) -> int | None:
    """Show one delivery as it stands."""
    if payload:
        _payload(session, delivery)
        return 0
    facts = known(session, delivery)
    view, now = facts.view, facts.now
    if not session.out.is_table:
        session.out.document({**named(view.as_dict(), facts.names), "explanation": explain(facts)})
        return 0
    session.out.line(explain(facts))
    pairs: list[tuple[str, Any]] = [
        ("delivery", view.id),
        ("state", session.out.mark(_standing(view))),
        ("handler", view.handler),
        ("tenant", view.tenant + (f" / {view.scope}" if view.scope else "")),
        ("destination", facts.names.get(view.destination, view.destination) or "-"),
        ("event" if view.event_id else "key", f"{view.event_type} {view.event_key}" if view.event_id else view.key),
        ("generation", str(view.generation)),
        ("attempts", f"{view.attempt} of {view.max_attempts}"),
        ("accepted", when(view.first_queued_at, now)),
        ("due", when(view.available_at, now) if view.disposition == "waiting" else "-"),
        ("deadline", when(view.deadline_at, now)),
        ("last", view.last_category or "-"),
        ("content type", view.content_type),
    ]
    session.out.facts(pairs)
    session.out.note(f"its history: redrive delivery timeline {view.id}")
    return 0


def _payload(session: Session, delivery: str) -> None:
    import base64
    import sys

    content_type, body = session.operations.payload(delivery)
    if not session.out.is_table:
        session.out.document({"content_type": content_type, "payload_base64": base64.b64encode(body).decode()})
        return
    if sys.stdout.isatty():
        session.out.raw(safe(body.decode("utf-8", "backslashreplace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(body)


def timeline(session: Session, delivery: Id) -> int | None:
    """Say why a delivery stands where it stands and what happens next, then everything that happened to it."""
    facts = known(session, delivery)
    out = session.out
    if not out.is_table:
        entries = [entry.as_dict() for entry in facts.entries]
        if out.mode == "jsonl":
            out.records(entries)
        else:
            shown = {"delivery": named(facts.view.as_dict(), facts.names), "explanation": explain(facts)}
            out.document({**shown, "entries": entries})
        return 0
    out.line(explain(facts), style="bold")
    out.line(f"{facts.view.id}  {_route(facts.view, facts.names)}  tenant {facts.view.tenant}", style="dim")
    out.table(("WHEN (UTC)", "", "WHAT"), [entry_line(entry, facts.now) for entry in facts.entries])
    return 0


def cancel(session: Session, delivery: Id, reason: Reason, yes: Yes = False) -> int | None:
    """Cancel a delivery. One that is being attempted is cancelled when that ends, unless it delivers."""
    operations = session.operations
    check_reason(reason)
    view = operations.show(delivery)
    session.out.confirm(f"cancel {view.id} ({_what(view)}, {view.disposition})? It cannot be undone.", yes=yes)
    done = operations.cancel(delivery, reason=reason, actor=session.actor)
    if not session.out.is_table:
        session.out.document({"delivery": view.id, "cancelled": done, "requested": True})
    elif done:
        session.out.line(f"{view.id} is cancelled")
    else:
        session.out.line(f"{view.id} is being attempted: it is cancelled when that ends, unless it is delivered")
    return 0


command(group, "list", options=LIST_FILTERS)(list_)
command(group, "show")(show)
command(group, "timeline")(timeline)
command(group, "cancel", settings=("actor",))(cancel)
