"""The whole public API, used as its users do. It is type-checked (mypy --strict) and never run."""

from __future__ import annotations

import asyncio
import sqlite3
from datetime import UTC, datetime, timedelta
from typing import assert_type
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from redrive import (
    UNIQUE,
    Conflict,
    Context,
    InvalidInput,
    Jitter,
    NoOp,
    NotFound,
    OnUnknown,
    Permanent,
    Policy,
    Redrive,
    RedriveError,
    Retry,
    Unknown,
    __version__,
)
from redrive.app import Job, JobSpec, Publication
from redrive.errors import LedgerBusy, LedgerError
from redrive.ledger.records import AttemptView, DeliveryView
from redrive.running import Rest
from redrive.webhooks.destinations import Destination
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.handler import Sent
from redrive.webhooks.publish import Event
from redrive.webhooks.sender.request import Timeouts
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.webhooks.signing import SignatureInvalid, verify
from redrive.worker.settings import WorkerSettings

assert_type(__version__, str)

app = Redrive(
    "sqlite:///redrive.db",
    environment="production",
    worker=WorkerSettings(slots=50, lease_s=30.0, reap_s=1.0, poll_s=5.0, drain_s=20.0, threads=16),
    max_payload_bytes=1024,
    address_policy=AddressPolicy.build(["10.0.0.0/8"], [443, 8443], allow_http=False),
    producer="shop",
    path="import",
    clock=lambda: 0,
    random=lambda: 0.5,
)
assert_type(app.init(), list[str])
app.address_policy = AddressPolicy.build(["10.0.0.0/8"])
assert_type(app.address_policy, AddressPolicy)

policy = Policy(
    max_attempts=6,
    max_age=6 * 3600 * 1_000_000,
    base=2_000_000,
    factor=2.0,
    cap=900_000_000,
    floor=0,
    jitter=Jitter.EQUAL,
    retry_after_cap=3_600_000_000,
    on_unknown=OnUnknown.CONFIRM,
)


async def is_there(context: Context, payload: object) -> bool | None:
    return None if context.ambiguous else True


@app.handler(
    "invoice",
    policy=policy,
    timeout=timedelta(seconds=30),
    unknown="confirm",
    confirm=is_there,
    outcomes={KeyError: Permanent("policy"), TimeoutError: Retry(after="5m"), ValueError: NoOp(), OSError: Unknown()},
    decoders={1: bytes.decode},
    envelope_version=1,
)
async def invoice(context: Context, payload: dict[str, int]) -> None:
    assert_type(context.delivery_id, str)
    assert_type(context.attempt_id, str)
    assert_type(context.handler, str)
    assert_type(context.tenant, str)
    assert_type(context.scope, str | None)
    assert_type(context.destination, str)
    assert_type(context.generation, int)
    assert_type(context.attempt, int)
    assert_type(context.max_attempts, int)
    assert_type(context.fence, int)
    assert_type(context.ambiguous, bool)
    assert_type(context.holds_lease(), bool)
    if not payload:
        raise NoOp
    if payload["amount"] < 0:
        raise Permanent("payload_invalid")
    if payload["amount"] == 0:
        raise Retry(after=timedelta(minutes=5))
    raise Unknown


# The decorator hands the function back with its own type.
async def direct(context: Context) -> None:
    await invoice(context, {"amount": 1})


@app.handler("sweep", timeout="15m")
def sweep(context: Context, payload: None) -> None:
    with sqlite3.connect("redrive.db") as connection:
        context.close_in(connection)


async def effects(
    context: Context, one: AsyncConnection, two: AsyncSession, three: Session, four: sa.Connection
) -> None:
    await context.close_in_async(one)
    await context.close_in_async(two, no_op=True)
    context.close_in(three, no_op=True)
    context.close_in(four)


@app.confirm("crm")
async def crm_has(sent: Sent) -> bool | None:
    assert_type(sent.delivery_id, str)
    assert_type(sent.payload, bytes)
    return sent.attempt > 1


def enqueue(connection: sqlite3.Connection, session: Session) -> None:
    job = app.enqueue(
        "invoice",
        {"amount": 1},
        key=("order", 7, UUID(int=1), b"x", True, None),
        tenant="acme",
        scope="shop-7",
        destination="crm",
        delay=timedelta(minutes=5),
        priority=0,
        policy=Policy(max_attempts=2),
        connection=connection,
        allow_unknown=True,
    )
    assert_type(job, Job)
    assert_type(job.delivery_id, str)
    assert_type(job.created, bool)
    app.enqueue("invoice", key=UNIQUE, at=datetime.now(UTC))
    app.enqueue("invoice", key="a", delay="1h30m")
    app.enqueue("invoice", key=1, delay=0.5)
    assert_type(
        app.enqueue_many([JobSpec("invoice", [1], "a"), JobSpec("sweep", key=1)], connection=session), list[Job]
    )


