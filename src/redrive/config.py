"""Settings: what they are, where each one came from, and an error for every one that is not known.

The first layer that says something wins:

1. a flag of the command line
2. an environment variable, ``REDRIVE_`` and the setting's name in capitals (empty counts as not set)
3. ``redrive.toml`` in the working directory, or the file named by ``--config`` or ``REDRIVE_CONFIG``
4. ``[tool.redrive]`` of ``pyproject.toml`` in the working directory
5. the default

Within a file, the table ``[profile.NAME]`` (``[tool.redrive.profile.NAME]`` in ``pyproject.toml``) lies over the
rest when ``--profile NAME`` or ``REDRIVE_PROFILE`` chooses it. A setting that a layer does not mention is unset
there, which is not the same as a default. No setting is shown with a secret: secrets are references on destinations, a
``REDRIVE_`` variable with ``SECRET`` in its name is theirs, and a password in the ledger's URL is left out. Every other
unknown one is an error.
"""

from __future__ import annotations

import difflib
import getpass
import os
import socket
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

from redrive.domain.values import check_label, check_slug, duration_us
from redrive.errors import ConfigError, InvalidInput
from redrive.ledger.opening import check_url
from redrive.ledger.retention import RetentionRules
from redrive.webhooks.guard import AddressPolicy
from redrive.worker.settings import WorkerSettings

FILE: Final = "redrive.toml"
DEFAULT: Final = "default"
MIB: Final = 1024 * 1024
MAX_PROCESSES: Final = 256
AS_SLOTS: Final = "slots"
"""The value of ``threads`` that means as many as slots."""

_PREFIX: Final = "REDRIVE_"
_ABOUT_CONFIG: Final = frozenset({"REDRIVE_CONFIG", "REDRIVE_PROFILE", "REDRIVE_FAILPOINT"})
_UNITS: Final = {"": 1, "B": 1, "KIB": 1024, "MIB": MIB, "KB": 1000, "MB": 1_000_000}
_WORDS: Final = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}
_TABLES: Final = frozenset({"retention"})
_OTHER_NAMES: Final = {
    "allow_private": "allowed_private",
    "application": "app",
    "concurrency": "slots",
    "database": "ledger",
    "database_url": "ledger",
    "db": "ledger",
    "drain_timeout": "drain",
    "dsn": "ledger",
    "env": "environment",
    "grace": "drain",
    "lease_timeout": "lease",
    "max_payload_bytes": "max_payload",
    "poll_interval": "poll",
    "reap_interval": "reap",
    "url": "ledger",
    "user": "actor",
    "visibility_timeout": "lease",
    "workers": "processes",
    **{f"{name}_s": name for name in ("lease", "reap", "poll", "drain")},
}


