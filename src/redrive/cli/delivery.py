"""``delivery``: find deliveries, read one's whole history, cancel one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from redrive.cli.command import Reason, Yes, check_reason, command
from redrive.cli.explain import Known, entry_line, explain
from redrive.cli.output import ago, safe, utc, when
from redrive.cli.session import Session
from redrive.cli.values import complete_destination, complete_handler, read_past
from redrive.domain.delivery import Disposition
from redrive.domain.outcome import Category
from redrive.errors import InvalidInput
from redrive.ledger.records import DeliveryView

if TYPE_CHECKING:
    from redrive.ledger.search import DeliveryFilter

group = typer.Typer(help="Deliveries: find them, read one's history, cancel one.", no_args_is_help=True)
Id = Annotated[str, typer.Argument(help="dlv_...", metavar="ID")]
ALL_PAGE = 500


def _filter(annotation: Any, name: str, text: str, metavar: str | None = "NAME", **more: Any) -> Any:
    return Annotated[annotation, typer.Option(name, help=text, metavar=metavar, rich_help_panel="Which", **more)]


COMMON_FILTERS: Mapping[str, Any] = {
    "tenant": _filter(str | None, "--tenant", "Of this tenant"),
    "scope": _filter(str | None, "--scope", "Of this scope"),
    "destination": _filter(str | None, "--destination", "To this one", autocompletion=complete_destination),
    "handler": _filter(str | None, "--handler", "For this handler", autocompletion=complete_handler),
    "event_type": _filter(str | None, "--event-type", "Of this event type", "TYPE"),
    "category": _filter(Category | None, "--category", "Whose last category is this", None, show_choices=False),
    "since": _filter(str | None, "--since", "From this time on, or this long ago: 2h", "TIME"),
    "until": _filter(str | None, "--until", "Before this time, or this long ago", "TIME"),
    "ambiguous": _filter(bool | None, "--ambiguous/--not-ambiguous", "Whose effect may exist unconfirmed", None),
}
LIST_FILTERS: Mapping[str, Any] = {
    **COMMON_FILTERS,
    "state": _filter(list[str] | None, "--state", "Standing here: waiting, leased, dead, ...; repeatable", "STATE"),
    "held": _filter(bool | None, "--held/--not-held", "Held for a disabled destination", None),
    "event_id": _filter(str | None, "--event-id", "Of the event with this ID at its producer", "TEXT"),
    "key": _filter(str | None, "--key", "With this key", "TEXT"),
}
After = Annotated[str | None, typer.Option("--after", help="Go on after this cursor", metavar="CURSOR")]
Limit = Annotated[int, typer.Option("--limit", help="How many at most")]
All = Annotated[bool, typer.Option("--all", help="Every page, as it is read")]


def list_(
    session: Session, options: dict[str, Any], after: After = None, limit: Limit = 50, every: All = False
) -> int | None:
    """List deliveries, newest first. With --all -o jsonl it streams every one."""
    operations = session.operations
    filters = delivery_filter(session, options)
    names = operations.destination_names()
    if every:
        pages = _pages(lambda cursor: operations.search(filters, after=cursor, limit=ALL_PAGE), after)
    else:
        pages = iter([operations.search(filters, after=after, limit=limit)])
    if not session.out.is_table:
        following: dict[str, Any] = {"next": None}
        session.out.records(_shown(pages, names, following), following)
        return 0
    print_pages(session, pages, lambda items: _table(session, items, names), "no delivery matches")
    return 0


def print_pages(session: Session, pages: Iterator[Any], show: Any, nothing: str) -> None:
    """Each page as a table, and how to go on."""
    found, cursor = False, None
    for page in pages:
        cursor = page.next
        if page.items:
            show(page.items)
            found = True
    if not found:
        session.out.note(nothing)
    elif cursor is not None:
        session.out.note(f"there are more: --after {cursor}, or --all")


def _pages(search: Any, after: str | None) -> Iterator[Any]:
    while True:
        page = search(after)
        yield page
        after = page.next
        if after is None:
            return


def _shown(pages: Iterator[Any], names: Mapping[str, str], following: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for page in pages:
        for item in page.items:
            yield named(item.as_dict(), names)
        following["next"] = page.next


def named(shown: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A record's JSON with the destination's name beside its ID."""
    return {**shown, "destination_name": names.get(shown["destination"])}


def destination_id(session: Session, name: str | None, tenant: str | None) -> str | None:
    """What the ledger calls a destination: the ID of a registered one; the text itself for jobs."""
    if name is None or name.startswith("dst_"):
        return name
    found = [item for item in session.app().destinations.list(tenant=tenant) if item.name == name]
    if len(found) > 1:
        tenants = ", ".join(sorted(item.tenant for item in found))
        raise InvalidInput(f"tenants {tenants} each have a destination {name!r}", param="tenant", hint="give --tenant")
    return found[0].destination_id if found else name


def common_filter(session: Session, options: Mapping[str, Any]) -> dict[str, Any]:
    """The filters that deliveries and dead letters share."""
    now = session.now()
    category = options["category"]
    return {
        "tenant": options["tenant"],
        "scope": options["scope"],
        "destination": destination_id(session, options["destination"], options["tenant"]),
        "handler": options["handler"],
        "event_type": options["event_type"],
        "category": None if category is None else category.value,
        "since": read_past(options["since"], now, "since"),
        "until": read_past(options["until"], now, "until"),
        "ambiguous": options["ambiguous"],
    }


def delivery_filter(session: Session, options: Mapping[str, Any]) -> DeliveryFilter:
    """The filter that the options describe."""
    from redrive.ledger.search import DeliveryFilter

    states = None
    if options["state"]:
        states = tuple(_state(word) for text in options["state"] for word in text.split(","))
    return DeliveryFilter(
        **common_filter(session, options),
        dispositions=states,
        held=options["held"],
        event_key=options["event_id"],
        key=options["key"],
    )


def _state(word: str) -> Disposition:
    with contextlib.suppress(KeyError):
        return Disposition[word.strip().upper()]
    known = ", ".join(item.label for item in Disposition)
    raise InvalidInput(f"there is no state {word!r}", param="state", hint=f"one of: {known}")


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
