"""A ledger that a test fills by hand, through the same functions as workers and callers, on a clock it moves."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Disposition, Enqueued, Lease, NewDelivery, NewEvent
from redrive.domain.envelope import payload_hash
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import HOUR, SECOND, Jitter, Policy
from redrive.ledger import registry
from redrive.ledger.base import Accept, Publish
from redrive.ledger.entries import State
from redrive.ledger.opening import create, open_ledger
from redrive.ledger.sqlite import reserve
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

START = 1_800_000_000 * SECOND
POLICY = Policy(max_attempts=3, max_age=HOUR, base=2 * SECOND, jitter=Jitter.NONE)
OK = Outcome(OutcomeKind.DELIVERED, Category.OK, status=200)
BUSY = Outcome(OutcomeKind.RETRYABLE, Category.HTTP_5XX, status=503)
REFUSED = Outcome(OutcomeKind.PERMANENT, Category.HTTP_4XX, status=400)
UNSURE = Outcome(OutcomeKind.UNKNOWN, Category.TIMEOUT_SENT)
OWN_FAULT = Outcome(OutcomeKind.DEFERRED, Category.OWN_FAULT)
SHUTDOWN = Outcome(OutcomeKind.INTERRUPTED, Category.SHUTDOWN)
SEEN = Outcome(OutcomeKind.DELIVERED, Category.RECEIVER_DUPLICATE, status=208, flags=Flag.RECEIVER_DUPLICATE)
SEEN_BUSY = Outcome(OutcomeKind.RETRYABLE, Category.HTTP_5XX, status=503, flags=Flag.RECEIVER_DUPLICATE)
JSON = "application/json"
ROUTES = (("job", 1), ("webhook", 1))


class Desk:
    """One process at a ledger. Times are microseconds; ``now`` is both the host's clock and the ledger's."""

    def __init__(self, where: Path | str) -> None:
        self.path = where if isinstance(where, Path) else Path()
        self.now = START
        self.url = f"sqlite:///{where}" if isinstance(where, Path) else where
        create(self.url, "test", self.clock)
        self.ledger: Any = open_ledger(self.url, "test", self.clock)
        self.worker = self.register("w1")

    @property
    def dialect(self) -> str:
        return self.url.partition(":")[0]

    def clock(self) -> int:
        return self.now

    def close(self) -> None:
        self.ledger.close()

    def text(self, statement: str) -> str:
        """A statement with ``?`` and with ``@`` before each table, as this ledger wants it."""
        if self.dialect == "sqlite":
            return statement.replace("@", "")
        number = itertools.count(1)
        return re.sub(r"\?", lambda _: f"${next(number)}", statement).replace("@", "{schema}.")

    def ask(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """The rows of a statement; see :meth:`text`."""
        rows: list[tuple[Any, ...]] = self.ledger.read_sync(lambda tx: tx.rows(self.text(statement), values))
        return rows

    def change(self, statement: str, *values: Any) -> int:
        """Run a statement; see :meth:`text`. How many rows it changed."""
        count: int = self.ledger.transact_sync(lambda tx, now: tx.run(self.text(statement), values))
        return count

    def pass_time(self, us: int) -> None:
        self.now += us

    def register(self, name: str, routes: str = '[["job",1],["webhook",1]]', pid: int = 1) -> int:
        row = (name, "host-a", pid, "0.1.0", routes)
        number: int = self.ledger.transact_sync(lambda tx, now: tx.rows(sql("worker_insert"), (*row, now))[0][0])
        return number

    # -- callers

    def item(self, key: str, body: bytes = b"{}", **more: Any) -> NewDelivery:
        handler, tenant = more.pop("handler", "job"), more.pop("tenant", "acme")
        return NewDelivery(
            delivery_id=identity.delivery_id(handler, tenant, key),
            handler=handler,
            tenant=tenant,
            destination=more.pop("destination", "job"),
            policy=more.pop("policy", POLICY),
            payload_hash=payload_hash(JSON, body),
            payload=body,
            key_text=key,
            **more,
        )

    def enqueue(self, key: str, body: bytes = b"{}", **more: Any) -> Enqueued:
        made: list[Enqueued] = self.ledger.take(Accept("library", "tests", [self.item(key, body, **more)]), {})
        return made[0]

    def publish(self, key: str, destinations: Sequence[str], event_type: str = "order.paid", **more: Any) -> list[int]:
        tenant, body = more.pop("tenant", "acme"), more.pop("body", b'{"n":1}')
        policy, scope = more.get("policy", POLICY), more.get("scope")
        digest, event = payload_hash(JSON, body), identity.event_id(tenant, key)
        fan_out = [
            NewDelivery(
                identity.webhook_delivery_id(tenant, event, destination),
                "webhook",
                tenant,
                destination,
                policy,
                digest,
                None,
                scope=scope,
                key_text=key,
            )
            for destination in destinations
        ]
        if self.dialect == "postgresql":
            self._subscribe(tenant, destinations, event_type, policy, scope)
        new = NewEvent(event, key, event_type, tenant, body, digest, JSON)
        made = self.ledger.take(Publish("library", "tests", [new], lambda tx, events: [fan_out]), {})[0]
        return [delivery.seq for delivery in made.deliveries]

    def _subscribe(self, tenant: str, names: Sequence[str], event_type: str, policy: Policy, scope: str | None) -> None:
        """For a ledger that fans out by itself: exactly these destinations are there."""

        def operation(tx: Tx, now: int) -> None:
            tx.run(self.text("DELETE FROM @subscription"))
            tx.run(self.text("DELETE FROM @destination"))
            for name in names:
                row = (name, tenant, name, scope, "https://example.com/", 1, "{}", None, None, now, now)
                assert registry.insert(tx, registry.DestinationRow(*row), [event_type], policy)

        self.ledger.transact_sync(operation)

    # -- workers

    def reserve(
        self, limit: int = 1, lease_us: int = 30 * SECOND, routes: Sequence[tuple[str, int]] = ROUTES
    ) -> list[Lease]:
        numbers = [identity.route_of(*route) for route in routes]

        def operation(tx: Any, now: int) -> list[Lease]:
            if tx.dialect == "sqlite":
                return reserve.reserve(tx, now, self.worker, numbers, limit, lease_us)
            array = "{" + ",".join(map(str, numbers)) + "}"
            lows = "{" + ",".join("0" for _ in numbers) + "}"
            return [
                Lease._make(row[:-1])
                for row in tx.rows(sql("reserve"), (self.worker, array, lows, limit, lease_us, 0, False))
            ]

        leases: list[Lease] = self.ledger.transact_sync(operation)
        return leases

    def closing(self, lease: Lease, outcome: Outcome, u: float = 0.5) -> Closing:
        return Closing(
            seq=lease.seq,
            fence=lease.fence,
            generation=lease.generation,
            attempt=lease.attempt,
            started_at=lease.started_at,
            deferrals=lease.deferrals,
            outcome=outcome,
            u=u,
            duration_us=12_500,
        )

    def end(self, lease: Lease, outcome: Outcome) -> Closed:
        return self.end_all([self.closing(lease, outcome)])[0]

    def end_all(self, closings: Sequence[Closing]) -> list[Closed]:
        closed: list[Closed] = asyncio.run(self.ledger.close_attempts(self.worker, closings))
        return closed

    def attempt(self, outcome: Outcome, seq: int | None = None) -> Lease:
        """Move time to when it is due, reserve it, spend 10 ms, and end it as ``outcome``.

        With ``seq`` that delivery, which has to be the first of its handler; else whatever is due first.
        """
        found = [
            row
            for row in self.ask(
                "SELECT s.available_at, d.handler, s.seq FROM @delivery_state s JOIN @delivery d ON d.seq = s.seq"
                " WHERE s.disposition = 0 AND s.hold = 0 ORDER BY 1"
            )
            if seq in (None, row[2])
        ]
        self.now = max(self.now, found[0][0])
        (lease,) = self.reserve(routes=ROUTES if seq is None else [(found[0][1], 1)])
        assert seq in (None, lease.seq)
        self.pass_time(10_000)
        self.end(lease, outcome)
        return lease

    def kill(self, outcomes: Sequence[Outcome], seq: int | None = None) -> None:
        for outcome in outcomes:
            self.attempt(outcome, seq)

    def reap(self) -> None:
        asyncio.run(self.ledger.reap(100, [0.5], ROUTES))

    # -- operators

    def cancel(self, seq: int) -> None:
        def operation(tx: Tx, now: int) -> None:
            done = tx.run(sql("cancel_waiting"), (seq,))
            kind = "cancelled" if done else "cancel_requested"
            if done or tx.run(sql("cancel_request"), (seq,)):
                _, generation, fence = tx.rows(sql("standing"), (seq,))[0]
                row = (seq, now, kind, generation, fence, None, "ada", "not needed")
                tx.run(sql("transition_insert"), row)

        self.ledger.transact_sync(operation)

    def hold(self, destination: str, hold: bool) -> int:
        changed: int = self.ledger.transact_sync(
            lambda tx, now: registry.hold_waiting(
                tx, now, destination, 0, 1000, hold=hold, actor="ada", reason="maintenance"
            )
        )[0]
        return changed

    def redrive(self, seq: int, attempts: int = 2) -> None:
        """Open the next generation of a dead delivery, as a redrive will."""

        def operation(tx: Tx, now: int) -> None:
            ((generation, raw, policy),) = tx.rows(
                self.text(
                    "SELECT s.generation + 1, d.delivery_id, d.policy_version FROM @delivery_state s"
                    " JOIN @delivery d ON d.seq = s.seq WHERE s.seq = ?"
                ),
                (seq,),
            )
            replay, deadline = identity.replay_id(raw, generation), now + HOUR
            tx.run(
                self.text(
                    "INSERT INTO @generation (seq, generation, replay_id, parent, max_attempts, deadline_at,"
                    " policy_version, opened_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
                ),
                (seq, generation, replay, generation - 1, attempts, deadline, policy, now),
            )
            tx.run(
                self.text(
                    "UPDATE @delivery_state SET disposition = 0, generation = ?, attempt = 0, max_attempts = ?,"
                    " deadline_at = ?, available_at = ?, lane = 2 WHERE seq = ?"
                ),
                (generation, attempts, deadline, now, seq),
            )
            tx.run(
                self.text("UPDATE @dead_letter SET state = 'redriven' WHERE seq = ? AND generation = ?"),
                (seq, generation - 1),
            )

        self.ledger.transact_sync(operation)

    def state(self, seq: int) -> dict[str, Any]:
        (row,) = self.ask(f"SELECT {', '.join(State._fields)} FROM @delivery_state WHERE seq = ?", seq)
        return dict(zip(State._fields, row, strict=True))


class Churn:
    """Everything that can happen to deliveries, at random, from a seed: for tests that look on."""

    OUTCOMES = (OK, OK, SEEN, BUSY, SEEN_BUSY, UNSURE, REFUSED, OWN_FAULT, SHUTDOWN)

    def __init__(self, desk: Desk, seed: int) -> None:
        self.desk = desk
        self.random = random.Random(seed)
        self.open: list[Lease] = []
        self.stale: list[Lease] = []
        self.keys = 0
        self.seqs: list[int] = []

    def step(self) -> None:
        desk, rng = self.desk, self.random
        desk.pass_time(rng.choice((0, 1_000, SECOND, 5 * SECOND, 60 * SECOND)))
        action = rng.randrange(12)
        if action <= 1:
            self.keys += 1
            key = f"k{rng.randrange(self.keys)}" if rng.random() < 0.2 else f"k{self.keys}"
            body = b"{}" if rng.random() < 0.9 else b"[]"
            delay = rng.choice((0, 0, 3 * SECOND))
            self.seqs.append(desk.enqueue(key, body, delay_us=delay, priority=rng.randrange(4)).seq)
        elif action == 2:
            self.keys += 1
            self.seqs += desk.publish(f"e{self.keys}", rng.sample(["d1", "d2", "d3"], rng.randrange(4)))
        elif action <= 5:
            self.open += desk.reserve(rng.randrange(1, 5), 20 * SECOND)
        elif action <= 8 and self.open:
            rng.shuffle(self.open)
            count = rng.randrange(1, 4)
            batch, self.open = self.open[:count], self.open[count:]
            desk.end_all([desk.closing(lease, rng.choice(self.OUTCOMES), rng.random()) for lease in batch])
            self.stale += batch
        elif action == 9:
            desk.reap()
            if self.stale and rng.random() < 0.5:
                desk.end(rng.choice(self.stale + self.open), rng.choice((OK, UNSURE, SHUTDOWN)))
        elif action == 10 and self.seqs:
            if rng.random() < 0.3:
                desk.cancel(rng.choice(self.seqs))
            else:
                desk.hold(rng.choice(("d1", "d2")), rng.random() < 0.5)
        elif self.seqs:
            seq = rng.choice(self.seqs)
            if desk.state(seq)["disposition"] == Disposition.DEAD:
                desk.redrive(seq)


@contextlib.contextmanager
def opened(path: Path | str) -> Iterator[Desk]:
    """A desk at a new ledger, closed at the end."""
    desk = Desk(path)
    try:
        yield desk
    finally:
        desk.close()


LEDGERS = ("sqlite", "postgres")
_databases: dict[int, str] = {}
_schemas = itertools.count(1)


def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    """Where a new ledger of the fixture's parameter goes: a file, or a schema of one database for them all."""
    if request.param == "sqlite":
        return tmp_path / "l.db"
    server = request.getfixturevalue("postgres")
    if id(server) not in _databases:
        _databases[id(server)] = server.create_database()
    return str(server.url(_databases[id(server)], schema=f"reads_{next(_schemas)}", notify="off"))
