"""Fills a ledger with set-based inserts: a million deliveries in seconds, as rows that ``redrive verify`` accepts.

What is there afterwards is what enqueuing one by one would have left, but for the delivery IDs, which are unique and
not derived from a key. The trigger that lets a delivery only be born waiting is passed over for those that are to be
finished already; every constraint holds.
"""

from __future__ import annotations

from typing import Any

import psycopg

from redrive import Redrive
from redrive.app import JobSpec
from redrive.domain import identity
from redrive.domain.policy import JOBS

CHUNK = 250_000
DAY_US = 86_400_000_000
TEMPLATE = "template"
"""The handler of the one delivery that is enqueued in the ordinary way, and copied."""

# No temporary table: where the first of a session makes its schema, every session of the server plans anew, and the
# plans whose stability is measured would be gone.
NUMBERS = "generate_series(%(first)s::bigint, %(last)s::bigint) AS g (n)"
FACTS = (
    f"""
    INSERT INTO redrive.identity (seq, first_seen, delivery_id, payload_hash)
    SELECT g.n, %(base)s::bigint + g.n, substr(sha256(int8send(g.n)), 1, 16), t.payload_hash
    FROM {NUMBERS}, redrive.delivery t WHERE t.handler = %(template)s
    """,
    f"""
    INSERT INTO redrive.delivery (seq, policy_version, deadline_at, first_queued_at, first_due_at, max_attempts,
                                  envelope_version, delivery_id, payload_hash, handler, tenant, destination, key,
                                  content_type, payload)
    SELECT g.n, t.policy_version, %(base)s::bigint + g.n + %(delay)s::bigint + t.deadline_at - t.first_due_at,
           %(base)s::bigint + g.n, %(base)s::bigint + g.n + %(delay)s::bigint, t.max_attempts, t.envelope_version,
           substr(sha256(int8send(g.n)), 1, 16), t.payload_hash, %(handler)s, t.tenant, t.destination, g.n::text,
           t.content_type, t.payload
    FROM {NUMBERS}, redrive.delivery t WHERE t.handler = %(template)s
    """,
)
WAITING = """
    INSERT INTO redrive.delivery_state (seq, route, flow, deadline_at, available_at, fence, generation, attempt,
                                        max_attempts, lane, priority, disposition)
    SELECT d.seq, %(route)s, %(flow)s, d.deadline_at, d.first_due_at, 0, 0, 0, d.max_attempts, 0, 2, 0
    FROM redrive.delivery d WHERE d.seq BETWEEN %(first)s AND %(last)s ORDER BY d.seq
"""
FINISHED = (
    "SET LOCAL session_replication_role = replica",
    """
    INSERT INTO redrive.delivery_state (seq, route, flow, deadline_at, available_at, fence, generation, attempt,
                                        max_attempts, lane, priority, disposition, last_category)
    SELECT d.seq, %(route)s, %(flow)s, d.deadline_at, d.first_due_at, 1, 0, 1, d.max_attempts, 0, 2, 2, 'ok'
    FROM redrive.delivery d WHERE d.seq BETWEEN %(first)s AND %(last)s ORDER BY d.seq
    """,
    f"""
    INSERT INTO redrive.attempt (seq, fence, started_at, ended_at, duration, generation, number, worker, outcome,
                                 category)
    SELECT g.n, 1, %(base)s::bigint + g.n, %(base)s::bigint + g.n + 10, 10, 0, 1, 1, 'delivered', 'ok'
    FROM {NUMBERS}
    """,
)


def prepare(url: str) -> None:
    """Create the ledger, with the delivery that others are copies of."""
    with Redrive(url) as app:
        app.init()
        app.enqueue_many([JobSpec(TEMPLATE, {"n": 0}, key=0, policy=JOBS)], allow_unknown=True)


def fill(url: str, count: int, handler: str, *, delay_us: int = 0, finished: bool = False) -> range:
    """Add ``count`` deliveries of a handler, waiting (due in ``delay_us``) or delivered; their numbers, in order."""
    fixed = {
        "template": TEMPLATE,
        "handler": handler,
        "delay": delay_us,
        "route": identity.route_of(handler, 1),
        "flow": identity.flow_of(handler, 1, "", "default"),
    }
    statements = (*FACTS, *(FINISHED if finished else (WAITING,)))
    with psycopg.connect(url, autocommit=True) as conn:
        # Nobody else enqueues here.
        first = int(_value(conn, "SELECT nextval('redrive.delivery_seq')"))
        numbers = range(first, first + count)
        conn.execute("SELECT setval('redrive.delivery_seq', %s)", (numbers[-1],))
        # Each is a microsecond younger than the one before it, and the last is a second old.
        base = int(_value(conn, "SELECT redrive.clock_us()")) - 1_000_000 - numbers[-1]
        for at in range(0, count, CHUNK):
            part = numbers[at : at + CHUNK]
            params = {**fixed, "base": base, "first": part[0], "last": part[-1]}
            with conn.transaction():
                for statement in statements:
                    conn.execute(statement.encode(), params if "%(" in statement else None)
    return numbers


def settle(url: str) -> None:
    """As an ordinary ledger is after a while: vacuumed and analysed, and nobody's checkpoint is due."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("VACUUM (ANALYZE)")
        conn.execute("CHECKPOINT")


def _value(conn: psycopg.Connection[Any], query: str) -> Any:
    row = conn.execute(query.encode()).fetchone()
    assert row is not None
    return row[0]