def default_actor() -> str:
    """``user@host`` of this process, for the audit trail."""
    try:
        return check_label(f"{getpass.getuser()}@{socket.gethostname()}", "actor")
    except (InvalidInput, ImportError, KeyError, OSError):  # no such account, or a name that cannot be shown
        return f"uid-{os.getuid()}@localhost"


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting, checked. Lengths of time are seconds, sizes bytes.

    ``app`` is ``module:attribute`` of a :class:`~redrive.app.Redrive`. ``threads`` that are None, written ``slots``,
    are as many as there are slots. ``allowed_private`` (CIDRs), ``allowed_ports`` and ``allow_http`` are what the
    address guard allows beside public HTTPS. ``retention``, a table in a file and ``delivered=90d, no_op=7d``
    elsewhere, says how long what has ended is kept. ``tenant`` and ``actor`` are what commands use where none is given.
    ``origins`` says where each value came from.
    """

    ledger: str = field(default="sqlite:///redrive.db", repr=False)  # a URL may hold a password
    environment: str = "development"
    app: str | None = None
    slots: int = 100
    lease: float = 30.0
    reap: float = 1.0
    poll: float = 5.0
    drain: float = 20.0
    threads: int | None = None
    processes: int = 1
    max_payload: int = MIB
    allowed_private: tuple[str, ...] = ()
    allowed_ports: tuple[int, ...] = (443,)
    allow_http: bool = False
    retention: RetentionRules | None = None
    tenant: str = "default"
    actor: str = field(default_factory=default_actor)
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)

    def origin(self, name: str) -> str:
        """Where a setting's value came from: a flag, a variable, a file and its table, or ``default``."""
        return self.origins.get(name, DEFAULT)

    def is_set(self, name: str) -> bool:
        """Whether any layer mentions the setting."""
        return name in self.origins

    def items(self) -> Iterator[tuple[str, Any, str]]:
        """(name, value, origin) of each setting, in the order of the documentation; values as a file would say them."""
        for name in NAMES:
            value = getattr(self, name)
            value = str(value) if isinstance(value, RetentionRules) else value
            yield name, AS_SLOTS if name == "threads" and value is None else value, self.origin(name)

    def with_value(self, name: str, value: Any, origin: str) -> Settings:
        """A copy in which one setting has another value."""
        changed: dict[str, Any] = {name: value}
        return replace(self, **changed, origins=MappingProxyType({**self.origins, name: origin}))

    def worker(self, base: WorkerSettings | None = None) -> WorkerSettings:
        """How a worker behaves: ``base`` (an application's own), with every setting that a layer mentions over it."""
        return replace(
            base or WorkerSettings(),
            **{attribute: getattr(self, name) for name, attribute in _WORKER.items() if self.is_set(name)},
        )

    def addresses(self, base: AddressPolicy | None = None) -> AddressPolicy:
        """What the address guard allows: as :meth:`worker`."""
        mine = AddressPolicy.build(self.allowed_private, self.allowed_ports, self.allow_http)
        if base is None:
            return mine
        return AddressPolicy(
            mine.allowed_private if self.is_set("allowed_private") else base.allowed_private,
            mine.allowed_ports if self.is_set("allowed_ports") else base.allowed_ports,
            mine.allow_http if self.is_set("allow_http") else base.allow_http,
        )


NAMES: Final = tuple(f.name for f in fields(Settings) if f.name != "origins")
"""Every setting there is."""

_WORKER: Final = {
    "slots": "slots",
    "lease": "lease_s",
    "reap": "reap_s",
    "poll": "poll_s",
    "drain": "drain_s",
    "threads": "threads",
}


class _Layer(NamedTuple):
    """What one place says. ``where`` gives a setting's origin; ``text`` that values are text to be read."""

    values: Mapping[str, Any]
    where: Callable[[str], str]
    text: bool


def load(
    flags: Mapping[str, Any] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    config: str | None = None,
    profile: str | None = None,
) -> Settings:
    """The settings of this process. ``flags`` that are None are unset.

    Raises :class:`ConfigError` for a setting that is unknown, renamed or malformed, for a file that cannot be
    read and for a profile that no file has; the message names the place and never repeats the value.
    """
    env = os.environ if environ is None else environ
    here = cwd or Path.cwd()
    chosen = config or env.get("REDRIVE_CONFIG") or None
    name = profile or env.get("REDRIVE_PROFILE") or None
    layers = [
        _Layer({k: v for k, v in (flags or {}).items() if v is not None}, lambda n: f"flag {flag_of(n)}", True),
        _environment(env),
        *_files(here, chosen, name),
    ]
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        for key, raw in layer.values.items():
            # Checked in every layer: a mistake that another layer happens to hide is still one.
            value = _read(key, raw, layer)
            if key not in values:
                values[key] = value
                origins[key] = layer.where(key)
    return Settings(**values, origins=MappingProxyType(origins))


def flag_of(name: str) -> str:
    """The command-line flag of a setting."""
    return "--" + name.replace("_", "-")


def env_of(name: str) -> str:
    """The environment variable of a setting."""
    return _PREFIX + name.upper()


# --- layers -----------------------------------------------------------------------------------------


def _environment(env: Mapping[str, str]) -> _Layer:
    values = {}
    for variable in sorted(env):
        if not variable.startswith(_PREFIX) or variable in _ABOUT_CONFIG or "SECRET" in variable:
            continue
        name = variable[len(_PREFIX) :].lower()
        if name not in NAMES:
            _unknown(f"environment variable {variable}", name, env_of)
        if env[variable] != "":
            values[name] = env[variable]
    return _Layer(values, lambda name: f"env {env_of(name)}", True)


