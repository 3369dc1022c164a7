"""``enqueue`` and ``publish``: work enters here, and is durable when the command returns."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from redrive.cli.command import command
from redrive.cli.options import POLICY, with_options
from redrive.cli.output import plural
from redrive.cli.session import Session
from redrive.cli.values import complete_handler, looks_like_json, read_instant, read_payload
from redrive.domain.identity import UNIQUE
from redrive.domain.policy import JOBS, Policy
from redrive.domain.values import parse_json_bytes
from redrive.errors import InvalidInput, RedriveError, UnknownHandler

Scope = Annotated[str | None, typer.Option("--scope", help="A finer owner inside the tenant", metavar="NAME")]
_HANDLER = typer.Argument(help="The handler's name", metavar="HANDLER", autocompletion=complete_handler)


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "enqueue", settings=("tenant", "max_payload", "actor"), options=POLICY)(enqueue)
    command(app, "publish", settings=("tenant", "max_payload", "actor"))(publish)


def enqueue(
    session: Session,
    options: dict[str, Any],
    handler: Annotated[str, _HANDLER],
    payload: Annotated[str, typer.Argument(help="JSON, @FILE, or - for stdin", metavar="JSON")] = "null",
    key: Annotated[
        list[str] | None,
        typer.Option("--key", help="The work's own identity; repeat it for a key of several parts", metavar="TEXT"),
    ] = None,
    key_json: Annotated[
        str | None, typer.Option("--key-json", help="As --key, with JSON's types: 5 is not '5'", metavar="JSON")
    ] = None,
    unique: Annotated[bool, typer.Option("--unique", help="It has none: every call is new work")] = False,
    scope: Scope = None,
    destination: Annotated[
        str, typer.Option("--destination", help="What must be protected from us", metavar="NAME")
    ] = "",
    delay: Annotated[str | None, typer.Option("--delay", help="Not before this long, for example 15m")] = None,
    at: Annotated[str | None, typer.Option("--at", help="Not before this time, for example 2026-08-21T02:00Z")] = None,
    priority: Annotated[
        int, typer.Option("--priority", help="0 (first) to 3, among the work of one handler; handlers take turns")
    ] = 2,
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Another application has the handler; say how it is retried too")
    ] = False,
    default_policy: Annotated[
        bool, typer.Option("--default-policy", help="Retry as the default of jobs says, not as the handler does")
    ] = False,
) -> int | None:
    """Enqueue one job for a handler.

    The same key with the same payload is the same work: the first delivery is returned. The same key with another
    payload is refused. How it is retried is the handler's own policy, with what is given here over it.
    """
    given = [bool(key), key_json is not None, unique]
    if sum(given) != 1:
        raise InvalidInput(
            "say what the work is: give one of --key, --key-json and --unique",
            param="key",
            hint="with a key, enqueuing the same work twice is one delivery; --unique makes each call new work",
        )
    identity: Any = UNIQUE
    if key:
        identity = key[0] if len(key) == 1 else tuple(key)
    elif key_json is not None:
        identity = _key_of(key_json)
    app = session.app(handlers=not allow_unknown)
    limit = app.max_payload_bytes
    body = app.rejections.noting(lambda: parse_json_bytes(read_payload(payload, limit), unique_keys=True))
    own = app.job_handlers.get(handler)
    policy: Policy | None = JOBS if default_policy else None
    if any(value is not None for value in options.values()):
        policy = with_options(own.policy if policy is None and own is not None else JOBS, options)
    try:
        job = app.enqueue(
            handler,
            body,
            key=identity,
            tenant=session.tenant,
            scope=scope,
            destination=destination,
            delay=delay,
            at=None if at is None else read_instant(at, "at"),
            priority=priority,
            policy=policy,
            allow_unknown=allow_unknown,
        )
    except UnknownHandler as exc:
        raise UnknownHandler(
            f"there is no handler {handler!r} here",
            param="handler",
            hint=_handler_hint(session, list(app.job_handlers)),
        ) from exc
    except InvalidInput as exc:
        if exc.param == "policy" and policy is None:
            exc.hint = "say how it is retried, for example --max-attempts 5 --unknown hold, or give --default-policy"
        raise
    if not session.out.is_table:
        session.out.document({"delivery": job.delivery_id, "created": job.created})
        return 0
    if job.created:
        session.out.line(f"{job.delivery_id} accepted")
    else:
        session.out.line(f"{job.delivery_id} is there already, with the same payload; nothing was added")
    session.out.note(f"see what becomes of it: redrive delivery timeline {job.delivery_id}")
    return 0


def _handler_hint(session: Session, handlers: list[str]) -> str:
    if session.settings.app is None:
        return "name the application that has it with --app MODULE:ATTR, or give --allow-unknown and a policy"
    known = ", ".join(sorted(handlers)) or "none"
    return f"{session.settings.app} has: {known}. If another application executes it, give --allow-unknown and a policy"


def _key_of(text: str) -> Any:
    value = parse_json_bytes(text.encode("utf-8", "surrogateescape"))
    if isinstance(value, dict | float):
        raise InvalidInput("a key is text, a whole number, true, false, null or a list of these", param="key_json")
    return tuple(value) if isinstance(value, list) else value


def publish(
    session: Session,
    event_type: Annotated[str, typer.Argument(help="For example order.paid", metavar="EVENT_TYPE")],
    payload: Annotated[
        str, typer.Argument(help="The payload, @FILE, or - for stdin; sent byte for byte", metavar="PAYLOAD")
    ] = "{}",
    event_id: Annotated[
        str | None, typer.Option("--event-id", help="The event's own ID at its producer", metavar="TEXT")
    ] = None,
    unique: Annotated[bool, typer.Option("--unique", help="It has none: every call is a new event")] = False,
    scope: Scope = None,
    content_type: Annotated[str, typer.Option("--content-type", help="What the payload is")] = "application/json",
) -> int | None:
    """Publish an event: one delivery for each of the tenant's destinations that subscribes to its type.

    Publishing the same event ID again returns the first publication; which destinations it goes to was settled then.
    """
    if (event_id is None) is not unique:
        raise InvalidInput(
            "say which event it is: give --event-id or --unique",
            param="event_id",
            hint="with an ID, publishing the same event twice is one event; --unique makes each call a new one",
        )
    app = session.app()
    body = app.rejections.noting(lambda: read_payload(payload, app.max_payload_bytes))
    try:
        done = app.publish(
            event_type,
            body,
            event_id=UNIQUE if event_id is None else event_id,
            tenant=session.tenant,
            scope=scope,
            content_type=content_type,
        )
    except RedriveError as exc:
        plain = content_type == "application/json" and not looks_like_json(body)
        if exc.code == "payload_invalid" and exc.hint is None and plain:
            exc.hint = "for a payload that is not JSON say what it is, for example --content-type text/plain"
        raise
    if not session.out.is_table:
        shown = {"event": done.event_id, "created": done.created, "deliveries": list(done.deliveries)}
        session.out.document(shown)
        return 0
    if done.created:
        session.out.line(f"{done.event_id} published: {plural(len(done.deliveries), 'delivery')}")
    else:
        # A repeat is counted for each of its deliveries: one event to three destinations is three.
        again = f" ({plural(len(done.deliveries), 'delivery')} repeated)" if done.deliveries else ""
        session.out.line(f"{done.event_id} was published before, with the same payload; nothing was added{again}")
    for delivery in done.deliveries:
        session.out.line(f"  {delivery}")
    if not done.deliveries:
        session.out.note(
            f"no destination of tenant {session.tenant!r} subscribed to {event_type} when it was published, so "
            "nothing is sent. See: redrive destination list"
        )
    else:
        session.out.note(f"see what becomes of it: redrive delivery timeline {done.deliveries[0]}")
    return 0
