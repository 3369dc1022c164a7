"""One run of one command: its settings, the application it works on, and how it ends."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from redrive.cli.output import Mode, Output
from redrive.config import Settings, load
from redrive.errors import ConfigError

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.recovery.operations import Operations

_ADDRESSES: Final = ("allowed_private", "allowed_ports", "allow_http")


class Session:
    """What a command is given. ``flags`` are the settings named on the command line; None is unset."""

    def __init__(
        self,
        flags: Mapping[str, Any],
        *,
        config: str | None = None,
        profile: str | None = None,
        mode: Mode = Mode.TABLE,
        verbosity: int = 0,
        no_input: bool = False,
    ) -> None:
        self.flags = {name: value for name, value in flags.items() if value is not None}
        self.config = config
        self.profile = profile
        self.out = Output(mode, verbosity=verbosity, no_input=no_input)
        self.status = 0
        """What the command exits with when its reader hangs up early."""
        self._settings: Settings | None = None
        self._app: Redrive | None = None
        self._module: str | None = None

    @property
    def settings(self) -> Settings:
        """The settings of every layer."""
        if self._settings is None:
            self._settings = load(self.flags, config=self.config, profile=self.profile)
        return self._settings

    @property
    def tenant(self) -> str:
        """The tenant that commands mean where none is given."""
        return self.settings.tenant

    @property
    def actor(self) -> str:
        """Who is on record for what this command decides."""
        return self.settings.actor

    def app(self, *, handlers: bool = False) -> Redrive:
        """The application to work on.

        The configured one is imported where its handlers are needed, and where it, not the settings, says which
        ledger, environment and addresses are meant. A ledger or environment that both name and that differ is an
        error: neither is quietly preferred.
        """
        if self._app is not None:
            return self._app
        from redrive.app import Redrive

        settings = self.settings
        needed = handlers or not all(map(settings.is_set, ("ledger", "environment", *_ADDRESSES)))
        if settings.app is not None and needed:
            app = self.load_app(settings.app)
            settings = self._settings = _agreed(settings, app)
            app.worker_settings = settings.worker(app.worker_settings)
            app.address_policy = settings.addresses(app.address_policy)
            if settings.is_set("retention"):
                app.retention = settings.retention
            if settings.is_set("max_payload"):
                app.max_payload_bytes = settings.max_payload
        else:
            app = Redrive(
                settings.ledger,
                environment=settings.environment,
                worker=settings.worker(),
                max_payload_bytes=settings.max_payload,
                address_policy=settings.addresses(),
                retention=settings.retention,
            )
        app.path = "cli"
        app.producer = f"cli:{settings.actor}"[:200]
        self._app = app
        return app

    @property
    def operations(self) -> Operations:
        """The operator's use-cases on the ledger."""
        return self.app().operations

    @property
    def drain_s(self) -> float:
        """How long a drain is, as far as that is known yet."""
        return self.settings.drain if self._app is None else self._app.worker_settings.drain_s

    def now(self) -> int:
        """Ledger time, in microseconds."""
        return self.app().ledger.estimate()

    def close(self) -> None:
        """Close the ledger."""
        if self._app is not None:
            self._app.close()

    def load_app(self, name: str) -> Redrive:
        """Import ``module:attribute`` with the working directory on the path, as ``python -m`` would."""
        from redrive.app import Redrive

        module_name, _, attribute = name.partition(":")
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.insert(0, here)
        where = f"app {name} (from {self.settings.origin('app')})"
        hint = "give --ledger, --environment and the address settings to work on the ledger without the application"
        try:
            found: Any = importlib.import_module(module_name)
        except ModuleNotFoundError as exc:
            if exc.name is None or not f"{module_name}.".startswith(f"{exc.name}."):
                raise ConfigError(f"{where}: importing it needs the module {exc.name!r}", param="app") from exc
            raise ConfigError(f"{where}: there is no module {module_name!r} in {here}", param="app", hint=hint) from exc
        except (Exception, SystemExit) as exc:
            place = traceback.extract_tb(exc.__traceback__)[-1]
            at = f"{Path(place.filename).name}:{place.lineno}"
            raise ConfigError(
                f"{where}: importing it raised {type(exc).__name__} at {at}",
                param="app",
                hint="-v shows the traceback",
            ) from exc
        for part in attribute.split("."):
            if not hasattr(found, part):
                raise ConfigError(f"{where}: {module_name} has no attribute {attribute!r}", param="app")
            found = getattr(found, part)
        if not isinstance(found, Redrive):
            raise ConfigError(f"{where}: it is a {type(found).__name__}, not a Redrive", param="app")
        return found


def _agreed(settings: Settings, app: Redrive) -> Settings:
    """The settings, with the application's own ledger and environment where no layer names one."""
    from redrive.ledger import opening

    name = f"app {settings.app}"
    opening.check_url(app.url)
    for setting, own, same, shown in (
        ("ledger", app.url, opening.same, opening.where),
        ("environment", app.environment, str.__eq__, str),
    ):
        said = getattr(settings, setting)
        if settings.is_set(setting) and not same(said, own):
            raise ConfigError(
                f"{settings.origin(setting)} says {setting} {shown(said)}, and {name} says {shown(own)}",
                param=setting,
                hint="they must name the same one: have the application read it from the environment, or remove one",
            )
        if not settings.is_set(setting):
            settings = settings.with_value(setting, own, name)
    return settings
