"""Migrations of the PostgreSQL schema: everything in one transaction, under an advisory lock of the ledger's own.

A step that must lock a table which a long transaction holds would queue, and everybody else behind it. So it waits
for :data:`LOCK_WAIT_S` only, gives up with nothing changed, and says who was in the way.
"""

from __future__ import annotations

import threading
from contextlib import closing, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from redrive.domain.ports import LIVE_US
from redrive.errors import LedgerBusy, LedgerError, LedgerReadOnly, LedgerVersion, NotALedger, NotFound, RedriveError
from redrive.ledger import migrate as rules
from redrive.ledger.migrate import Migration, Plan, RunningWorker
from redrive.ledger.postgres.connect import CONNECT_TIMEOUT_S, PostgresUrl, connect, state_of, translated
from redrive.ledger.postgres.statements import text_of

if TYPE_CHECKING:
    import psycopg

PACKAGE: Final = "redrive.ledger.postgres"
OLDEST: Final = 13
LOCK_WAIT_S: float = 3.0
"""How long a step queues for one lock before it gives up."""
TURN_WAIT_S: float = 60.0
"""How long a migration waits for another one of the same ledger."""
_BEGIN: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
_LOCK_NOT_AVAILABLE: Final = "55P03"
_NO_PRIVILEGE: Final = "42501"


class Server(NamedTuple):
    """What a migration must know of the server and of its own session."""

    version_number: int
    version: str
    pid: int
    encoding: str
    standby: bool
    database: str
    user: str


class _State(NamedTuple):
    exists: bool
    may_create_schema: bool
    usage: bool
    may_create: bool
    filled: bool
    ours: bool


def migrations() -> tuple[Migration, ...]:
    """Every step this release knows, in order."""
    return rules.load(PACKAGE)


def apply(
    conn: psycopg.Connection[Any],
    url: PostgresUrl,
    environment: str,
    now: int | None = None,
    *,
    finish: bool = False,
    force: bool = False,
) -> list[Migration]:
    """Bring the ledger to this release's schema; returns the steps applied. Safe to run at any time, by many.

    A new schema becomes a ledger of ``environment``. Steps of the second phase wait for ``finish``, which raises
    :class:`~redrive.errors.Conflict` while workers of an older release are live, unless ``force`` is given. Ledger
    time is the server's, or ``now``. Everything happens in one transaction: a failure leaves the database as it was.
    Raises :class:`LedgerReadOnly` where a privilege is missing and :class:`LedgerBusy` where a lock is.
    """
    with translated(url.where):
        conn.execute(_BEGIN)
        try:
            server = check_server(conn, url)
            _take_turn(conn, url)
            with _Watch(url, server.pid) as watch:
                todo = _apply(conn, url, server, environment, now, finish, force, watch)
            conn.execute("COMMIT")
        except BaseException:
            with suppress(Exception):  # a lost connection has rolled back by itself
                conn.execute("ROLLBACK")
            raise
    return list(todo)


def _apply(
    conn: psycopg.Connection[Any],
    url: PostgresUrl,
    server: Server,
    environment: str,
    now: int | None,
    finish: bool,
    force: bool,
    watch: _Watch,
) -> tuple[Migration, ...]:
    version = 0
    if _is_there(state := _state(conn, url), url):
        check_environment(conn, url, environment)
        version = _version(conn, url)
        _refuse_newer(conn, url, version)
        rules.check_record(migrations(), _rows(conn, url, "migration_digests"), url.where)
    todo, _ = rules.plan(migrations(), version, finish=finish)
    if not todo:
        return todo
    if version and not force:
        _refuse_older(conn, url, todo)
    _check_privileges(state, url, server)
    try:
        if not state.exists:
            _run(conn, url, "migration_schema")
        if version == 0:
            _run(conn, url, "migration_table")
        for step in todo:
            # Without parameters it is one simple query of many statements: functions hold semicolons.
            conn.execute(step.text.replace("{schema}", url.schema))
            _run(conn, url, "migration_insert", step.version, step.name, step.digest, step.breaking, now)
        if version == 0:
            _run(conn, url, "ledger_insert", environment, now)
    except Exception as exc:
        if state_of(exc) == _LOCK_NOT_AVAILABLE:
            raise LedgerBusy(
                f"ledger {url.where}: gave up after {LOCK_WAIT_S:g} s in the queue for a lock; {watch.told()}",
                hint="nothing was changed; end that transaction or wait for it, then run this again",
            ) from exc
        if state_of(exc) == _NO_PRIVILEGE:
            raise LedgerReadOnly(
                f"ledger {url.where}: user {server.user!r} may not change the schema: only its owner may",
                param="ledger",
                hint=f"run this as the owner of schema {url.schema}, or have an administrator run the output of: "
                "redrive migrate --sql",
            ) from exc
        raise
    return todo


