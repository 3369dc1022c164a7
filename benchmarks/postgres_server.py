"""A private, durable PostgreSQL server for one benchmark run.

    with benchmark_server(folder) as server:
        server.url("postgres")

Durable means that a commit is on disk when it is acknowledged: ``fsync``, ``synchronous_commit`` and
``full_page_writes`` on. It is the tests' server (``tests/services``), which ends with the process that started it,
with more memory and its data on the disk under test.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

# The tests' services are imported by their full name, from the repository's root.
sys.path.append(str(Path(__file__).resolve().parent.parent))

from tests.services.needs import required
from tests.services.postgres import PostgresServer

SHARED_BUFFERS = "1GB"
SETTINGS = {
    # No checkpoint that only the clock or the last run's writes ask for falls into one run and not into another.
    "max_wal_size": "4GB",
    "checkpoint_timeout": "30min",
}
STATEMENTS = {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.max": "10000"}


def has_statements() -> bool:
    """Whether ``pg_stat_statements`` is installed. Raises ``tests.services.needs.Missing`` without a server."""
    pg_config = required("PostgreSQL") / "pg_config"
    if not pg_config.exists():
        return False
    done = subprocess.run([pg_config, "--sharedir"], capture_output=True, text=True, check=False)
    return (Path(done.stdout.strip()) / "extension" / "pg_stat_statements.control").exists()


@contextmanager
def benchmark_server(folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[PostgresServer]:
    """A server whose data is in ``folder / "postgres"`` until the block ends; ``settings`` win over ours.

    ``folder`` exists and is the run's own. As root the server runs as another user, so others are let through
    ``folder`` (not let to list it); the folders above it must let them through already.

    Raises ``Missing`` and ``ServiceFailed`` of ``tests.services``.
    """
    folder.chmod(folder.stat().st_mode | 0o011)
    chosen = {**SETTINGS, **(STATEMENTS if has_statements() else {}), **(settings or {})}
    with PostgresServer.start(
        folder / "postgres", durable=True, shared_buffers=SHARED_BUFFERS, settings=chosen
    ) as server:
        yield server
