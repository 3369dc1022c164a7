"""Where the ledger is, connections to it, and PostgreSQL's errors in redrive's words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from redrive.errors import (
    ConfigError,
    EnvironmentMismatch,
    InvalidInput,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerReadOnly,
    LedgerUnavailable,
    LedgerVersion,
    NotALedger,
    RedriveError,
)
from redrive.ledger.postgres.statements import text_of

if TYPE_CHECKING:
    import psycopg

APPLICATION: Final = "redrive"
CONNECT_TIMEOUT_S: Final = 5
DEAD_PEER_MS: Final = 10_000
"""A peer that acknowledges nothing for this long is taken for dead."""
_GONE: Final = frozenset({"OperationalError", "InternalError", "ConnectionError"})
"""Errors without a SQLSTATE that mean a lost connection, by the names of PEP 249 and of Python.

psycopg's InternalError is one: it was told two things in answer to one, a pooler's last words and the end.
"""
SCHEMES: Final = ("postgresql://", "postgres://")
_AUTHORITY: Final = re.compile(r"postgres(?:ql)?://([^/?#]*)(.*)", re.DOTALL)
_HOST: Final = re.compile(r"(\[[^]@]*\]|[^]\[:@]*)(:\d{0,5})?")
_SHOWN: Final = ("schema", "host", "port", "dbname", "service", "notify", "pooled")
_OPTIONS: Final = " ".join(
    f"-c {setting}"
    for setting in (
        "statement_timeout=60s",
        "lock_timeout=10s",
        "idle_in_transaction_session_timeout=60s",
        r"default_transaction_isolation=read\ committed",
        "jit=off",
        "plan_cache_mode=force_custom_plan",
    )
)
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_WORDS: Final = (
    "all analyse analyze and any array as asc asymmetric authorization binary both case cast check "
    "collate collation column concurrently constraint create cross current_catalog current_date "
    "current_role current_schema current_time current_timestamp current_user default deferrable desc "
    "distinct do else end except false fetch for foreign freeze from full grant group having ilike in "
    "initially inner intersect into is isnull join lateral leading left like limit localtime "
    "localtimestamp natural not notnull null offset on only or order outer overlaps placing primary "
    "references returning right select session_user similar some symmetric table tablesample then to "
    "trailing true union unique user using variadic verbose when where window with"
)
_RESERVED: Final = frozenset(_WORDS.split())
"""Words that name no schema unless they are quoted, and no statement quotes it."""
_SWITCH: Final = {"on": True, "true": True, "1": True, "off": False, "false": False, "0": False}


@dataclass(frozen=True, slots=True)
class PostgresUrl:
    """A ledger on PostgreSQL. ``str()`` and ``repr()`` never show the password."""

    conninfo: str = field(repr=False)
    """What libpq is given."""
    where: str
    """For people: the URL without what could be a password."""
    place: str = field(repr=False)
    """Hosts, database and schema: URLs that agree in it name one ledger."""
    schema: str = "redrive"
    notify: bool = True
    """Whether workers are woken by NOTIFY; without, they poll."""
    pooled: bool = False
    """Whether a transaction pooler may stand in between: nothing then relies on the session."""

    @classmethod
    def parse(cls, text: str) -> PostgresUrl:
        """``postgresql://user@host:port/database?schema=redrive&notify=off&pooled=on`` and libpq's own parameters.

        Raises :class:`ConfigError`, which never repeats the URL: it may hold a password.
        """
        if not text.startswith(SCHEMES):
            raise _refused("it does not begin with postgresql://")
        authority, tail = _AUTHORITY.findall(text)[0]
        # A bare @, /, ? or # in a password moves the URL's borders: a part of it would be shown as the host.
        if text.count("@") > 1 or "#" in text or "@" in tail:
            raise ConfigError(
                "the ledger URL cannot be used: it is not clear where user and password end",
                param="ledger",
                hint="percent-encode @ as %40, / as %2F, ? as %3F, # as %23 and % as %25 in them, or leave the "
                "password to PGPASSWORD or a password file",
            )
        user, _, hosts = authority.rpartition("@")
        user = user.partition(":")[0]
        # Several hosts are libpq's to try in turn.
        if not all(_HOST.fullmatch(host) for host in hosts.split(",")):
            raise _refused("host or port cannot be read")
        parts = urlsplit(f"postgresql://{tail}")
        database = unquote(parts.path.lstrip("/"))
        if not database or "\x00" in text:
            raise _refused("it names no database")
        own: dict[str, str] = {}
        rest = []
        for name, value in parse_qsl(parts.query, keep_blank_values=True):
            if name in ("schema", "notify", "pooled"):
                own[name] = value
            else:
                rest.append((name, value))
        schema = own.get("schema", "redrive")
        if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_") or schema in _RESERVED:
            raise ConfigError(
                "schema must be lower-case letters, digits and _, at most 48, not begin with pg_, and be no SQL word",
                param="ledger",
            )
        pooled = _switch(own, "pooled", False)
        notify = _switch(own, "notify", not pooled)
        given = {name for name, _ in rest}
        defaults = {
            "application_name": APPLICATION,
            "client_encoding": "utf8",
            "connect_timeout": str(CONNECT_TIMEOUT_S),
            "keepalives_idle": "5",
            "keepalives_interval": "2",
            "keepalives_count": "3",
            "tcp_user_timeout": str(DEAD_PEER_MS),
        }
        rest += [(name, value) for name, value in defaults.items() if name not in given]
        conninfo = f"postgresql://{authority}/{quote(database, safe='')}?{urlencode(rest, quote_via=quote)}"
        shown = "&".join(pair for pair in parts.query.split("&") if pair.partition("=")[0].lower() in _SHOWN)
        where = f"postgresql://{user}{'@' if user else ''}{hosts}{parts.path}{'?' if shown else ''}{shown}"
        place = f"{hosts.lower() or dict(rest).get('host', 'local')}/{database} {schema}"
        return cls(conninfo, where, place, schema, notify, pooled)

    def __str__(self) -> str:
        return self.where


def _switch(given: dict[str, str], name: str, default: bool) -> bool:
    value = given.get(name)
    if value is None:
        return default
    if value.lower() not in _SWITCH:
        raise ConfigError(f"{name} in the ledger URL is on or off", param="ledger")
    return _SWITCH[value.lower()]


def _refused(why: str) -> ConfigError:
    return ConfigError(
        f"the ledger URL cannot be used: {why}",
        param="ledger",
        hint="use postgresql://user@host:5432/database, with ?schema=... for another schema than redrive",
    )


def driver() -> Any:
    """The psycopg module, or a :class:`ConfigError` that says how to get it."""
    try:
        import psycopg
    except ImportError:
        raise ConfigError(
            "a PostgreSQL ledger needs the psycopg driver", param="ledger", hint="pip install 'redrive[postgres]'"
        ) from None
    return psycopg


def connect(url: PostgresUrl, *, bare: bool = False) -> psycopg.Connection[Any]:
    """A connection in autocommit mode. Prepared statements are left to the server's functions, for poolers' sake.

    What our sessions rely on goes along as startup options. A pooler that shares sessions refuses those, and so
    a ledger that should say ``pooled=on`` leaves no settings behind. ``bare`` is as anybody would connect.
    """
    module = driver()
    more = {}
    ours = not url.pooled and not bare
    if ours:
        given = module.conninfo.conninfo_to_dict(url.conninfo).get("options") or ""
        more["options"] = f"{given} {_OPTIONS}".strip()
    with translated(url.where):
        try:
            conn: psycopg.Connection[Any] = module.connect(
                url.conninfo, autocommit=True, prepare_threshold=None, cursor_factory=module.RawCursor, **more
            )
        except module.OperationalError as exc:
            if "unsupported startup parameter" in str(exc):
                raise ConfigError(
                    f"ledger {url.where} is behind a transaction pooler",
                    param="ledger",
                    hint="add pooled=on to the ledger URL",
                ) from None
            raise
        try:
            if url.pooled:
                conn.isolation_level = module.IsolationLevel.READ_COMMITTED
            if ours:
                conn.execute(text_of("session_settings", url.schema).dollar)
        except BaseException:
            conn.close()
            raise
    return conn


@contextmanager
def translated(where: str) -> Iterator[None]:
    """Turns the driver's errors into the :class:`RedriveError` that says what is wrong, and what to do."""
    try:
        yield
    except Exception as exc:
        error = translate(exc, where)
        if error is None:
            raise
        raise error from exc