def _files(here: Path, chosen: str | None, profile: str | None) -> list[_Layer]:
    own = here / FILE if chosen is None else here / chosen
    sources: list[tuple[str, str, Mapping[str, Any]]] = []
    if chosen is not None or own.exists():
        sources.append((chosen or FILE, "", _toml(own, chosen or FILE)))
    project = here / "pyproject.toml"
    if project.exists():
        tool = _toml(project, "pyproject.toml").get("tool", {})
        mine = tool.get("redrive", {}) if isinstance(tool, dict) else {}
        if not isinstance(mine, dict):
            raise ConfigError("pyproject.toml: tool.redrive must be a table", param="tool.redrive")
        sources.append(("pyproject.toml", "tool.redrive", mine))
    layers: list[_Layer] = []
    known: set[str] = set()
    found = False
    for shown, table, data in sources:
        profiles = data.get("profile", {})
        if not isinstance(profiles, dict) or not all(isinstance(value, dict) for value in profiles.values()):
            raise ConfigError(f"{shown}: profile must hold tables, for example [profile.prod]", param="profile")
        known.update(profiles)
        for each, values in profiles.items():
            layer = _file_layer(shown, ".".join(filter(None, (table, "profile", each))), values)
            if each == profile:
                layers.append(layer)
                found = True
        layers.append(_file_layer(shown, table, {k: v for k, v in data.items() if k != "profile"}))
    if profile is not None and not found:
        have = f"there are: {', '.join(sorted(known))}" if known else "no file has any profile"
        near = difflib.get_close_matches(profile, sorted(known), 1)
        raise ConfigError(
            f"no profile {profile!r}; {have}",
            param="profile",
            hint=f"did you mean {near[0]}?" if near else f"add a table [profile.{profile}] to {FILE}",
        )
    return layers


def _file_layer(shown: str, table: str, values: Mapping[str, Any]) -> _Layer:
    where = f"{shown} [{table}]" if table else shown
    for name, value in values.items():
        if name not in NAMES:
            _unknown(f"{where}: {name!r}", name, str)
        if isinstance(value, dict) and name not in _TABLES:
            raise ConfigError(f"{where}: {name} must be a value, not a table", param=name)
    return _Layer(values, lambda name: where, False)


def _toml(path: Path, shown: str) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{shown} is not valid TOML: {exc}", param="config") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{shown} is not UTF-8", param="config") from None
    except FileNotFoundError:
        raise ConfigError(f"there is no configuration file {shown}", param="config") from None
    except OSError as exc:
        raise ConfigError(f"{shown} cannot be read: {exc.strerror}", param="config") from None


def _unknown(what: str, name: str, spell: Callable[[str], str]) -> NoReturn:
    plain = name.lower().replace("-", "_")
    near = [plain] if plain in NAMES else difflib.get_close_matches(plain, [*NAMES, *_OTHER_NAMES], 1, 0.6)
    if near:
        meant = _OTHER_NAMES.get(near[0], near[0])
        raise ConfigError(f"{what} is not a setting", param=plain, hint=f"did you mean {spell(meant)}?")
    known = ", ".join(NAMES)
    hint = f"the settings are: {known}"
    if spell is env_of:
        hint += ". A variable that holds a secret may have any name with SECRET in it"
    raise ConfigError(f"{what} is not a setting", param=plain, hint=hint)


# --- values -----------------------------------------------------------------------------------------


def _read(name: str, raw: Any, layer: _Layer) -> Any:
    where = layer.where(name)
    try:
        return _READERS[name](raw, layer.text)
    except _Expected as exc:
        raise ConfigError(f"{where}: {name} must be {exc}", param=name) from None
    except InvalidInput as exc:
        raise ConfigError(f"{where}: {exc.message}", param=name, hint=exc.hint) from None


class _Expected(Exception):
    """Says what a value must be; never what it is, which may be a secret in the wrong place."""


