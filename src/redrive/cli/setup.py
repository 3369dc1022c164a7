"""``init``, ``migrate``, ``check``, ``config``, ``version``."""

from __future__ import annotations

import platform
import sqlite3
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from redrive import __version__
from redrive.cli.command import SETTINGS, command
from redrive.cli.output import plural
from redrive.cli.session import Session
from redrive.errors import InvalidInput, RedriveError
from redrive.ledger.checks import retention

if TYPE_CHECKING:
    from redrive.ledger.migrate import Migration

ShowSql = Annotated[bool, typer.Option("--sql", help="Print the SQL that would run, and change nothing")]
Finish = Annotated[
    bool, typer.Option("--finish", help="The second phase too: steps that releases before this one cannot work with")
]
Force = Annotated[bool, typer.Option("--force", help="With --finish: even while workers of an older release run")]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "init")(init)
    command(app, "migrate")(migrate)
    command(app, "check", settings=("retention",))(check)
    command(app, "config", settings=[name for name in SETTINGS if name not in ("ledger", "environment", "app")])(config)
    command(app, "version")(version)


def init(session: Session) -> int | None:
    """Create the ledger, one SQLite file or one PostgreSQL schema, stamped with the environment's name."""
    from redrive.ledger import opening

    app = session.app()
    steps = opening.create(app.url, app.environment)
    held = opening.pending(app.url).held
    path = opening.path(app.url)
    created = any(step.version == 1 for step in steps)
    if not session.out.is_table:
        session.out.document(
            {
                "ledger": opening.where(app.url),
                "path": path,
                "environment": app.environment,
                "steps": [step.label for step in steps],
                "pending": [step.label for step in held],
                "created": created,
            }
        )
        return 0
    shown = path or opening.where(app.url)
    if created:
        session.out.line(f"created ledger {shown} for environment {app.environment!r}")
    elif steps:
        session.out.line(f"ledger {shown} was there already; applied {', '.join(step.label for step in steps)}")
    else:
        session.out.line(f"ledger {shown} is there already, for environment {app.environment!r}; nothing was changed")
    _note_held(session, held)
    session.out.note("next, to send webhooks:")
    session.out.note("  redrive destination add orders https://example.com/hooks --generate-secret orders.secret")
    session.out.note("  redrive publish order.paid '{\"order\": 1}' --event-id order-1")
    session.out.note("  redrive up")
    return 0


def migrate(session: Session, sql: ShowSql = False, finish: Finish = False, force: Force = False) -> int | None:
    """Bring the ledger to this release's schema. Safe to repeat, and while workers run.

    Steps that older releases cannot work with wait for a second phase: once every worker runs this release, run it
    again with --finish.
    """
    from redrive.ledger import opening

    if force and not finish:
        raise InvalidInput("--force means something with --finish only", param="force")
    app = session.app()
    if sql:
        text = opening.script(app.url, app.environment, finish, force)
        if session.out.is_table:
            session.out.raw(text)
            session.out.note("-- nothing is pending" if not text else "-- nothing was changed")
        else:
            session.out.document({"pending": bool(text), "sql": text})
        return 0
    opening.pending(app.url)  # an error, and no new ledger, where there is none
    steps = [step.label for step in opening.create(app.url, app.environment, finish=finish, force=force)]
    held = opening.pending(app.url).held
    if not session.out.is_table:
        session.out.document(
            {
                "ledger": opening.where(app.url),
                "environment": app.environment,
                "steps": steps,
                "pending": [step.label for step in held],
            }
        )
        return 0
    if steps:
        session.out.line(f"applied {plural(len(steps), 'step')}: {', '.join(steps)}")
    else:
        session.out.line("nothing was changed" if held else "the ledger is up to date; nothing was changed")
    _note_held(session, held)
    return 0


def _note_held(session: Session, held: Sequence[Migration]) -> None:
    if held:
        session.out.note(f"the second phase is pending: {', '.join(step.label for step in held)}")
        session.out.note(f"once every worker runs redrive {__version__}, run: redrive migrate --finish")


def check(session: Session) -> int | None:
    """Look at the ledger and the way to it: schema, settings, clock, privileges, and what to do about each.

    Exit code 1 when something does not work. Changes nothing.
    """
    from redrive.ledger import opening

    app = session.app()
    found = [*opening.look(app.url, app.environment), retention(app.retention)]
    well = all(one.state != "failed" for one in found)
    if not session.out.is_table:
        session.out.document({"ok": well, "checks": [one._asdict() for one in found]})
        return 0 if well else 1
    rows = [(one.check, session.out.mark(one.state), one.value, one.advice or "") for one in found]
    session.out.table(("CHECK", "STATE", "VALUE", "WHAT TO DO"), rows)
    return 0 if well else 1


def config(session: Session) -> int | None:
    """Print every setting, its value and where that came from. A password in the ledger's URL is left out."""
    from redrive.ledger import opening

    if session.settings.app is not None:
        session.app()
    items = [
        (name, opening.where(value) if name == "ledger" else value, origin)
        for name, value, origin in session.settings.items()
    ]
    if not session.out.is_table:
        shown = {name: {"value": _plain(value), "origin": origin} for name, value, origin in items}
        session.out.document({"profile": session.profile, "settings": shown})
        return 0
    session.out.table(("SETTING", "VALUE", "FROM"), [(name, _shown(value), origin) for name, value, origin in items])
    return 0


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, float):
        return f"{value:g} s"
    return str(value)


def version(session: Session) -> int | None:
    """Print the version of redrive, Python and what opens the ledger, and what is known about that SQLite."""
    from redrive.ledger import opening
    from redrive.ledger.sqlite.connect import wal_defect

    try:
        server = opening.is_postgres(session.settings.ledger)
    except RedriveError:  # what is wrong with the settings is another command's to say
        server = False
    psycopg, libpq = _driver()

    shown = {
        "redrive": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlite_defect": wal_defect(),
        "psycopg": psycopg,
        "libpq": libpq,
    }
    if not session.out.is_table:
        session.out.document(shown)
        return 0
    opens = f"SQLite {shown['sqlite']}"
    if server:
        opens = "no psycopg" if psycopg is None else f"psycopg {psycopg}, libpq {libpq}"
    session.out.line(f"redrive {__version__} (Python {shown['python']}, {opens})")
    if shown["sqlite_defect"] is not None and not server:
        session.out.note(str(shown["sqlite_defect"]))
    return 0


def _driver() -> tuple[str | None, str | None]:
    """The versions of psycopg and of libpq, where there is one."""
    try:
        import psycopg
    except ImportError:
        return None, None
    number = psycopg.pq.version()
    return psycopg.__version__, f"{number // 10_000}.{number % 10_000}"
