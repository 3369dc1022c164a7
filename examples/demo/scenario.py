"""What the demo sets up: three destinations, what the receiver answers for them, and the events.

Delays are short so that the demo is; nothing else about them is special. Budgets, leases and deadlines are checked
the same way at any length.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from evidence import ENVIRONMENT, LEDGER

from redrive import Policy, Redrive
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.publish import Event
from redrive.webhooks.sender import Timeouts
from redrive.webhooks.settings import DestinationSettings, SigningSecret
from redrive.worker.settings import WorkerSettings

TENANT = "acme"
SECRET = "REDRIVE_DEMO_SECRET"
ORDERS = 240
INVOICES = 40
REPEATS = 25
LEASE_S = 3.0
SLOW_S = 0.4
"""How long the flaky receiver takes for a retry: long enough to kill a worker in the middle of one."""

ANSWERS: dict[str, Any] = {
    "/orders": {"answers": [{"status": 200, "delay_s": 0.05}]},
    "/flaky": {
        "share": {
            "0.30": [{"status": 503, "delay_s": 0.02}, {"status": 200, "delay_s": SLOW_S}],
            "0.25": [{"status": 429, "headers": {"Retry-After": "1"}}, {"status": 200, "delay_s": SLOW_S}],
            # The receiver acts on the request and then never answers: what the sender cannot see.
            "0.20": [{"hang_s": 3, "effect": True}, {"status": 200}],
            "0.05": [{"status": 503}],
            "default": [{"status": 200, "delay_s": 0.02}],
        }
    },
    "/broken": {"answers": [{"status": 400}]},
}
"""By path. Shares are of deliveries, chosen by a hash of the delivery ID."""

POLICY = Policy(max_attempts=5, max_age=60_000_000, base=200_000, cap=2_000_000, jitter="equal")  # type: ignore[arg-type]
TIMEOUTS = Timeouts(connect=2, first_byte=0.8, total=2)

INVOICE_SCHEMA = {
    "type": "object",
    "required": ["invoice", "total_cents"],
    "properties": {"invoice": {"type": "string"}, "total_cents": {"type": "integer", "minimum": 0}},
}


def application(folder: Path, port: int) -> Redrive:
    """The application that the demo and its workers share. Loopback is private, so the demo has to allow it."""
    logging.getLogger("redrive").setLevel(logging.ERROR)
    return Redrive(
        f"sqlite:///{folder / LEDGER}",
        environment=ENVIRONMENT,
        worker=WorkerSettings(slots=32, lease_s=LEASE_S, reap_s=0.25),
        address_policy=AddressPolicy.build(["127.0.0.0/8"], [port], allow_http=True),
        producer="demo",
    )


def register(app: Redrive, url: dict[str, str]) -> dict[str, str]:
    """Add the destinations; returns ``dst_`` IDs to names."""
    events = {"orders": "order.*", "flaky": "order.*", "broken": "invoice.issued"}
    names = {}
    for name, event_type in events.items():
        settings = DestinationSettings(
            url[name],
            event_types=(event_type,),
            policy=POLICY,
            timeouts=TIMEOUTS,
            secrets=(SigningSecret(f"env:{SECRET}"),),
            allow_http=True,
        )
        names[app.destinations.add(name, settings, tenant=TENANT, actor="demo").destination_id] = name
    app.destinations.set_schema("invoice.issued", INVOICE_SCHEMA, actor="demo")
    return names


def events() -> list[Event]:
    """Every event of the demo. Each third invoice lacks what its schema requires."""
    orders = [
        Event("order.paid", b'{"order": "A-%04d",  "total_cents": %d}' % (i, 1000 + 7 * i), f"order-{i}", TENANT)
        for i in range(ORDERS)
    ]
    invoices = [
        Event(
            "invoice.issued",
            b'{"invoice": "R-%04d"}' % i if i % 3 == 0 else b'{"invoice": "R-%04d", "total_cents": %d}' % (i, 100 * i),
            f"invoice-{i}",
            TENANT,
        )
        for i in range(INVOICES)
    ]
    # Interleaved, as they would be in life.
    step = ORDERS // INVOICES
    mixed = []
    for i, invoice in enumerate(invoices):
        mixed += [*orders[i * step : (i + 1) * step], invoice]
    return [*mixed, *orders[INVOICES * step :]]


def worker_environment(secret: str) -> dict[str, str]:
    """The environment of a worker process: the secret is in it, and nowhere on the ledger."""
    return os.environ | {SECRET: secret}
