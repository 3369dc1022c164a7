"""A ledger that a test fills by hand, through the same functions as workers and callers, on a clock it moves."""

from __future__ import annotations

import contextlib
import random
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from redrive.domain import identity
from redrive.domain.delivery import Closed, Closing, Disposition, Enqueued, Hold, Lease, NewDelivery, NewEvent
from redrive.domain.envelope import payload_hash
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import HOUR, SECOND, Jitter, Policy
from redrive.ledger.sqlite import close, enqueue, reap, registry, reserve
from redrive.ledger.sqlite.clock import LedgerClock
from redrive.ledger.sqlite.ledger import SqliteLedger, create
from redrive.ledger.sqlite.statements import sql
from redrive.ledger.sqlite.tx import RawTx, Tx

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

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now = START
        self.url = f"sqlite:///{path}"
        create(self.url, "test", self.clock())
        self.ledger = SqliteLedger(self.url, "test", self.clock())
        self.worker = self.register("w1")

    def clock(self) -> LedgerClock:
        return LedgerClock(wall=lambda: self.now)

    def close(self) -> None:
        self.ledger.close()

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
        items = [self.item(key, body, **more)]
        return self.ledger.transact_sync(
            lambda tx, now: enqueue.accept(tx, now, items, path="library", producer="tests")
        )[0]

    def publish(self, key: str, destinations: Sequence[str], event_type: str = "order.paid", **more: Any) -> list[int]:
        tenant, body = more.pop("tenant", "acme"), more.pop("body", b'{"n":1}')
        digest, event = payload_hash(JSON, body), identity.event_id(tenant, key)
        fan_out = [
            NewDelivery(
                identity.webhook_delivery_id(tenant, event, destination),
                "webhook",
                tenant,
                destination,
                more.get("policy", POLICY),
                digest,
                None,
                scope=more.get("scope"),
                key_text=key,
            )
            for destination in destinations
        ]
        new = NewEvent(event, key, event_type, tenant, body, digest, JSON)
        made = self.ledger.transact_sync(
            lambda tx, now: enqueue.accept_events(tx, now, [(new, fan_out)], path="library", producer="tests")
        )[0]
        return [delivery.seq for delivery in made.deliveries]

    # -- workers

    def reserve(
        self, limit: int = 1, lease_us: int = 30 * SECOND, routes: Sequence[tuple[str, int]] = ROUTES
    ) -> list[Lease]:
        numbers = [identity.route_of(*route) for route in routes]
        return self.ledger.transact_sync(
            lambda tx, now: reserve.reserve(tx, now, self.worker, numbers, limit, lease_us)
        )

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
        return self.ledger.transact_sync(
            lambda tx, now: close.close(tx, now, self.worker, closings, self.ledger.policy_in)
        )

    def attempt(self, outcome: Outcome, seq: int | None = None) -> Lease:
        """Move time to when it is due, reserve it, spend 10 ms, and end it as ``outcome``.

        With ``seq`` that delivery, which has to be the first of its handler; else whatever is due first.
        """
        found = self.ledger.read_sync(
            lambda tx: tx.rows(
                "SELECT available_at, handler FROM delivery_state JOIN delivery USING (seq)"
                " WHERE disposition = 0 AND hold = 0 AND seq = coalesce(?, seq) ORDER BY 1",
                (seq,),
            )
        )
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
        self.ledger.transact_sync(
            lambda tx, now: reap.reap(tx, now, 100, [0.5], frozenset(ROUTES), self.ledger.policy_in)
        )

    # -- operators

    def cancel(self, seq: int) -> None:
        def operation(tx: RawTx, now: int) -> None:
            done = tx.run(sql("cancel_waiting"), (seq,))
            kind = "cancelled" if done else "cancel_requested"
            if done or tx.run(sql("cancel_request"), (seq,)):
                generation, fence = _standing(tx, seq)
                row = (seq, now, kind, generation, fence, None, "ada", "not needed")
                tx.run(sql("transition_insert"), row)

        self.ledger.transact_sync(operation)

    def hold(self, destination: str, hold: bool) -> int:
        return self.ledger.transact_sync(
            lambda tx, now: registry.hold_waiting(
                tx, now, destination, 0, 1000, hold=hold, actor="ada", reason="maintenance"
            )
        )[0]

    def redrive(self, seq: int, attempts: int = 2) -> None:
        """Open the next generation of a dead delivery, as a redrive will."""

        def operation(tx: RawTx, now: int) -> None:
            ((generation, raw, policy),) = tx.rows(
                "SELECT s.generation + 1, d.delivery_id, d.policy_version FROM delivery_state s"
                " JOIN delivery d USING (seq) WHERE seq = ?",
                (seq,),
            )
            replay, deadline = identity.replay_id(raw, generation), now + HOUR
            tx.run(
                "INSERT INTO generation VALUES (?, ?, ?, ?, ?, ?, ?, NULL, ?)",
                (seq, generation, replay, generation - 1, attempts, deadline, policy, now),
            )
            tx.run(
                "UPDATE delivery_state SET disposition = 0, generation = ?, attempt = 0, max_attempts = ?,"
                " deadline_at = ?, available_at = ?, lane = 2 WHERE seq = ?",
                (generation, attempts, deadline, now, seq),
            )
            tx.run(
                "UPDATE dead_letter SET state = 'redriven' WHERE seq = ? AND generation = ?",
                (seq, generation - 1),
            )

        self.ledger.transact_sync(operation)

    def state(self, seq: int) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as conn:
            conn.row_factory = sqlite3.Row
            return dict(conn.execute("SELECT * FROM delivery_state WHERE seq = ?", (seq,)).fetchone())


def _standing(tx: Tx, seq: int) -> tuple[int, int]:
    row = tx.rows("SELECT generation, fence FROM delivery_state WHERE seq = ?", (seq,))[0]
    return row[0], row[1]


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
def opened(path: Path) -> Iterator[Desk]:
    """A desk at a new ledger, closed at the end."""
    desk = Desk(path)
    try:
        yield desk
    finally:
        desk.close()


HELD = Hold.DESTINATION_DISABLED
