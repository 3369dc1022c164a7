"""A process of its own at a SQLite ledger: ``python -m tests.contract.sqlite_child USER WHAT URL ...``.

It says ``ready``, waits for a line on its standard input, does WHAT, and prints one JSON document.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

from tests.contract.harness import DELIVERED, JOB, LEASE, work
from tests.contract.sqlite_subject import ENVIRONMENT

from redrive.domain.delivery import Closed, Closing, Decided
from redrive.errors import RedriveError
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite.ledger import SqliteLedger, create
from redrive.ledger.sqlite.migrate import migrations
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx

ROOT = Path(__file__).parents[2]


def start(what: str, *arguments: str, user: int | None = None) -> subprocess.Popen[str]:
    """Start a child, which becomes ``user`` once it has loaded everything, and wait until it is ready."""
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.contract.sqlite_child", str(user or ""), what, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    return child


def together(children: list[subprocess.Popen[str]], timeout: float = 60) -> list[Any]:
    """Let all of them go at once; what each printed."""
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    results = []
    try:
        for child in children:
            output, _ = child.communicate(timeout=timeout)
            assert child.returncode == 0
            results.append(json.loads(output))
    finally:
        for child in children:
            child.kill()
            child.communicate()
    return results


def do_create(folder: str, rounds: str) -> list[int]:
    """Create one ledger after another as fast as the others do; how many steps each call applied."""
    return [len(create(f"sqlite:///{folder}/{number}.db", ENVIRONMENT)) for number in range(int(rounds))]


def do_work(url: str, name: str, total: str, processes: str) -> dict[str, Any]:
    """Enqueue all of the work (so does every other process), then execute what can be had, all together."""

    async def execute(ledger: SqliteLedger) -> list[str]:
        worker = await ledger.register_worker(name, [JOB])
        executed: list[str] = []
        for _ in range(3000):
            if ledger.read_sync(lambda tx: tx.rows("SELECT count(*) FROM worker"))[0][0] == int(processes):
                break
            await asyncio.sleep(0.01)
        while await ledger.outstanding([JOB]):
            leases = await ledger.reserve(worker, [JOB], 17, LEASE)
            executed += [f"{lease.delivery_id.hex()}:{lease.fence}" for lease in leases]
            closings = [
                Closing(x.seq, x.fence, x.generation, x.attempt, x.started_at, 0, DELIVERED, 0.0, 1) for x in leases
            ]
            assert set(await ledger.close_attempts(worker, closings)) <= {Closed.APPLIED}
        return executed

    ledger = SqliteLedger(url, ENVIRONMENT)
    created = 0
    for first in range(0, int(total), 50):
        items = [work(f"k{number}") for number in range(first, first + 50)]

        def accept(tx: RawTx, now: int, items: list[Any] = items) -> int:
            made = enqueue.accept(tx, now, items, path="library", producer=name)
            return sum(one.decided is Decided.CREATED for one in made)

        created += ledger.transact_sync(accept)
    executed = asyncio.run(execute(ledger))
    ledger.close()
    return {"created": created, "executed": executed}


def do_open(url: str) -> dict[str, str | None]:
    """Open the ledger and write to it; the error, if there is one."""
    try:
        ledger = SqliteLedger(url, ENVIRONMENT)
        try:
            ledger.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work("new")], path="library", producer="p"))
        finally:
            ledger.close()
    except RedriveError as error:
        return error.as_dict()
    return {"code": None}


def do_make(url: str) -> dict[str, str | None]:
    """Create the ledger; the error, if there is one."""
    try:
        create(url, ENVIRONMENT)
    except RedriveError as error:
        return error.as_dict()
    return {"code": None}


DOINGS: dict[str, Callable[..., Any]] = {
    "create": do_create,
    "work": do_work,
    "open": do_open,
    "make": do_make,
}


def become(user: int) -> None:
    """Give up all rights but those of ``user``, who may not be able to read this program's own files."""
    for entry in files("redrive.ledger.sqlite").joinpath("sql").iterdir():
        sql(entry.name.removesuffix(".sql"))
    migrations()
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)


if __name__ == "__main__":
    _, as_user, doing, *rest = sys.argv
    if as_user:
        become(int(as_user))
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps(DOINGS[doing](*rest)))
