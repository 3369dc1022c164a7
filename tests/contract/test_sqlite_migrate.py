"""Migrations: once, in order, under a lock; edited, newer and half-done ones are noticed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.sqlite_subject import ENVIRONMENT, url

from redrive.errors import EnvironmentMismatch, LedgerCorrupt, LedgerVersion
from redrive.ledger import migrate
from redrive.ledger.migrate import Migration
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.ledger import SqliteLedger, create

ADDING = Migration(2, "adding", "-- A step that only adds.\nCREATE TABLE added (a INTEGER) STRICT;\n")
BREAKING = Migration(2, "breaking", "-- breaking\nCREATE TABLE broken (a INTEGER) STRICT;\n")
FAILING = Migration(2, "failing", "CREATE TABLE half (a INTEGER);\nCREATE TABLE half (a INTEGER);\n")


def known(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """This release knows these steps."""
    monkeypatch.setattr(migrate, "migrations", lambda: steps)


def dump(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "ledger.db")) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        return [*conn.iterdump(), str(version)]


FIRST = migrate.migrations()[0]


def test_a_new_file_becomes_a_ledger_and_doing_it_again_changes_nothing(tmp_path: Path) -> None:
    steps = create(url(tmp_path), ENVIRONMENT)
    assert [step.version for step in steps] == [step.version for step in migrate.migrations()]
    before = dump(tmp_path)
    assert create(url(tmp_path), ENVIRONMENT) == []
    assert create(url(tmp_path), ENVIRONMENT) == []
    assert dump(tmp_path) == before


def test_what_was_applied_is_recorded(tmp_path: Path) -> None:
    create(url(tmp_path), ENVIRONMENT)
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as conn:
        recorded = conn.execute("SELECT version, name, digest, breaking FROM schema_migration").fetchall()
    assert recorded == [(step.version, step.name, step.digest, step.breaking) for step in migrate.migrations()]


def test_a_step_is_added_to_an_existing_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, FIRST)
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, FIRST, ADDING)
    with pytest.raises(LedgerVersion, match="schema 1, this release needs 2") as caught:
        SqliteLedger(url(tmp_path), ENVIRONMENT)
    assert caught.value.hint == "run: redrive migrate"
    with closing(connect(tmp_path / "ledger.db")) as conn:
        assert migrate.pending_sql(conn, tmp_path / "ledger.db") == ADDING.text
    assert create(url(tmp_path), ENVIRONMENT) == [ADDING]
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()


def test_a_ledger_with_a_newer_breaking_step_is_refused_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, FIRST, BREAKING)
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, FIRST)
    before = dump(tmp_path)
    for act in (SqliteLedger, create):
        with pytest.raises(LedgerVersion, match="schema 2; step 2 is not compatible") as caught:
            act(url(tmp_path), ENVIRONMENT)
        assert caught.value.hint is not None
        assert "upgrade redrive" in caught.value.hint
    assert dump(tmp_path) == before


def test_a_ledger_with_a_newer_step_that_only_adds_still_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, FIRST, ADDING)
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, FIRST)
    before = dump(tmp_path)
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()
    assert create(url(tmp_path), ENVIRONMENT) == []
    assert dump(tmp_path) == before


def test_a_step_edited_after_it_was_applied_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, Migration(FIRST.version, FIRST.name, FIRST.text + "\n-- one more word\n"), ADDING)
    before = dump(tmp_path)
    with pytest.raises(LedgerCorrupt, match=r"migration 1 .* another text"):
        create(url(tmp_path), ENVIRONMENT)
    assert dump(tmp_path) == before


def test_a_step_that_fails_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    create(url(tmp_path), ENVIRONMENT)
    before = dump(tmp_path)
    known(monkeypatch, FIRST, FAILING)
    with pytest.raises(Exception, match="half already exists"):
        create(url(tmp_path), ENVIRONMENT)
    assert dump(tmp_path) == before


def test_a_first_step_that_fails_leaves_a_file_that_can_still_become_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        known(patched, FIRST, FAILING)
        with pytest.raises(Exception, match="half already exists"):
            create(url(tmp_path), ENVIRONMENT)
    assert len(create(url(tmp_path), ENVIRONMENT)) == len(migrate.migrations())


def test_another_environments_ledger_is_not_migrated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, FIRST)
    create(url(tmp_path), "prod")
    before = dump(tmp_path)
    known(monkeypatch, FIRST, ADDING)
    with pytest.raises(EnvironmentMismatch):
        create(url(tmp_path), "staging")
    assert dump(tmp_path) == before


def test_statements_are_split_where_they_end_and_not_inside_a_trigger() -> None:
    text = """-- A comment; with a semicolon.

CREATE TABLE a (
  b TEXT DEFAULT ';'   -- inline; comment
);
CREATE TRIGGER t BEFORE UPDATE ON a
WHEN NEW.b <> 'x;y'
BEGIN
  UPDATE a SET b = 1;
  SELECT RAISE(ABORT, 'no; never');
END;
-- another
CREATE TRIGGER u BEFORE DELETE ON a BEGIN SELECT RAISE(ABORT, 'x'); END;
CREATE INDEX i ON a (b);
"""
    found = list(migrate.statements(text))
    assert [statement.split()[1] + " " + statement.split()[2] for statement in found] == [
        "TABLE a",
        "TRIGGER t",
        "TRIGGER u",
        "INDEX i",
    ]
    with closing(sqlite3.connect(":memory:")) as conn:
        for statement in found:
            conn.execute(statement)
        conn.execute("INSERT INTO a DEFAULT VALUES")
        with pytest.raises(sqlite3.IntegrityError, match="no; never"):
            conn.execute("UPDATE a SET b = 'z'")


def test_a_step_that_ends_in_the_middle_of_a_statement_is_refused() -> None:
    with pytest.raises(LedgerCorrupt, match="middle of a statement"):
        list(migrate.statements("CREATE TABLE a (b TEXT);\nCREATE TABLE c (d TEXT)\n"))


def test_only_a_line_of_its_own_makes_a_step_breaking() -> None:
    assert BREAKING.breaking
    assert not ADDING.breaking
    assert not Migration(3, "x", "-- this is not breaking anything\nSELECT '-- breaking';\n").breaking