def state_of(exc: BaseException) -> str | None:
    """The SQLSTATE of any driver's error, SQLAlchemy's and Django's wrapping included; '' for a lost connection."""
    seen: BaseException | None = exc
    gone = False
    for _ in range(5):
        if seen is None:
            break
        state = getattr(seen, "sqlstate", None) or getattr(seen, "pgcode", None)
        if isinstance(state, str):
            return state
        # A wrapper may have such a name, and the state be on what it wraps.
        gone = gone or any(kind.__name__ in _GONE for kind in type(seen).__mro__)
        seen = getattr(seen, "orig", None) or seen.__cause__
    return "" if gone else None


def lost(exc: BaseException) -> bool:
    """Whether the connection is gone, or about to go: nothing more can be said on it."""
    state = state_of(exc)
    return state is not None and (state == "" or state[:2] == "08" or state[:3] == "57P" or state in ("25P03", "25006"))


def _message(exc: BaseException) -> str:
    diag = getattr(exc, "diag", None) or getattr(getattr(exc, "orig", None), "diag", None)
    primary = getattr(diag, "message_primary", None)
    return str(primary) if primary else str(exc).partition("\n")[0]


_BY_STATE: Final[Sequence[tuple[str, type[RedriveError], str, str | None]]] = (
    ("25006", LedgerReadOnly, "is read-only: a standby, or a failover in progress", "trying again is safe"),
    ("53300", LedgerUnavailable, "has no connection to spare", "raise max_connections, or put a pooler in between"),
    ("53100", LedgerFull, "has no disk space left", None),
    ("53", LedgerUnavailable, "is short of resources", "trying again is safe"),
    ("55P03", LedgerBusy, "is locked by another transaction", "look for a long open transaction; trying again is safe"),
    ("57014", LedgerBusy, "took longer than its time limit", "trying again is safe"),
    ("40", LedgerBusy, "asks for the transaction to be tried again", "trying again is safe"),
    ("57P", LedgerUnavailable, "is shutting down or starting up", "trying again is safe"),
    ("08", LedgerUnavailable, "cannot be reached", "check host, port and network"),
    ("28", LedgerUnavailable, "refuses this user", "check user, password and pg_hba.conf"),
    ("3D000", NotALedger, "does not exist: there is no such database", "create the database first"),
    ("42501", LedgerError, "does not allow this user to do that", "see: redrive check"),
    ("RD002", EnvironmentMismatch, "belongs to another environment", "nothing was written; check which one is meant"),
    ("RD003", InvalidInput, "is another one", "connect to the ledger's database, or enqueue without a connection"),
    ("22023", InvalidInput, "refuses an argument", None),
    ("XX", LedgerCorrupt, "reports an internal error", "look into the server's log"),
)


