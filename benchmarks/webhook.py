"""``sqlite_webhook``: signed webhooks with a payload of 1 KiB, from the ledger to a sink in its own process.

Ours: the worker as users run it (``Redrive.run``), the whole ledger written with ``synchronous=FULL``, every
request signed, at most as many in flight as there are slots, over at most 100 connections. The clock runs from
before the worker is made until it has come back idle.

Peer: an aiohttp loop that does nothing but POST the same bytes to the same sink: uvloop, one session, 100
connections that are kept, one task for each, no timeout, no signature, no database.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from typing import Any

from common import (
    SECRET_NAME,
    Figures,
    assert_all_delivered,
    assert_full,
    assert_verified,
    child,
    cpu_seconds,
    ledger_url,
    run_on_uvloop,
    settle,
)

CHUNK = 500
CONNECTIONS = 100
PATH = "/hooks/orders"


def body(number: int) -> bytes:
    """Exactly 1024 bytes of JSON."""
    head = json.dumps({"id": number, "data": ""}).encode()
    return head[:-2] + b"x" * (1024 - len(head)) + head[-2:]


def application(arguments: argparse.Namespace) -> Any:
    from redrive import Redrive
    from redrive.webhooks.guard import AddressPolicy
    from redrive.worker.settings import WorkerSettings

    return Redrive(
        ledger_url(arguments.file),
        worker=WorkerSettings(slots=arguments.slots or 100),
        address_policy=AddressPolicy.build(["127.0.0.0/8"], [arguments.port], True),
    )


def fill_ours(arguments: argparse.Namespace) -> None:
    from redrive.webhooks.publish import Event
    from redrive.webhooks.settings import DestinationSettings, SigningSecret

    with application(arguments) as app:
        app.init()
        url = f"http://127.0.0.1:{arguments.port}{PATH}"
        secrets = (SigningSecret(f"env:{SECRET_NAME}"),)
        app.destinations.add("sink", DestinationSettings(url, allow_http=True, secrets=secrets))
        for first in range(0, arguments.count, CHUNK):
            last = min(first + CHUNK, arguments.count)
            app.publish_many([Event("order.paid", body(number), number) for number in range(first, last)])
    settle(arguments.file)


def ours(arguments: argparse.Namespace) -> Figures:
    app = application(arguments)
    cpu, begun = cpu_seconds(), time.perf_counter()
    app.run(until_idle=True)
    took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    app.close()
    assert_all_delivered(arguments.file, arguments.count)
    assert_full(arguments.file)
    if arguments.check:
        assert_verified(arguments.file)
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


def peer(arguments: argparse.Namespace) -> Figures:
    return run_on_uvloop(_post_all(arguments))  # type: ignore[no-any-return]


async def _post_all(arguments: argparse.Namespace) -> Figures:
    import aiohttp
    from yarl import URL

    url = URL(f"http://127.0.0.1:{arguments.port}{PATH}")
    headers = {"Content-Type": "application/json"}
    bodies = [body(number) for number in range(arguments.count)]
    connector = aiohttp.TCPConnector(limit=CONNECTIONS, limit_per_host=CONNECTIONS, keepalive_timeout=60)
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None), cookie_jar=aiohttp.DummyCookieJar()
    ) as session:

        async def post() -> None:
            while bodies:
                async with session.post(url, data=bodies.pop(), headers=headers) as answer:
                    await answer.read()
                    assert answer.status == 200

        cpu, begun = cpu_seconds(), time.perf_counter()
        await asyncio.gather(*(post() for _ in range(CONNECTIONS)))
        took, cpu = time.perf_counter() - begun, cpu_seconds() - cpu
    return {"value": arguments.count / took, "cpu_us": cpu / arguments.count * 1e6}


if __name__ == "__main__":
    child({"fill-ours": fill_ours, "ours": ours, "peer": peer})