def script(
    conn: psycopg.Connection[Any],
    url: PostgresUrl,
    environment: str,
    *,
    finish: bool = False,
    force: bool = False,
) -> str:
    """The SQL that :func:`apply` would run, for an administrator's psql; empty when nothing is pending."""
    with translated(url.where):
        server = check_server(conn, url)
        state = _state(conn, url)
        version = _version(conn, url) if _is_there(state, url) else 0
        if version:
            check_environment(conn, url, environment)
            _refuse_newer(conn, url, version)
        todo, _ = rules.plan(migrations(), version, finish=finish)
        if not todo:
            return ""
        if version and not force:
            _refuse_older(conn, url, todo)
    parts = [
        f"-- Schema {url.schema} of database {server.database!r}: from {version} to {todo[-1].version}.\n",
        "-- Run it with: psql -v ON_ERROR_STOP=1 -f FILE\n",
        f"{_BEGIN};\n",
        _literal(url, "migration_settings", f"{int(TURN_WAIT_S * 1000)}ms"),
        _literal(url, "migration_lock", url.schema),
        _literal(url, "migration_settings", f"{int(LOCK_WAIT_S * 1000)}ms"),
    ]
    if not state.exists:
        parts.append(_literal(url, "migration_schema"))
    if version == 0:
        parts.append(_literal(url, "migration_table"))
    for step in todo:
        parts.append(f"\n{step.text.replace('{schema}', url.schema).strip()}\n\n")
        parts.append(_literal(url, "migration_insert", step.version, step.name, step.digest, step.breaking, None))
    if version == 0:
        parts.append(_literal(url, "ledger_insert", environment, None))
    parts.append("COMMIT;\n")
    return "".join(parts)


def pending(conn: psycopg.Connection[Any], url: PostgresUrl) -> Plan:
    """What the ledger lacks of this release's schema.

    Raises :class:`NotFound` where there is no such schema, and as :func:`check` for one that is too new.
    """
    with translated(url.where):
        check_server(conn, url)
        version = _existing(conn, url)
        if version:
            _refuse_newer(conn, url, version)
        return rules.plan(migrations(), version)


def version_of(conn: psycopg.Connection[Any], url: PostgresUrl) -> int:
    """The schema version of the ledger; 0 where there is none yet. Raises :class:`NotALedger` for anything else."""
    with translated(url.where):
        return _version(conn, url) if _is_there(_state(conn, url), url) else 0


def check(conn: psycopg.Connection[Any], url: PostgresUrl) -> None:
    """Raise :class:`LedgerVersion` unless this release can work on the ledger as it is.

    :class:`NotFound` where there is no such schema, :class:`NotALedger` where it is something else.
    """
    with translated(url.where):
        check_server(conn, url)
        version = _existing(conn, url)
        rules.check_usable(migrations(), version, url.where)
        if version:
            _refuse_newer(conn, url, version)


def check_environment(conn: psycopg.Connection[Any], url: PostgresUrl, environment: str) -> None:
    """Raise :class:`EnvironmentMismatch` unless the ledger is stamped with ``environment``."""
    with translated(url.where):
        rows = _rows(conn, url, "environment")
    rules.check_environment(rows[0][0] if rows else None, environment, url.where)


def check_server(conn: psycopg.Connection[Any], url: PostgresUrl) -> Server:
    """What the server is. Raises :class:`LedgerVersion` or :class:`LedgerError` for one that cannot hold a ledger."""
    with translated(url.where):
        server = Server(*_rows(conn, url, "migration_server")[0])
    if server.version_number < OLDEST * 10_000:
        raise LedgerVersion(
            f"ledger {url.where}: PostgreSQL {server.version} is too old",
            param="ledger",
            hint=f"redrive needs PostgreSQL {OLDEST} or newer",
        )
    if server.encoding != "UTF8":
        raise LedgerError(
            f"ledger {url.where}: database {server.database!r} is encoded as {server.encoding}, and cannot hold "
            "every text",
            param="ledger",
            hint="create a database with ENCODING 'UTF8' (and TEMPLATE template0), and name that one",
        )
    return server


# --- parts ------------------------------------------------------------------------------------------


def _take_turn(conn: psycopg.Connection[Any], url: PostgresUrl) -> None:
    _run(conn, url, "migration_settings", f"{int(TURN_WAIT_S * 1000)}ms")
    try:
        _run(conn, url, "migration_lock", url.schema)
    except Exception as exc:
        if state_of(exc) == _LOCK_NOT_AVAILABLE:
            raise LedgerBusy(
                f"ledger {url.where}: another migration of it has been running for over {TURN_WAIT_S:g} s",
                hint="wait for it, then run this again: it does nothing where nothing is left to do",
            ) from exc
        raise
    _run(conn, url, "migration_settings", f"{int(LOCK_WAIT_S * 1000)}ms")


