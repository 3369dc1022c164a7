"""The PostgreSQL peers, each at the best settings we found, measured as ours is.

    figures = peers.run("pgqueuer", "drain", server.url(), count=100_000)

Every run makes a database of its own on the server and drops it. A peer works in processes of its own; see child.py
for how they and this harness speak. README.md has the settings and why.
"""

from __future__ import annotations

import http.client
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
from common import SECRET, SECRET_NAME, Figures, percentile
from measure import Meter
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from peers.setup import FOLDER, Node, prepare

HERE = Path(__file__).resolve().parent
MODES = ("enqueue", "drain", "drain_2", "webhook", "pickup")
RUN_S = 300.0
POLL_S = 0.002


@dataclass(frozen=True, slots=True)
class Peer:
    """How to run one peer, and how to ask its tables whether all is done."""

    title: str
    script: str
    slots: dict[str, int]
    """For each mode the best we found: what a slot is differs (README.md)."""
    left: str
    ended: str | None
    """None where a finished job leaves no trace."""
    slots_are: str

    @property
    def on_node(self) -> bool:
        """Whether it is a Node.js script."""
        return self.script.endswith(".mjs")


PEERS = {
    "pgqueuer": Peer(
        "PgQueuer",
        "pgqueuer_peer.py",
        {"drain": 250, "drain_2": 250, "webhook": 100, "pickup": 10},
        "SELECT count(*) FROM pgqueuer",
        "SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
        "jobs a claim",
    ),
    "procrastinate": Peer(
        "Procrastinate",
        "procrastinate_peer.py",
        {"drain": 100, "drain_2": 100, "webhook": 100, "pickup": 10},
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
        "SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
        "concurrent jobs",
    ),
    "graphile": Peer(
        "graphile-worker",
        "graphile.mjs",
        {"drain": 48, "drain_2": 48, "webhook": 200, "pickup": 10},
        "SELECT count(*) FROM graphile_worker._private_jobs",
        None,
        "concurrent jobs; a fetch takes 1000 (webhook: 500)",
    ),
    "pgboss": Peer(
        "pg-boss",
        "pgboss.mjs",
        {"drain": 500, "drain_2": 500, "webhook": 200, "pickup": 10},
        "SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state < 'completed'",
        "SELECT count(*) FROM pgboss.job WHERE name = 'bench' AND state = 'completed'",
        "jobs a claim",
    ),
}


class PeerFailed(RuntimeError):
    """A peer did not do what it was asked, so there is no figure."""


class _Child:
    """One process of a peer; its lines go to a queue that all children of a run share."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], lines: queue.Queue[_Line]) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment}
        )
        self.handled = 0
        self.first = 0
        self._thread = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._thread.start()

    def _read(self, lines: queue.Queue[_Line]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"event"'):
                lines.put((self, json.loads(line)))
        lines.put((self, {"event": "ended"}))

    def go(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """It leaves when its input closes; if it does not, it is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            pass
        try:
            self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._thread.join(timeout=5)
        self.process.stdout.close()


_Line = tuple[_Child, dict[str, Any]]


