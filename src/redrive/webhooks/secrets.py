"""Secrets by reference: ``env:NAME`` or ``file:/absolute/path``.

A ledger row, a log line, an error or a screen holds the reference and never what it refers to. The value
is read when it is needed, and lives only inside :class:`Secret`, which does not print itself.
"""

from __future__ import annotations

import errno
import hmac
import os
import re
import stat
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NoReturn

from redrive.errors import InvalidInput, RedriveError

MAX_SECRET_BYTES = 16_384
"""Longest secret that is read, in bytes."""

TTL_S = 1.0
"""How long a secret is used before it is read again, in seconds: a rotated one takes effect within it."""

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_LITERAL = re.compile(r"whs(?:ec|k)_|-----BEGIN|^(?:bearer|basic) +[A-Za-z0-9._~+/=-]{16,}", re.IGNORECASE)
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
_MAX_CACHED = 4096
_HINT = "give a reference: env:NAME or file:/absolute/path"


class SecretUnavailable(RedriveError):
    """A secret cannot be read now. Ours to mend: nothing was sent, no attempt is charged."""

    code = "secret_unavailable"
    http_status = 503


@dataclass(frozen=True, slots=True)
class SecretRef:
    """Where a secret is. Safe to store and to print: ``str(ref)`` is what :func:`parse_ref` took."""

    kind: Literal["env", "file"]
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


class Secret:
    """Bytes that do not print, pickle, format or hash themselves. ``reveal()`` gives them."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def reveal(self) -> bytes:
        """The secret itself: for a signature or a header on the wire, and nothing else."""
        return self._value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(self._value, other._value)

    def __repr__(self) -> str:
        return "***"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret is not pickled or copied")


def looks_like_ref(text: str) -> bool:
    """True if the text is meant as a reference: it begins with ``env:`` or ``file:``."""
    return text.startswith(("env:", "file:"))


def looks_like_literal(text: str) -> bool:
    """True if the text looks like a secret itself: a signing secret, a PEM key, an HTTP credential."""
    return _LITERAL.search(text) is not None


def parse_ref(text: str, param: str = "secret") -> SecretRef:
    """A reference, or :class:`InvalidInput`, which never repeats the text: it may be the secret itself.

    ``env:NAME`` takes letters, digits and ``_``. ``file:PATH`` takes an absolute path, since workers, console
    and command line run in different directories. No other scheme, and nothing that looks like a secret.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"a secret reference must be text, not {type(text).__name__}", param=param)
    kind, _, name = text.partition(":")
    if looks_like_literal(text):
        raise InvalidInput("this looks like a secret, not a reference to one", param=param, hint=_HINT)
    if kind == "env":
        if not _ENV_NAME.fullmatch(name):
            raise InvalidInput(
                "env: takes the name of an environment variable: letters, digits and _",
                param=param,
                hint=_HINT,
            )
        return SecretRef("env", name)
    if kind == "file":
        if not name.startswith("/") or len(name) > 1024 or _UNPRINTABLE.search(name):
            raise InvalidInput("file: takes an absolute path without control characters", param=param, hint=_HINT)
        return SecretRef("file", name)
    raise InvalidInput("not a secret reference", param=param, hint=_HINT)


def resolve(ref: SecretRef, environ: Mapping[str, str] | None = None) -> Secret:
    """Read a secret now. Raises :class:`SecretUnavailable`, which names the reference only.

    From a file one trailing newline is dropped. A file must be a regular one (a pipe would block) of at
    most :data:`MAX_SECRET_BYTES`; an empty secret is as good as none.
    """
    if ref.kind == "env":
        text = (os.environ if environ is None else environ).get(ref.name)
        if text is None:
            raise _unavailable(ref, "is not set")
        value = text.encode("utf-8", "surrogateescape")
    else:
        value = _read(ref)
        if value.endswith(b"\n"):
            value = value[:-2] if value.endswith(b"\r\n") else value[:-1]
    if not value:
        raise _unavailable(ref, "is empty")
    if len(value) > MAX_SECRET_BYTES:
        raise _unavailable(ref, f"is longer than {MAX_SECRET_BYTES} bytes")
    return Secret(value)


class SecretCache:
    """:func:`resolve`, at most once per :data:`TTL_S` and reference.

    While a secret's bytes do not change the same :class:`Secret` object comes back, so that what was
    prepared from it (a signer) can be kept as long as the object is the same. Failures are not kept.
    """

    __slots__ = ("_clock", "_environ", "_held", "_ttl_s")

    def __init__(
        self,
        *,
        ttl_s: float = TTL_S,
        clock: Callable[[], float] = time.monotonic,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self._ttl_s = ttl_s
        self._clock = clock
        self._environ = environ
        self._held: dict[SecretRef, tuple[float, Secret]] = {}

    def resolve(self, ref: SecretRef) -> Secret:
        """As :func:`resolve`, and never older than the TTL. A secret that went away raises."""
        now = self._clock()
        held = self._held.get(ref)
        if held is not None and now < held[0]:
            return held[1]
        self._held.pop(ref, None)
        fresh = resolve(ref, self._environ)
        if held is not None and held[1] == fresh:
            fresh = held[1]
        if len(self._held) >= _MAX_CACHED:
            self._held.clear()
        self._held[ref] = (now + self._ttl_s, fresh)
        return fresh


def _read(ref: SecretRef) -> bytes:
    try:
        descriptor = os.open(ref.name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise _unavailable(ref, f"cannot be read ({errno.errorcode.get(error.errno or 0, 'error')})") from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _unavailable(ref, "is not a regular file")
        # Two more than the bound: room for the newline, and for seeing that there is more.
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(MAX_SECRET_BYTES + 3)
    except OSError as error:
        raise _unavailable(ref, f"cannot be read ({errno.errorcode.get(error.errno or 0, 'error')})") from None
    finally:
        os.close(descriptor)


def _unavailable(ref: SecretRef, why: str) -> SecretUnavailable:
    return SecretUnavailable(f"the secret {ref} {why}", param="secret")
