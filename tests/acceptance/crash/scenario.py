"""The application that is killed: a producer and a worker, each a process of its own.

``python -m tests.acceptance.crash.scenario ROLE FOLDER [SLOTS]``, where the role is ``produce``, ``stream`` (produce
until told that it is enough), ``work`` (until idle) or ``serve`` (until a signal). The folder holds the ledger, if it
is a file, the producer's log, the effects log and ``scenario.json`` (:class:`Scenario`); ``REDRIVE_FAILPOINT`` arms
the process.
"""

from __future__ import annotations

import asyncio
import ctypes
import hashlib
import json
import os
import resource
import signal
import sqlite3
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import psycopg

from redrive import Permanent, Policy, Redrive, Retry
from redrive.app import Context
from redrive.domain import identity
from redrive.domain.policy import Jitter
from redrive.domain.values import canonical_json
from redrive.errors import LedgerError
from redrive.ledger.opening import is_postgres
from redrive.ledger.postgres.connect import PostgresUrl
from redrive.testing.evidence import EffectsLog, ProducerLog
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.sender.request import Timeouts
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.worker.settings import WorkerSettings

SECRET: Final = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD"
"""The example of the Standard Webhooks specification; it reaches the processes in their environment."""
SECRET_VARIABLE: Final = "REDRIVE_CRASH_SECRET"
LEDGER_VARIABLE: Final = "REDRIVE_CRASH_LEDGER"
"""The ledger's URL for one process, where its way there is not the others'."""
MILLISECOND: Final = 1000
ANSWERS: Final[dict[str, Any]] = {
    "ok": {"answers": [{"status": 200}]},
    "flaky": {"answers": [{"status": 503}, {"status": 200}]},
    "bad": {"answers": [{"status": 400}]},
    "hang": {"answers": [{"hang_s": 3, "effect": True}, {"status": 200}]},
    "down": {"answers": [{"status": 503}]},
    "limited": {"answers": [{"status": 429, "headers": {"Retry-After": "1"}}, {"status": 200}]},
}
"""Destinations, and what the receiver answers each: the last part of the path."""
ENOUGH: Final = "enough"
"""The file that ends a stream."""
MOST_TURNS: Final = 400
CLOSES_IN: Final = "ledgered"
"""The handler whose effect is a row in the ledger's own database."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is produced, and how the worker is set. Times are seconds."""

    port: int
    prefix: str
    """Path under which this scenario's requests arrive at the shared receiver."""
    events: dict[str, int] = field(default_factory=lambda: {"ok": 6, "flaky": 4, "bad": 1, "hang": 1})
    """Events by destination."""
    jobs: dict[str, int] = field(
        default_factory=lambda: {"plain": 2, "sync": 2, "again": 1, "refused": 1, "ledgered": 1, "slow": 1}
    )
    """Jobs by handler."""
    lease: float = 0.5
    slots: int = 32
    threads: int = 8
    drain: float = 5.0
    max_attempts: int = 8
    poison: str = ""
    """How the poison handler kills its process."""
    die_after_commit: bool = False
    """Whether the first attempt of a ``ledgered`` job dies right after its commit."""
    ledger: str = ""
    """URL of the ledger; empty: a file in the folder."""
    poll: float = 0.2
    first_byte: float = 0.25
    """Seconds that a destination has for the first byte of its answer."""

    def policy(self) -> Policy:
        return Policy(
            max_attempts=self.max_attempts,
            base=20 * MILLISECOND,
            factor=2.0,
            cap=200 * MILLISECOND,
            floor=10 * MILLISECOND,
            jitter=Jitter.EQUAL,
        )

    def save(self, folder: Path) -> None:
        (folder / "scenario.json").write_text(json.dumps(asdict(self)))

    @staticmethod
    def load(folder: Path) -> Scenario:
        return Scenario(**json.loads((folder / "scenario.json").read_text()))


def ledger_path(folder: Path) -> Path:
    return folder / "ledger.db"


def ledger_url(folder: Path, scenario: Scenario) -> str:
    return os.environ.get(LEDGER_VARIABLE) or scenario.ledger or f"sqlite:///{ledger_path(folder)}"


def own_transaction(url: str) -> tuple[Any, str]:
    """The user's own connection to the ledger's database, with a transaction open, and what stands for a parameter."""
    if is_postgres(url):
        return psycopg.connect(PostgresUrl.parse(url).conninfo), "%s"
    conn = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=10, isolation_level=None)
    conn.execute("BEGIN IMMEDIATE")
    return conn, "?"


