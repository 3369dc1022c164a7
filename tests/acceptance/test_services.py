"""The services that other tests lean on do what they say: a proxy that did not cut would prove nothing."""

from __future__ import annotations

import importlib
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import errors
from tests.services import needs
from tests.services import postgres as postgres_module
from tests.services.needs import Missing
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import PostgresServer
from tests.services.process import accepts, free_port
from tests.services.proxy import Proxy

ROOT = Path(__file__).resolve().parents[2]
INSERT = "INSERT INTO item (name) VALUES (%s)"


def rows(url: str) -> list[str]:
    with psycopg.connect(url) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM item ORDER BY name")]


def shown(connection: psycopg.Connection[tuple[str]], name: str) -> str:
    row = connection.execute(f"SHOW {name}").fetchone()
    assert row is not None
    return row[0]


@pytest.fixture
def table(database: str) -> str:
    """The URL of a database with a table ``item``."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE item (name text)")
    return database


@pytest.fixture
def proxy(table: str) -> Iterator[Proxy]:
    """In front of the database of ``table``."""
    with Proxy.start(table) as proxy:
        yield proxy


def test_a_durable_server_has_the_settings_that_a_benchmark_claims(own_postgres: PostgresServer) -> None:
    with psycopg.connect(own_postgres.url()) as connection:
        assert [shown(connection, name) for name in ("fsync", "synchronous_commit", "full_page_writes")] == ["on"] * 3
        assert [shown(connection, name) for name in ("autovacuum", "server_encoding")] == ["on", "UTF8"]
        assert shown(connection, "listen_addresses") == "127.0.0.1"


def test_the_shared_server_gives_each_test_an_empty_database_and_takes_it_back(
    postgres: PostgresServer, database: str
) -> None:
    name = postgres.create_database()
    with psycopg.connect(postgres.url(name)) as connection:
        assert shown(connection, "fsync") == "off"
        connection.execute("CREATE TABLE item (name text)")
        connection.commit()
        copy = postgres.create_database("a copy", template="template1")
        # With a session still in it.
        postgres.drop_database(name)
    postgres.drop_database(copy)
    postgres.drop_database(copy)
    with psycopg.connect(database) as connection:
        left = {row[0] for row in connection.execute("SELECT datname FROM pg_database")}
        assert not {name, copy} & left
        assert connection.execute("SELECT to_regclass('item')").fetchone() == (None,)


def test_after_an_immediate_restart_the_committed_row_is_there_on_the_same_url(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    with psycopg.connect(url) as kept:
        kept.execute("CREATE TABLE item (name text)")
        kept.execute(INSERT, ["committed"])
        kept.commit()
        kept.execute(INSERT, ["open"])
        own_postgres.restart("immediate")
        with pytest.raises(psycopg.OperationalError):
            kept.execute("SELECT 1")
    assert rows(url) == ["committed"]
    assert "was not properly shut down" in own_postgres.log()
    own_postgres.stop()
    assert not own_postgres.is_running()
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    own_postgres.start_again()
    assert rows(url) == ["committed"]


def test_a_server_that_turned_read_only_ends_its_sessions_and_refuses_writes(own_postgres: PostgresServer) -> None:
    url = own_postgres.url()
    with psycopg.connect(url, autocommit=True) as before:
        before.execute("CREATE TABLE item (name text)")
        own_postgres.read_only(True)
        with pytest.raises(psycopg.OperationalError):
            before.execute("SELECT 1")
    with psycopg.connect(url, autocommit=True) as during, pytest.raises(errors.ReadOnlySqlTransaction) as caught:
        during.execute(INSERT, ["lost"])
    assert caught.value.sqlstate == "25006"
    own_postgres.read_only(False)
    with psycopg.connect(url, autocommit=True) as after:
        after.execute(INSERT, ["kept"])
    assert rows(url) == ["kept"]


def test_settings_and_sessions_can_be_changed_from_outside(own_postgres: PostgresServer) -> None:
    own_postgres.set("work_mem", "7MB")
    with (
        psycopg.connect(own_postgres.url(application_name="worker 1"), autocommit=True) as worker,
        psycopg.connect(own_postgres.url(application_name="other"), autocommit=True) as other,
    ):
        assert shown(worker, "work_mem") == "7MB"
        assert own_postgres.kill_sessions("worker%") == 1
        with pytest.raises(errors.AdminShutdown):
            worker.execute("SELECT 1")
        own_postgres.set("work_mem", None)
        assert other.execute("SELECT 1").fetchone() == (1,)
    with psycopg.connect(own_postgres.url()) as connection:
        assert shown(connection, "work_mem") == "4MB"


def test_a_port_that_was_taken_meanwhile_is_exchanged_for_another(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = iter([postgres.port, free_port()])
    monkeypatch.setattr(postgres_module, "free_port", lambda: next(ports))
    with PostgresServer.start(durable=False, shared_buffers="16MB") as server:
        assert server.port != postgres.port
        with psycopg.connect(server.url()) as connection:
            assert shown(connection, "shared_buffers") == "16MB"


def test_nothing_is_left_of_a_server_whose_starter_was_killed() -> None:
    script = (
        "import sys\n"
        "from tests.services.postgres import PostgresServer\n"
        "server = PostgresServer.start(durable=False, shared_buffers='16MB')\n"
        "print(server.home, server.port, flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        ready, _, _ = select.select([starter.stdout], [], [], 60)
        assert ready, "no server within a minute"
        home, port = starter.stdout.readline().split()
        assert Path(home).is_dir()
        assert accepts(int(port))
        starter.send_signal(signal.SIGKILL)
        starter.wait(10)
    deadline = time.monotonic() + 20
    while (Path(home).exists() or accepts(int(port))) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not Path(home).exists()
    assert not accepts(int(port))


@pytest.mark.parametrize(("need", "package"), [("PostgreSQL", "postgresql"), ("pgbouncer", "pgbouncer")])
def test_a_missing_service_fails_and_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, need: str, package: str
) -> None:
    absent = [needs.Need(each.name, lambda: None, each.debian, each.elsewhere) for each in needs.NEEDS]
    monkeypatch.setattr(needs, "NEEDS", absent)
    with pytest.raises(Missing, match=f"apt-get install --no-install-recommends {package}\n"):
        needs.required(need)


def test_who_cannot_install_is_told_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Missing, match="apt-get install --no-install-recommends postgresql pgbouncer nodejs npm\n"):
        needs.install(needs.NEEDS)


def test_root_installs_after_an_update_and_starts_no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    said: list[tuple[str, ...]] = []
    policy, drop_in = tmp_path / "policy-rc.d", tmp_path / "common" / "createcluster.d" / "redrive-tests.conf"

    def apt_get(*arguments: str) -> int:
        said.append(arguments)
        assert os.access(policy, os.X_OK)
        assert policy.read_text().endswith("exit 101\n")
        assert drop_in.read_text() == "create_main_cluster = false\n"
        return int(len(said) == 1)

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: "/usr/bin/apt-get" if name == "apt-get" else None)
    monkeypatch.setattr(needs, "POLICY", policy)
    monkeypatch.setattr(needs, "DROP_IN", drop_in)
    monkeypatch.setattr(needs, "apt_get", apt_get)
    monkeypatch.setattr(needs, "missing", list)
    needs.install([needs.NEEDS[0], needs.NEEDS[1]])
    install = ("install", "-y", "--no-install-recommends", "postgresql", "pgbouncer")
    assert said == [install, ("update",), install]
    assert list(tmp_path.iterdir()) == [], "no file of ours is left"
    policy.write_text(kept := "#!/bin/sh\n# The machine's own.\nexit 101\n")
    policy.chmod(0o755)
    needs.install([needs.NEEDS[0]])
    assert policy.read_text() == kept


@pytest.mark.parametrize(("option", "wanted"), [("--services", True), ("--runtime", False), (None, False)])
def test_only_the_tests_setup_asks_for_services(
    monkeypatch: pytest.MonkeyPatch, option: str | None, wanted: bool
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    environment: Any = importlib.import_module("environment")
    ran: list[list[str]] = []

    def run(command: list[str | Path], *, check: bool) -> subprocess.CompletedProcess[bytes]:
        ran.append([str(part) for part in command])
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(environment, "ensure", lambda *arguments, **options: False)
    monkeypatch.setattr(environment.subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", ["tools/setup", *([option] if option else [])])
    if wanted:
        with pytest.raises(SystemExit) as caught:
            environment.main()
        assert caught.value.code == 1
        assert ran == [[sys.executable, "-I", needs.__file__, "--install"]]
    else:
        environment.main()
        assert ran == []


def test_pgbouncer_pools_transactions_and_so_loses_what_a_session_set(table: str, postgres: PostgresServer) -> None:
    name = table.rpartition("/")[2]
    with PgBouncer.start(postgres, pool_size=1) as pooler:
        with (
            psycopg.connect(pooler.url(name), autocommit=True) as first,
            psycopg.connect(pooler.url(name), autocommit=True) as second,
        ):
            first.execute("SET statement_timeout = '7s'")
            # The one server session is everybody's: one client's SET is the other's surprise.
            assert shown(second, "statement_timeout") == "7s"
            with first.transaction():
                first.execute("SET LOCAL statement_timeout = '9s'")
                assert shown(first, "statement_timeout") == "9s"
            assert shown(second, "statement_timeout") == "7s"
        with pytest.raises(psycopg.OperationalError, match="unsupported startup parameter"):
            psycopg.connect(pooler.url(name, options="-c statement_timeout=1"))
        pooler.stop()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(pooler.url(name))
        pooler.start_again()
        assert rows(pooler.url(name)) == []


def test_cut_after_a_commit_the_row_is_there_though_the_client_got_an_error(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table)) as client:
        cut = proxy.cut_after("COMMIT")
        client.execute(INSERT, ["applied"])
        with pytest.raises(psycopg.OperationalError):
            client.commit()
        cut.wait()
    assert rows(table) == ["applied"]
    assert (proxy.counters.cut_after, proxy.counters.unanswered, cut.fired) == (1, 0, 1)


def test_cut_before_a_commit_the_row_is_not_there(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table)) as client:
        cut = proxy.cut_before("COMMIT")
        client.execute(INSERT, ["lost"])
        with pytest.raises(psycopg.OperationalError):
            client.commit()
        cut.wait()
    assert rows(table) == []
    assert (proxy.counters.cut_before, proxy.counters.cut_after, cut.fired) == (1, 0, 1)


@pytest.mark.parametrize("prepare", [False, True], ids=["unnamed", "prepared"])
def test_an_autocommitted_statement_is_cut_at_its_nth_run(table: str, proxy: Proxy, prepare: bool) -> None:
    with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
        cut = proxy.cut_after(lambda sql: sql.startswith("INSERT INTO item"), nth=3)
        for name in ("a", "b"):
            client.execute(INSERT, [name], prepare=prepare)
        assert not cut.done
        with pytest.raises(psycopg.OperationalError):
            client.execute(INSERT, ["c"], prepare=prepare)
        cut.wait()
    assert rows(table) == ["a", "b", "c"]
    assert proxy.executions("INSERT INTO item") == 3
    with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
        client.execute(INSERT, ["d"], prepare=prepare)
    assert (cut.matches, cut.fired) == (4, 1)


def test_a_cut_counts_over_all_connections_and_as_often_as_asked(table: str, proxy: Proxy) -> None:
    cut = proxy.cut_before("INSERT", nth=2, times=2)
    outcomes: list[str] = []
    for name in "abcd":
        with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
            try:
                client.execute(INSERT, [name])
            except psycopg.OperationalError:
                outcomes.append("cut")
            else:
                outcomes.append("applied")
    assert outcomes == ["applied", "cut", "cut", "applied"]
    cut.wait()
    assert rows(table) == ["a", "d"]


def test_a_pipelined_batch_is_cut_at_its_sync_with_all_of_it_applied(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
        cut = proxy.cut_after("INSERT INTO item")
        with pytest.raises(psycopg.OperationalError):
            client.cursor().executemany(INSERT, [(name,) for name in "abc"])
        cut.wait()
    assert rows(table) == ["a", "b", "c"]


def test_a_failing_statement_is_answered_too(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table)) as client:
        cut = proxy.cut_after("no_such_table")
        # The client sent Parse to Sync in one go; Parse failed, and the Sync is answered all the same.
        with pytest.raises(psycopg.OperationalError):
            client.execute("SELECT * FROM no_such_table WHERE x = %s", [1])
        cut.wait()
    assert proxy.counters.unanswered == 0


def test_a_pipeline_that_only_flushed_is_cut_when_its_statement_is_answered(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
        cut = proxy.cut_after("RETURNING name")
        with pytest.raises(psycopg.OperationalError), client.pipeline():
            # Fetching sends a Flush and no Sync: there is an answer, but the transaction is still open.
            client.execute(f"{INSERT} RETURNING name", ["gone"]).fetchone()
        cut.wait()
    assert proxy.counters.unanswered == 0
    assert rows(table) == []


def first_byte_from(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as raw:
        return raw.recv(1)


def test_refusing_resets_new_connections_and_keeps_the_old(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table), autocommit=True) as old:
        proxy.refuse(True)
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url_of(table))
        with pytest.raises(ConnectionResetError):
            first_byte_from(proxy.port)
        # libpq may have tried twice.
        assert proxy.counters.refused >= 2
        old.execute(INSERT, ["through"])
        proxy.refuse(False)
    assert rows(proxy.url_of(table)) == ["through"]


def test_frozen_nothing_arrives_and_thawed_nothing_is_lost(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table), autocommit=True) as client:
        proxy.freeze(True)
        with pytest.raises(psycopg.OperationalError, match="timeout"):
            psycopg.connect(proxy.url_of(table), connect_timeout=2)
        insert = threading.Thread(target=client.execute, args=(INSERT, ["late"]))
        insert.start()
        insert.join(0.3)
        assert insert.is_alive()
        assert rows(table) == []
        proxy.freeze(False)
        insert.join(10)
        assert not insert.is_alive()
    assert rows(table) == ["late"]


def test_cut_all_ends_every_connection_even_a_frozen_one(table: str, proxy: Proxy) -> None:
    with psycopg.connect(proxy.url_of(table)) as one, psycopg.connect(proxy.url_of(table)) as two:
        proxy.freeze(True)
        assert proxy.cut_all() == 2
        proxy.freeze(False)
        for client in (one, two):
            with pytest.raises(psycopg.OperationalError):
                client.execute("SELECT 1")
    assert (proxy.counters.connections, proxy.counters.cut_all) == (2, 2)
    assert rows(proxy.url_of(table)) == []


def test_a_server_that_ends_a_session_is_heard_through_the_proxy(own_postgres: PostgresServer) -> None:
    with (
        Proxy.start(own_postgres.url()) as proxy,
        psycopg.connect(proxy.url_of(own_postgres.url()), autocommit=True) as client,
    ):
        own_postgres.kill_sessions()
        with pytest.raises(errors.AdminShutdown):
            client.execute("SELECT 1")
        own_postgres.stop("immediate")
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url_of(own_postgres.url()))
        own_postgres.start_again()
        with psycopg.connect(proxy.url_of(own_postgres.url())) as again:
            assert again.execute("SELECT 1").fetchone() == (1,)
