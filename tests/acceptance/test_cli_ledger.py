"""``init``, ``migrate``, ``check`` and ``config`` on a PostgreSQL ledger; a password is never shown."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.acceptance.cli_rig import Ran, ok, run, write
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import PostgresServer

from redrive import __version__
from redrive.config import Settings
from redrive.errors import ConfigError
from redrive.ledger import checks, opening
from redrive.ledger import migrate as rules
from redrive.ledger.migrate import Migration
from redrive.ledger.postgres import migrate as postgres_migrate
from redrive.ledger.postgres.connect import PostgresUrl, translate

PASSWORD = "hunter2"
ALL = postgres_migrate.migrations()
ADDING = Migration(len(ALL) + 1, "adding", "CREATE TABLE {schema}.added (a integer);\n")
CONTRACT = Migration(len(ALL) + 2, "contract", "-- breaking\nDROP TABLE {schema}.added;\n")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith(("REDRIVE_", "PG")):
            monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def ledger(database: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty database with a password in it, which every command is configured for."""
    url = database.replace("postgres@", f"postgres:{PASSWORD}@")
    monkeypatch.setenv("REDRIVE_LEDGER", url)
    return url


def query(url: str, text: str) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute(text.encode())


@contextlib.contextmanager
def plain_user(ledger: str, options: str = "") -> Iterator[tuple[str, str]]:
    """A user with no rights but to connect, and its URL."""
    name = f"plain_{ledger.rpartition('/')[2]}"
    query(ledger, f"CREATE ROLE {name} LOGIN {options}")
    yield name, ledger.replace("postgres:", f"{name}:")
    query(ledger, f"DROP OWNED BY {name}")
    query(ledger, f"DROP ROLE {name}")


def found(*arguments: str, code: int = 1) -> dict[str, Any]:
    """What ``check`` says, by check."""
    ran = run("check", *arguments, "-o", "json")
    assert ran.code == code, ran
    assert PASSWORD not in ran.out + ran.err
    shown = ran.json
    assert shown["ok"] is (code == 0)
    return {item["check"]: item for item in shown["checks"]}


def quiet(ran: Ran, code: int = 0) -> Ran:
    assert ran.code == code, ran
    assert PASSWORD not in ran.out + ran.err
    return ran


# --- init and migrate


def test_init_makes_a_schema_and_says_what_to_do_next(ledger: str, folder: Path) -> None:
    shown = ledger.replace(f":{PASSWORD}", "")
    ran = quiet(run("init"))
    assert ran.out == f"created ledger {shown} for environment 'development'\n"
    assert "redrive up" in ran.err
    again = quiet(run("init", "-o", "json"))
    assert again.json == {
        "ledger": shown,
        "path": None,
        "environment": "development",
        "steps": [],
        "pending": [],
        "created": False,
    }
    assert list(folder.iterdir()) == []


def test_migrate_makes_no_schema_but_prints_what_would(ledger: str) -> None:
    ran = quiet(run("migrate"), 1)
    assert "redrive init" in ran.err
    script = quiet(run("migrate", "--sql")).out
    assert "CREATE SCHEMA redrive;" in script
    assert "schema" in found()
    query(ledger, script)
    assert quiet(run("migrate")).out == "the ledger is up to date; nothing was changed\n"
    assert quiet(run("migrate", "--sql", "-o", "json")).json == {"pending": False, "sql": ""}


