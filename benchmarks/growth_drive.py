"""Drives one worker process for the growth benchmark, and reads from the ledger how fast it was."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
from postgres_ours import Run

LIMIT_S = 120.0
"""Longer than any drain of ours should take: what is done by then gives the rate, and misses its bar."""
POLL_S = 0.005
SAMPLE_S = 0.05
PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 1024 / 1024


@dataclass(slots=True)
class Drained:
    """What the attempt rows of some deliveries say. Times are ledger microseconds."""

    started_at: int
    ended_at: Sequence[int]
    """Of each delivery, in order."""
    rss: list[float] = field(default_factory=list)
    """Resident MiB of the worker, at even intervals."""

    @property
    def rate(self) -> float:
        """Deliveries a second, from the first start to the last end."""
        return len(self.ended_at) / (self.ended_at[-1] - self.started_at) * 1e6

    def tail_rate(self, share: float) -> float:
        """The rate of the last ``share`` of them."""
        at = int(len(self.ended_at) * (1 - share)) - 1
        return (len(self.ended_at) - 1 - at) / (self.ended_at[-1] - self.ended_at[at]) * 1e6


def rss_thirds(samples: Sequence[float]) -> tuple[float, float, float]:
    """The median of each third."""
    if len(samples) < 3:
        raise SystemExit("too few samples of the worker's memory: a larger --scale")
    third = len(samples) // 3
    return median(samples[:third]), median(samples[third : 2 * third]), median(samples[-third:])


class WorkerProcess:
    """One worker that works until its harness leaves, whatever is waiting."""

    def __init__(self, process: Any, conn: psycopg.Connection[Any]) -> None:
        self._process = process
        self._conn = conn

    def drain(self, numbers: range) -> Drained:
        """Wait until every one of ``numbers``, which come up in their order, has been delivered, or the time is up."""
        if not numbers:
            raise SystemExit("nothing is left to measure: a larger --scale")
        deadline = time.monotonic() + LIMIT_S
        while not self._ended(numbers[-1]) or self.closed_of(numbers) < len(numbers):
            if self._process.poll() is not None:
                raise SystemExit(f"the worker ended with status {self._process.returncode}")
            if time.monotonic() > deadline:
                print(f"  {len(numbers):,} were not drained within {LIMIT_S:.0f} s", file=sys.stderr, flush=True)
                break
            time.sleep(POLL_S)
        in_time = time.monotonic() <= deadline
        rows = self._conn.execute(
            "SELECT started_at, ended_at, outcome FROM redrive.attempt WHERE seq BETWEEN %s AND %s ORDER BY ended_at",
            (numbers[0], numbers[-1]),
        ).fetchall()
        failed = [row[2] for row in rows if row[2] != "delivered"]
        if not rows or (in_time and (failed or len(rows) != len(numbers))):
            raise SystemExit(f"{len(rows)} attempts for {len(numbers)} deliveries, {len(failed)} of them not delivered")
        return Drained(min(row[0] for row in rows), [row[1] for row in rows])

    def closed_of(self, numbers: range) -> int:
        """How many of them have an attempt."""
        row = self._conn.execute(
            "SELECT count(*) FROM redrive.attempt WHERE seq BETWEEN %s AND %s", (numbers[0], numbers[-1])
        ).fetchone()
        assert row is not None
        return int(row[0])

    def _ended(self, number: int) -> bool:
        return self._conn.execute("SELECT 1 FROM redrive.attempt WHERE seq = %s", (number,)).fetchone() is not None

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """SIGSTOP: it does nothing meanwhile, and keeps its connections and what was planned on them."""
        os.kill(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self._process.pid, signal.SIGCONT)

    @contextmanager
    def sampled(self) -> Iterator[list[float]]:
        """Its resident memory in MiB, every 50 ms."""
        samples: list[float] = []
        done = threading.Event()
        path = Path(f"/proc/{self._process.pid}/statm")

        def sample() -> None:
            while not done.wait(SAMPLE_S):
                samples.append(int(path.read_text().split()[1]) * PAGE_MIB)

        thread = threading.Thread(target=sample, daemon=True)
        thread.start()
        try:
            yield samples
        finally:
            done.set()
            thread.join()


@contextmanager
def worker(url: str, slots: int) -> Iterator[WorkerProcess]:
    """A worker process of its own, ready when the block begins and drained when it ends."""
    run = Run(url, 2**31, slots)
    with (
        run._children(1, "serve", "noop") as (child,),
        psycopg.connect(url, autocommit=True, prepare_threshold=0) as conn,
    ):
        child.go()
        yield WorkerProcess(child.process, conn)


def drain(url: str, numbers: range, slots: int, *, sample: bool = False) -> Drained:
    """Drain what waits with a new worker process."""
    with worker(url, slots) as one:
        if not sample:
            return one.drain(numbers)
        with one.sampled() as rss:
            drained = one.drain(numbers)
        drained.rss = rss
        return drained


@contextmanager
def pinned(url: str) -> Iterator[None]:
    """A transaction that stays open, with a snapshot and an ID of its own: no dead row can be cleared away."""
    with psycopg.connect(url) as conn:
        conn.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        conn.execute("SELECT pg_current_xact_id()")
        yield
        conn.rollback()
