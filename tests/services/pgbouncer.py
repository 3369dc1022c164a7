"""A private pgbouncer in transaction mode, in front of a private PostgreSQL."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import quote, urlencode

from tests.services.needs import required
from tests.services.postgres import PostgresServer
from tests.services.process import (
    Guard,
    ServiceFailed,
    accepts,
    free_port,
    private_folder,
    service_environment,
    service_identity,
    wait_until,
)

PORTS_TRIED = 5


class PgBouncer:
    """One pooler for every database of a server. Made by :meth:`start`."""

    def __init__(self, program: Path, home: Path) -> None:
        self.program = program
        self.home = home
        self.port = 0
        self.log_file = home / "pgbouncer.log"
        self._pid_file = home / "pgbouncer.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = os.getpid()
        self._closed = False
        script = 'kill -KILL "$(cat "$1")"; rm -rf -- "$2"'
        self._guard = Guard(script, [self._pid_file, home])
        atexit.register(self.close)

    @classmethod
    def start(cls, server: PostgresServer, *, pool_size: int = 20, settings: Mapping[str, str] | None = None) -> Self:
        """Start a pooler with ``pool_size`` server connections per database. Raises `Missing`, `ServiceFailed`.

        ``ignore_startup_parameters`` stays empty, pgbouncer's default: a client that sends ``options`` or a
        startup parameter that pgbouncer does not track is refused, as it would be by a user's pooler.
        """
        pooler = cls(required("pgbouncer"), private_folder("redrive-pgb-"))
        try:
            for attempt in range(1, PORTS_TRIED + 1):
                pooler.port = free_port()
                pooler._configure(server.port, pool_size, settings or {})
                try:
                    pooler.start_again()
                    break
                except ServiceFailed:
                    if attempt == PORTS_TRIED or "in use" not in pooler.log():
                        raise
        except BaseException:
            pooler.close()
            raise
        return pooler

    @property
    def _file(self) -> Path:
        return self.home / "pgbouncer.ini"

    def _configure(self, server_port: int, pool_size: int, settings: Mapping[str, str]) -> None:
        values = {
            "listen_addr": "127.0.0.1",
            "listen_port": str(self.port),
            "unix_socket_dir": "",
            "pidfile": str(self._pid_file),
            "auth_type": "any",
            "admin_users": "postgres",
            "pool_mode": "transaction",
            "default_pool_size": str(pool_size),
            "max_client_conn": "500",
            # By default a server that was away is not tried again for 15 seconds.
            "server_login_retry": "0.2",
        } | dict(settings)
        lines = ["[databases]", f"* = host=127.0.0.1 port={server_port} user=postgres", "[pgbouncer]"]
        lines += [f"{name} = {value}" for name, value in values.items()]
        self._file.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start_again(self) -> None:
        """Start the stopped pooler on its port; back when it accepts connections."""
        if accepts(self.port):
            raise ServiceFailed(f"port {self.port} is in use")
        self._pid_file.unlink(missing_ok=True)
        with self.log_file.open("ab") as output:
            self._process = process = subprocess.Popen(
                [self.program, self._file],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=service_environment(),
                start_new_session=True,
                **service_identity(),
            )
        try:
            wait_until("pgbouncer accepts", lambda: process.poll() is not None or accepts(self.port))
        except ServiceFailed as error:
            self.stop()
            raise ServiceFailed(f"{error}\n{self.log()}") from None
        if process.poll() is not None:
            raise ServiceFailed(f"pgbouncer did not start:\n{self.log()}")

    def stop(self) -> None:
        """End the pooler at once, its clients' connections with it. Nothing happens if it is stopped."""
        if self._process is not None:
            # It keeps nothing; and which other signal means "now" differs between its versions.
            self._process.kill()
            self._process.wait(timeout=10)
            self._process = None

    def close(self) -> None:
        """:meth:`stop` and remove its files. May be called again; a forked child's call does nothing."""
        if self._closed or os.getpid() != self._owner:
            return
        self._closed = True
        atexit.unregister(self.close)
        try:
            self.stop()
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
        """``postgresql://postgres@127.0.0.1:PORT/database?params``, through the pooler."""
        query = f"?{urlencode(params, quote_via=quote)}" if params else ""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{quote(database, safe='')}{query}"

    def log(self) -> str:
        """What the pooler has written."""
        with suppress(FileNotFoundError):
            return self.log_file.read_text(encoding="utf-8", errors="replace")
        return ""