def publish(connection: sa.Connection) -> None:
    made = app.publish(
        "order.paid",
        b'{"n": 1}',
        event_id="evt-1",
        tenant="acme",
        scope=None,
        content_type="application/json",
        occurred_at=datetime.now(UTC),
        connection=connection,
    )
    assert_type(made, Publication)
    assert_type(made.event_id, str)
    assert_type(made.deliveries, tuple[str, ...])
    assert_type(app.publish_many([Event("order.paid", {"n": 1}, UNIQUE)]), list[Publication])


async def asynchronously(connection: AsyncConnection) -> None:
    assert_type(await app.enqueue_async("invoice", {"amount": 1}, key=1, connection=connection), Job)
    assert_type(await app.enqueue_many_async([JobSpec("invoice", key=1, policy=policy)], allow_unknown=True), list[Job])
    assert_type(await app.publish_async("order.paid", {}, event_id=1, tenant="acme"), Publication)
    assert_type(await app.publish_many_async([Event("order.paid", {}, 1)], connection=connection), list[Publication])
    stop = asyncio.Event()
    await app.work(until_idle=True, stop=stop)
    assert_type(await app.work(burst=True, linger="30s"), Rest | None)


def destinations() -> None:
    settings = DestinationSettings(
        "https://hooks.example.com/in",
        event_types=("order.*",),
        scope="shop-7",
        policy=Policy(on_unknown=OnUnknown.CONFIRM),
        timeouts=Timeouts(dns=1, connect=1, tls=1, first_byte=5, total=10),
        headers=(("Authorization", "env:CRM_TOKEN"),),
        secrets=(SigningSecret("env:CRM_SECRET"), SigningSecret("file:/run/secrets/old", until=1)),
        acknowledge="200-204",
        duplicate_status=208,
        overrides=(("404", "retryable"),),
        confirm="crm",
        excerpt=200,
    )
    made = app.destinations.add("crm", settings, tenant="acme", actor="ann")
    assert_type(made, Destination)
    assert_type(made.enabled, bool)
    app.destinations.change("crm", settings, tenant="acme")
    app.destinations.rotate_secret("crm", "env:NEW", overlap_us=86_400_000_000, tenant="acme")
    assert_type(app.destinations.list(tenant=None), list[Destination])
    assert_type(app.destinations.disable("crm", reason="maintenance", tenant="acme"), int)
    assert_type(app.destinations.enable("crm", tenant="acme"), int)
    app.destinations.set_schema("order.paid", {"type": "object"})


def operate(delivery_id: str) -> None:
    operations = app.operations
    assert_type(operations.show(delivery_id), DeliveryView)
    for view in operations.search(limit=10).items:
        assert_type(view, DeliveryView)
    for attempt in operations.attempts(delivery_id):
        assert_type(attempt, AttemptView)
        assert_type(attempt.flags, tuple[str, ...])
    for entry in operations.timeline(delivery_id):
        assert_type(entry.at, int)
    assert_type(operations.payload(delivery_id), tuple[str, bytes])
    assert_type(operations.cancel(delivery_id, reason="duplicate order", actor="ann"), bool)
    for letter in operations.dead().items:
        assert_type(letter.cause, str)
    for count in operations.dead_counts():
        assert_type(count.count, int)
    assert_type(operations.status().environment, str)
    assert_type(operations.due().next_due_us, int | None)
    assert_type([worker.silent for worker in operations.workers()], list[bool])
    assert_type([worker.stale for worker in operations.workers()], list[bool])
    assert_type([item.worker_versions for item in operations.envelopes().items], list[tuple[str, ...]])
    assert_type(operations.verify().ok, bool)
    assert_type(operations.repair_clock(actor="ann").repaired, bool)


def receive(headers: dict[str, str], body: bytes) -> bool:
    try:
        verify(["whsec_..."], headers, body, now=0.0)
    except SignatureInvalid:
        return False
    return True


def errors() -> None:
    try:
        app.run(until_idle=True)
        rest = app.run(burst=True, linger=1.5)
        assert_type(None if rest is None else rest.next_due_at, int | None)
    except (Conflict, NotFound, InvalidInput) as error:
        assert_type(error.param, str | None)
    except LedgerBusy:
        pass
    except LedgerError as error:
        assert_type(error.hint, str | None)
    except RedriveError as error:
        assert_type(error.code, str)
        assert_type(error.exit_status, int)
        assert_type(error.http_status, int)
        assert_type(error.as_dict(), dict[str, str | None])
    with app as same:
        assert_type(same, Redrive)
    app.close()


# What must be an error: mypy reports an ignore that is not needed.
app.enqueue("invoice", {"amount": 1})  # type: ignore[call-arg]
app.publish("order.paid", {})  # type: ignore[call-arg]
app.handler("x")("not a function")  # type: ignore[type-var]
app.handler("x", outcomes={ValueError: "dead"})  # type: ignore[dict-item]
WorkerSettings(slot=1)  # type: ignore[call-arg]
