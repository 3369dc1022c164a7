"""``redrive check`` on a PostgreSQL ledger: the server, its settings, the way to it, and what this user may do."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

from redrive.errors import RedriveError
from redrive.ledger import checks
from redrive.ledger.checks import Finding
from redrive.ledger.postgres import migrate
from redrive.ledger.postgres.connect import PostgresUrl, connect, translated
from redrive.ledger.postgres.statements import text_of

if TYPE_CHECKING:
    import psycopg

FEW: Final = 10
"""Fewer free connections than this are worth a warning."""
_WANTED: Final[Mapping[str, tuple[tuple[str, ...], bool, str]]] = {
    # name: (values that will do, whether any other is a failure, what to do)
    "fsync": (("on",), True, "set fsync = on: without it a crash of the host can destroy the whole database"),
    "full_page_writes": (
        ("on",),
        False,
        "set full_page_writes = on, unless the file system never writes half a page",
    ),
    "synchronous_commit": (
        ("on", "local", "remote_write", "remote_apply"),
        False,
        "set synchronous_commit = on: redrive's own sessions do, but what another program enqueues in its "
        "transaction can be lost by a crash after its commit",
    ),
    "autovacuum": (("on",), True, "set autovacuum = on: the table of live deliveries changes with every attempt"),
    "track_counts": (("on",), True, "set track_counts = on: autovacuum does nothing without it"),
    "default_transaction_isolation": (
        ("read committed",),
        False,
        "redrive's own sessions use read committed; what enqueues in its own transaction at a higher level must be "
        "ready to try again (40001)",
    ),
    "default_transaction_read_only": (
        ("off",),
        True,
        "this user's sessions cannot write: ALTER ROLE or ALTER DATABASE",
    ),
}


def look(url: PostgresUrl, environment: str) -> Iterator[Finding]:
    """Everything worth looking at. Raises where there is no connection, or where it is another environment's ledger."""
    with closing(connect(url, bare=True)) as conn, translated(url.where):
        yield checks.ok("ledger", url.where)
        try:
            server = migrate.check_server(conn, url)
        except RedriveError as error:
            yield checks.refused("server", error)
            return
        yield checks.ok("server", f"PostgreSQL {server.version}, {server.encoding}, user {server.user}")
        if server.standby:
            yield checks.failed("standby", "this server only reads", "name the primary in the ledger's URL")
        yield from _settings(dict(_rows(conn, url, "check_settings")))
        yield _clock(conn, url)
        yield _pooler(conn, url)
        yield _headroom(*_rows(conn, url, "check_connections")[0])
        yield from _ledger(conn, url, environment, server.user)


def _settings(found: Mapping[str, str]) -> Iterator[Finding]:
    for name, (good, vital, advice) in _WANTED.items():
        value = found.get(name, "unknown")
        if value in good:
            yield checks.ok(name, value)
        else:
            yield (checks.failed if vital else checks.warning)(name, value, advice)


def _clock(conn: psycopg.Connection[Any], url: PostgresUrl) -> Finding:
    """The round trip that took least says most."""
    looks = []
    for _ in range(3):
        before = time.time_ns() // 1000
        (theirs,) = _rows(conn, url, "check_clock")[0]
        after = time.time_ns() // 1000
        looks.append((after - before, (before + after) // 2 - theirs))
    took, difference = min(looks)
    return checks.clock(difference, took // 2 + 1, "the server")


def _pooler(conn: psycopg.Connection[Any], url: PostgresUrl) -> Finding:
    """A pooler invents the process ID that it greets with; one per transaction lends one session to two clients."""
    (pid,) = _rows(conn, url, "check_pid")[0]
    if pid == conn.info.backend_pid:
        return checks.ok("pooler", "none")
    with closing(connect(url, bare=True)) as other, translated(url.where):
        (pid,) = _rows(conn, url, "check_pid")[0]
        other.execute("BEGIN")
        (theirs,) = _rows(other, url, "check_pid")[0]
        shared = theirs == pid or _rows(conn, url, "check_pid")[0][0] != pid
        other.execute("ROLLBACK")
    if not shared:
        return checks.ok("pooler", "one session per client")
    if url.pooled and not url.notify:
        return checks.ok("pooler", "one session per transaction")
    advice = "add pooled=on to the ledger's URL: nothing then relies on the session, and workers poll"
    if url.pooled:
        advice = "take notify=on out of the ledger's URL: through this pooler nobody hears a NOTIFY"
    return checks.failed("pooler", "one session per transaction", advice)


def _headroom(server: int, used: int, database: int, in_database: int, user: int, of_user: int) -> Finding:
    limits = [("max_connections", server - used)]
    if database >= 0:
        limits.append(("the database's CONNECTION LIMIT", database - in_database))
    if user >= 0:
        limits.append(("the user's CONNECTION LIMIT", user - of_user))
    which, free = min(limits, key=lambda limit: limit[1])
    value = f"{max(free, 0)} free ({which})"
    if free >= FEW:
        return checks.ok("connections", value)
    return checks.warning(
        "connections",
        value,
        f"each worker process keeps a few: raise {which}, or put a pooler in between and add pooled=on to the URL",
    )


def _ledger(conn: psycopg.Connection[Any], url: PostgresUrl, environment: str, user: str) -> Iterator[Finding]:
    missing = _rows(conn, url, "check_privileges", url.schema)
    if missing:
        yield _privileges(missing, url.schema, user)
    if any(kind == "SCHEMA" or what == "SELECT" for kind, _, what in missing):
        return  # The rest cannot be seen.
    try:
        version = migrate.version_of(conn, url)
        if version:
            migrate.pending(conn, url)
    except RedriveError as error:
        yield checks.refused("schema", error)
        return
    yield from checks.schema(migrate.migrations(), version)
    if version == 0:
        return
    if not missing:
        yield checks.ok("privileges", f"user {user} has all that a worker needs")
    migrate.check_environment(conn, url, environment)
    yield checks.ok("environment", environment)


def _privileges(missing: list[tuple[Any, ...]], schema: str, user: str) -> Finding:
    who = '"' + user.replace('"', '""') + '"'
    grants = {
        "SCHEMA": f"GRANT USAGE ON SCHEMA {schema} TO {who}",
        "TABLE": f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {who}",
        "SEQUENCE": f"GRANT USAGE ON ALL SEQUENCES IN SCHEMA {schema} TO {who}",
        "FUNCTION": f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA {schema} TO {who}",
    }
    kinds = list(dict.fromkeys(kind for kind, _, _ in missing))
    kind, name, privilege = missing[0]
    value = f"user {user} lacks {privilege} on {kind.lower()} {name}"
    if len(missing) > 1:
        value += f" and {len(missing) - 1} more"
    return checks.failed("privileges", value, "; ".join(f"{grants[kind]}" for kind in kinds))


def _rows(conn: psycopg.Connection[Any], url: PostgresUrl, name: str, *params: object) -> list[tuple[Any, ...]]:
    return conn.execute(text_of(name, url.schema).dollar, params or None).fetchall()
