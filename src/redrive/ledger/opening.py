"""Creating, migrating, checking and opening the ledger that a URL names; drivers are loaded when one is named.

Every function raises :class:`~redrive.errors.ConfigError` for a URL that is none. No message holds a password.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, Final

from redrive.errors import ConfigError
from redrive.ledger.migrate import Migration, Plan

if TYPE_CHECKING:
    import psycopg

    from redrive.ledger.base import Ledger
    from redrive.ledger.checks import Finding
    from redrive.ledger.postgres.connect import PostgresUrl

_SCHEME: Final = re.compile(r"postgres(?:ql)?://")


def create(
    url: str,
    environment: str,
    clock: Callable[[], int] | None = None,
    finish: bool = False,
    force: bool = False,
) -> list[Migration]:
    """Create the ledger, or bring an existing one to this release's schema; returns the steps applied.

    Safe to repeat, at any time and by many at once. Steps of the second phase (``Migration.breaking``) are applied to
    a new ledger, and to an existing one with ``finish``, which raises :class:`~redrive.errors.Conflict` while workers
    of an older release are live, unless ``force`` is given. ``clock`` (microseconds UTC) is for tests.
    """
    if is_postgres(url):
        from redrive.ledger.postgres import migrate as postgres

        with _connected(url) as (conn, parsed):
            now = None if clock is None else clock()
            return postgres.apply(conn, parsed, environment, now, finish=finish, force=force)
    from redrive.ledger.sqlite.clock import LedgerClock
    from redrive.ledger.sqlite.ledger import create as create_sqlite

    return create_sqlite(url, environment, LedgerClock(clock), finish=finish, force=force)


def pending(url: str) -> Plan:
    """What an existing ledger lacks of this release's schema: the steps of ``migrate``, and those of ``--finish``.

    Raises :class:`~redrive.errors.NotFound` where there is nothing to migrate, and a
    :class:`~redrive.errors.LedgerError` where it is something else or too new.
    """
    if is_postgres(url):
        from redrive.ledger.postgres import migrate as postgres

        with _connected(url) as (conn, parsed):
            return postgres.pending(conn, parsed)
    from redrive.ledger.sqlite import migrate as sqlite
    from redrive.ledger.sqlite.connect import connect, path_of

    file = path_of(url)
    with closing(connect(file)) as own:
        return sqlite.pending(own, file)


def script(url: str, environment: str, finish: bool = False, force: bool = False) -> str:
    """The SQL that :func:`create` would run, for a person to read or to run instead; '' when nothing is pending."""
    if is_postgres(url):
        from redrive.ledger.postgres import migrate as postgres

        with _connected(url) as (conn, parsed):
            return postgres.script(conn, parsed, environment, finish=finish, force=force)
    from redrive.ledger.sqlite import migrate as sqlite
    from redrive.ledger.sqlite.clock import wall_us
    from redrive.ledger.sqlite.connect import connect, path_of

    file = path_of(url)
    with closing(connect(file)) as own:
        return sqlite.script(own, file, wall_us(), environment, finish=finish, force=force)


def look(url: str, environment: str) -> Iterator[Finding]:
    """What is worth knowing of the ledger and the way to it. Changes nothing."""
    if is_postgres(url):
        from redrive.ledger.postgres import checks as postgres

        return postgres.look(_parsed(url), environment)
    from redrive.ledger.sqlite import checks as sqlite

    return sqlite.look(url, environment)


def open_ledger(url: str, environment: str, clock: Callable[[], int] | None = None) -> Ledger:
    """The ledger of ``environment`` at ``url``; it must exist and be one that this release can use."""
    if is_postgres(url):
        check_url(url)
        from redrive.ledger.postgres.ledger import PostgresLedger

        return PostgresLedger(url, environment, clock)
    from redrive.ledger.sqlite.clock import LedgerClock
    from redrive.ledger.sqlite.ledger import SqliteLedger

    return SqliteLedger(url, environment, LedgerClock(clock))


# --- URLs -------------------------------------------------------------------------------------------


def is_postgres(url: str) -> bool:
    """Whether the URL names a PostgreSQL ledger."""
    return _SCHEME.match(url) is not None


def check_url(url: str) -> None:
    """Raises :class:`ConfigError` unless the URL can name a ledger and its driver is installed. Connects to nothing."""
    if is_postgres(url):
        _parsed(url)
        return
    from redrive.ledger.sqlite.connect import path_of

    path_of(url)


def where(url: str) -> str:
    """The URL without what could be a password, for people and logs. Never raises."""
    if not is_postgres(url):
        return url if url.startswith("sqlite:") else "(not a ledger's URL)"
    from redrive.ledger.postgres.connect import PostgresUrl

    try:
        return PostgresUrl.parse(url).where
    except ConfigError:
        return "postgresql://..."


def path(url: str) -> str | None:
    """The file that a SQLite ledger's URL names; None for a server's."""
    if is_postgres(url):
        return None
    from redrive.ledger.sqlite.connect import path_of

    return str(path_of(url))


def same(one: str, other: str) -> bool:
    """Whether two URLs name the same ledger, as far as their text says."""
    return _identity(one) == _identity(other)


def _identity(url: str) -> object:
    if is_postgres(url):
        return _parsed(url).place
    from redrive.ledger.sqlite.connect import path_of

    return os.path.realpath(path_of(url))


def _parsed(url: str) -> PostgresUrl:
    from redrive.ledger.postgres.connect import PostgresUrl, driver

    parsed = PostgresUrl.parse(url)
    psycopg = driver()
    try:
        psycopg.conninfo.conninfo_to_dict(parsed.conninfo)
    except psycopg.Error:
        # libpq's own message would repeat the part that it cannot read, which may be the password.
        raise ConfigError(
            "the ledger URL cannot be used: libpq cannot read it",
            param="ledger",
            hint="percent-encode special characters in it, and give only parameters that libpq knows",
        ) from None
    return parsed


@contextmanager
def _connected(url: str) -> Iterator[tuple[psycopg.Connection[Any], PostgresUrl]]:
    from redrive.ledger.postgres.connect import connect

    parsed = _parsed(url)
    with closing(connect(parsed)) as conn:
        yield conn, parsed
