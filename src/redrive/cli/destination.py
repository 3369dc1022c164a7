"""``destination``: who receives webhooks, and how."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive.cli import probe
from redrive.cli.command import Reason, Yes, check_reason, command
from redrive.cli.options import ADD, OPTIONS, described
from redrive.cli.output import Cell, plural, when
from redrive.cli.registering import check_address, new_secret, warn_of_token
from redrive.cli.session import Session
from redrive.cli.values import complete_destination
from redrive.domain.values import duration_us
from redrive.errors import InvalidInput
from redrive.ledger.records import span
from redrive.webhooks.settings import DestinationSettings
from redrive.webhooks.url import parse_url

if TYPE_CHECKING:
    from redrive.webhooks.destinations import Destination

group = typer.Typer(help="Destinations: who receives webhooks, and how.", no_args_is_help=True)
Name = Annotated[
    str, typer.Argument(help="Its name, or its dst_ ID", metavar="NAME", autocompletion=complete_destination)
]
_SETTINGS = ("tenant", "actor", "allowed_private", "allowed_ports")


def add(
    session: Session,
    options: dict[str, Any],
    name: Annotated[str, typer.Argument(help="A name, unique within the tenant", metavar="NAME")],
    url: Annotated[str, typer.Argument(help="Where requests go", metavar="URL")],
) -> int | None:
    """Register a destination. Secrets are references: a secret itself is refused, and never printed."""
    app = session.app()
    settings = described(DestinationSettings(url), options)
    check_address(session, settings)
    with new_secret(options.get("generate_secret")) as ref:
        if ref is not None:
            settings = described(settings, {"secrets": [ref, *(options.get("secrets") or [])]})
        made = app.destinations.add(name, settings, tenant=session.tenant, actor=session.actor)
    _print(session, made, f"added {made.name} ({made.destination_id})")
    warn_of_token(session, url)
    _secret_note(session, options)
    if not settings.secrets:
        session.out.note("its requests are not signed: add --secret env:NAME or --generate-secret FILE to sign them")
    session.out.note(f"try it: redrive destination test {made.name}")
    return 0


def change(
    session: Session,
    options: dict[str, Any],
    name: Name,
    clear: Annotated[
        list[str] | None, typer.Option("--clear", help="Back to the default, for example headers; repeatable")
    ] = None,
) -> int | None:
    """Change a destination's settings: what is not mentioned stays. Lists are replaced as a whole.

    Deliveries that exist keep the budget and policy that they were accepted under.
    """
    registry = session.app().destinations
    current = registry.get(name, tenant=session.tenant)
    if not clear and not any(value not in (None, []) for value in options.values()):
        raise InvalidInput("nothing to change", hint="see: redrive destination change --help")
    settings = described(current.settings, options, clear)
    check_address(session, settings)
    with new_secret(options.get("generate_secret")) as ref:
        if ref is not None:
            settings = described(settings, {"secrets": [ref]})
        made = registry.change(current.destination_id, settings, tenant=session.tenant, actor=session.actor)
    _print(session, made, f"changed {made.name}")
    if made.settings.url != current.settings.url:
        warn_of_token(session, made.settings.url)
    _secret_note(session, options)
    return 0


def list_(
    session: Session,
    every: Annotated[bool, typer.Option("--all-tenants", help="Of every tenant")] = False,
) -> int | None:
    """List the tenant's destinations."""
    found = session.app().destinations.list(tenant=None if every else session.tenant)
    if not session.out.is_table:
        session.out.records(item.as_dict() for item in found)
        return 0
    if not found:
        session.out.note("no destinations; add one with: redrive destination add NAME URL")
        return 0
    head = ["NAME", "STATE", "WHERE", "EVENTS", "ATTEMPTS", "DUPLICATES"] + (["TENANT"] if every else [])
    rows: list[list[Cell]] = []
    for item in found:
        policy = item.settings.policy
        row: list[Cell] = [
            item.name,
            session.out.mark("enabled" if item.enabled else "disabled"),
            parse_url(item.settings.url).origin,
            ", ".join(item.settings.event_types) or "*",
            f"{policy.max_attempts} in {span(policy.max_age)}",
            f"{item.receiver_duplicates:,}",
        ]
        rows.append([*row, item.tenant] if every else row)
    session.out.table(head, rows)
    return 0