class _Run:
    """One run of one peer in a fresh database."""

    def __init__(self, peer: Peer, url: str, count: int, slots: int, port: int, node: Node | None) -> None:
        self._peer = peer
        self._url = url
        self._count = count
        self._slots = slots
        self._port = port
        self._lines: queue.Queue[_Line] = queue.Queue()
        if node is not None:
            self._program = [str(node.program)]
            self._environment = {"REDRIVE_BENCH_NODE": str(node.folder)}
        else:
            self._program = [sys.executable]
            self._environment = {}
        self._environment |= {SECRET_NAME: SECRET}

    def enqueue(self, job: str) -> Figures:
        """``count`` jobs by the batch enqueue."""
        with self._children(1, "enqueue", job) as (child,), Meter(self._url, [child.process.pid]) as meter:
            meter.start()
            child.go()
            done = self._wait("done")
            cost = meter.stop()
        return {"value": self._count / done["took_s"], **cost.per_item(self._count)}

    def work(self, job: str, processes: int) -> Figures:
        """Drain what was enqueued."""
        with self._children(processes, "work", job) as children, ExitStack() as stack:
            meter = stack.enter_context(Meter(self._url, [child.process.pid for child in children]))
            conn = stack.enter_context(psycopg.connect(self._url, autocommit=True))
            meter.start()
            begun = time.monotonic_ns()
            for child in children:
                child.go()
            handled = self._until_handled(children)
            ended = self._until_closed(conn)
            cost = meter.stop()
            self._assert_ended(conn, handled)
            first = min(child.first for child in children if child.first)
        took_s = (ended - first) / 1e9
        return {
            "value": self._count / took_s,
            "from_start": self._count / ((ended - begun) / 1e9),
            **cost.per_item(self._count),
        }

    def pickup(self) -> Figures:
        """Milliseconds from the enqueue call to the handler, p50 and p99."""
        with self._children(1, "pickup", "stamp") as (child,), Meter(self._url, [child.process.pid]) as meter:
            meter.start()
            child.go()
            done = self._wait("done")
            cost = meter.stop()
        samples: list[float] = done["samples"]
        if len(samples) != self._count:
            raise PeerFailed(f"{self._peer.title} gave {len(samples)} samples of {self._count}")
        return {
            "value": percentile(samples, 0.5),
            "p99": percentile(samples, 0.99),
            "busy": cost.worker_cpu_s / done["took_s"],
            **cost.per_item(self._count),
        }

    @contextmanager
    def _children(self, number: int, role: str, job: str) -> Iterator[list[_Child]]:
        options = {"url": self._url, "count": self._count, "slots": self._slots, "job": job, "port": self._port}
        command = [*self._program, str(HERE / self._peer.script), role]
        for name, value in options.items():
            command += [f"--{name}", str(value)]
        self._lines = queue.Queue()  # the last children's farewells are not about these
        children: list[_Child] = []
        try:
            for _ in range(number):
                children.append(_Child(command, self._environment, self._lines))
            for _ in range(number):
                self._wait("ready")
            yield children
        finally:
            for child in children:
                child.stop()

    def _next(self, deadline: float) -> _Line:
        try:
            child, line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise PeerFailed(f"{self._peer.title} did not finish within {RUN_S:.0f} s") from None
        if line["event"] == "ended":
            raise PeerFailed(f"{self._peer.title} ended early")
        return child, line

    def _wait(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + RUN_S
        while True:
            _, line = self._next(deadline)
            if line["event"] == event:
                return line

    def _until_handled(self, children: Sequence[_Child]) -> int:
        deadline = time.monotonic() + RUN_S
        while (handled := sum(child.handled for child in children)) < self._count:
            child, line = self._next(deadline)
            child.handled, child.first = line["handled"], line["first"]
        return handled

    def _until_closed(self, conn: psycopg.Connection) -> int:
        deadline = time.monotonic() + RUN_S
        while self._ask(conn, self._peer.left):
            if time.monotonic() > deadline:
                raise PeerFailed(f"{self._peer.title} did not close its jobs within {RUN_S:.0f} s")
            time.sleep(POLL_S)
        return time.monotonic_ns()

    def _assert_ended(self, conn: psycopg.Connection, handled: int) -> None:
        ended = self._ask(conn, self._peer.ended) if self._peer.ended is not None else handled
        if handled != self._count or ended != self._count:
            raise PeerFailed(f"{self._peer.title}: {handled} handled, {ended} ended well, of {self._count}")

    @staticmethod
    def _ask(conn: psycopg.Connection, query: str) -> int:
        row = conn.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])


@contextmanager
def _database(url: str, name: str) -> Iterator[str]:
    """The URL of a fresh database; refuses a server whose commits are not durable."""
    with psycopg.connect(url, autocommit=True) as conn:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            row = conn.execute("SELECT current_setting(%s)", [setting]).fetchone()
            if row is None or row[0] != "on":
                raise PeerFailed(f"the server has {setting} off: its figures mean nothing")
        drop = sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        conn.execute(drop)
        conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            parts = conninfo_to_dict(url)
            password = f":{parts['password']}" if parts.get("password") else ""
            yield f"postgresql://{parts['user']}{password}@{parts['host']}:{parts['port']}/{name}"
        finally:
            conn.execute(drop)


def _received(port: int) -> int:
    """POSTs that the sink has had."""
    conn = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        conn.request("GET", "/")
        return int(conn.getresponse().read())
    finally:
        conn.close()


def run(
    peer: str, mode: str, url: str, count: int, slots: int = 0, sink_port: int = 0, folder: Path = FOLDER
) -> Figures:
    """Run one peer once; what it reached and what that cost.

    ``url``: a superuser's, of a durable server on this machine. ``slots`` 0 is the peer's best for the mode.
    ``sink_port``: for ``webhook``. ``folder``: where the Node.js packages are, or are installed to.

    Figures: ``value`` (jobs/s; ms p50 for ``pickup``), for each job ``cpu_us`` (the peer's processes),
    ``server_cpu_us``, ``wal_bytes`` and ``statements``; ``slots``. Of a drain and of webhooks also ``from_start`` (the
    rate counted from before the worker starts, where ``value`` counts from its first job's start) and ``enqueue`` (the
    rate at which the jobs were enqueued before, not part of the value). Of ``pickup`` also ``p99`` (ms) and ``busy``
    (cores that the idle worker uses).

    Raises ``PeerFailed``, and ``PeersMissing`` when something is not installed.
    """
    if mode not in MODES:
        raise ValueError(f"no mode {mode!r}: {', '.join(MODES)}")
    one = PEERS[peer]
    slots = slots or one.slots.get(mode, 0)
    node = prepare(folder) if one.on_node else None
    with _database(url, f"bench_{peer}") as database:
        this = _Run(one, database, count, slots, sink_port, node)
        if mode == "pickup":
            return {**this.pickup(), "slots": slots}
        if mode == "enqueue":
            return {**this.enqueue("noop"), "slots": 0}
        job = "hook" if mode == "webhook" else "noop"
        enqueued = this.enqueue(job)
        before = _received(sink_port) if job == "hook" else 0
        figures = this.work(job, 2 if mode == "drain_2" else 1)
        if job == "hook" and (received := _received(sink_port) - before) != count:
            raise PeerFailed(f"{one.title}: the sink received {received} of {count}")
        return {**figures, "enqueue": enqueued["value"], "slots": slots}
