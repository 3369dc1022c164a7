"""Registering a destination: an address that is refused says what to allow, and a new secret goes to a file."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from redrive.cli.session import Session
from redrive.errors import ForbiddenAddress, InvalidInput
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.headers import is_sensitive
from redrive.webhooks.settings import DestinationSettings
from redrive.webhooks.signing import generate_secret
from redrive.webhooks.url import parse_url


def check_address(session: Session, settings: DestinationSettings) -> None:
    """The address guard's check, with everything that is missing in one hint: an operator must allow each."""
    policy = session.app().address_policy
    try:
        settings.target(policy)
    except ForbiddenAddress as exc:
        target = parse_url(settings.url)
        wanted = []
        if target.scheme == "http" and not policy.allow_http:
            wanted.append("allow_http = true")
        if target.port not in policy.allowed_ports:
            ports = sorted({*policy.allowed_ports, target.port})
            wanted.append(f"allowed_ports = {ports}")
        networks = _missing_networks(policy, target.host)
        if networks:
            listed = [*map(str, policy.allowed_private), *networks]
            wanted.append(f"allowed_private = {listed}".replace("'", '"'))
        flag = " and --allow-http on this destination" if target.scheme == "http" and not settings.allow_http else ""
        hint = exc.hint
        if wanted:
            hint = f"if it is meant, put in redrive.toml: {'; '.join(wanted)}"
            hint += f";{flag}" if flag else ""
        elif flag:
            hint = "if it is meant, give --allow-http for this destination"
        raise ForbiddenAddress(exc.message, param=exc.param, hint=hint) from None


def warn_of_token(session: Session, url: str) -> None:
    """Say so where a URL seems to carry a credential: it is stored as it is. Only the parameter's name is repeated."""
    names = [name for name, _ in parse_qsl(urlsplit(url).query, keep_blank_values=True) if is_sensitive(name)]
    if names:
        session.out.warn(
            f"the URL's parameter {', '.join(dict.fromkeys(names))} looks like a credential, and a URL is stored as "
            "it is: if the receiver takes it in a header, give --header 'NAME: env:VARIABLE' instead"
        )


def _missing_networks(policy: AddressPolicy, host: str) -> list[str]:
    """What an operator would have to allow for a host of the own machine or network. Never more than that."""
    if host == "localhost" or host.endswith(".localhost"):
        return ["127.0.0.0/8", "::1/128"] if policy.judge("127.0.0.1") and policy.judge("::1") else []
    reason = policy.judge(host)
    if reason == "loopback":
        return ["::1/128" if ":" in host else "127.0.0.0/8"]
    if reason == "private":
        return [f"{host}/128" if ":" in host else f"{host}/32"]
    return []


@contextlib.contextmanager
def new_secret(path: str | None) -> Iterator[str | None]:
    """A new signing secret in a file that only its owner can read; gone again if what follows fails."""
    if path is None:
        yield None
        return
    file = Path(path).absolute()
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"{file} exists already",
            param="generate_secret",
            hint=f"a secret is never overwritten: choose another file, or use it with --secret file:{file}",
        ) from None
    except OSError as exc:
        raise InvalidInput(f"{file} cannot be created: {exc.strerror}", param="generate_secret") from None
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(generate_secret() + "\n")
            stream.flush()
            os.fsync(stream.fileno())
        yield f"file:{file}"
    except BaseException:
        file.unlink(missing_ok=True)
        raise