def show(session: Session, name: Name) -> int | None:
    """Show one destination. The URL's path is not shown: it may hold a token."""
    found = session.app().destinations.get(name, tenant=session.tenant)
    if not session.out.is_table:
        session.out.document(found.as_dict())
        return 0
    settings, policy = found.settings, found.settings.policy
    state = session.out.mark("enabled" if found.enabled else "disabled")
    if found.disabled_at is not None and not found.enabled:
        state = session.out.mark("disabled", f"disabled {when(found.disabled_at, session.now())}: {found.disabled_why}")
    limits = settings.timeouts
    facts: list[tuple[str, Cell]] = [
        ("name", found.name),
        ("id", found.destination_id),
        ("tenant", found.tenant + (f" / {settings.scope}" if settings.scope else "")),
        ("state", state),
        ("where", parse_url(settings.url).origin + "/..."),
        ("events", ", ".join(settings.event_types) or "* (every one)"),
        ("signed with", _secrets(found, session.now())),
        ("headers", "\n".join(f"{key}: {value}" for key, value in settings.headers) or "-"),
        ("attempts", f"{policy.max_attempts}, within {span(policy.max_age)}"),
        (
            "waits",
            f"{span(policy.base)} x {policy.factor:g} up to {span(policy.cap)}, {policy.jitter} jitter"
            + (f", at least {span(policy.floor)}" if policy.floor else ""),
        ),
        ("if unknown", str(policy.on_unknown) + (f" with {settings.confirm}" if settings.confirm else "")),
        (
            "timeouts",
            f"dns {limits.dns:g} s, connect {limits.connect:g} s, tls {limits.tls:g} s, "
            f"first byte {limits.first_byte:g} s, total {limits.total:g} s",
        ),
        ("delivered is", settings.acknowledge + "".join(f", {a} is {b}" for a, b in settings.overrides)),
        ("duplicates", f"{found.receiver_duplicates:,} reported by the receiver"),
        ("added", when(found.created_at, session.now())),
    ]
    extra = {
        "authorities": settings.ca_file,
        "client cert": settings.client_cert_file,
        "proxy": settings.proxy,
        "duplicate is": None if settings.duplicate_status is None else str(settings.duplicate_status),
    }
    session.out.facts([*facts, *((key, value) for key, value in extra.items() if value)])
    return 0


def test(session: Session, name: Name) -> int | None:
    """Send one signed event of type redrive.test to a destination now, without a delivery on the ledger.

    Exits 1 if it was not delivered. Nothing is retried, recorded or disabled.
    """
    return probe.run(session, name)


def enable(session: Session, name: Name) -> int | None:
    """Enable a destination, and release what was held for it."""
    registry = session.app().destinations
    found = registry.get(name, tenant=session.tenant)
    with session.out.progress("releasing") as progress:
        count = registry.enable(found.destination_id, tenant=found.tenant, actor=session.actor, progress=progress)
    if session.out.is_table:
        session.out.line(f"{found.name} is enabled; {plural(count, 'delivery')} released")
    else:
        session.out.document({"destination_id": found.destination_id, "enabled": True, "released": count})
    return 0


def disable(session: Session, name: Name, reason: Reason, yes: Yes = False) -> int | None:
    """Disable a destination: what waits for it is held, keeps its age deadline and costs no attempt."""
    registry = session.app().destinations
    found = registry.get(name, tenant=session.tenant)
    check_reason(reason)
    session.out.confirm(f"disable {found.name} and hold everything that waits for it?", yes=yes)
    with session.out.progress("holding") as progress:
        count = registry.disable(
            found.destination_id, reason=reason, tenant=found.tenant, actor=session.actor, progress=progress
        )
    if session.out.is_table:
        session.out.line(f"{found.name} is disabled; {plural(count, 'delivery')} held")
        session.out.note(f"held work still ages. Undo with: redrive destination enable {found.name}")
    else:
        session.out.document({"destination_id": found.destination_id, "enabled": False, "held": count})
    return 0


def rotate_secret(
    session: Session,
    name: Name,
    secret: Annotated[str | None, typer.Option("--secret", help="env:NAME or file:/path", metavar="REF")] = None,
    generate: Annotated[
        str | None, typer.Option("--generate-secret", help="Write a new one to this file and use it", metavar="FILE")
    ] = None,
    overlap: Annotated[str, typer.Option("--overlap", help="How long the old ones sign too", metavar="TIME")] = "24h",
) -> int | None:
    """Sign with a new secret from now on, and with the old ones too until the receiver has changed over."""
    if (secret is None) is (generate is None):
        raise InvalidInput("give one of --secret and --generate-secret", param="secret")
    registry = session.app().destinations
    overlap_us = duration_us(overlap, "overlap")
    found = registry.get(name, tenant=session.tenant)
    with new_secret(generate) as ref:
        made = registry.rotate_secret(
            found.destination_id, ref or str(secret), overlap_us=overlap_us, tenant=found.tenant, actor=session.actor
        )
    _print(session, made, f"{made.name} signs with {made.settings.secrets[0].ref}; the old secrets sign for {overlap}")
    _secret_note(session, {"generate_secret": generate})
    return 0


def _print(session: Session, made: Destination, text: str) -> None:
    if session.out.is_table:
        session.out.line(text)
    else:
        session.out.document(made.as_dict())


def _secrets(found: Destination, now: int) -> str:
    shown = [
        secret.ref + ("" if secret.until is None else f" (until {when(secret.until, now)})")
        for secret in found.settings.secrets
        if secret.until is None or secret.until > now
    ]
    return "\n".join(shown) or "nothing: requests are not signed"


def _secret_note(session: Session, options: Mapping[str, Any]) -> None:
    if options.get("generate_secret"):
        file = Path(options["generate_secret"]).absolute()
        session.out.note(f"the signing secret is in {file} (mode 0600); the receiver verifies with the same one")


command(group, "add", settings=_SETTINGS, options=ADD)(add)
command(group, "change", settings=_SETTINGS, options=OPTIONS)(change)
command(group, "list", settings=("tenant",))(list_)
command(group, "show", settings=("tenant",))(show)
command(group, "test", settings=("tenant", "allowed_private", "allowed_ports"))(test)
command(group, "enable", settings=("tenant", "actor"))(enable)
command(group, "disable", settings=("tenant", "actor"))(disable)
command(group, "rotate-secret", settings=("tenant", "actor"))(rotate_secret)
