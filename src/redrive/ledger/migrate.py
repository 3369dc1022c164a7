"""The migration runner: numbered ``.sql`` files, each applied once, under a lock, and never again.

A library in a user's database brings its own small runner rather than meeting the user's. A migration's
header may say ``-- breaking``: a release that does not know such a migration refuses the ledger; one that is
not breaking (it only adds) leaves older releases working.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from redrive.errors import LedgerCorrupt, LedgerVersion
from redrive.ledger.sqlite.connect import APPLICATION_ID, identify, translated
from redrive.ledger.sqlite.statements import sql


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the file, so that an edited migration is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def breaking(self) -> bool:
        """Whether releases that do not know this step must keep away."""
        return any(line.strip() == "-- breaking" for line in self.text.splitlines())


@cache
def migrations() -> tuple[Migration, ...]:
    """Every step this release knows, in order."""
    found = []
    for entry in files("redrive.ledger.sqlite").joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name[:-4].partition("_")
            found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    found.sort(key=lambda step: step.version)
    if [step.version for step in found] != list(range(1, len(found) + 1)):
        raise LedgerCorrupt("the package's migrations are not numbered 1, 2, 3, ...")
    return tuple(found)


def statements(text: str) -> Iterator[str]:
    """The complete statements of a file (a trigger's inner semicolons do not end one)."""
    pending = ""
    for line in text.splitlines():
        if not pending and (not line.strip() or line.startswith("--")):
            continue
        pending += line + "\n"
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if pending.strip():
        raise LedgerCorrupt("a migration ends in the middle of a statement")


def apply(conn: sqlite3.Connection, path: Path, now: int, environment: str) -> list[Migration]:
    """Bring the ledger to this release's schema; returns the steps applied. Safe to run at any time, by many.

    A new file becomes a ledger of ``environment``. Everything happens in one transaction: a failure leaves the
    ledger as it was.
    """
    _refuse_newer(conn, path, identify(conn, path))
    with translated(path):
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("BEGIN IMMEDIATE")
        try:
            version = identify(conn, path)
            conn.execute(sql("migration_table"))
            _check_record(conn, path)
            todo = [step for step in migrations() if step.version > version]
            for step in todo:
                for statement in statements(step.text):
                    conn.execute(statement)
                conn.execute(
                    sql("migration_insert"),
                    (step.version, step.name, step.digest, step.breaking, now),
                )
            if version == 0:
                conn.execute(sql("ledger_insert"), (environment, now))
                conn.execute(sql("clock_insert"), (now,))
            if todo:
                conn.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                conn.execute(f"PRAGMA user_version = {todo[-1].version}")
            conn.execute("COMMIT")
        except BaseException:
            if conn.in_transaction:
                conn.execute("ROLLBACK")
            raise
    return todo


def pending_sql(conn: sqlite3.Connection, path: Path) -> str:
    """The SQL that :func:`apply` would run, for a person to read first."""
    version = identify(conn, path)
    return "\n".join(step.text for step in migrations() if step.version > version)


def check(conn: sqlite3.Connection, path: Path) -> None:
    """Raise :class:`LedgerVersion` unless this release can work on the ledger as it is."""
    version = identify(conn, path)
    known = migrations()[-1].version
    if version < known:
        raise LedgerVersion(
            f"ledger {path} has schema {version}, this release needs {known}",
            param="ledger",
            hint="run: redrive migrate" if version else "run: redrive init",
        )
    _refuse_newer(conn, path, version)


def _refuse_newer(conn: sqlite3.Connection, path: Path, version: int) -> None:
    known = migrations()[-1].version
    if version <= known:
        return
    with translated(path):
        breaking = conn.execute(sql("migration_breaking"), (known,)).fetchone()[0]
    if breaking is not None:
        raise LedgerVersion(
            f"ledger {path} has schema {version}; step {breaking} is not compatible with this release",
            param="ledger",
            hint="upgrade redrive on this host; nothing was changed",
        )


def _check_record(conn: sqlite3.Connection, path: Path) -> None:
    by_version = {step.version: step for step in migrations()}
    for version, name, digest in conn.execute(sql("migration_digests")):
        step = by_version.get(version)
        if step is not None and step.digest != digest:
            raise LedgerCorrupt(
                f"ledger {path}: migration {version} ({name}) was applied from another text than this release's"
            )
