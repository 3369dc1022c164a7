"""The options that describe a destination, and what they make of its settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Final

import typer

from redrive.cli.values import read_seconds
from redrive.domain.policy import Jitter, OnUnknown, Policy
from redrive.domain.values import duration_us
from redrive.errors import ConfigError, InvalidInput
from redrive.webhooks.settings import DestinationSettings, SigningSecret

_WHAT: Final = "What it receives"
_RETRY: Final = "How it is retried"
_WIRE: Final = "How it is reached"
_ANSWER: Final = "What its answers mean"


def _option(annotation: Any, name: str, panel: str, text: str, metavar: str | None = None) -> Any:
    return Annotated[annotation | None, typer.Option(name, help=text, rich_help_panel=panel, metavar=metavar)]


def _one(name: str, panel: str, text: str, metavar: str = "TEXT") -> Any:
    return _option(str, name, panel, text, metavar)


def _many(name: str, panel: str, text: str, metavar: str = "TEXT") -> Any:
    return _option(list[str], name, panel, f"{text}; repeatable", metavar)


OPTIONS: Final[Mapping[str, Any]] = {
    "event_types": _many(
        "--event-type", _WHAT, "Events it wants: order.paid, order.*, order.** (all if none)", "FILTER"
    ),
    "scope": _one("--scope", _WHAT, "A finer owner inside the tenant", "NAME"),
    "headers": _many("--header", _WHAT, "A header of every request; credentials as 'Name: env:VAR'", "'NAME: VALUE'"),
    "secrets": _many("--secret", _WHAT, "A signing secret by reference: env:NAME or file:/path", "REF"),
    "generate_secret": _one("--generate-secret", _WHAT, "Write a new signing secret to this file and use it", "FILE"),
    "max_attempts": _option(int, "--max-attempts", _RETRY, "How many attempts, the first included", "N"),
    "max_age": _one("--max-age", _RETRY, "How long it is tried at all", "TIME"),
    "base": _one("--base", _RETRY, "The first wait", "TIME"),
    "factor": _option(float, "--factor", _RETRY, "What each wait is multiplied by", "X"),
    "cap": _one("--cap", _RETRY, "The longest wait", "TIME"),
    "floor": _one("--floor", _RETRY, "The shortest wait", "TIME"),
    "jitter": _option(Jitter, "--jitter", _RETRY, "How waits are spread"),
    "retry_after_cap": _one("--retry-after-cap", _RETRY, "The longest Retry-After that is obeyed", "TIME"),
    "on_unknown": _option(OnUnknown, "--unknown", _RETRY, "What follows when the effect may have happened"),
    "confirm": _one("--confirm", _RETRY, "The confirm function of the application that is asked then", "NAME"),
    "url": _one("--url", _WIRE, "Where requests go", "URL"),
    "allow_http": _option(bool, "--allow-http/--no-allow-http", _WIRE, "Plain HTTP (the setting must allow it too)"),
    "dns": _one("--dns-timeout", _WIRE, "Deadline for its name", "TIME"),
    "connect": _one("--connect-timeout", _WIRE, "Deadline for the connection", "TIME"),
    "tls": _one("--tls-timeout", _WIRE, "Deadline for the TLS handshake", "TIME"),
    "first_byte": _one("--first-byte-timeout", _WIRE, "Deadline for the first byte of the answer", "TIME"),
    "total": _one("--total-timeout", _WIRE, "Deadline for everything", "TIME"),
    "ca_file": _one("--ca-file", _WIRE, "Certificate authorities instead of the system's", "PATH"),
    "client_cert_file": _one("--client-cert-file", _WIRE, "Client certificate", "PATH"),
    "client_key_file": _one("--client-key-file", _WIRE, "Its key", "PATH"),
    "proxy": _one("--proxy", _WIRE, "An HTTP proxy that is asked to CONNECT", "HOST:PORT"),
    "proxy_authorization": _one("--proxy-authorization", _WIRE, "Its credentials, by reference", "REF"),
    "acknowledge": _one(
        "--acknowledge", _ANSWER, "Statuses that mean delivered, for example 2xx or 200-204", "STATUSES"
    ),
    "duplicate_status": _option(int, "--duplicate-status", _ANSWER, "A status that means: seen before", "STATUS"),
    "duplicate_header": _one(
        "--duplicate-header", _ANSWER, "A header that says so, instead of webhook-duplicate: true", "NAME"
    ),
    "overrides": _many("--override", _ANSWER, "What a status means, for example 404=retryable", "STATUS=OUTCOME"),
    "certificate": _one("--certificate", _ANSWER, "What a bad certificate means: permanent or retryable", "OUTCOME"),
    "excerpt": _option(int, "--excerpt", _ANSWER, "Keep this many redacted characters of a failed answer", "N"),
    "max_response_body": _option(int, "--max-response-body", _ANSWER, "Read at most this much of an answer", "BYTES"),
}
ADD: Final = {name: option for name, option in OPTIONS.items() if name != "url"}

_POLICY_TIMES: Final = ("max_age", "base", "cap", "floor", "retry_after_cap")
_POLICY: Final = (*_POLICY_TIMES, "max_attempts", "factor", "jitter", "on_unknown")
POLICY: Final = {name: OPTIONS[name] for name in _POLICY}
_TIMEOUTS: Final = ("dns", "connect", "tls", "first_byte", "total")
_READERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "event_types": tuple,
    "headers": lambda items: tuple(map(_header, items)),
    "secrets": lambda items: tuple(map(SigningSecret, items)),
    "overrides": lambda items: tuple(map(_override, items)),
}


def described(
    base: DestinationSettings, options: Mapping[str, Any], clear: list[str] | None = None
) -> DestinationSettings:
    """``base`` with every option that was given over it; ``clear`` names settings that go back to their default."""
    given = {name: value for name, value in options.items() if value not in (None, []) and name != "generate_secret"}
    changes: dict[str, Any] = _cleared(clear or [])
    policy: dict[str, Any] = {name: given.pop(name) for name in _POLICY if name in given}
    timeouts = {name: read_seconds(given.pop(name), f"{name}_timeout") for name in _TIMEOUTS if name in given}
    for name, value in given.items():
        changes[name] = _READERS[name](value) if name in _READERS else value
    if policy:
        changes["policy"] = with_options(changes.get("policy", base.policy), policy)
    if timeouts:
        changes["timeouts"] = replace(changes.get("timeouts", base.timeouts), **timeouts)
    return replace(base, **changes)


def with_options(base: Policy, options: Mapping[str, Any]) -> Policy:
    """``base`` with every option of :data:`POLICY` that was given over it."""
    given = {name: value for name, value in options.items() if value is not None}
    for name in _POLICY_TIMES:
        if name in given:
            given[name] = duration_us(given[name], name)
    try:
        return replace(base, **given)
    except ConfigError as exc:
        raise InvalidInput(exc.message, param=exc.param) from None


def _cleared(names: list[str]) -> dict[str, Any]:
    fresh = DestinationSettings("https://example.com/")
    known = [f.name for f in fields(DestinationSettings) if f.name != "url"]
    changes = {}
    for name in names:
        plain = {"header": "headers", "secret": "secrets", "override": "overrides", "event_type": "event_types"}
        chosen = plain.get(name.replace("-", "_"), name.replace("-", "_"))
        if chosen not in known:
            raise InvalidInput(f"there is no {name!r} to clear", param="clear", hint=f"one of: {', '.join(known)}")
        changes[chosen] = getattr(fresh, chosen)
    return changes


def _header(text: str) -> tuple[str, str]:
    """``Name: value``. What is wrong with it is said without repeating it: the value may be a credential."""
    name, colon, value = text.partition(":")
    if not colon:
        raise InvalidInput("a header is 'Name: value'", param="headers")
    # Only the spaces after the colon are syntax; any other white space is for the header check to refuse.
    return name, value.lstrip(" ")


def _override(text: str) -> tuple[str, str]:
    status, equals, outcome = text.partition("=")
    if not equals:
        raise InvalidInput("an override is STATUS=OUTCOME", param="overrides", hint="for example 404=retryable")
    return status.strip(), outcome.strip()