def _text(raw: Any) -> str:
    if not isinstance(raw, str):
        raise _Expected("text")
    return raw


def _ledger(raw: Any, text: bool) -> str:
    check_url(_text(raw))
    return str(raw)


def _app(raw: Any, text: bool) -> str:
    module, _, attribute = _text(raw).partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise _Expected("module:attribute, for example shop.tasks:app")
    return str(raw)


def _integer(raw: Any, text: bool) -> int:
    if text and isinstance(raw, str) and raw.isascii() and raw.isdecimal() and len(raw) < 19:
        return int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise _Expected("a whole number")
    return raw


def _boolean(raw: Any, text: bool) -> bool:
    if text and isinstance(raw, str):
        raw = _WORDS.get(raw.lower(), raw)
    if not isinstance(raw, bool):
        raise _Expected("true or false")
    return raw


def _size(raw: Any, text: bool) -> int:
    if isinstance(raw, str):
        digits = raw.rstrip("BKMiIbkm ")
        unit = raw[len(digits) :].strip().upper()
        if not digits.isascii() or not digits.isdecimal() or len(digits) > 12 or unit not in _UNITS:
            raise _Expected("a size in bytes, for example 65536, 256KiB or 1MiB")
        raw = int(digits) * _UNITS[unit]
    if isinstance(raw, bool) or not isinstance(raw, int) or not 1 <= raw <= 256 * MIB:
        raise _Expected("1 byte to 256 MiB")
    return raw


def _processes(raw: Any, text: bool) -> int:
    number = _integer(raw, text)
    if not 1 <= number <= MAX_PROCESSES:
        raise _Expected(f"1 to {MAX_PROCESSES}")
    return number


def _count(attribute: str) -> Callable[[Any, bool], int]:
    def read(raw: Any, text: bool) -> int:
        number = _integer(raw, text)
        WorkerSettings(**{attribute: number})
        return number

    return read


def _threads(raw: Any, text: bool) -> int | None:
    if raw == AS_SLOTS:
        return None
    try:
        return _count("threads")(raw, text)
    except _Expected:
        raise _Expected(f"a whole number, or {AS_SLOTS}") from None


def _seconds(attribute: str) -> Callable[[Any, bool], float]:
    def read(raw: Any, text: bool) -> float:
        if isinstance(raw, bool) or not isinstance(raw, int | float | str):
            raise _Expected("a length of time, for example 30, 2.5 or '500ms'")
        seconds = duration_us(raw, attribute.removesuffix("_s")) / 1e6
        WorkerSettings(**{attribute: seconds})  # type: ignore[arg-type]
        return seconds

    return read


def _many(raw: Any, text: bool) -> list[Any]:
    if text and isinstance(raw, str):
        return [item.strip() for item in raw.split(",") if item.strip()]
    if isinstance(raw, tuple | list):
        return [piece for item in raw for piece in (_many(item, True) if text else [item])]
    raise _Expected("a list")


def _networks(raw: Any, text: bool) -> tuple[str, ...]:
    items = [_text(item) for item in _many(raw, text)]
    AddressPolicy.build(allowed_private=items)
    return tuple(items)


def _ports(raw: Any, text: bool) -> tuple[int, ...]:
    items = sorted({_integer(item, text) for item in _many(raw, text)})
    AddressPolicy.build(allowed_ports=items)
    return tuple(items)


_READERS: Final[Mapping[str, Callable[[Any, bool], Any]]] = {
    "ledger": _ledger,
    "environment": lambda raw, text: check_slug(raw, "environment"),
    "app": _app,
    "slots": _count("slots"),
    "lease": _seconds("lease_s"),
    "reap": _seconds("reap_s"),
    "poll": _seconds("poll_s"),
    "drain": _seconds("drain_s"),
    "threads": _threads,
    "processes": _processes,
    "max_payload": _size,
    "allowed_private": _networks,
    "allowed_ports": _ports,
    "allow_http": _boolean,
    "retention": lambda raw, text: RetentionRules.parse(raw),
    "tenant": lambda raw, text: check_label(raw, "tenant"),
    "actor": lambda raw, text: check_label(raw, "actor"),
}
