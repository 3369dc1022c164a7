"""``sqlite_publish``: events accepted in batches of 100, each with one matching destination.

Ours: ``Redrive.publish_many`` with 100 events a call. A call checks and serialises the payloads, derives the IDs,
finds the subscribers and writes event, identity, delivery and state in one flushed transaction.

Peer: what the disk and SQLite alone take for the same payload bytes: ``executemany`` into one table of two
columns, 100 rows a transaction, WAL, ``synchronous=FULL``. It is a floor, not a publisher: the ratio is below 1.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
import time
from contextlib import closing

from common import SECRET_NAME, Figures, assert_full, assert_verified, child, cpu_seconds, ledger_url

BATCH = 100


def payload(number: int) -> dict[str, object]:
    """About 150 bytes of JSON."""
    return {
        "id": number,
        "object": "order",
        "amount": 1999 + number % 100,
        "currency": "eur",
        "customer": f"cus_{number % 1000:06}",
        "items": [{"sku": "tee-black-m", "quantity": 2}],
        "note": None,
    }


def ours(arguments: argparse.Namespace) -> Figures:
    from redrive import Redrive
    from redrive.webhooks.publish import Event
    from redrive.webhooks.settings import DestinationSettings, SigningSecret

    with Redrive(ledger_url(arguments.file)) as app:
        app.init()
        app.destinations.add(
            "orders",
            DestinationSettings(
                "https://hooks.example.com/orders",
                event_types=("order.*",),
                secrets=(SigningSecret(f"env:{SECRET_NAME}"),),
            ),
        )
        app.publish("order.warm", {}, event_id="warm")
        cpu, begun = cpu_seconds(), time.perf_counter()
        for first in range(0, arguments.count, BATCH):
            published = app.publish_many(
                [Event("order.paid", payload(number), number) for number in range(first, first + BATCH)]
            )
            assert len(published) == BATCH
        took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    with closing(sqlite3.connect(arguments.file)) as conn:
        found = conn.execute("SELECT (SELECT count(*) FROM event), (SELECT count(*) FROM delivery_state)").fetchone()
    if found != (arguments.count + 1, arguments.count + 1):
        raise SystemExit(f"events and deliveries: {found}")
    assert_full(arguments.file)
    if arguments.check:
        assert_verified(arguments.file)
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


def peer(arguments: argparse.Namespace) -> Figures:
    with closing(sqlite3.connect(arguments.file, isolation_level=None)) as conn:
        conn.execute("PRAGMA journal_mode = WAL").fetchall()
        conn.execute("PRAGMA synchronous = FULL")
        conn.execute("CREATE TABLE event (id INTEGER PRIMARY KEY, payload BLOB NOT NULL)")
        cpu, begun = cpu_seconds(), time.perf_counter()
        for first in range(0, arguments.count, BATCH):
            rows = [
                (number, json.dumps(payload(number), separators=(",", ":")).encode())
                for number in range(first, first + BATCH)
            ]
            conn.execute("BEGIN IMMEDIATE")
            conn.executemany("INSERT INTO event (id, payload) VALUES (?, ?)", rows)
            conn.execute("COMMIT")
        took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


if __name__ == "__main__":
    child({"ours": ours, "peer": peer})