def application(folder: Path, scenario: Scenario) -> Redrive:
    """The application with every handler; each handler writes to the effects log what it does."""
    url = ledger_url(folder, scenario)
    app = Redrive(
        url,
        address_policy=AddressPolicy.build(["127.0.0.0/8"], [scenario.port], True),
        worker=WorkerSettings(
            slots=scenario.slots,
            lease_s=scenario.lease,
            reap_s=0.05,
            poll_s=scenario.poll,
            drain_s=scenario.drain,
            threads=scenario.threads,
        ),
    )
    effects = EffectsLog(folder / "effects.jsonl")
    policy = scenario.policy()

    def note(ctx: Context, step: str) -> None:
        effects.note(step, ctx.delivery_id, ctx.generation, ctx.attempt, ctx.fence)

    @app.handler("plain", policy=policy)
    async def plain(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        await asyncio.sleep(0)
        note(ctx, "effect")

    @app.handler("sync", policy=policy)
    def sync(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        note(ctx, "effect")

    @app.handler("again", policy=policy)
    async def again(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        if ctx.attempt == 1:
            raise Retry(after=0.03)
        note(ctx, "effect")

    @app.handler("refused", policy=policy)
    async def refused(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        raise Permanent("rejected")

    @app.handler("slow", policy=policy)
    async def slow(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        await asyncio.sleep(scenario.lease * 0.6)
        note(ctx, "effect")

    @app.handler("blocking", policy=policy)
    def blocking(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        end = time.monotonic() + 20
        while not (folder / "release").exists() and time.monotonic() < end:
            time.sleep(0.005)
        note(ctx, "effect")

    @app.handler("stopping", policy=policy)
    async def stopping(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        if ctx.attempt == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        note(ctx, "effect")

    @app.handler("poison", policy=policy)
    async def poison(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        await asyncio.sleep(0.05)
        if scenario.poison == "exit":
            os._exit(3)
        if scenario.poison == "segv":
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            ctypes.string_at(0)
        os.kill(os.getpid(), signal.SIGKILL)

    @app.handler(CLOSES_IN, policy=policy)
    def ledgered(ctx: Context, payload: Any) -> None:
        note(ctx, "start")
        conn, mark = own_transaction(url)
        try:
            row = (ctx.delivery_id, f"{ctx.generation}.{ctx.attempt}", ctx.fence, time.time_ns() // 1000)
            conn.execute(f"INSERT INTO effect VALUES ({', '.join([mark] * len(row))})", row)
            ctx.close_in(conn)
            conn.commit()
            if scenario.die_after_commit:
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            conn.close()

    return app


def prepare(folder: Path, scenario: Scenario) -> None:
    """The ledger, its destinations, and a table of the user's own beside redrive's."""
    folder.mkdir(parents=True, exist_ok=True)
    scenario.save(folder)
    with application(folder, scenario) as app:
        app.init()
        for name in ANSWERS:
            url = f"http://127.0.0.1:{scenario.port}{scenario.prefix}/{name}"
            settings = DestinationSettings(
                url,
                event_types=(f"{name}.happened",),
                allow_http=True,
                policy=scenario.policy(),
                secrets=(SigningSecret(f"env:{SECRET_VARIABLE}"),),
                timeouts=Timeouts(first_byte=scenario.first_byte, total=5.0),
            )
            app.destinations.add(name, settings)
    conn, _ = own_transaction(ledger_url(folder, scenario))
    conn.execute("CREATE TABLE effect (delivery TEXT, attempt TEXT, fence BIGINT, at_us BIGINT)")
    conn.commit()
    conn.close()


def _work_to_do(scenario: Scenario) -> Iterator[tuple[str, str, int]]:
    for destination, count in scenario.events.items():
        for number in range(count):
            yield "event", destination, number
    for handler, count in scenario.jobs.items():
        for number in range(count):
            yield "job", handler, number


def produce(folder: Path, scenario: Scenario) -> None:
    """Hand everything over, one call at a time; run again, it hands over the same things."""
    log = ProducerLog(folder / "producer.jsonl")
    with application(folder, scenario) as app:
        for item in _work_to_do(scenario):
            _hand_over(app, log, *item)
    log.close()


def stream(folder: Path, scenario: Scenario) -> None:
    """Hand over the same again and again under new keys, until ``enough`` is there; what was refused is repeated."""
    log = ProducerLog(folder / "producer.jsonl")
    items = list(_work_to_do(scenario))
    with application(folder, scenario) as app:
        for turn in range(MOST_TURNS):
            for kind, name, number in items:
                while True:
                    try:
                        _hand_over(app, log, kind, name, turn * len(items) + number)
                        break
                    except LedgerError as exc:
                        print(f"handing over {name} again: {exc}", file=sys.stderr, flush=True)
                        time.sleep(0.05)
                time.sleep(0.005)
            if (folder / ENOUGH).exists():
                break
    log.close()


def _hand_over(app: Redrive, log: ProducerLog, kind: str, name: str, number: int) -> None:
    payload = {"name": name, "number": number}
    digest = hashlib.sha256(canonical_json(payload)).hexdigest()
    key = f"{name}-{number}"
    if kind == "event":
        event = identity.to_text("evt", identity.event_id("default", key))
        log.tried(event=event)
        publication = app.publish(f"{name}.happened", payload, event_id=key)
        log.acknowledged(publication.deliveries, digest, publication.event_id)
    else:
        delivery = identity.to_text("dlv", identity.delivery_id(name, "default", key))
        log.tried(deliveries=[delivery])
        job = app.enqueue(name, payload, key=key)
        log.acknowledged([job.delivery_id], digest)


def main() -> None:
    role, folder = sys.argv[1], Path(sys.argv[2])
    scenario = Scenario.load(folder)
    if len(sys.argv) > 3:
        scenario = replace(scenario, slots=int(sys.argv[3]))
    if role in ("produce", "stream"):
        (produce if role == "produce" else stream)(folder, scenario)
    else:
        with application(folder, scenario) as app:
            app.run(until_idle=role == "work")


if __name__ == "__main__":
    main()
