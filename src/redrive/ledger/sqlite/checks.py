"""``redrive check`` on a SQLite ledger."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from redrive.errors import RedriveError
from redrive.ledger import checks
from redrive.ledger.checks import Finding
from redrive.ledger.sqlite import migrate
from redrive.ledger.sqlite.clock import wall_us
from redrive.ledger.sqlite.connect import connect, identify, path_of, translated, wal_defect
from redrive.ledger.sqlite.statements import sql


def look(url: str, environment: str) -> Iterator[Finding]:
    """Everything worth looking at. Raises where the file cannot be opened, or is another environment's ledger."""
    path = path_of(url)
    with closing(connect(path, read_only=not os.access(path, os.W_OK))) as conn:
        version = identify(conn, path)
        yield checks.ok("ledger", path)
        defect = wal_defect()
        yield (
            checks.ok("sqlite", sqlite3.sqlite_version)
            if defect is None
            else checks.warning("sqlite", sqlite3.sqlite_version, defect)
        )
        yield _writable(path)
        if version:
            migrate.check_environment(conn, path, environment)
            yield checks.ok("environment", environment)
        try:
            migrate.pending(conn, path)
        except RedriveError as error:
            yield checks.refused("schema", error)
        else:
            yield from checks.schema(migrate.migrations(), version)
        if version:
            with translated(path):
                (stored,) = conn.execute(sql("clock_read")).fetchone()
            # Ledger time behind this clock only says that nobody has written for a while.
            yield checks.clock(min(0, wall_us() - stored), 0, "ledger time")


def _writable(path: Path) -> Finding:
    # The write-ahead log is made beside the file.
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK | os.X_OK):
        return checks.ok("writable", "yes")
    return checks.failed("writable", "no", "check the permissions of the file and of its folder")
