"""What lists have in common: the filters as options, pages, and what an item looks like as JSON."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redrive.cli.session import Session
from redrive.cli.values import complete_destination, complete_handler, read_past
from redrive.domain.delivery import Disposition
from redrive.domain.outcome import Category
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.ledger.search import DeliveryFilter
    from redrive.webhooks.destinations import Destination

ALL_PAGE: Final = 500
"""How many are read at once with --all."""


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


def pages(search: Callable[[str | None, int], Any], after: str | None, limit: int, every: bool) -> Iterator[Any]:
    """One page, or with ``every`` all of them, as they are read."""
    if not every:
        yield search(after, limit)
        return
    while True:
        page = search(after, ALL_PAGE)
        yield page
        after = page.next
        if after is None:
            return


def shown(pages: Iterator[Any], names: Mapping[str, str], following: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The items of pages as JSON; in the end ``following`` says where to go on."""
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
    found = [item for item in _listed(session, tenant) if item.name == name]
    if len(found) > 1:
        tenants = ", ".join(sorted(item.tenant for item in found))
        raise InvalidInput(f"tenants {tenants} each have a destination {name!r}", param="tenant", hint="give --tenant")
    return found[0].destination_id if found else name


def unregistered(session: Session, name: str | None, tenant: str | None) -> str:
    """What to add to an empty answer where no registered destination is called so; jobs may name any other."""
    if name is None:
        return ""
    known = {item.destination_id if name.startswith("dst_") else item.name: item for item in _listed(session, tenant)}
    if name in known:
        return ""
    close = difflib.get_close_matches(name, known, n=1)
    meant = f" (did you mean {close[0]}?)" if close else ""
    whose = f" of tenant {tenant!r}" if tenant else ""
    return f"; no registered destination{whose} is called {name!r}{meant}"


def _listed(session: Session, tenant: str | None) -> list[Destination]:
    return session.app().destinations.list(tenant=tenant)


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