_LAST_WORDS: Final = (
    (re.compile(r'FATAL: .*(database "[^"]*" does not exist|no such database)'), "3D000"),
    (re.compile(r"FATAL: .*(too many c|connection slots are reserved|no more connections allowed)"), "53300"),
    (re.compile(r"FATAL: .*the database system is "), "57P03"),
    (re.compile(r"FATAL: .*permission denied for database"), "42501"),
    (
        re.compile(
            r"FATAL: .*(authentication failed|role \"[^\"]*\" does not exist|no such user|no pg_hba.conf entry"
            r"|not permitted to log in|pg_hba.conf rejects)|no password supplied"
        ),
        "28",
    ),
)


def translate(exc: BaseException, where: str) -> RedriveError | None:
    """The redrive error behind a driver's error; None for anything else, integrity errors among them."""
    if isinstance(exc, RedriveError):
        return None
    state = state_of(exc)
    if state is None:
        return None
    if state in ("3F000", "42P01", "42883"):
        return LedgerVersion(
            f"ledger {where} is not there, or has another schema version: {_message(exc)}",
            param="ledger",
            hint="run: redrive init, or redrive migrate",
        )
    if state == "":
        # libpq keeps the SQLSTATE of a refused connection to itself.
        connecting = getattr(exc, "pgconn", None) is not None or "resolve host" in _message(exc)
        said = _said_when_connecting(_message(exc)) if connecting else None
        if said is None:
            advice = "check host, port, user and database" if connecting else "trying again is safe"
            return LedgerUnavailable(f"ledger {where} cannot be reached: {_message(exc)}", hint=advice)
        state = said
    for prefix, kind, text, hint in _BY_STATE:
        if state.startswith(prefix):
            return kind(f"ledger {where} {text}: {_message(exc)}", hint=hint)
    if state[:2] == "23":
        return None
    return LedgerError(f"ledger {where}: {_message(exc)} ({state})")


def _said_when_connecting(message: str) -> str | None:
    """The SQLSTATE that goes with a server's or a pooler's last words to whom it turned away; None for any others.

    In another language than English the general advice has to do.
    """
    return next((state for words, state in _LAST_WORDS if words.search(message)), None)


def refusal(exc: BaseException, where: str) -> LedgerCorrupt | None:
    """What the ledger's own CHECKs, triggers and unique indexes refused; None for anything else."""
    if (state_of(exc) or "")[:2] != "23":
        return None
    return LedgerCorrupt(f"ledger {where} refused a change: {_message(exc)}", hint="run: redrive verify")
