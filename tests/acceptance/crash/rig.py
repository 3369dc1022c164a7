"""Starts, kills and restarts the scenario's processes, and holds the three logs against each other afterwards."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import psycopg
from psycopg.rows import dict_row
from tests.acceptance.crash.scenario import (
    ANSWERS,
    LEDGER_VARIABLE,
    SECRET,
    SECRET_VARIABLE,
    Scenario,
    ledger_path,
    prepare,
    produce,
)

from redrive.domain.identity import to_text
from redrive.ledger.opening import open_ledger
from redrive.ledger.postgres.connect import PostgresUrl
from redrive.ledger.verify import verify
from redrive.testing.checker import Report, check
from redrive.testing.evidence import read_lines
from redrive.testing.receiver import Receiver
from redrive.testing.rules import WORDS

ROOT: Final = Path(__file__).resolve().parents[3]
TIMEOUT_S: Final = 60.0
KILLED: Final = -signal.SIGKILL


def script(prefixes: list[str]) -> dict[str, Any]:
    """The receiver's script for scenarios under these prefixes: each has answers of its own."""
    return {f"{prefix}/{name}": answers for prefix in prefixes for name, answers in ANSWERS.items()}


@contextlib.contextmanager
def receiver(folder: Path, prefixes: list[str]) -> Iterator[Receiver]:
    """One receiver process for many scenarios."""
    with Receiver(folder, script=script(prefixes), secrets=(SECRET,)) as process:
        yield process


def until(condition: Callable[[], bool], what: str, timeout_s: float = TIMEOUT_S, every_s: float = 0.005) -> None:
    """Wait for something that other processes bring about."""
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"it did not happen within {timeout_s} s: {what}")
        time.sleep(every_s)


