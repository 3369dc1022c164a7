"""What the benchmarks share: ledgers made ready outside the clock, the CPU meter, the sink, the child protocol."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECRET_NAME = "REDRIVE_BENCH_SECRET"  # a name, not a secret
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"  # the published test key of Standard Webhooks

Figures = dict[str, Any]
"""What one child measured: ``value`` is the number that is compared, the rest is for the table and the file."""


def cpu_seconds() -> float:
    """User and system time of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def percentile(samples: Sequence[float], share: float) -> float:
    """The sample below which ``share`` of them lie (nearest rank)."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def ledger_url(path: Path) -> str:
    """The ledger URL of an absolute path."""
    return f"sqlite:///{path.absolute()}"


def settle(path: Path) -> None:
    """Move the write-ahead log into the file: nobody's drain starts with somebody else's checkpoint to do."""
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
        conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


@contextmanager
def copy_of(template: Path) -> Iterator[Path]:
    """A fresh copy of a prepared file, on the same disk, flushed; removed with its companions afterwards."""
    with tempfile.TemporaryDirectory(prefix="run-", dir=template.parent) as folder:
        path = Path(folder) / template.name
        shutil.copyfile(template, path)
        with path.open("rb+") as handle:
            os.fsync(handle.fileno())
        yield path


def assert_all_delivered(path: Path, expected: int) -> None:
    """Every delivery of the ledger ended delivered, each by exactly one recorded attempt."""
    with closing(sqlite3.connect(path)) as conn:
        found = dict(conn.execute("SELECT disposition, count(*) FROM delivery_state GROUP BY 1").fetchall())
        (attempts,) = conn.execute("SELECT count(*) FROM attempt WHERE outcome = 'delivered'").fetchone()
    if found != {2: expected} or attempts != expected:
        raise SystemExit(f"not all delivered: expected {expected}, dispositions {found}, attempts {attempts}")


def assert_full(path: Path) -> None:
    """The ledger's own connection flushes every commit (WAL, ``synchronous=FULL``)."""
    from redrive.ledger.sqlite.connect import connect

    with closing(connect(path)) as conn:
        mode = (conn.execute("PRAGMA journal_mode").fetchone()[0], conn.execute("PRAGMA synchronous").fetchone()[0])
    if mode != ("wal", 2):
        raise SystemExit(f"the ledger is not in WAL mode with synchronous=FULL: {mode}")


def assert_verified(path: Path) -> None:
    """``redrive verify`` has nothing to say."""
    from redrive import Redrive

    with Redrive(ledger_url(path)) as app:
        report = app.operations.verify()
    if not report.ok:
        raise SystemExit(f"verify: {report.total} problems, for example {report.problems[0]}")


# -- children ----------------------------------------------------------------------------------------


def child(roles: dict[str, Callable[[argparse.Namespace], Figures | None]]) -> None:
    """The main function of a benchmark file: run one role in this process and print what it measured as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=sorted(roles))
    parser.add_argument("--file", type=Path, required=True, help="the ledger, or the peer's database")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--port", type=int, default=0, help="the sink's")
    parser.add_argument("--check", action="store_true", help="run redrive's verify afterwards")
    arguments = parser.parse_args()
    figures = roles[arguments.role](arguments)
    if figures is not None:
        print(json.dumps(figures), flush=True)


def run_child(script: str, role: str, *, timeout_s: float = 300, **options: object) -> Figures:
    """Run one role of a benchmark file in its own process; what it printed last."""
    command = [sys.executable, str(HERE / script), role]
    for name, value in options.items():
        if value is True:
            command.append(f"--{name}")
        elif value is not False:
            command += [f"--{name}", str(value)]
    environment = {**os.environ, SECRET_NAME: SECRET}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=timeout_s, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{script} {role} failed with status {done.returncode}")
    lines = done.stdout.strip().splitlines()
    figures: Figures = json.loads(lines[-1]) if lines else {}
    return figures


def run_on_uvloop(main: Any) -> Any:
    """A coroutine on the loop that redrive's own worker uses: peers get the same one."""
    from redrive.running import loop_factory

    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        return runner.run(main)


# -- the sink ----------------------------------------------------------------------------------------


class Sink:
    """``sink.c`` compiled and running in its own process."""

    def __init__(self, folder: Path) -> None:
        program = folder / "sink"
        compiler = os.environ.get("CC", "cc")
        subprocess.run([compiler, "-O2", "-Wall", "-Wextra", "-o", program, HERE / "sink.c"], check=True)
        self._process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) > 1:
            # Where the scheduler puts the sink decides more than the client does: one place, for ours and for the peer.
            os.sched_setaffinity(self._process.pid, {max(cores)})
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def cpu_seconds(self) -> float:
        """User and system time of the sink so far."""
        stat = Path(f"/proc/{self._process.pid}/stat")
        if not stat.exists():
            return 0.0
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def posts(self) -> int:
        """POSTs received so far."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as conn:
            conn.sendall(b"GET / HTTP/1.1\r\nHost: sink\r\n\r\n")
            answer = b""
            while b"\r\n\r\n" not in answer or not answer.rpartition(b"\r\n\r\n")[2]:
                piece = conn.recv(4096)
                if not piece:
                    raise SystemExit("the sink closed the connection")
                answer += piece
        return int(answer.rpartition(b"\r\n\r\n")[2])

    def stop(self) -> None:
        """End it: its standard input closes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
