"""The command itself: init, migrate, config, usage, exit codes, JSON purity, completion, the application."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import APP, call, command, environment, ok, run, write

from redrive import __version__
from redrive.config import NAMES, env_of
from redrive.ledger.sqlite.migrate import migrations


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    return tmp_path


# init, migrate, version


def test_init_makes_a_ledger_and_says_what_to_do_next(folder: Path) -> None:
    ran = ok("init")
    assert ran.out == "created ledger redrive.db for environment 'development'\n"
    for step in ("redrive destination add", "redrive publish", "redrive up"):
        assert step in ran.err
    again = ok("init", "-o", "json")
    assert again.json == {
        "ledger": "sqlite:///redrive.db",
        "path": "redrive.db",
        "environment": "development",
        "steps": [],
        "pending": [],
        "created": False,
    }
    assert again.err == ""


def test_migrate_prints_the_pending_sql_and_changes_nothing(folder: Path) -> None:
    (folder / "redrive.db").touch()
    ran = ok("migrate", "--sql")
    assert "CREATE TABLE" in ran.out
    assert (folder / "redrive.db").stat().st_size == 0
    assert ok("migrate", "--sql", "-o", "json").json["pending"] is True
    assert f"applied {len(migrations())} steps" in ok("migrate").out
    assert ok("migrate", "--sql").out == ""
    assert ok("migrate", "-o", "json").json["steps"] == []
    assert ok("status").code == 0


def test_migrate_makes_no_file(folder: Path) -> None:
    ran = run("migrate")
    assert (ran.code, ran.out) == (1, "")
    assert "does not exist" in ran.err
    assert "redrive init" in ran.err
    assert not list(folder.iterdir())


def test_version() -> None:
    assert ok("--version").out == f"redrive {__version__}\n"
    assert ok("version", "-o", "json").json["redrive"] == __version__
    assert re.match(rf"redrive {re.escape(__version__)} \(Python \S+, SQLite \S+\)$", ok("version").out)
    server = ok("version", "--ledger", "postgresql://h/d")
    assert re.search(r"Python \S+, psycopg \S+, libpq \d+\.\d+\)$", server.out)
    assert server.err == "", "what is known about SQLite does not matter there"


# Settings reach the commands.


def test_config_prints_every_value_and_its_origin(folder: Path) -> None:
    write(folder, [("redrive.toml", 'slots = 5\n[profile.p]\nlease = "4s"\n')])
    ran = ok("config", "--poll", "2s", "--profile", "p", "-o", "json", env={"REDRIVE_TENANT": "acme"})
    settings = ran.json["settings"]
    assert set(settings) == set(NAMES)
    assert settings["poll"] == {"value": 2.0, "origin": "flag --poll"}
    assert settings["tenant"] == {"value": "acme", "origin": "env REDRIVE_TENANT"}
    assert settings["lease"] == {"value": 4.0, "origin": "redrive.toml [profile.p]"}
    assert settings["slots"] == {"value": 5, "origin": "redrive.toml"}
    assert settings["reap"] == {"value": 1.0, "origin": "default"}
    table = ok("config").out.splitlines()
    assert table[0].split() == ["SETTING", "VALUE", "FROM"]
    assert [line.split()[0] for line in table[1:]] == list(NAMES)


def test_every_setting_has_a_flag_and_a_variable() -> None:
    text = ok("config", "--help", env={"COLUMNS": "200", "TERM": "dumb"}).out
    for name in NAMES:
        assert f"--{name.replace('_', '-')}" in text.replace("--no-", "")
        assert env_of(name).startswith("REDRIVE_")


def test_options_may_stand_before_or_after_the_command(folder: Path) -> None:
    for arguments in (
        ["-o", "json", "--ledger", "sqlite:///a.db", "init"],
        ["init", "-o", "json", "--ledger", "sqlite:///a.db"],
        ["--ledger", "sqlite:///b.db", "-o", "table", "init", "--ledger", "sqlite:///a.db", "-o", "json"],
    ):
        assert ok(*arguments).json["path"] == "a.db"
    assert not (folder / "b.db").exists()


@pytest.mark.parametrize(
    ("file", "text", "says"),
    [
        ("redrive.toml", "slot = 5\n", "redrive.toml: 'slot' is not a setting"),
        ("pyproject.toml", "[tool.redrive]\nconcurrency = 5\n", "'concurrency' is not a setting"),
    ],
)
def test_an_unknown_setting_stops_every_command(folder: Path, file: str, text: str, says: str) -> None:
    write(folder, [(file, text)])
    for arguments in (["init"], ["config"], ["status"], ["up"], ["publish", "a.b", "--unique"]):
        ran = run(*arguments)
        assert (ran.code, ran.out) == (2, "")
        assert says in ran.err
        assert "did you mean slots?" in ran.err
    assert not (folder / "redrive.db").exists()


# Exit codes and where things are printed.


def test_another_environment_is_exit_4_and_changes_nothing(folder: Path) -> None:
    ok("init", "--environment", "prod")
    before = (folder / "redrive.db").read_bytes()
    for arguments in (
        ["status"],
        ["init"],
        ["migrate"],
        ["migrate", "--sql"],
        ["check"],
        ["up", "--until-idle"],
        ["verify"],
        ["publish", "a.b", "{}", "--unique"],
    ):
        ran = run(*arguments, "--environment", "staging", "-o", "json")
        assert (ran.code, ran.out) == (4, ""), arguments
        assert ran.error["code"] == "environment_mismatch"
        assert "'prod'" in ran.error["message"]
        assert "'staging'" in ran.error["message"]
    assert (folder / "redrive.db").read_bytes() == before


def test_a_missing_ledger_is_exit_1_and_says_init(folder: Path) -> None:
    for arguments in (["status"], ["delivery", "list"], ["up"], ["publish", "a.b", "{}", "--unique"]):
        ran = run(*arguments)
        assert (ran.code, ran.out) == (1, "")
        assert "redrive.db does not exist" in ran.err
        assert "create it with: redrive init" in ran.err
    assert not list(folder.iterdir())


@pytest.mark.parametrize("kind", ["text", "other database", "newer"])
def test_files_that_are_not_our_ledger(folder: Path, kind: str) -> None:
    path = folder / "redrive.db"
    if kind == "text":
        path.write_text("not a database at all, and long enough to be read as a header of one\n" * 20)
    elif kind == "other database":
        connection = sqlite3.connect(path)
        connection.execute("CREATE TABLE theirs (x)")
        connection.close()
    else:
        ok("init")
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 999")
        connection.execute("INSERT INTO schema_migration VALUES (999, 'future', 'x', 1, 0)")
        connection.commit()
        connection.close()
    before = path.read_bytes()
    for arguments in (["status"], ["init"], ["migrate"], ["up", "--until-idle"]):
        ran = run(*arguments, "-o", "json")
        assert (ran.code, ran.out) == (1, ""), arguments
        assert ran.error["code"] == ("ledger_version" if kind == "newer" else "not_a_ledger")
        assert ran.error["hint"]
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["status", "--nonsense"],
        ["enqueue"],
        ["delivery", "list", "--limit", "x"],
        ["status", "-o", "yaml"],
        ["status", "extra"],
        ["enqueue", "job", "null"],
        ["enqueue", "job", "null", "--key", "1", "--unique"],
        ["publish", "a.b", "{}"],
        ["publish", "a.b", "{}", "--event-id", "1", "--unique"],
        ["delivery", "cancel", "dlv_1", "-y"],
        ["destination", "disable", "x", "-y"],
    ],
)
def test_wrong_usage_is_exit_2_on_stderr(arguments: list[str]) -> None:
    ok("init")
    ran = run(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.strip()
    if "-o" in arguments:
        return
    as_json = run(*arguments, "-o", "json")
    assert (as_json.code, as_json.out) == (2, "")
    assert set(as_json.error) == {"code", "message", "param", "hint"}


@pytest.mark.parametrize("spelling", [["-o", "json"], ["-ojson"], ["--output=json"], ["--output", "jsonl"]])
def test_errors_are_one_document_in_the_json_modes(spelling: list[str]) -> None:
    assert run("status", *spelling).error["code"] == "not_found"
    assert run("status", "--nonsense", *spelling).error["code"] == "usage"


READS = [
    ["status"],
    ["config"],
    ["version"],
    ["verify"],
    ["migrate"],
    ["check"],
    ["delivery", "list"],
    ["dead", "list"],
    ["dead", "count"],
    ["destination", "list"],
    ["schema", "list"],
]


@pytest.mark.parametrize("arguments", READS, ids=" ".join)
def test_an_empty_answer_is_exit_0_and_stdout_is_pure(arguments: list[str]) -> None:
    ok("init")
    ran = ok(*arguments, "-o", "json")
    assert isinstance(ran.json, dict)
    assert ran.err == ""
    assert all(isinstance(item, dict) for item in ok(*arguments, "-o", "jsonl").lines)
    assert ok(*arguments, "-q").err == ""


def test_interrupt_is_130(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.cli import session

    def interrupted(self: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(session.Session, "app", interrupted)
    ran = run("status")
    assert (ran.code, ran.out, ran.err) == (130, "", "error: interrupted\n")


def test_a_defect_is_one_sentence(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.cli import session

    def broken(self: object) -> None:
        raise ZeroDivisionError("whsec_whatever was in it")

    monkeypatch.setattr(session.Session, "app", broken)
    ran = run("status")
    assert (ran.code, ran.out) == (1, "")
    assert "unexpected ZeroDivisionError at test_cli_start.py:" in ran.err
    assert "whsec_" not in ran.err
    assert run("status", "-o", "json").error["code"] == "internal"


def test_no_colour_unless_it_is_a_terminal(folder: Path) -> None:
    ok("init")
    for arguments in (["status"], ["config"], ["nonsense"]):
        ran = call(*arguments, cwd=folder, FORCE_COLOR="")
        assert "\x1b" not in ran.out + ran.err


def test_a_broken_pipe_ends_quietly(folder: Path) -> None:
    ok("init")
    write(folder, [("shop.py", APP)])
    reader, writer = os.pipe()
    os.close(reader)
    for arguments in (["config"], ["delivery", "list", "--all", "-o", "jsonl"], ["status", "-o", "json"], ["--help"]):
        done = subprocess.run(
            command(*arguments), cwd=folder, env=environment(), stdout=writer, stderr=subprocess.PIPE, timeout=20
        )
        assert done.stderr == b""
        assert done.returncode in (0, 1)
    os.close(writer)


def test_completion_knows_commands_destinations_and_handlers(folder: Path) -> None:
    ok("init")
    ok("destination", "add", "orders", "https://example.com/")
    ok("destination", "add", "other", "https://example.com/")
    write(folder, [("shop.py", APP), ("redrive.toml", 'app = "shop:app"\n')])

    def complete(line: str) -> list[str]:
        extra = {"_REDRIVE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run(
            [sys.executable, "-P", "-c", "from redrive.cli.main import main; main()"],
            cwd=folder,
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=20,
        )
        return sorted(done.stdout.split())

    assert complete("redrive dest") == ["destination"]
    assert complete("redrive destination show or") == ["orders"]
    assert complete("redrive destination test o") == ["orders", "other"]
    assert complete("redrive enqueue w") == ["work"]
    script = subprocess.run(
        [sys.executable, "-P", "-c", "from redrive.cli.main import main; main()"],
        cwd=folder,
        env=environment(_REDRIVE_COMPLETE="source_bash"),
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert "_redrive_completion" in script.stdout
    checked = subprocess.run(["bash", "-n"], input=script.stdout, text=True, capture_output=True, timeout=20)
    assert (checked.returncode, checked.stderr) == (0, "")


def test_long_work_shows_a_line_now_and_then(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from redrive.cli.output import Mode, Output, Progress

    monkeypatch.setattr(Progress, "EVERY_S", 0.0)
    with Output().progress("verifying") as progress:
        progress(1000, 5000)
        progress(2000)
    assert capsys.readouterr() == ("", "verifying: 1,000 of 5,000\nverifying: 2,000\n")
    for silent in (Output(Mode.JSON), Output(verbosity=-1)):
        with silent.progress("verifying") as progress:
            progress(1, 2)
    assert capsys.readouterr() == ("", "")


# The application.


def test_the_applications_own_ledger_is_used(folder: Path) -> None:
    text = 'from redrive import Redrive\napp = Redrive("sqlite:///own.db", environment="prod")\n'
    write(folder, [("own_ledger.py", text), ("redrive.toml", 'app = "own_ledger:app"\n')])
    assert ok("init", "-o", "json").json["path"] == "own.db"
    shown = ok("config", "-o", "json").json["settings"]
    assert shown["ledger"] == {"value": "sqlite:///own.db", "origin": "app own_ledger:app"}
    assert shown["environment"] == {"value": "prod", "origin": "app own_ledger:app"}
    assert ok("status", "--ledger", f"sqlite:///{folder}/own.db", "-o", "json").json["environment"] == "prod"


@pytest.mark.parametrize(
    ("arguments", "env", "place"),
    [
        (["--ledger", "sqlite:///b.db"], {}, "flag --ledger says ledger sqlite:///b.db"),
        ([], {"REDRIVE_LEDGER": "sqlite:///b.db"}, "env REDRIVE_LEDGER says ledger sqlite:///b.db"),
        (["--environment", "qa"], {}, "flag --environment says environment qa"),
    ],
)
def test_a_ledger_that_two_places_name_differently_is_an_error(
    folder: Path, arguments: list[str], env: dict[str, str], place: str
) -> None:
    write(folder, [("two_ledgers.py", 'from redrive import Redrive\napp = Redrive("sqlite:///a.db")\n')])
    ran = run("status", "--app", "two_ledgers:app", *arguments, "-o", "json", env=env)
    assert (ran.code, ran.error["code"]) == (2, "config")
    own = "environment development" if "--environment" in arguments else "ledger sqlite:///a.db"
    assert ran.error["message"] == f"{place}, and app two_ledgers:app says {own.partition(' ')[2]}"


@pytest.mark.parametrize(
    ("text", "name", "says"),
    [
        ("", "gone_module:app", "there is no module 'gone_module'"),
        ("import gone_package\n", "bad_app:app", "importing it needs the module 'gone_package'"),
        ("raise RuntimeError('whsec_inside')\n", "bad_app:app", "importing it raised RuntimeError at bad_app.py:1"),
        ("raise SystemExit(3)\n", "bad_app:app", "importing it raised SystemExit"),
        ("x = 1\n", "bad_app:app", "bad_app has no attribute 'app'"),
        ("app = 5\n", "bad_app:app", "it is a int, not a Redrive"),
    ],
)
def test_an_application_that_cannot_be_used(
    folder: Path, monkeypatch: pytest.MonkeyPatch, text: str, name: str, says: str
) -> None:
    monkeypatch.delitem(sys.modules, "bad_app", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    write(folder, [("bad_app.py", text)])
    ran = run("up", "--app", name)
    monkeypatch.delitem(sys.modules, "bad_app", raising=False)
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.err
    assert "whsec_inside" not in ran.err


def test_operators_can_work_while_the_application_is_broken(folder: Path) -> None:
    ok("init")
    write(folder, [("broken_app.py", "raise RuntimeError\n"), ("redrive.toml", 'app = "broken_app:app"\n')])
    refused = run("status", "-o", "json")
    assert (refused.code, refused.error["param"]) == (2, "app")
    explicit = {
        "REDRIVE_LEDGER": "sqlite:///redrive.db",
        "REDRIVE_ENVIRONMENT": "development",
        "REDRIVE_ALLOWED_PRIVATE": "127.0.0.0/8",
        "REDRIVE_ALLOWED_PORTS": "443",
        "REDRIVE_ALLOW_HTTP": "0",
    }
    assert json.loads(ok("status", "-o", "json", env=explicit).out)["environment"] == "development"
