"""A private PostgreSQL server: its own data folder, its own loopback port, gone with its starter."""

from __future__ import annotations

import atexit
import itertools
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote, urlencode

import psycopg
from psycopg import sql
from tests.services.needs import required
from tests.services.process import (
    Guard,
    ServiceFailed,
    configuration,
    free_port,
    give_away,
    is_linux,
    private_folder,
    run,
    wait_until,
)

StopMode = Literal["smart", "fast", "immediate"]
PORTS_TRIED = 5
START_TIMEOUT_S = 60
# A session of ours must be able to write while the server tells everybody else that it is read-only.
ADMIN_OPTIONS = "-c default_transaction_read_only=off -c statement_timeout=0 -c lock_timeout=0"


class PostgresServer:
    """One server. Made by :meth:`start`; its superuser is ``postgres``, with no password."""

    def __init__(self, home: Path, data: Path, bin_folder: Path) -> None:
        self.home = home
        self.data = data
        self.bin = bin_folder
        self.port = 0
        self.log_file = home / "postgres.log"
        self._names = itertools.count(1)
        self._owner = os.getpid()
        self._closed = False
        script = '"$1" -D "$2" -m immediate -w -t 30 stop; rm -rf -- "$2" "$3"'
        self._guard = Guard(script, [bin_folder / "pg_ctl", data, home])
        atexit.register(self.close)

    @classmethod
    def start(
        cls,
        folder: Path | None = None,
        *,
        durable: bool = True,
        shared_buffers: str = "256MB",
        max_connections: int = 200,
        settings: Mapping[str, str] | None = None,
    ) -> Self:
        """Create a cluster and start it. Raises `Missing`, `ServiceFailed`.

        ``folder`` is where the data goes: a folder to be made, under one that the service's user can reach
        (pytest's temporary ones are closed to others). By default a private one under /tmp. It is removed by
        :meth:`close`. ``durable=False`` turns fsync and full-page writes off: a commit then survives every
        kill of a process, and only not the machine's end. ``settings`` are added to postgresql.conf.
        """
        bin_folder = required("PostgreSQL")
        home = private_folder("redrive-pg-")
        data = (folder if folder is not None else home / "data").resolve()
        server = cls(home, data, bin_folder)
        try:
            server._initialise(durable)
            server._configure(
                {
                    "listen_addresses": "127.0.0.1",
                    "unix_socket_directories": str(home),
                    "shared_buffers": shared_buffers,
                    "max_connections": str(max_connections),
                    "fsync": "on" if durable else "off",
                    "full_page_writes": "on" if durable else "off",
                    "synchronous_commit": "on",
                    "autovacuum": "on",
                    "log_checkpoints": "off",
                    "log_line_prefix": "%m [%p] %a: ",
                }
                | dict(settings or {})
            )
            server._start_somewhere()
        except BaseException:
            server.close()
            raise
        return server

    def _initialise(self, durable: bool) -> None:
        if self.data.exists() and any(self.data.iterdir()):
            raise ServiceFailed(f"{self.data} is not empty; a new server needs a folder of its own")
        self.data.mkdir(parents=True, exist_ok=True)
        give_away(self.data)
        if run(["test", "-w", self.data])[0] != 0:
            raise ServiceFailed(f"the user that runs PostgreSQL cannot reach {self.data}; pass no folder")
        initdb: list[str | Path] = [self.bin / "initdb", "-D", self.data]
        options = ["-U", "postgres", "-A", "trust", "--encoding=UTF8"]
        options += ["--locale=C.UTF-8" if is_linux() else "--locale=C", *([] if durable else ["--no-sync"])]
        code, text = run([*initdb, *options])
        if code != 0:
            raise ServiceFailed(f"initdb failed:\n{text}")

    def _configure(self, settings: Mapping[str, str]) -> None:
        with (self.data / "postgresql.conf").open("a", encoding="utf-8") as file:
            file.write("\n" + configuration(settings))

    def _start_somewhere(self) -> None:
        """Between finding a port and taking it, another process may take it: then try another one."""
        for attempt in range(1, PORTS_TRIED + 1):
            self.port = free_port()
            seen = len(self.log())
            try:
                return self.start_again()
            except ServiceFailed:
                if attempt == PORTS_TRIED or "Address already in use" not in self.log()[seen:]:
                    raise
        return None

    def start_again(self) -> None:
        """Start the stopped server on its port, with its data; back when it accepts connections."""
        options = ["-o", f"-p {self.port}", "-w", "-t", str(START_TIMEOUT_S)]
        pg_ctl: list[str | Path] = [self.bin / "pg_ctl", "-D", self.data, "-l", self.log_file]
        code, text = run([*pg_ctl, *options, "start"], timeout_s=START_TIMEOUT_S + 10)
        if code != 0:
            raise ServiceFailed(f"PostgreSQL did not start:\n{text}\n{self.log()[-4000:]}")

    def is_running(self) -> bool:
        """Whether the server's main process lives."""
        return (self.data / "PG_VERSION").exists() and run([self.bin / "pg_ctl", "-D", self.data, "status"])[0] == 0

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; its data stay for :meth:`start_again`. Nothing happens if it is stopped.

        ``fast`` rolls sessions back and writes a checkpoint; ``immediate`` is a crash: the next start recovers.
        """
        if not self.is_running():
            return
        code, text = run([self.bin / "pg_ctl", "-D", self.data, "-m", mode, "-w", "-t", "30", "stop"])
        if code != 0 and self.is_running():
            raise ServiceFailed(f"PostgreSQL did not stop:\n{text}\n{self.log()[-4000:]}")

    def restart(self, mode: StopMode = "immediate") -> None:
        """:meth:`stop`, then :meth:`start_again`."""
        self.stop(mode)
        self.start_again()

    def close(self) -> None:
        """Stop the server and remove its files. May be called again; a forked child's call does nothing."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            # Nothing of it is kept, so there is nothing to save first.
            self.stop("immediate")
            shutil.rmtree(self.data, ignore_errors=True)
            shutil.rmtree(self.home, ignore_errors=True)
        finally:
            self._guard.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def url(self, database: str = "postgres", **params: str) -> str:
        """``postgresql://postgres@127.0.0.1:PORT/database?params``."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}{query}"

    def connect(self, database: str = "postgres") -> psycopg.Connection[tuple[Any, ...]]:
        """A superuser's session in autocommit mode that may write even while the server is read-only."""
        name = "redrive-tests-admin"
        return psycopg.connect(
            self.url(database), autocommit=True, options=ADMIN_OPTIONS, application_name=name, connect_timeout=10
        )

    def create_database(self, name: str | None = None, template: str | None = None) -> str:
        """Create a database, as a copy of ``template`` (to which nobody may be connected); its name."""
        name = name if name is not None else f"t{next(self._names)}_{os.urandom(3).hex()}"
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
            sql.Identifier(name), sql.Identifier(template if template is not None else "template0")
        )
        with self.connect() as connection:
            connection.execute(statement)
        return name

    def drop_database(self, name: str) -> None:
        """Drop a database, its sessions first. Nothing happens if there is none of this name."""
        with self.connect() as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def set(self, name: str, value: str | None) -> None:
        """``ALTER SYSTEM``; sessions from now on have it. None takes an earlier call back.

        A setting that PostgreSQL reads only at start needs a :meth:`restart` as well.
        """
        with self.connect() as connection:
            if value is None:
                connection.execute(sql.SQL("ALTER SYSTEM RESET {}").format(sql.Identifier(name)))
            else:
                statement = sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
                connection.execute(statement)
        before = self._loaded()
        with self.connect() as connection:
            connection.execute("SELECT pg_reload_conf()")
        # A new session starts with what the main process had read by then.
        wait_until("the configuration was read again", lambda: self._loaded() > before)

    def _loaded(self) -> Any:
        with self.connect() as connection:
            row = connection.execute("SELECT pg_conf_load_time()").fetchone()
        return row[0] if row else None

    def read_only(self, on: bool) -> None:
        """Behave as after a failover to a read-only server: every session is ended, new ones cannot write (25006)."""
        self.set("default_transaction_read_only", "on" if on else None)
        self.kill_sessions()

    def kill_sessions(self, application_name_like: str = "%") -> int:
        """End the client sessions whose application_name is LIKE this; how many. They are gone on return."""
        statement = (
            "SELECT pid, pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() AND application_name LIKE %s"
        )
        with self.connect() as connection:
            ended = [row[0] for row in connection.execute(statement, [application_name_like])]

            def gone() -> bool:
                left = connection.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ANY(%s)", [ended]).fetchone()
                return left is None

            wait_until("the sessions ended", gone)
        return len(ended)

    def log(self) -> str:
        """What the server has written to its log file."""
        with suppress(FileNotFoundError):
            return self.log_file.read_text(encoding="utf-8", errors="replace")
        return ""