class Process:
    """One scenario process. Stopped by its own PID, whatever state it is in."""

    def __init__(
        self,
        folder: Path,
        role: str,
        failpoint: str | None = None,
        slots: int | None = None,
        ledger: str | None = None,
        skew_s: int = 0,
    ) -> None:
        environ = {**os.environ, SECRET_VARIABLE: SECRET}
        if ledger is not None:
            environ[LEDGER_VARIABLE] = ledger
        environ.pop("REDRIVE_FAILPOINT", None)
        if failpoint is not None:
            environ["REDRIVE_FAILPOINT"] = failpoint
        self.stderr = folder / f"{role}-{time.monotonic_ns()}.stderr"
        program = ["scenario"] if not skew_s else ["skewed", str(skew_s)]
        command = [sys.executable, "-m", f"tests.acceptance.crash.{program[0]}", *program[1:], role, str(folder)]
        command += [] if slots is None else [str(slots)]
        with self.stderr.open("wb") as stderr:
            self._process = subprocess.Popen(command, cwd=ROOT, env=environ, stderr=stderr)
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        """Whether it has not ended; a stopped process has not."""
        return self._process.poll() is None

    @property
    def stopped(self) -> bool:
        """Whether SIGSTOP holds every thread of it."""
        tasks = Path(f"/proc/{self.pid}/task").iterdir()
        return all((task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks)

    def until_stopped(self) -> None:
        """Wait until SIGSTOP holds it."""
        until(lambda: self.stopped, f"process {self.pid} stops")

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._process.send_signal(number)

    def wait(self, timeout_s: float = TIMEOUT_S) -> int:
        """Its exit status; negative for the signal that ended it."""
        return self._process.wait(timeout_s)

    def end(self) -> None:
        """Kill it if it still runs."""
        if self.running:
            self._process.kill()
        self._process.wait()


class Rig:
    """One scenario: a ledger of its own, its logs, its processes.

    ``look`` is the URL by which the rig itself looks at a server's ledger, if not the processes' own.
    """

    def __init__(self, folder: Path, receiver: Receiver, scenario: Scenario, look: str | None = None) -> None:
        self.folder = folder
        self.server = look or scenario.ledger
        self.receiver = receiver
        self.scenario = scenario
        self._processes: list[Process] = []
        prepare(folder, scenario)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        for process in self._processes:
            process.end()

    @property
    def ledger(self) -> Path | str:
        """The ledger's file, or its URL."""
        return self.server or ledger_path(self.folder)

    # Processes.

    def start(self, role: str, failpoint: str | None = None, slots: int | None = None, **other: Any) -> Process:
        """Start ``produce``, ``stream``, ``work`` (until idle) or ``serve`` (until told), armed or not.

        ``ledger`` is another way to the ledger, ``skew_s`` how wrong the host's clock is.
        """
        process = Process(self.folder, role, failpoint, slots, **other)
        self._processes.append(process)
        return process

    def run(self, role: str, failpoint: str | None = None, slots: int | None = None) -> int:
        """Start it and wait for its end; the exit status."""
        return self.start(role, failpoint, slots).wait()

    def produce(self) -> None:
        """Everything is handed over and acknowledged."""
        produce(self.folder, Scenario.load(self.folder))

    def finish(self) -> None:
        """A healthy worker does what is left."""
        assert self.run("work") == 0, self.complaints()

    def complaints(self) -> str:
        """What the processes said on standard error."""
        return "\n".join(process.stderr.read_text()[-2000:] for process in self._processes)

    # Evidence.

    def requests(self) -> list[Any]:
        """This scenario's part of the receiver's log."""
        return [seen for seen in self.receiver.requests() if seen["path"].startswith(self.scenario.prefix + "/")]

    def effects(self) -> list[Any]:
        """What the handlers logged, and the effects that are rows in the ledger's own database."""
        steps = read_lines(self.folder / "effects.jsonl")
        rows = self.rows("SELECT at_us, delivery, attempt, fence FROM effect ORDER BY at_us")
        own = [{**row, "step": "effect"} for row in rows]
        return sorted([*steps, *own], key=lambda step: step["at_us"])

    def starts(self) -> list[tuple[str, str]]:
        """(delivery, attempt) of each call of a handler, in order."""
        return [(step["delivery"], step["attempt"]) for step in self.effects() if step["step"] == "start"]

    def rows(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        """Ask the ledger, in SQL that both databases understand."""
        if self.server:
            return self._server_rows(statement.replace("?", "%s"), *arguments)
        conn = sqlite3.connect(f"file:{self.ledger}?mode=ro", uri=True, timeout=10)
        conn.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in conn.execute(statement, arguments)]
        finally:
            conn.close()

    def _server_rows(self, statement: str, *arguments: Any) -> list[dict[str, Any]]:
        url = PostgresUrl.parse(self.server)
        with psycopg.connect(url.conninfo, row_factory=dict_row) as conn:
            conn.execute("SELECT set_config('search_path', %s, true)", [f"{url.schema}, public"])
            return conn.execute(statement.encode(), arguments or None).fetchall()

    def deliveries(self) -> list[dict[str, Any]]:
        """Every delivery as it stands: name, handler, disposition in words, attempt, fence."""
        rows = self.rows(
            "SELECT d.delivery_id, d.handler, d.key, s.* FROM delivery d JOIN delivery_state s USING (seq) ORDER BY seq"
        )
        for row in rows:
            row["name"] = to_text("dlv", row.pop("delivery_id"))
            row["disposition"] = WORDS[row["disposition"]]
        return rows

    def of(self, handler: str) -> list[dict[str, Any]]:
        """The deliveries of one handler."""
        return [row for row in self.deliveries() if row["handler"] == handler]

    def attempts(self, seq: int) -> list[dict[str, Any]]:
        """The closed attempts of a delivery."""
        return self.rows("SELECT * FROM attempt WHERE seq = ? ORDER BY fence", seq)

    def unlocked(self) -> bool:
        """Whether nobody is in a write transaction: a process that is stopped in one keeps everybody waiting."""
        if self.server:
            open_ones = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database()"
            return not self._server_rows(open_ones + " AND xact_start IS NOT NULL AND pid <> pg_backend_pid()")
        conn = sqlite3.connect(self.ledger, timeout=0.2, isolation_level=None)
        try:
            conn.execute("BEGIN IMMEDIATE")
            conn.execute("ROLLBACK")
        except sqlite3.OperationalError:
            return False
        finally:
            conn.close()
        return True

    def check(self, *, drained: bool = True) -> Report:
        """The offline checker over the three logs."""
        return check(self.folder / "producer.jsonl", self.ledger, self.requests(), self.effects(), drained=drained)

    def assert_sound(self) -> Report:
        """The contract holds, by the checker and by ``redrive verify``; returns the checker's report."""
        report = self.check()
        assert report.ok, f"{report}\n{self.complaints()}"
        ledger = open_ledger(self.server or f"sqlite:///{self.ledger}", "development")
        try:
            verified = verify(ledger, quick_check=True)
        finally:
            ledger.close()
        assert verified.ok, [f"{p.rule}: {p.delivery}: {p.message}" for p in verified.problems]
        return report
