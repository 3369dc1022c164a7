"""``schema``: JSON Schemas that payloads of an event type must satisfy before they leave."""

from __future__ import annotations

import difflib
import json
from typing import Annotated

import typer

from redrive.cli.command import command
from redrive.cli.session import Session
from redrive.cli.values import read_payload
from redrive.errors import InvalidInput, NotFound

group = typer.Typer(help="JSON Schemas of event types: an invalid payload never leaves.", no_args_is_help=True)
EventType = Annotated[str, typer.Argument(help="For example order.paid", metavar="EVENT_TYPE")]


def set_(
    session: Session,
    event_type: EventType,
    schema: Annotated[str, typer.Argument(help="JSON Schema (2020-12), @FILE, or - for stdin", metavar="SCHEMA")],
) -> int | None:
    """Set the schema of an event type, replacing an earlier one.

    What does not satisfy it is dead-lettered as payload_invalid when its turn comes, and nothing is sent.
    """
    from redrive.webhooks.schemas import MAX_SCHEMA_BYTES

    body = read_payload(schema, MAX_SCHEMA_BYTES)
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidInput("the schema is not UTF-8", param="schema") from None
    session.app().destinations.set_schema(event_type, text, actor=session.actor)
    if session.out.is_table:
        session.out.line(f"payloads of {event_type} must satisfy the schema from now on")
    else:
        session.out.document({"event_type": event_type, "schema": json.loads(text)})
    return 0


def list_(session: Session) -> int | None:
    """List the event types that have a schema."""
    schemas = session.app().destinations.schemas()
    if not session.out.is_table:
        session.out.records({"event_type": name, "schema": schemas[name]} for name in sorted(schemas))
        return 0
    if not schemas:
        session.out.note("no event type has a schema: payloads are sent as they are published")
        return 0
    rows = [(name, json.dumps(schemas[name])[:200]) for name in sorted(schemas)]
    session.out.table(("EVENT TYPE", "SCHEMA"), rows)
    return 0


def remove(session: Session, event_type: EventType) -> int | None:
    """Remove an event type's schema: its payloads are no longer checked."""
    registry = session.app().destinations
    known = registry.schemas()
    if event_type not in known:
        near = difflib.get_close_matches(event_type, list(known), 1)
        hint = f"did you mean {near[0]}?" if near else "see: redrive schema list"
        raise NotFound(f"event type {event_type!r} has no schema", param="event_type", hint=hint)
    registry.set_schema(event_type, None, actor=session.actor)
    if session.out.is_table:
        session.out.line(f"payloads of {event_type} are no longer checked")
    else:
        session.out.document({"event_type": event_type, "schema": None})
    return 0


command(group, "set", settings=("actor",))(set_)
command(group, "list")(list_)
command(group, "remove", settings=("actor",))(remove)
