"""Runs ours once on a PostgreSQL server: the harness of the peers, so that both are clocked by the same code.

    figures = postgres_ours.run("drain", server.url(), 100_000)

The value of a drain counts from the start of the first job until nothing on the ledger is waiting or leased;
``from_start`` counts from before the worker begins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import peers
import psycopg
from common import Figures, percentile
from measure import Meter
from peers import Peer, PeerFailed
from tls_sink import TlsSink

HERE = Path(__file__).resolve().parent
CA_FILE = "REDRIVE_BENCH_CA_FILE"  # as in postgres.py
JOBS = {"webhook": "hook", "webhook_tls": "hook_tls", "enqueue_single": "single"}
"""What is enqueued for each mode; no-op jobs for the others."""
SLOTS = {"drain": 1000, "drain_2": 1000, "webhook": 600, "webhook_tls": 600, "pickup": 100}
"""Jobs in flight in one worker process, which is all that a claim may take: a reserved attempt is a started one."""
OURS = Peer(
    "redrive",
    str(HERE / "postgres.py"),
    SLOTS,
    "SELECT count(*) FROM redrive.delivery_state WHERE disposition <= 1",
    # Each delivered, by exactly one attempt: with another row for one of them the number is another one.
    "SELECT CASE WHEN (SELECT count(*) FROM redrive.attempt) = count(*) THEN count(*) ELSE -1 END"
    " FROM redrive.delivery_state s JOIN redrive.attempt a ON a.seq = s.seq"
    " WHERE s.disposition = 2 AND s.attempt = 1 AND a.outcome = 'delivered'",
    "slots",
)


class ASink(Protocol):
    """``common.Sink``, or ``tls_sink.TlsSink``."""

    port: int

    def posts(self) -> int: ...

    def cpu_seconds(self) -> float: ...


class Run(peers._Run):
    """One run of ours in a fresh database."""

    def __init__(self, url: str, count: int, slots: int, sink: ASink | None = None) -> None:
        super().__init__(OURS, url, count, slots, sink.port if sink is not None else 0, None)
        self._sink = sink
        if isinstance(sink, TlsSink):
            self._environment |= {CA_FILE: str(sink.ca_file)}

    def pickup(self) -> Figures:
        """As the peers', and the milliseconds from a handler's end until its outcome is committed."""
        with self._children(1, "pickup", "stamp") as (child,), Meter(self._url, [child.process.pid]) as meter:
            meter.start()
            child.go()
            done = self._wait("done")
            cost = meter.stop()
        samples: list[float] = done["samples"]
        closed: list[float] = done["closed"]
        if len(samples) != self._count or len(closed) != self._count:
            raise PeerFailed(f"redrive gave {len(samples)} samples of {self._count}, {len(closed)} of them closed")
        return {
            "value": percentile(samples, 0.5),
            "p99": percentile(samples, 0.99),
            "closed_p50": percentile(closed, 0.5),
            "closed_p99": percentile(closed, 0.99),
            "busy": cost.worker_cpu_s / done["took_s"],
            **cost.per_item(self._count),
        }

    def webhooks(self, job: str) -> Figures:
        """Drain webhooks to the sink, which must have had each of them once."""
        assert self._sink is not None
        before, cpu = self._sink.posts(), self._sink.cpu_seconds()
        figures = self.work(job, 1)
        if (received := self._sink.posts() - before) != self._count:
            raise PeerFailed(f"redrive: the sink received {received} of {self._count}")
        return {**figures, "sink_cpu_us": (self._sink.cpu_seconds() - cpu) / self._count * 1e6}


def verify(url: str) -> None:
    """``redrive verify`` has nothing to say."""
    from redrive import Redrive

    with Redrive(url) as app:
        report = app.operations.verify()
    if not report.ok:
        raise PeerFailed(f"verify: {report.total} problems, for example {report.problems[0]}")


def assert_flushed(url: str) -> None:
    """A connection of the ledger's own waits until its commits are on disk."""
    from redrive import Redrive

    with Redrive(url) as app:
        found = app.ledger.read_sync(lambda tx: tx.rows("SELECT current_setting('synchronous_commit')")[0][0])
    if found != "on":
        raise PeerFailed(f"redrive's own connections commit with synchronous_commit = {found}")


def run(mode: str, url: str, count: int, slots: int = 0, sink: ASink | None = None, *, check: bool = False) -> Figures:
    """Run ours once, as ``peers.run``; what it reached and what that cost.

    Modes beside the peers': ``enqueue_single`` (single awaited enqueues from many tasks), ``webhook_tls``. ``pickup``
    also gives ``closed_p50`` and ``closed_p99`` (ms), webhooks ``sink_cpu_us``. ``check``: redrive's verify is clean.
    """
    slots = slots or SLOTS.get(mode, 0)
    with peers._database(url, "bench_redrive") as database:
        this = Run(database, count, slots, sink)
        job = JOBS.get(mode, "noop")
        figures: Figures = {"slots": slots}
        if mode == "pickup":
            figures |= this.pickup()
        elif mode in ("enqueue", "enqueue_single"):
            figures |= this.enqueue(job)
            with psycopg.connect(database) as conn:
                found = conn.execute("SELECT count(*) FROM redrive.delivery_state WHERE disposition = 0").fetchone()
            if found != (count,):
                raise PeerFailed(f"redrive: {found} of {count} enqueued")
        else:
            figures["enqueue"] = this.enqueue(job)["value"]
            figures |= this.webhooks(job) if sink is not None else this.work(job, 2 if mode == "drain_2" else 1)
        assert_flushed(database)
        if check:
            verify(database)
        return figures
