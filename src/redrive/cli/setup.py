"""``init``, ``migrate``, ``config``, ``version``."""

from __future__ import annotations

import contextlib
import platform
import sqlite3
from typing import Annotated, Any

import typer

from redrive import __version__
from redrive.cli.command import SETTINGS, command
from redrive.cli.output import plural
from redrive.cli.session import Session

ShowSql = Annotated[bool, typer.Option("--sql", help="Print the SQL that would run, and change nothing")]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "init")(init)
    command(app, "migrate")(migrate)
    command(app, "config", settings=[name for name in SETTINGS if name not in ("ledger", "environment", "app")])(config)
    command(app, "version")(version)


def init(session: Session) -> int | None:
    """Create the ledger: one SQLite file, stamped with the environment's name."""
    app = session.app()
    steps = app.init()
    path = str(app.ledger.path)
    shown = {"ledger": app.url, "path": path, "environment": app.environment, "steps": steps, "created": bool(steps)}
    if not session.out.is_table:
        session.out.document(shown)
        return 0
    if steps:
        session.out.line(f"created ledger {path} for environment {app.environment!r}")
    else:
        session.out.line(f"ledger {path} is there already, for environment {app.environment!r}; nothing was changed")
    session.out.note("next, to send webhooks:")
    session.out.note("  redrive destination add orders https://example.com/hooks --generate-secret orders.secret")
    session.out.note("  redrive publish order.paid '{\"order\": 1}' --event-id order-1")
    session.out.note("  redrive up")
    return 0


def migrate(session: Session, sql: ShowSql = False) -> int | None:
    """Bring the ledger to this release's schema. Safe to repeat, and while workers run."""
    app = session.app()
    if sql:
        text = _pending(app.url)
        if session.out.is_table:
            session.out.raw(text)
            session.out.note("-- nothing is pending" if not text else "-- nothing was changed")
        else:
            session.out.document({"pending": bool(text), "sql": text})
        return 0
    _pending(app.url)  # an error, and no new file, where there is no ledger
    steps = app.init()
    if not session.out.is_table:
        session.out.document({"ledger": app.url, "environment": app.environment, "steps": steps})
    elif steps:
        session.out.line(f"applied {plural(len(steps), 'step')}: {', '.join(steps)}")
    else:
        session.out.line("the ledger is up to date; nothing was changed")
    return 0


def _pending(url: str) -> str:
    from redrive.ledger.migrate import pending_sql
    from redrive.ledger.sqlite.connect import connect, path_of

    path = path_of(url)
    with contextlib.closing(connect(path)) as conn:
        return pending_sql(conn, path)


def config(session: Session) -> int | None:
    """Print every setting, its value and where that came from. No setting holds a secret."""
    if session.settings.app is not None:
        session.app()
    settings = session.settings
    if not session.out.is_table:
        shown = {name: {"value": _plain(value), "origin": origin} for name, value, origin in settings.items()}
        session.out.document({"profile": session.profile, "settings": shown})
        return 0
    rows = [(name, _shown(value), origin) for name, value, origin in settings.items()]
    session.out.table(("SETTING", "VALUE", "FROM"), rows)
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
    """Print the version of redrive, Python and SQLite, and what is known about that SQLite."""
    from redrive.ledger.sqlite.connect import wal_defect

    shown = {
        "redrive": __version__,
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "sqlite_defect": wal_defect(),
    }
    if not session.out.is_table:
        session.out.document(shown)
        return 0
    session.out.line(f"redrive {__version__} (Python {shown['python']}, SQLite {shown['sqlite']})")
    if shown["sqlite_defect"] is not None:
        session.out.note(str(shown["sqlite_defect"]))
    return 0
