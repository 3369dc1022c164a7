"""Migrations on PostgreSQL: one transaction, one at a time, in two phases, never in anybody's way."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.contract.postgres_child import start, together
from tests.services.postgres import PostgresServer

from redrive import __version__
from redrive.errors import (
    ConfigError,
    Conflict,
    EnvironmentMismatch,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerReadOnly,
    LedgerVersion,
    NotALedger,
    NotFound,
)
from redrive.ledger import migrate as rules
from redrive.ledger import opening
from redrive.ledger.migrate import Migration
from redrive.ledger.postgres import migrate
from redrive.ledger.postgres.connect import PostgresUrl, connect
from redrive.ledger.postgres.tx import PsycopgTx

ENVIRONMENT = "test"
ALL = migrate.migrations()
ADDING = Migration(
    len(ALL) + 1,
    "adding",
    """-- Adds a column and a function whose body holds semicolons, percent signs and $1.
ALTER TABLE {schema}.ledger ADD COLUMN motto text NOT NULL DEFAULT '100 %s; $1';
CREATE FUNCTION {schema}.twice(a integer) RETURNS integer LANGUAGE plpgsql AS $$
BEGIN
  a := a * 2; RETURN a % 100;
END
$$;
""",
)
CONTRACT = Migration(len(ALL) + 2, "contract", "-- breaking\nDROP FUNCTION {schema}.twice(integer);\n")
LATER = Migration(len(ALL) + 3, "later", "CREATE TABLE {schema}.later (a integer);\n")
FAILING = Migration(len(ALL) + 1, "failing", "CREATE TABLE {schema}.half (a integer);\nSELECT 1 / 0;\n")


def known(monkeypatch: pytest.MonkeyPatch, *steps: Migration) -> None:
    """This release knows these steps."""
    monkeypatch.setattr(rules, "load", lambda package: steps)


def check(url: str, environment: str = ENVIRONMENT) -> None:
    """The ledger can be opened."""
    opening.open_ledger(url, environment).close()


def query(url: str, text: str, *params: object) -> list[tuple[Any, ...]]:
    """As the superuser."""
    with psycopg.connect(url.partition("?")[0], autocommit=True) as conn:
        cursor = conn.execute(text, params or None)
        return cursor.fetchall() if cursor.description else []


def dump(server: PostgresServer, url: str) -> str:
    """Everything in the database but times."""
    database = url.partition("?")[0]
    options = ["--no-comments", "--inserts", "--exclude-table-data=*.schema_migration", "--exclude-table-data=*.ledger"]
    done = subprocess.run(
        [server.bin / "pg_dump", *options, database], capture_output=True, text=True, check=True, timeout=60
    )
    lines = [line for line in done.stdout.splitlines() if not line.startswith((r"\restrict", r"\unrestrict"))]
    schemas = query(url, "SELECT nspname FROM pg_namespace WHERE nspname NOT LIKE 'pg_%' ORDER BY 1")
    lines += [repr(schemas)]
    if "CREATE FUNCTION redrive.clock_us" in done.stdout:
        lines += map(repr, query(url, "SELECT version, name, digest, breaking FROM redrive.schema_migration"))
        lines += map(repr, query(url, "SELECT environment FROM redrive.ledger"))
    return "\n".join(lines)


def running(url: str, version: str, seen_ago_s: int = 1, stopped: bool = False) -> None:
    """A worker of another release."""
    query(
        url,
        "INSERT INTO redrive.worker (name, host, pid, version, routes, started_at, seen_at, stopped_at)"
        " SELECT %s, 'host-a', 77, %s, '[]', 0, redrive.clock_us() - %s, %s",
        f"w{version}{seen_ago_s}",
        version,
        seen_ago_s * 1_000_000,
        1 if stopped else None,
    )


def planted(url: str) -> list[tuple[Any, ...]]:
    """A delivery with its identity, and what it was before; written as the schema allows."""
    query(
        url,
        "INSERT INTO redrive.identity (seq, first_seen, delivery_id, payload_hash)"
        " SELECT n, n, decode(lpad(n::text, 32, '0'), 'hex'), '\\x00' FROM generate_series(1, 100) n",
    )
    return query(url, "SELECT * FROM redrive.identity ORDER BY seq")


@pytest.fixture
def role(postgres: PostgresServer, database: str) -> Iterator[str]:
    """The URL for a user with no rights but to connect."""
    name = f"plain_{database.rpartition('/')[2]}"
    query(database, f"CREATE ROLE {name} LOGIN")
    yield database.replace("postgres@", f"{name}@")
    query(database, f"DROP OWNED BY {name}")
    query(database, f"DROP ROLE {name}")


# --- creating


def test_a_new_schema_becomes_a_ledger_and_doing_it_again_changes_nothing(
    postgres: PostgresServer, database: str
) -> None:
    assert opening.create(database, ENVIRONMENT) == list(ALL)
    check(database)
    before = dump(postgres, database)
    assert opening.create(database, ENVIRONMENT) == []
    assert dump(postgres, database) == before
    recorded = query(database, "SELECT version, name, digest, breaking FROM redrive.schema_migration ORDER BY 1")
    assert recorded == [(step.version, step.name, step.digest, step.breaking) for step in ALL]
    ((environment, created),) = query(
        database, "SELECT environment, redrive.clock_us() - created_at BETWEEN 0 AND 60000000 FROM redrive.ledger"
    )
    assert (environment, created) == (ENVIRONMENT, True)


def test_the_schemas_name_is_the_urls_and_nothing_goes_elsewhere(database: str) -> None:
    opening.create(f"{database}?schema=other_1", ENVIRONMENT)
    check(f"{database}?schema=other_1")
    placed = query(
        database,
        "SELECT DISTINCT n.nspname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema'"
        " UNION SELECT DISTINCT n.nspname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace"
        " WHERE n.nspname NOT LIKE 'pg\\_%%' AND n.nspname <> 'information_schema' AND %s",
        True,
    )
    assert placed == [("other_1",)]
    opening.create(database, "prod")
    check(database, "prod")
    assert query(database, "SELECT environment FROM other_1.ledger") == [(ENVIRONMENT,)]


@pytest.mark.parametrize("schema", ["Redrive", "pg_redrive", "a-b", 'a"b', "1a", "a" * 49, "", "a;drop"])
def test_a_schemas_name_that_would_need_quoting_is_refused(schema: str) -> None:
    with pytest.raises(ConfigError, match="schema must be"):
        opening.check_url(f"postgresql://h/d?schema={schema}")


def test_processes_that_create_one_ledger_at_once_all_succeed(database: str) -> None:
    counts = together([start("create", database, "5") for _ in range(2)])
    for steps in zip(*counts, strict=True):
        assert sorted(steps) == [0, len(ALL)], "one of them made it, the other found it"


def test_a_schema_of_something_else_is_refused_unchanged(postgres: PostgresServer, database: str) -> None:
    for made in (
        "CREATE TABLE redrive.customer (name text)",
        "CREATE FUNCTION redrive.f() RETURNS int LANGUAGE sql AS 'SELECT 1'",
        "CREATE TABLE redrive.schema_migration (version text)",
        "CREATE TYPE redrive.kind AS ENUM ('a')",
    ):
        query(database, "CREATE SCHEMA redrive")
        query(database, made)
        before = dump(postgres, database)
        with pytest.raises(NotALedger, match="something else") as caught:
            opening.create(database, ENVIRONMENT)
        assert "nothing was changed" in str(caught.value.hint)
        for act in (check, opening.pending):
            with pytest.raises(NotALedger):
                act(database)
        assert dump(postgres, database) == before
        query(database, "DROP SCHEMA redrive CASCADE")


def test_a_schema_that_is_missing_is_not_made_by_opening_it(database: str) -> None:
    for act in (check, opening.pending):
        with pytest.raises(NotFound, match="does not exist") as caught:
            act(database)
        assert caught.value.hint == "create it with: redrive init"
    query(database, "CREATE SCHEMA redrive")
    with pytest.raises(LedgerVersion) as version:
        check(database)
    assert version.value.hint == "run: redrive init"
    assert opening.create(database, ENVIRONMENT) == list(ALL)


def test_another_environments_ledger_is_refused_untouched(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening.create(database, "prod")
    before = dump(postgres, database)
    known(monkeypatch, *ALL, ADDING)
    with pytest.raises(EnvironmentMismatch, match=r"'prod'.*'staging'"):
        opening.create(database, "staging")
    with pytest.raises(EnvironmentMismatch):
        opening.script(database, "staging")
    known(monkeypatch, *ALL)
    with pytest.raises(EnvironmentMismatch, match=r"'prod'.*'staging'"):
        check(database, "staging")
    assert dump(postgres, database) == before


def test_a_user_that_may_not_create_is_told_what_to_grant(database: str, role: str) -> None:
    name = role.partition("//")[2].partition("@")[0]
    with pytest.raises(LedgerReadOnly, match="may not create") as caught:
        opening.create(role, ENVIRONMENT)
    grant, _, rest = str(caught.value.hint).removeprefix("an administrator may run: ").partition("; ")
    assert grant.startswith("GRANT CREATE ON DATABASE")
    assert "redrive migrate --sql" in rest
    query(database, "CREATE SCHEMA redrive")
    with pytest.raises(LedgerReadOnly) as caught:
        opening.create(role, ENVIRONMENT)
    assert f'GRANT USAGE, CREATE ON SCHEMA redrive TO "{name}"' in str(caught.value.hint)
    query(database, "DROP SCHEMA redrive")
    query(database, grant)
    assert opening.create(role, ENVIRONMENT) == list(ALL), "the grant is what was missing"


def test_a_user_that_does_not_own_the_schema_cannot_migrate_it(
    database: str, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening.create(database, ENVIRONMENT)
    name = role.partition("//")[2].partition("@")[0]
    known(monkeypatch, *ALL, ADDING)
    with pytest.raises(LedgerReadOnly, match="may not look into"):
        opening.create(role, ENVIRONMENT)
    query(database, f"GRANT USAGE, CREATE ON SCHEMA redrive TO {name}")
    query(database, f"GRANT SELECT ON ALL TABLES IN SCHEMA redrive TO {name}")
    with pytest.raises(LedgerReadOnly, match="only its owner may") as caught:
        opening.create(role, ENVIRONMENT)
    assert "redrive migrate --sql" in str(caught.value.hint)
    script = opening.script(role, ENVIRONMENT)
    with psycopg.connect(database) as conn:
        conn.execute(script.encode())
    assert opening.create(role, ENVIRONMENT) == []


def test_a_database_in_another_encoding_is_refused(postgres: PostgresServer, database: str) -> None:
    query(
        database,
        "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'",
    )
    try:
        with pytest.raises(LedgerError, match="encoded as LATIN1") as caught:
            opening.create(postgres.url("latin"), ENVIRONMENT)
        assert "ENCODING 'UTF8'" in str(caught.value.hint)
    finally:
        postgres.drop_database("latin")


def test_a_server_that_is_too_old_is_refused(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "OLDEST", 99)
    with pytest.raises(LedgerVersion, match=r"PostgreSQL \d+.* is too old") as caught:
        opening.create(database, ENVIRONMENT)
    assert caught.value.hint == "redrive needs PostgreSQL 99 or newer"
    assert query(database, "SELECT 1 FROM pg_namespace WHERE nspname = 'redrive'") == []


# --- steps


def test_a_step_is_added_to_a_ledger_with_rows_in_it(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening.create(database, ENVIRONMENT)
    before = planted(database)
    known(monkeypatch, *ALL, ADDING)
    with pytest.raises(LedgerVersion, match="this release needs") as caught:
        check(database)
    assert caught.value.hint == "run: redrive migrate"
    assert opening.create(database, ENVIRONMENT) == [ADDING]
    check(database)
    assert query(database, "SELECT * FROM redrive.identity ORDER BY seq") == before
    assert query(database, "SELECT motto, redrive.twice(70) FROM redrive.ledger") == [("100 %s; $1", 40)]


def test_a_step_that_fails_leaves_the_database_as_it_was(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = dump(postgres, database)
    known(monkeypatch, *ALL, FAILING)
    with pytest.raises(LedgerError, match="division by zero"):
        opening.create(database, ENVIRONMENT)
    assert dump(postgres, database) == empty
    known(monkeypatch, *ALL)
    opening.create(database, ENVIRONMENT)
    before = dump(postgres, database)
    known(monkeypatch, *ALL, FAILING)
    with pytest.raises(LedgerError, match="division by zero"):
        opening.create(database, ENVIRONMENT)
    assert dump(postgres, database) == before


def test_a_step_edited_after_it_was_applied_is_noticed(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening.create(database, ENVIRONMENT)
    before = dump(postgres, database)
    first = Migration(1, ALL[0].name, ALL[0].text + "\n-- one more word\n")
    known(monkeypatch, first, *ALL[1:], ADDING)
    with pytest.raises(LedgerCorrupt, match=r"migration 1 .* another text"):
        opening.create(database, ENVIRONMENT)
    assert dump(postgres, database) == before


@pytest.mark.parametrize("table", ["ledger", "identity"])
def test_a_step_that_must_wait_for_a_lock_gives_up_and_says_whose_it_is(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, table: str
) -> None:
    opening.create(database, ENVIRONMENT)
    before = dump(postgres, database)
    step = Migration(ADDING.version, "column", f"ALTER TABLE {{schema}}.{table} ADD COLUMN extra integer;\n")
    known(monkeypatch, *ALL, step)
    monkeypatch.setattr(migrate, "LOCK_WAIT_S", 0.6)
    with psycopg.connect(database, application_name="nightly-report") as other:
        other.execute(f"SELECT count(*) FROM redrive.{table}".encode())
        with pytest.raises(LedgerBusy, match=r"gave up after 0\.6 s in the queue") as caught:
            opening.create(database, ENVIRONMENT)
        assert f"process {other.info.backend_pid} " in str(caught.value)
        assert "'nightly-report'" in str(caught.value)
        assert "nothing was changed" in str(caught.value.hint)
        # It has left the queue: what would have waited behind it is served at once.
        query(database, f"SET lock_timeout = '2s'; INSERT INTO redrive.{table} SELECT * FROM redrive.{table} LIMIT 0")
    assert dump(postgres, database) == before
    assert opening.create(database, ENVIRONMENT) == [step]


def test_one_migration_waits_for_another(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening.create(database, ENVIRONMENT)
    known(monkeypatch, *ALL, ADDING)
    parsed = PostgresUrl.parse(database)
    results: list[list[Migration]] = []
    with closing(connect(parsed)) as other:
        other.execute("BEGIN")
        other.execute("SELECT pg_advisory_xact_lock(hashtextextended('redrive.migrate.redrive', 0))")
        monkeypatch.setattr(migrate, "TURN_WAIT_S", 0.1)
        with pytest.raises(LedgerBusy, match="another migration of it has been running"):
            opening.create(database, ENVIRONMENT)
        monkeypatch.setattr(migrate, "TURN_WAIT_S", 30.0)
        waiting = threading.Thread(target=lambda: results.append(opening.create(database, ENVIRONMENT)))
        waiting.start()
        for _ in range(2000):
            if query(database, "SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"):
                break
        else:
            pytest.fail("it did not wait")
        assert opening.create(f"{database}?schema=another", ENVIRONMENT), "another schema's need not wait"
        other.execute("COMMIT")
        waiting.join(30)
    assert results == [[ADDING]]


# --- two phases


def test_the_second_phase_waits_and_both_releases_work_meanwhile(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening.create(database, ENVIRONMENT)
    known(monkeypatch, *ALL, ADDING, CONTRACT)
    assert opening.create(database, ENVIRONMENT) == [ADDING]
    assert opening.pending(database) == ((), (CONTRACT,))
    assert opening.create(database, ENVIRONMENT) == []
    check(database)
    known(monkeypatch, *ALL)
    check(database)
    assert opening.create(database, ENVIRONMENT) == [], "the old release has nothing to add"
    known(monkeypatch, *ALL, ADDING, CONTRACT)
    assert opening.create(database, ENVIRONMENT, finish=True) == [CONTRACT]
    assert query(database, "SELECT to_regproc('redrive.twice')") == [(None,)]
    check(database)


def test_an_old_release_refuses_a_newer_breaking_schema_unchanged(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, *ALL, ADDING, CONTRACT)
    assert opening.create(database, ENVIRONMENT) == [*ALL, ADDING, CONTRACT], "a new ledger gets both phases"
    before = dump(postgres, database)
    known(monkeypatch, *ALL)
    step = CONTRACT.version
    for act in (check, opening.pending, lambda url: opening.create(url, ENVIRONMENT)):
        with pytest.raises(LedgerVersion, match=f"schema {step}; step {step} is not compatible") as caught:
            act(database)
        assert "upgrade redrive" in str(caught.value.hint)
    assert dump(postgres, database) == before


def test_a_running_release_notices_a_breaking_step_and_no_other(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening.create(database, ENVIRONMENT)
    parsed = PostgresUrl.parse(database)
    with closing(connect(parsed)) as conn:
        tx = PsycopgTx(conn, parsed.schema)
        rules.check_running(tx, "here")
        known(monkeypatch, *ALL, ADDING, CONTRACT)
        opening.create(database, ENVIRONMENT)
        known(monkeypatch, *ALL)
        rules.check_running(tx, "here")
        known(monkeypatch, *ALL, ADDING, CONTRACT)
        opening.create(database, ENVIRONMENT, finish=True)
        rules.check_running(tx, "here")
        known(monkeypatch, *ALL)
        with pytest.raises(LedgerVersion, match="is not compatible with this release"):
            rules.check_running(tx, "here")


def test_the_second_phase_is_refused_while_older_workers_live(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    known(monkeypatch, *ALL, ADDING)
    opening.create(database, ENVIRONMENT)
    running(database, __version__)
    running(database, "0.0.1", seen_ago_s=600)
    running(database, "0.0.2", stopped=True)
    known(monkeypatch, *ALL, ADDING, CONTRACT, LATER)
    running(database, "0.0.9")
    before = dump(postgres, database)
    with pytest.raises(Conflict, match=r"running: host-a \(pid 77, redrive 0\.0\.9\)$"):
        opening.create(database, ENVIRONMENT, finish=True)
    with pytest.raises(Conflict):
        opening.script(database, ENVIRONMENT, finish=True)
    assert dump(postgres, database) == before
    assert opening.create(database, ENVIRONMENT, finish=True, force=True) == [CONTRACT, LATER]


# --- the printed SQL


@pytest.mark.parametrize("state", ["nothing", "an empty schema", "the release before"])
def test_the_printed_sql_does_what_the_command_does(
    postgres: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    other = postgres.url(postgres.create_database())
    for url in (database, other):
        if state == "an empty schema":
            query(url, "CREATE SCHEMA redrive")
        elif state == "the release before":
            known(monkeypatch, *ALL)
            opening.create(url, ENVIRONMENT)
    known(monkeypatch, *ALL, ADDING, CONTRACT)
    first = opening.script(database, ENVIRONMENT)
    assert first.startswith("-- Schema redrive of database")
    assert "{schema}" not in first
    psql(postgres, database, first)
    opening.create(other, ENVIRONMENT)
    assert dump(postgres, database) == dump(postgres, other)
    if state == "the release before":
        psql(postgres, database, opening.script(database, ENVIRONMENT, finish=True))
        opening.create(other, ENVIRONMENT, finish=True)
        assert dump(postgres, database) == dump(postgres, other)
    assert opening.script(database, ENVIRONMENT, finish=True) == ""
    assert opening.pending(database) == ((), ())
    check(database)
    postgres.drop_database(other.rpartition("/")[2])


def test_the_printed_sql_run_twice_changes_nothing_more(postgres: PostgresServer, database: str) -> None:
    script = opening.script(database, ENVIRONMENT)
    psql(postgres, database, script)
    before = dump(postgres, database)
    with pytest.raises(subprocess.CalledProcessError):
        psql(postgres, database, script)
    assert dump(postgres, database) == before


def psql(server: PostgresServer, url: str, text: str) -> None:
    """As a person would."""
    command = [server.bin / "psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-f", "-", url]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=60)