def test_migrate_goes_in_two_phases(ledger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ok("init")
    monkeypatch.setattr(rules, "load", lambda package: (*ALL, ADDING, CONTRACT))
    assert found()["schema"]["state"] == "failed"
    first = quiet(run("migrate"))
    assert first.out == f"applied 1 step: {ADDING.label}\n"
    assert f"the second phase is pending: {CONTRACT.label}" in first.err
    assert f"once every worker runs redrive {__version__}, run: redrive migrate --finish" in first.err
    assert found()["second phase"]["advice"] == "once every worker runs this release: redrive migrate --finish"
    query(
        ledger,
        "INSERT INTO redrive.worker (name, host, pid, version, routes, started_at, seen_at)"
        " SELECT 'w', 'host-a', 77, '0.0.9', '[]', 0, redrive.clock_us()",
    )
    again = quiet(run("migrate", "-o", "json")).json
    assert (again["steps"], again["pending"]) == ([], [CONTRACT.label])
    refused = quiet(run("migrate", "--finish", "-o", "json"), 6)
    assert refused.error["code"] == "conflict"
    assert "host-a (pid 77, redrive 0.0.9)" in refused.error["message"]
    assert quiet(run("migrate", "--force"), 2).err.startswith("error: --force means something with --finish only")
    assert quiet(run("migrate", "--finish", "--force")).out == f"applied 1 step: {CONTRACT.label}\n"


def test_another_environment_is_exit_4(ledger: str) -> None:
    ok("init", "--environment", "prod")
    for arguments in (["init"], ["migrate"], ["migrate", "--sql"], ["check"]):
        ran = quiet(run(*arguments, "--environment", "staging", "-o", "json"), 4)
        assert ran.error["code"] == "environment_mismatch"


# --- passwords


def test_config_leaves_the_password_out(ledger: str, folder: Path) -> None:
    shown = ledger.replace(f":{PASSWORD}", "")
    assert quiet(run("config", "-o", "json")).json["settings"]["ledger"]["value"] == shown
    assert shown in quiet(run("config")).out
    assert PASSWORD not in repr(Settings(ledger=ledger)) + repr(PostgresUrl.parse(ledger))


def test_two_ledgers_that_differ_are_named_without_their_passwords(ledger: str, folder: Path) -> None:
    text = f'from redrive import Redrive\napp = Redrive("{ledger}x")\n'
    write(folder, [("two_servers.py", text)])
    ran = quiet(run("check", "--app", "two_servers:app", "-o", "json"), 2)
    assert f"says {ledger.replace(':' + PASSWORD, '')}x" in ran.error["message"]


@pytest.mark.parametrize("command", ["init", "migrate", "check"])
def test_what_cannot_be_reached_is_said_without_the_password(command: str, postgres: PostgresServer) -> None:
    for url, code in (
        (f"postgresql://u:{PASSWORD}@127.0.0.1:1/d", 1),
        (f"postgresql://u:{PASSWORD}@127.0.0.1:{postgres.port}/postgres", 1),
        (f"postgresql://postgres:{PASSWORD}@127.0.0.1:{postgres.port}/nowhere", 1),
        (f"postgresql://u:a@{PASSWORD}@127.0.0.1:{postgres.port}/postgres", 2),
    ):
        error = quiet(run(command, "--ledger", url, "-o", "json"), code).error
        assert error["message"]
        assert error["hint"]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:hunter2@h:5/d?schema=s", "postgresql://u@h:5/d?schema=s"),
        ("postgres://h/d?password=hunter2&schema=s&sslpassword=hunter2", "postgresql://h/d?schema=s"),
        ("postgresql://u:hun@hunter2@h/d", "postgresql://..."),
        ("postgresql://u:1/hunter2@h/d", "postgresql://..."),
        ("postgresql://u:1?hunter2@h/d", "postgresql://..."),
        ("postgresql://u:1#hunter2@h/d", "postgresql://..."),
        ("postgresql://[hunter2", "postgresql://..."),
        ("postgresql://u:hunter2@h:5,[::1]:6,i/d", "postgresql://u@h:5,[::1]:6,i/d"),
        ("postgresql://u:hunter2/d", "postgresql://..."),
        ("mysql://u:hunter2@h/d", "(not a ledger's URL)"),
        ("sqlite:///a.db", "sqlite:///a.db"),
    ],
)
def test_a_url_is_shown_without_what_could_be_a_password(url: str, shown: str) -> None:
    assert opening.where(url) == shown


@pytest.mark.parametrize("password", ["hun#ter2", "hun@ter2", "hun/ter2", "hun?ter2"])
def test_a_password_that_moves_the_urls_borders_is_to_be_encoded(password: str) -> None:
    ran = run("check", "--ledger", f"postgresql://u:{password}@h/d", "-o", "json")
    assert (ran.code, ran.error["hint"].partition(" ")[0]) == (2, "percent-encode")
    assert "ter2" not in ran.out + ran.err


