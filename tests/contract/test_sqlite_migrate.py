"""Migrations: once, in order, under a lock, in two phases; edited, newer and half-done ones are noticed."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.sqlite_subject import ENVIRONMENT, url

from redrive import Redrive, __version__
from redrive.errors import Conflict, EnvironmentMismatch, LedgerCorrupt, LedgerVersion
from redrive.ledger import migrate as rules
from redrive.ledger import opening
from redrive.ledger.migrate import Migration
from redrive.ledger.sqlite import migrate
from redrive.ledger.sqlite.clock import wall_us
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.ledger import SqliteLedger, create
from redrive.ledger.sqlite.tx import RawTx

FIRST = migrate.migrations()[0]
ADDING = Migration(2, "adding", "-- A step that only adds.\nCREATE TABLE added (a INTEGER) STRICT;\n")
BREAKING = Migration(2, "breaking", "-- breaking\nCREATE TABLE broken (a INTEGER) STRICT;\n")
CONTRACT = Migration(3, "contract", "-- breaking\nDROP TABLE added;\n")
LATER = Migration(4, "later", "CREATE TABLE later (a INTEGER) STRICT;\n")
FAILING = Migration(2, "failing", "CREATE TABLE half (a INTEGER);\nCREATE TABLE half (a INTEGER);\n")
RELEASE_0_1_0 = Path(__file__).parents[1] / "data" / "ledger_0_1_0.sql"


def known(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """This release knows these steps."""
    monkeypatch.setattr(rules, "load", lambda package: steps)


def dump(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "ledger.db")) as conn:
        version = conn.execute("PRAGMA user_version").fetchone()[0]
        return [*conn.iterdump(), str(version)]


def tables(folder: Path) -> set[str]:
    with closing(sqlite3.connect(folder / "ledger.db")) as conn:
        return {name for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}


def running(folder: Path, version: str, seen_ago_s: float = 1, stopped: bool = False) -> None:
    """A worker of another release."""
    with closing(sqlite3.connect(folder / "ledger.db")) as conn:
        text = (
            "INSERT INTO worker (name, host, pid, version, routes, started_at, seen_at, stopped_at)"
            " VALUES (?, 'host-a', 77, ?, '[]', 0, ?, ?)"
        )
        seen_at = wall_us() - int(seen_ago_s * 1e6)
        conn.execute(text, (f"w{version}{seen_ago_s}", version, seen_at, 1 if stopped else None))
        conn.commit()


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
    assert opening.pending(url(tmp_path)) == ((ADDING,), ())
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
    known(monkeypatch, FIRST)
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


# --- two phases


def test_the_second_phase_waits_and_the_new_release_works_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, FIRST)
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, FIRST, ADDING, CONTRACT)
    assert create(url(tmp_path), ENVIRONMENT) == [ADDING]
    assert opening.pending(url(tmp_path)) == ((), (CONTRACT,))
    assert create(url(tmp_path), ENVIRONMENT) == [], "nothing but --finish applies it"
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()
    known(monkeypatch, FIRST)
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()  # and so does the old release
    known(monkeypatch, FIRST, ADDING, CONTRACT)
    assert create(url(tmp_path), ENVIRONMENT, finish=True) == [CONTRACT]
    assert "added" not in tables(tmp_path)
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()


def test_a_new_ledger_gets_both_phases_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, FIRST, ADDING, CONTRACT, LATER)
    assert create(url(tmp_path), ENVIRONMENT) == [FIRST, ADDING, CONTRACT, LATER]
    assert opening.pending(url(tmp_path)) == ((), ())


def test_a_step_behind_an_unfinished_second_phase_is_needed_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, FIRST, ADDING)
    create(url(tmp_path), ENVIRONMENT)
    known(monkeypatch, FIRST, ADDING, CONTRACT, LATER)
    assert create(url(tmp_path), ENVIRONMENT) == []
    with pytest.raises(LedgerVersion, match="schema 2, this release needs 4") as caught:
        SqliteLedger(url(tmp_path), ENVIRONMENT)
    assert "redrive migrate --finish" in str(caught.value.hint)
    assert create(url(tmp_path), ENVIRONMENT, finish=True) == [CONTRACT, LATER]


def test_the_second_phase_is_refused_while_older_workers_live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known(monkeypatch, FIRST, ADDING)
    create(url(tmp_path), ENVIRONMENT)
    running(tmp_path, __version__)
    running(tmp_path, "0.0.1", seen_ago_s=600)
    running(tmp_path, "0.0.2", stopped=True)
    known(monkeypatch, FIRST, ADDING, CONTRACT)
    running(tmp_path, "0.0.9")
    before = dump(tmp_path)
    with pytest.raises(Conflict, match=r"running: host-a \(pid 77, redrive 0\.0\.9\)$") as caught:
        create(url(tmp_path), ENVIRONMENT, finish=True)
    assert "--force" in str(caught.value.hint)
    with pytest.raises(Conflict):
        opening.script(url(tmp_path), ENVIRONMENT, finish=True)
    assert dump(tmp_path) == before
    assert create(url(tmp_path), ENVIRONMENT) == [], "the first phase is nobody's harm"
    assert create(url(tmp_path), ENVIRONMENT, finish=True, force=True) == [CONTRACT]


def test_a_worker_of_the_same_release_does_not_stop_the_second_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, FIRST, ADDING)
    create(url(tmp_path), ENVIRONMENT)
    running(tmp_path, __version__)
    known(monkeypatch, FIRST, ADDING, CONTRACT)
    assert create(url(tmp_path), ENVIRONMENT, finish=True) == [CONTRACT]


def test_a_running_release_notices_a_breaking_step_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, FIRST)
    create(url(tmp_path), ENVIRONMENT)
    with closing(connect(tmp_path / "ledger.db")) as conn:
        rules.check_running(RawTx(conn), "here")
        known(monkeypatch, FIRST, ADDING, CONTRACT)
        create(url(tmp_path), ENVIRONMENT)
        known(monkeypatch, FIRST)
        rules.check_running(RawTx(conn), "here")
        known(monkeypatch, FIRST, ADDING, CONTRACT)
        create(url(tmp_path), ENVIRONMENT, finish=True)
        rules.check_running(RawTx(conn), "here")
        known(monkeypatch, FIRST)
        with pytest.raises(LedgerVersion, match="ledger here has schema 3; step 3 is not compatible"):
            rules.check_running(RawTx(conn), "here")


@pytest.mark.parametrize("start", [(), (FIRST,), (FIRST, ADDING)], ids=["new", "first", "both"])
def test_the_printed_sql_does_what_the_command_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: tuple[Migration, ...]
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.db").touch()
        if start:
            known(monkeypatch, *start)
            create(url(tmp_path / name), ENVIRONMENT, None)
    known(monkeypatch, FIRST, ADDING, CONTRACT)
    script = opening.script(url(tmp_path / "one"), ENVIRONMENT, finish=True)
    with closing(sqlite3.connect(tmp_path / "one" / "ledger.db")) as conn:
        conn.executescript(script)
    create(url(tmp_path / "two"), ENVIRONMENT, finish=True)
    assert opening.script(url(tmp_path / "one"), ENVIRONMENT, finish=True) == ""
    for name in ("one", "two"):
        with closing(sqlite3.connect(tmp_path / name / "ledger.db")) as conn:
            assert conn.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            conn.execute("UPDATE schema_migration SET applied_at = 0")
            conn.execute("UPDATE ledger SET created_at = 0")
            conn.execute("UPDATE clock SET now = 0")
            conn.commit()
    assert dump(tmp_path / "one") == dump(tmp_path / "two")
    SqliteLedger(url(tmp_path / "one"), ENVIRONMENT).close()


def test_the_previous_releases_ledger_is_taken_over_with_everything_in_it(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as conn:
        conn.executescript(RELEASE_0_1_0.read_text(encoding="utf-8"))
        columns = {
            name: [column for _, column, *_ in conn.execute(f"PRAGMA table_info({name})")]
            for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")
            if name not in ("schema_migration", "clock") and not name.startswith("sqlite_")
        }

    def rows() -> dict[str, list[tuple[object, ...]]]:
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as conn:
            return {
                name: conn.execute(f"SELECT {', '.join(names)} FROM {name} ORDER BY 1, 2").fetchall()
                for name, names in columns.items()
            }

    before = rows()
    assert len(before["delivery"]) == 5
    assert len(before["attempt"]) >= 4
    assert create(url(tmp_path), ENVIRONMENT, finish=True) == list(migrate.migrations()[1:])
    assert rows() == before
    app = Redrive(url(tmp_path), environment=ENVIRONMENT)
    app.handler("job")(lambda ctx, payload: None)
    report = app.operations.verify()
    assert (report.checked, report.ok) == (5, True)
    assert not app.enqueue("job", "fine", key="good").created, "the same work has the same identity"
    app.close()


@pytest.mark.parametrize(
    ("version", "release", "older"),
    [
        ("0.1.0", "0.2.0", True),
        ("0.2.0", "0.2.0", False),
        ("0.2", "0.2.0", False),
        ("0.10.0", "0.9.1", False),
        ("0.9.1", "0.10.0", True),
        ("0.2.0rc1", "0.2.0", True),
        ("0.2.0", "0.2.0rc1", False),
        ("0.2.0.dev3", "0.2.0a1", True),
        ("0.2.0", "0.2.0.post1", True),
        ("0.3.0+local", "0.2.0", False),
        ("nonsense", "0.2.0", True),
        ("", "0.2.0", True),
    ],
)
def test_which_release_is_older(version: str, release: str, older: bool) -> None:
    assert rules.is_older(version, release) is older


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
