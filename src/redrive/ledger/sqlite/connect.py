"""Opening the SQLite file, and SQLite's errors in redrive's words."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from redrive.errors import (
    ConfigError,
    LedgerBusy,
    LedgerCorrupt,
    LedgerError,
    LedgerFull,
    LedgerReadOnly,
    NotALedger,
    NotFound,
)
from redrive.ledger.sqlite.statements import sql

APPLICATION_ID: Final = 0x72647276  # "rdrv", in the file's header
MINIMUM_SQLITE: Final = (3, 38, 0)
BUSY_TIMEOUT_S: Final = 10.0
CACHE_KIB: Final = 65536


def path_of(url: str) -> Path:
    """The file behind ``sqlite:///relative.db`` or ``sqlite:////absolute.db``.

    Raises :class:`ConfigError` for anything else, and for ``:memory:``: a ledger that dies with its process
    is not one.
    """
    prefix = "sqlite:///"
    if not url.startswith(prefix) or len(url) == len(prefix):
        raise ConfigError(
            "the ledger URL is not one that this release can open",
            param="ledger",
            hint="use sqlite:///file.db (relative), sqlite:////full/path/file.db, or postgresql://user@host/database "
            "(no +driver)",
        )
    text = unquote(url[len(prefix) :])
    if text.startswith(":memory:") or "?" in text or "\x00" in text:
        raise ConfigError(
            "the embedded ledger is a plain file",
            param="ledger",
            hint="use sqlite:///file.db; for tests, a file in a temporary folder",
        )
    return Path(text)


@contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turns SQLite's errors into the :class:`LedgerError` that says what is wrong with the file, and what to do."""
    try:
        yield
    except sqlite3.Error as exc:
        raise translate(exc, path) from exc


def translate(exc: sqlite3.Error, path: Path) -> LedgerError | NotFound:
    """The redrive error behind a SQLite error."""
    code = getattr(exc, "sqlite_errorcode", 0) & 0xFF
    where = f"ledger {path}"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        extended = getattr(exc, "sqlite_errorcode", 0)
        if extended == sqlite3.SQLITE_BUSY_SNAPSHOT:
            return LedgerBusy(
                f"{where}: this transaction read before it wrote, and another process wrote in between",
                hint="begin the transaction with BEGIN IMMEDIATE, or enqueue before reading",
            )
        return LedgerBusy(
            f"{where} is locked by another write transaction",
            hint="trying again is safe; look for a long open write transaction on this file, "
            "and if it is your own, pass its connection as connection=",
        )
    if code == sqlite3.SQLITE_FULL:
        return LedgerFull(f"{where}: no space left", hint="free space; nothing was half-written")
    if code == sqlite3.SQLITE_READONLY:
        return LedgerReadOnly(f"{where} cannot be written", hint="check the file's and the folder's permissions")
    if code == sqlite3.SQLITE_CANTOPEN:
        if _missing(path):
            return NotFound(f"{where} does not exist", param="ledger", hint="create it with: redrive init")
        return LedgerReadOnly(f"{where} cannot be opened", hint="check the file's and the folder's permissions")
    if code == sqlite3.SQLITE_NOTADB:
        return NotALedger(f"{path} is not a SQLite database", hint="nothing was changed; choose another file")
    if code == sqlite3.SQLITE_CORRUPT:
        return LedgerCorrupt(f"{where} is damaged", hint="stop all workers and restore from a backup")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return LedgerCorrupt(f"{where} refused a change that contradicts what it holds: {exc}")
    if code == sqlite3.SQLITE_IOERR:
        return LedgerError(f"{where}: the disk reported an error ({exc.sqlite_errorname})")
    return LedgerError(f"{where}: {exc}")


def _missing(path: Path) -> bool:
    try:
        return not path.exists()
    except OSError:
        return False  # a folder that may not be entered: nobody can say


def connect(path: Path, *, create: bool = False, read_only: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode (transactions are begun by name), with redrive's settings.

    WAL and ``synchronous=FULL``: a commit that returned is on the disk. No mmap. Automatic checkpoints are off:
    the writer checkpoints, one process at a time (``writer.py``).
    """
    if sqlite3.sqlite_version_info < MINIMUM_SQLITE:
        raise LedgerError(f"SQLite {sqlite3.sqlite_version} is too old", hint="redrive needs SQLite 3.38 or newer")
    mode = "ro" if read_only else "rwc" if create else "rw"
    uri = f"file:{quote(str(path))}?mode={mode}"
    with translated(path):
        conn = sqlite3.connect(
            uri,
            uri=True,
            isolation_level=None,
            timeout=BUSY_TIMEOUT_S,
            check_same_thread=False,
            cached_statements=256,
        )
        try:
            conn.execute("PRAGMA synchronous = FULL")
            conn.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            conn.execute("PRAGMA temp_store = MEMORY")
            conn.execute("PRAGMA mmap_size = 0")
            conn.execute("PRAGMA wal_autocheckpoint = 0")
            conn.execute("PRAGMA trusted_schema = OFF")
            # Otherwise INSERT OR REPLACE would slip past the triggers that refuse a DELETE.
            conn.execute("PRAGMA recursive_triggers = ON")
        except BaseException:
            conn.close()
            raise
    return conn


def identify(conn: sqlite3.Connection, path: Path) -> int:
    """The schema version of an opened ledger; 0 for an empty file. Raises :class:`NotALedger` for anything else."""
    with translated(path):
        # One snapshot: another process may be making the ledger between two of these reads.
        own = not conn.in_transaction
        if own:
            conn.execute("BEGIN")
        try:
            (application,) = conn.execute("PRAGMA application_id").fetchone()
            (version,) = conn.execute("PRAGMA user_version").fetchone()
            (tables,) = conn.execute(sql("schema_count")).fetchone()
        finally:
            if own and conn.in_transaction:
                conn.execute("ROLLBACK")
    if application == APPLICATION_ID:
        return int(version)
    if application != 0 or tables or version:
        raise NotALedger(
            f"{path} is a SQLite database of something else",
            param="ledger",
            hint="nothing was changed; choose another file, or a new one",
        )
    return 0


def wal_defect() -> str | None:
    """A sentence about a known write-ahead-log defect of the SQLite in use, or None.

    SQLite 3.7.0 to 3.51.2 (but for 3.44.6 and 3.50.7) can lose a checkpoint's work when two connections
    checkpoint at once; redrive itself checkpoints from one process at a time.
    """
    version = sqlite3.sqlite_version_info
    fixed = version >= (3, 51, 3) or (version[:2] == (3, 44) and version[2] >= 6)
    fixed = fixed or (version[:2] == (3, 50) and version[2] >= 7)
    if fixed:
        return None
    return (
        f"SQLite {sqlite3.sqlite_version} has a known defect when two connections checkpoint at once; "
        "redrive checkpoints from one process at a time, other programs on this file should not checkpoint"
    )
