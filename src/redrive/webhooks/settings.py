"""What one destination is configured to be: checked once, stored as JSON, compiled for use.

Nothing here holds a secret: secrets and sensitive headers are references (``env:NAME``, ``file:PATH``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePosixPath
from typing import Any, Final, Self

from redrive.domain.event_filter import EventFilter
from redrive.domain.policy import WEBHOOKS, OnUnknown, Policy
from redrive.domain.values import check_label, check_slug
from redrive.errors import InvalidInput
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.headers import check_headers
from redrive.webhooks.outcomes import DUPLICATE_HEADER, OutcomeTable
from redrive.webhooks.secrets import parse_ref
from redrive.webhooks.sender.request import Proxy, Timeouts, Tls
from redrive.webhooks.signing import MAX_SECRETS
from redrive.webhooks.url import Target, parse_url

MAX_EXCERPT_CHARS: Final = 1000
MAX_FILTERS: Final = 64


@dataclass(frozen=True, slots=True)
class SigningSecret:
    """One signing secret, by reference. After ``until`` (microseconds UTC) it no longer signs."""

    ref: str
    until: int | None = None


@dataclass(frozen=True, slots=True)
class DestinationSettings:
    """A destination, as an operator describes it. Raises :class:`InvalidInput` for what cannot work.

    ``event_types`` are filters (``order.paid``, ``order.*``, ``*``); none means all. ``secrets`` sign, newest first.
    ``acknowledge`` are the statuses that mean delivered; ``overrides`` change what others mean.
    ``policy.on_unknown`` says what follows when the effect may have happened; for ``confirm``, ``confirm`` names the
    function registered with ``Redrive.confirm``. ``excerpt`` keeps that many redacted characters of the
    body of an answer that did not deliver (0, the default, keeps none). Timeouts are seconds.
    """

    url: str
    event_types: tuple[str, ...] = ()
    scope: str | None = None
    policy: Policy = WEBHOOKS
    timeouts: Timeouts = field(default_factory=Timeouts)
    headers: tuple[tuple[str, str], ...] = ()
    secrets: tuple[SigningSecret, ...] = ()
    acknowledge: str = "2xx"
    duplicate_status: int | None = None
    duplicate_header: str = DUPLICATE_HEADER
    overrides: tuple[tuple[str, str], ...] = ()
    certificate: str = "permanent"
    confirm: str | None = None
    allow_http: bool = False
    ca_file: str | None = None
    client_cert_file: str | None = None
    client_key_file: str | None = None
    proxy: str | None = None
    proxy_authorization: str | None = None
    excerpt: int = 0
    max_response_body: int = 65_536

    def __post_init__(self) -> None:
        parse_url(self.url)
        if len(self.event_types) > MAX_FILTERS:
            raise InvalidInput(f"a destination takes at most {MAX_FILTERS} event types", param="event_types")
        for text in self.event_types:
            EventFilter.parse(text)
        if self.scope is not None:
            check_label(self.scope, "scope")
        object.__setattr__(self, "headers", check_headers(self.headers))
        if len(self.secrets) > MAX_SECRETS:
            raise InvalidInput(f"a destination takes at most {MAX_SECRETS} secrets", param="secrets")
        for secret in self.secrets:
            parse_ref(secret.ref, "secrets")
        self.table()
        if self.policy.on_unknown is OnUnknown.CONFIRM and self.confirm is None:
            raise InvalidInput(
                "unknown = confirm needs the name of a confirm function",
                param="confirm",
                hint='register one with @app.confirm("name") and name it here',
            )
        if self.confirm is not None:
            check_slug(self.confirm, "confirm")
        for name in ("ca_file", "client_cert_file", "client_key_file"):
            value = getattr(self, name)
            if value is not None and (not PurePosixPath(value).is_absolute() or not value.isprintable()):
                raise InvalidInput(f"{name} must be an absolute path without control characters", param=name)
        if self.client_key_file is not None and self.client_cert_file is None:
            raise InvalidInput("client_key_file needs client_cert_file", param="client_key_file")
        if self.proxy_authorization is not None:
            parse_ref(self.proxy_authorization, "proxy_authorization")
        self.proxy_address()
        if not 0 <= self.excerpt <= MAX_EXCERPT_CHARS:
            raise InvalidInput(f"excerpt must be 0 to {MAX_EXCERPT_CHARS} characters", param="excerpt")
        if not 0 <= self.max_response_body <= 16 * 1024 * 1024:
            raise InvalidInput("max_response_body must be 0 to 16 MiB", param="max_response_body")

    def filters(self) -> tuple[EventFilter, ...]:
        """The event types this destination subscribes to; none given means every one."""
        return filters_of(self.event_types)

    def table(self) -> OutcomeTable:
        """What each answer means here."""
        return OutcomeTable.build(
            self.acknowledge,
            self.duplicate_status,
            dict(self.overrides),
            self.duplicate_header,
            self.certificate,
        )

    def target(self, guard: AddressPolicy) -> Target:
        """The parsed URL, after the address guard's create-time check."""
        target = parse_url(self.url)
        replace(guard, allow_http=guard.allow_http and self.allow_http).check_target(target)
        return target

    def tls(self) -> Tls:
        """Key material, by path."""
        return Tls(self.ca_file, self.client_cert_file, self.client_key_file)

    def proxy_address(self, authorization: bytes | None = None) -> Proxy | None:
        """The CONNECT proxy, from ``host:port``."""
        if self.proxy is None:
            return None
        host, _, port = self.proxy.rpartition(":")
        if not host or not port.isascii() or not port.isdecimal():
            raise InvalidInput("proxy must be host:port", param="proxy")
        return Proxy(host.strip("[]"), int(port), authorization)

    def to_json(self) -> str:
        """As stored: everything but the URL and the scope, which have their own columns."""
        data = asdict(self)
        for name in ("url", "scope", "event_types"):
            del data[name]
        data["policy"] = json.loads(self.policy.spec())
        return json.dumps(data, sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str, *, url: str, scope: str | None, event_types: tuple[str, ...]) -> Self:
        """As :meth:`to_json` stored it."""
        data: dict[str, Any] = json.loads(text)
        known = {f.name for f in fields(cls)}
        unknown = sorted(set(data) - known)
        if unknown:
            raise InvalidInput(f"a stored destination has settings this release does not know: {unknown}")
        data["policy"] = Policy.from_spec(json.dumps(data["policy"]))
        data["timeouts"] = Timeouts(**data["timeouts"])
        data["headers"] = tuple((name, value) for name, value in data["headers"])
        data["overrides"] = tuple((status, kind) for status, kind in data["overrides"])
        data["secrets"] = tuple(SigningSecret(**item) for item in data["secrets"])
        return cls(url=url, scope=scope, event_types=event_types, **data)

    def public(self) -> Mapping[str, Any]:
        """For a screen or a log: references are shown, they are not secrets."""
        data: dict[str, Any] = json.loads(self.to_json())
        return {"event_types": list(self.event_types) or ["*"], "scope": self.scope, **data}


def filters_of(event_types: Sequence[str]) -> tuple[EventFilter, ...]:
    """What a destination subscribes to; none given means every event type."""
    return tuple(EventFilter.parse(text) for text in event_types or ("*",))


def policy_of(settings: str) -> Policy:
    """The policy in a stored destination's settings, whatever else a newer release has put there: publishing to a
    tenant must not fail because of what only a sender needs.
    """
    return Policy.from_spec(json.dumps(json.loads(settings)["policy"]))
