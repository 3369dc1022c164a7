"""What a run cost a PostgreSQL server on this machine, and the processes that worked on it.

    meter = Meter(url, worker_pids=[...])
    meter.start()
    ...
    cost = meter.stop()
    cost.per_item(count)     # keys for a benchmark's Figures

Read from outside, so that it measures ours and any peer alike:

- WAL bytes: how far ``pg_current_wal_lsn()`` moved. The whole server's, so nothing else may use it.
- statements: the calls that ``pg_stat_statements`` counted in this database (top-level ones, transaction words
  included); where that is not loaded, the transactions that ``pg_stat_database`` counted, which a backend reports at
  most once a second, so it is only a guide. ``statements_are`` says which.
- the server's CPU: user and system time of the postmaster, of its children that are alive and (``cutime``) of those
  that ended. A child that ends is counted by its parent in the same moment, so one read of the postmaster before the
  children and one after, repeated until they agree, loses nothing.
- a worker's CPU: user and system time of all threads of each process, and of its children that ended. A worker must
  be alive at both reads.

CPU times are exact to the kernel's clock tick (10 ms) per process: a run should take a second or more. The meter's own
connection is among the backends; it costs under a millisecond.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
PARENT, OWN, ENDED = 1, slice(11, 13), slice(13, 15)
"""Fields of ``/proc/<pid>/stat`` counted from behind the command's name (proc(5): ppid, [cu]time, [cs]time)."""
READS = 100

STATEMENTS = """
    SELECT coalesce(sum(s.calls), 0) FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid
    WHERE d.datname = current_database()
"""
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"


def _fields(pid: int) -> list[int] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return [int(field) if field.lstrip("-").isdigit() else 0 for field in text.rpartition(")")[2].split()]


def process_cpu_s(pid: int) -> float:
    """User and system seconds of a process, all threads, and of its children that ended.

    Raises ``ProcessLookupError`` when there is no such process.
    """
    fields = _fields(pid)
    if fields is None:
        raise ProcessLookupError(f"no process {pid} to measure")
    return (sum(fields[OWN]) + sum(fields[ENDED])) * TICK_S


def _children_ticks(parent: int) -> int:
    total = 0
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (fields := _fields(int(path.name))) is not None and fields[PARENT] == parent:
            total += sum(fields[OWN]) + sum(fields[ENDED])
    return total


def family_cpu_s(parent: int) -> float:
    """User and system seconds of a process and of its children, alive or ended.

    Raises ``ProcessLookupError`` when there is no such process, or no moment in which none of its children ends.
    """
    for _ in range(READS):
        before, children, after = _fields(parent), _children_ticks(parent), _fields(parent)
        if before is None or after is None:
            break
        if before[ENDED] == after[ENDED]:
            return (sum(after[OWN]) + sum(after[ENDED]) + children) * TICK_S
    raise ProcessLookupError(f"no process {parent} to measure, or one that never stops losing children")


@dataclass(frozen=True, slots=True)
class Cost:
    """What lay between a meter's start and its stop."""

    wal_bytes: int
    statements: int
    statements_are: str
    """``statements`` or ``transactions``."""
    worker_cpu_s: float
    """Of all worker processes together."""
    server_cpu_s: float

    def per_item(self, count: int) -> dict[str, Any]:
        """``wal_bytes``, ``statements``, ``cpu_us`` (workers) and ``server_cpu_us`` for each of ``count`` items."""
        return {
            "wal_bytes": self.wal_bytes / count,
            "statements": self.statements / count,
            "statements_are": self.statements_are,
            "cpu_us": self.worker_cpu_s / count * 1e6,
            "server_cpu_us": self.server_cpu_s / count * 1e6,
        }


@dataclass(frozen=True, slots=True)
class _Reading:
    lsn: int
    statements: int
    workers: float
    server: float


class Meter:
    """Measures one database of a server that runs on this machine, and the processes of ``worker_pids``.

    ``settle`` (at each start) ANALYZEs the database and makes a checkpoint, so that no run pays for another's writes.
    The URL's role must be a superuser. Close it, or use it as a context manager.
    """

    def __init__(self, url: str, worker_pids: Sequence[int] = (), *, settle: bool = True) -> None:
        self._workers = tuple(worker_pids)
        self._settle = settle
        self._start: _Reading | None = None
        self._conn = psycopg.connect(url, autocommit=True)
        backend = _fields(self._conn.info.backend_pid)
        if backend is None:
            self._conn.close()
            raise ProcessLookupError("the server does not run on this machine: its CPU time cannot be read")
        self.server_pid = backend[PARENT]
        self._statements = self._loaded()

    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the meter's connection."""
        self._conn.close()

    def start(self) -> None:
        """Begin to measure."""
        if self._settle:
            self._conn.execute("ANALYZE")
            self._conn.execute("CHECKPOINT")
        self._start = self._read()

    def stop(self) -> Cost:
        """What was used since the start. Raises ``ProcessLookupError`` when a worker has ended."""
        if self._start is None:
            raise RuntimeError("the meter was not started")
        first, last = self._start, self._read()
        return Cost(
            wal_bytes=last.lsn - first.lsn,
            statements=last.statements - first.statements,
            statements_are="statements" if self._statements else "transactions",
            worker_cpu_s=last.workers - first.workers,
            server_cpu_s=last.server - first.server,
        )

    def _loaded(self) -> bool:
        if "pg_stat_statements" not in str(self._value("SELECT current_setting('shared_preload_libraries')")):
            return False
        self._conn.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return True

    def _value(self, query: str) -> Any:
        row = self._conn.execute(query.encode()).fetchone()
        assert row is not None
        return row[0]

    def _read(self) -> _Reading:
        # The processes first: reading the rest costs the server a little, and none of it is the run's.
        workers = sum(process_cpu_s(pid) for pid in self._workers)
        server = family_cpu_s(self.server_pid)
        lsn = int(self._value("SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"))
        return _Reading(lsn, int(self._value(STATEMENTS if self._statements else TRANSACTIONS)), workers, server)
