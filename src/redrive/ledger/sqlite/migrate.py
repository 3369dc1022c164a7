"""Migrations of the SQLite file: everything in one transaction, under the file's write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from redrive.domain.ports import LIVE_US
from redrive.errors import LedgerCorrupt
from redrive.ledger import migrate as rules
from redrive.ledger.migrate import Migration, Plan, RunningWorker
from redrive.ledger.sqlite.connect import APPLICATION_ID, identify, translated
from redrive.ledger.sqlite.statements import arranged, sql

PACKAGE: Final = "redrive.ledger.sqlite"


def migrations() -> tuple[Migration, ...]:
    """Every step this release knows, in order."""
    return rules.load(PACKAGE)


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


def apply(
    conn: sqlite3.Connection, path: Path, now: int, environment: str, *, finish: bool = False, force: bool = False
) -> list[Migration]:
    """Bring the ledger to this release's schema; returns the steps applied. Safe to run at any time, by many.

    A new file becomes a ledger of ``environment``. Steps of the second phase wait for ``finish``, which raises
    :class:`~redrive.errors.Conflict` while workers of an older release are live, unless ``force`` is given.
    Everything happens in one transaction: a failure leaves the ledger as it was.
    """
    _refuse_newer(conn, path, identify(conn, path))
    with translated(path):
        conn.execute("PRAGMA journal_mode = WAL")
        conn.execute("BEGIN IMMEDIATE")
        try:
            version = identify(conn, path)
            conn.execute(sql("migration_table"))
            rules.check_record(migrations(), conn.execute(sql("migration_digests")), str(path))
            todo, _ = rules.plan(migrations(), version, finish=finish)
            if version and not force:
                _refuse_older(conn, path, todo, now)
            for step in todo:
                for statement in statements(step.text):
                    conn.execute(statement)
                conn.execute(sql("migration_insert"), (step.version, step.name, step.digest, step.breaking, now))
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
    return list(todo)


def script(
    conn: sqlite3.Connection, path: Path, now: int, environment: str, *, finish: bool = False, force: bool = False
) -> str:
    """The SQL that :func:`apply` would run, for a person to read or to run instead; empty when nothing is pending."""
    version = identify(conn, path)
    if version:
        check_environment(conn, path, environment)
    todo, _ = pending(conn, path, finish=finish)
    if not todo:
        return ""
    if version and not force:
        with translated(path):
            _refuse_older(conn, path, todo, now)
    parts = ["PRAGMA journal_mode = WAL;\n", "BEGIN IMMEDIATE;\n"]
    if version == 0:
        parts.append(sql("migration_table") + ";\n")
    for step in todo:
        parts.append(f"\n{step.text.strip()}\n\n")
        parts.append(_literal("migration_insert", step.version, step.name, step.digest, step.breaking, now))
    if version == 0:
        parts.append(_literal("ledger_insert", environment, now))
        parts.append(_literal("clock_insert", now))
    parts.append(f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {todo[-1].version};\nCOMMIT;\n")
    return "".join(parts)


def pending(conn: sqlite3.Connection, path: Path, *, finish: bool = False) -> Plan:
    """What the ledger lacks of this release's schema. Raises as :func:`check` for one that is too new."""
    version = identify(conn, path)
    _refuse_newer(conn, path, version)
    return rules.plan(migrations(), version, finish=finish)


def check(conn: sqlite3.Connection, path: Path) -> None:
    """Raise :class:`LedgerVersion` unless this release can work on the ledger as it is."""
    version = identify(conn, path)
    rules.check_usable(migrations(), version, str(path))
    _refuse_newer(conn, path, version)


def check_environment(conn: sqlite3.Connection, path: Path, environment: str) -> None:
    """Raise :class:`EnvironmentMismatch` unless the ledger is stamped with ``environment``."""
    with translated(path):
        row = conn.execute(sql("environment")).fetchone()
    rules.check_environment(None if row is None else row[0], environment, str(path))


def _refuse_newer(conn: sqlite3.Connection, path: Path, version: int) -> None:
    known = migrations()[-1].version
    if version <= known:
        return
    with translated(path):
        breaking = conn.execute(sql("migration_breaking"), (known,)).fetchone()[0]
    rules.refuse_newer(breaking, version, str(path))


def _refuse_older(conn: sqlite3.Connection, path: Path, todo: tuple[Migration, ...], now: int) -> None:
    from redrive import __version__

    if any(step.breaking for step in todo):
        found = conn.execute(sql("migration_workers"), (now - LIVE_US,))
        rules.refuse_older([RunningWorker(*row) for row in found], __version__, str(path))


def _literal(name: str, *values: object) -> str:
    statement = sql(name)
    shown = [rules.literal(value) for value in arranged(statement, values)]
    return "".join(map("".join, zip(statement.split("?"), [*shown, ";\n"], strict=True)))