def _state(conn: psycopg.Connection[Any], url: PostgresUrl) -> _State:
    return _State(*_rows(conn, url, "migration_state", url.schema)[0])


def _is_there(state: _State, url: PostgresUrl) -> bool:
    """Whether the schema is a ledger; False where it can become one."""
    if state.ours:
        if not state.usage:
            raise LedgerReadOnly(
                f"ledger {url.where}: this user may not look into schema {url.schema}",
                param="ledger",
                hint=f"an administrator may run: GRANT USAGE ON SCHEMA {url.schema} TO ..., and see: redrive check",
            )
        return True
    if state.filled:
        raise NotALedger(
            f"{url.where} is a schema of something else",
            param="ledger",
            hint="nothing was changed; choose another schema with ?schema=..., or a new one",
        )
    return False


def _existing(conn: psycopg.Connection[Any], url: PostgresUrl) -> int:
    state = _state(conn, url)
    if not state.exists:
        raise NotFound(f"ledger {url.where} does not exist", param="ledger", hint="create it with: redrive init")
    return _version(conn, url) if _is_there(state, url) else 0


def _check_privileges(state: _State, url: PostgresUrl, server: Server) -> None:
    missing = None
    if not state.exists and not state.may_create_schema:
        missing = f'GRANT CREATE ON DATABASE "{server.database}" TO "{server.user}"'
    elif state.exists and not (state.usage and state.may_create):
        missing = f'GRANT USAGE, CREATE ON SCHEMA {url.schema} TO "{server.user}"'
    if missing is not None:
        raise LedgerReadOnly(
            f"ledger {url.where}: user {server.user!r} may not create what a ledger consists of",
            param="ledger",
            hint=f"an administrator may run: {missing}; or the output of: redrive migrate --sql",
        )


def _version(conn: psycopg.Connection[Any], url: PostgresUrl) -> int:
    version: int = _rows(conn, url, "migration_version")[0][0]
    return version


def _refuse_newer(conn: psycopg.Connection[Any], url: PostgresUrl, version: int) -> None:
    known = migrations()[-1].version
    if version > known:
        rules.refuse_newer(_rows(conn, url, "migration_breaking", known)[0][0], version, url.where)


def _refuse_older(conn: psycopg.Connection[Any], url: PostgresUrl, todo: tuple[Migration, ...]) -> None:
    from redrive import __version__

    if any(step.breaking for step in todo):
        now: int = _rows(conn, url, "clock_read")[0][0]
        found = _rows(conn, url, "migration_workers", now - LIVE_US)
        rules.refuse_older([RunningWorker(*row) for row in found], __version__, url.where)


def _rows(conn: psycopg.Connection[Any], url: PostgresUrl, name: str, *params: object) -> list[tuple[Any, ...]]:
    return conn.execute(text_of(name, url.schema).dollar, params or None).fetchall()


def _run(conn: psycopg.Connection[Any], url: PostgresUrl, name: str, *params: object) -> None:
    conn.execute(text_of(name, url.schema).dollar, params or None)


def _literal(url: PostgresUrl, name: str, *params: object) -> str:
    statement = text_of(name, url.schema).dollar
    for number in range(len(params), 0, -1):
        statement = statement.replace(f"${number}", rules.literal(params[number - 1]))
    return statement.strip() + ";\n"


class _Watch:
    """While its block runs, notes who a session waits for, from a second connection that is made if it takes long."""

    def __init__(self, url: PostgresUrl, pid: int) -> None:
        self._url = url
        self._pid = pid
        self._done = threading.Event()
        self._seen: list[tuple[Any, ...]] = []
        self._thread = threading.Thread(target=self._look, name="redrive-migrate-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join(2 * CONNECT_TIMEOUT_S)

    def _look(self) -> None:
        every = LOCK_WAIT_S / 6
        if self._done.wait(every):
            return
        try:
            with closing(connect(self._url)) as conn, translated(self._url.where):
                while not self._done.is_set():
                    self._seen = _rows(conn, self._url, "migration_blockers", self._pid) or self._seen
                    self._done.wait(every)
        except RedriveError:
            return  # Who it was stays unknown; that it waited does not.

    def told(self) -> str:
        """Who was last in the way."""
        if not self._seen:
            return "who holds it could not be seen"
        return "it is held by " + ", ".join(_told(*row) for row in self._seen[:5])


def _told(pid: int | None, user: str | None, application: str | None, state: str | None, seconds: int | None) -> str:
    if pid is None:
        return "a prepared transaction"
    about = [f"user {user!r}" if user else "", f"application {application!r}" if application else "", state or ""]
    if seconds is not None:
        about.append(f"in a transaction for {seconds} s")
    shown = ", ".join(part for part in about if part)
    return f"process {pid} ({shown})" if shown else f"process {pid}"