@pytest.mark.parametrize("url", ["mysql://u@h/d", "postgresql+psycopg://u@h/d"])
def test_another_scheme_is_told_both_that_there_are(url: str) -> None:
    ran = run("check", "--ledger", url, "-o", "json")
    assert (ran.code, "sqlite:///" in ran.error["hint"]) == (2, True)
    assert "postgresql://user@host/database (no +driver)" in ran.error["hint"]


def test_several_hosts_are_tried_in_turn(ledger: str, postgres: PostgresServer) -> None:
    several = ledger.replace(f"127.0.0.1:{postgres.port}", f"127.0.0.1:1,127.0.0.1:{postgres.port}")
    shown = several.replace(f":{PASSWORD}", "")
    assert quiet(run("init", "--ledger", several)).out.startswith(f"created ledger {shown} ")
    assert found("--ledger", several)["ledger"]["value"] == shown
    error = quiet(run("check", "--ledger", several.replace(f":{postgres.port}", ":2"), "-o", "json"), 1).error
    assert error["message"].startswith(f"ledger {shown.replace(f':{postgres.port}', ':2')} cannot be reached: ")
    assert run("check", "--ledger", "postgresql://h:5,i:x/d").code == 2


def test_who_is_turned_away_is_told_why_and_what_to_do(ledger: str, postgres: PostgresServer) -> None:
    def told(url: str) -> tuple[str, str, str]:
        error = quiet(run("init", "--ledger", url, "-o", "json"), 1).error
        assert error["message"].startswith(f"ledger {url.replace(f':{PASSWORD}', '')} ")
        return error["code"], error["message"], error["hint"]

    code, message, hint = told(ledger.replace("postgres:", "nobody:"))
    assert (code, hint) == ("ledger_unavailable", "check user, password and pg_hba.conf")
    assert "refuses this user: " in message
    code, message, hint = told(ledger + "_not")
    assert (code, hint) == ("not_a_ledger", "create the database first")
    code, message, hint = told(ledger.replace(f":{postgres.port}", ":1"))
    assert (code, hint) == ("ledger_unavailable", "check host, port, user and database")
    with plain_user(ledger, "CONNECTION LIMIT 0") as (_, url):
        code, message, hint = told(url)
    assert (code, hint) == ("ledger_unavailable", "raise max_connections, or put a pooler in between")


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ('FATAL:  password authentication failed for user "u"', "check user, password and pg_hba.conf"),
        ("fe_sendauth: no password supplied", "check user, password and pg_hba.conf"),
        ('FATAL:  no pg_hba.conf entry for host "h"', "check user, password and pg_hba.conf"),
        ("FATAL:  sorry, too many clients already", "raise max_connections, or put a pooler in between"),
        ("FATAL:  no such database: d", "create the database first"),
        ("FATAL:  the database system is starting up", "trying again is safe"),
        ('FATAL:  permission denied for database "d"', "see: redrive check"),
        ("FATAL:  Passwort-Authentifizierung fehlgeschlagen", "check host, port, user and database"),
    ],
)
def test_a_servers_last_words_are_understood(words: str, hint: str) -> None:
    class Refused(psycopg.OperationalError):
        pgconn = object()  # type: ignore[assignment]

    error = translate(Refused(f'connection failed: connection to server at "h", port 1 failed: {words}'), "x")
    assert error is not None
    assert error.hint == hint


def test_urls_of_one_ledger_are_the_same() -> None:
    assert opening.same("postgres://a:x@h/d", "postgresql://b:y@h/d?schema=redrive")
    assert not opening.same("postgresql://h/d", "postgresql://h/d?schema=other")
    assert not opening.same("postgresql://h/d", "sqlite:///d")
    assert opening.same("sqlite:///a.db", "sqlite:///./a.db")


def test_a_missing_driver_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    ran = run("init", "--ledger", "postgresql://h/d", "-o", "json")
    assert (ran.code, ran.error["hint"]) == (2, "pip install 'redrive[postgres]'")
    with pytest.raises(ConfigError, match="psycopg"):
        opening.open_ledger("postgresql://h/d", "development")


# --- check


def test_check_says_what_is_wrong_with_the_server_and_what_to_do(ledger: str) -> None:
    shown = found()
    assert shown["schema"]["advice"] == "run: redrive init"
    ok("init")
    shown = found()  # the tests' server runs without fsync
    assert {name for name, item in shown.items() if item["state"] == "failed"} == {"fsync"}
    assert shown["fsync"]["advice"].startswith("set fsync = on")
    assert shown["full_page_writes"]["state"] == "warning"
    for name in ("autovacuum", "synchronous_commit", "pooler", "privileges", "connections", "clock", "environment"):
        assert shown[name]["state"] == "ok", shown[name]
    assert "PostgreSQL" in shown["server"]["value"]
    with plain_user(ledger) as (name, url):
        query(ledger, f"ALTER ROLE {name} SET synchronous_commit = off")
        query(ledger, f"ALTER ROLE {name} SET default_transaction_isolation = 'serializable'")
        query(ledger, f"ALTER ROLE {name} SET default_transaction_read_only = on")
        shown = found("--ledger", url)
    assert shown["synchronous_commit"]["state"] == "warning"
    assert shown["default_transaction_isolation"] == {
        "check": "default_transaction_isolation",
        "value": "serializable",
        "state": "warning",
        "advice": "redrive's own sessions use read committed; what enqueues in its own transaction at a higher level "
        "must be ready to try again (40001)",
    }
    assert shown["default_transaction_read_only"]["state"] == "failed"


def test_check_says_what_a_user_lacks(ledger: str) -> None:
    ok("init")
    with plain_user(ledger, "CONNECTION LIMIT 3") as (_, url):
        shown = found("--ledger", url)
        assert "lacks USAGE on schema redrive" in shown["privileges"]["value"]
        assert "more" in shown["privileges"]["value"]
        assert shown["connections"]["state"] == "warning"
        assert "the user's CONNECTION LIMIT" in shown["connections"]["value"]
        query(ledger, shown["privileges"]["advice"])
        assert found("--ledger", url)["privileges"]["state"] == "ok", "the grants are what was missing"


def test_check_sees_a_pooler_that_shares_sessions(ledger: str, postgres: PostgresServer) -> None:
    ok("init")
    database = ledger.rpartition("/")[2]
    with PgBouncer.start(postgres) as pooler:
        trusting = found("--ledger", pooler.url(database, notify="on"))["pooler"]
        assert (trusting["state"], trusting["value"]) == ("failed", "one session per transaction")
        assert "add pooled=on" in trusting["advice"]
        deaf = found("--ledger", pooler.url(database, pooled="on", notify="on"))["pooler"]
        assert (deaf["state"], "take notify=on out" in deaf["advice"]) == ("failed", True)
        fitting = found("--ledger", pooler.url(database, pooled="on"))["pooler"]
        assert (fitting["state"], fitting["value"]) == ("ok", "one session per transaction")
        made = ok("init", "--ledger", pooler.url(database, pooled="on", schema="through_it"), "-o", "json").json
        assert made["created"], "migrations go through it too"


def test_check_of_a_file(folder: Path) -> None:
    assert run("check").code == 1
    (folder / "redrive.db").touch()
    assert found()["schema"]["advice"] == "run: redrive init"
    ok("init")
    shown = found(code=0)
    assert {item["state"] for name, item in shown.items() if name != "sqlite"} == {"ok"}
    table = ok("check").out.splitlines()
    assert table[0].split() == ["CHECK", "STATE", "VALUE", "WHAT", "TO", "DO"]
    assert len(table) == len(shown) + 1


def test_a_clock_that_is_off_is_a_warning_and_a_slow_answer_is_not() -> None:
    assert checks.clock(1_500_000, 1_000, "the server").state == "warning"
    assert checks.clock(-1_500_000, 1_000, "the server").state == "warning"
    assert checks.clock(1_500_000, 700_000, "the server").state == "ok"
    assert checks.clock(-1_500_000, 1_000, "the server").value == "-1.500 s against the server (±0.001 s)"
