"""What is never sent, what certainly was not, and the whole default schedule."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    HOOKS,
    FastClock,
    Got,
    Receiver,
    Reply,
    assert_verified,
    attempts,
    dead,
    drain,
    make,
    opened,
    rig,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.sender.request import Timeouts
from redrive.webhooks.settings import DestinationSettings
from redrive.worker.settings import WorkerSettings


def plain(receiver: Receiver, path: str = "/a", **options: Any) -> DestinationSettings:
    return settings(receiver.url(path), secrets=(), **options)


def sequence(*replies: Reply) -> Callable[[Got, int], Reply]:
    """The n-th request gets the n-th reply, later ones the last."""
    return lambda got, number: replies[min(number, len(replies)) - 1]


def test_a_payload_that_its_schema_refuses_never_leaves(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["n"], "properties": {"n": {"type": "integer"}}}
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver))
        app.destinations.set_schema("order.paid", schema)
        bad = [
            app.publish("order.paid", payload, event_id=str(payload)).deliveries[0] for payload in ({}, {"n": "1"}, [1])
        ]
        good = app.publish("order.paid", {"n": 1}, event_id="good").deliveries[0]
        other = app.publish("order.lost", {}, event_id="other").deliveries[0]
        drain(app)
        assert Counter(got.delivery for got in receiver.got) == {good: 1, other: 1}
        for one in bad:
            assert tries(app, one) == [("permanent", "payload_invalid")]
        assert {(letter.cause, letter.category) for letter in dead(app)} == {("permanent", "payload_invalid")}
        assert_verified(app)


def test_a_name_that_leads_to_a_forbidden_address_is_quarantined_without_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real = socket.getaddrinfo

    def lookup(host: Any, port: Any, *rest: Any, **more: Any) -> Any:
        asked.append(str(host))
        return real("127.0.0.1", port, *rest, **more)

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    with Receiver() as receiver:
        closed = AddressPolicy.build([], [receiver.port], True)
        with make(tmp_path, address_policy=closed) as app:
            app.destinations.add("a", settings(f"http://hooks.example.com:{receiver.port}/", secrets=()))
            one = app.publish("order.paid", 1, event_id=1).deliveries[0]
            drain(app)
            assert tries(app, one) == [("permanent", "forbidden_address")]
            assert [(letter.cause, letter.category) for letter in dead(app)] == [("permanent", "forbidden_address")]
            assert_verified(app)
        assert receiver.connections == 0
    assert any("hooks.example.com" in host for host in asked)


def test_an_address_that_is_no_longer_allowed_is_not_dialled(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", plain(receiver))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        with make(tmp_path, init=False, address_policy=AddressPolicy.build([], [receiver.port], True)) as strict:
            drain(strict)
        assert tries(app, one) == [("permanent", "forbidden_address")]
        assert receiver.connections == 0


@pytest.mark.parametrize("reason", ["refused", "no name"])
def test_what_was_certainly_not_sent_is_retried(tmp_path: Path, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    if reason == "no name":

        def lookup(*arguments: Any, **more: Any) -> Any:
            raise socket.gaierror(socket.EAI_NONAME, "no such name")

        monkeypatch.setattr(socket, "getaddrinfo", lookup)
    host = "127.0.0.1" if reason == "refused" else "hooks.example.com"
    with make(tmp_path, address_policy=opened(port)) as app:
        app.destinations.add("a", settings(f"http://{host}:{port}/", secrets=()))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        category = "connect" if reason == "refused" else "dns"
        assert tries(app, one) == [("retryable", category)] * HOOKS.max_attempts
        (letter,) = dead(app)
        assert (letter.cause, letter.ambiguous) == ("attempts_exhausted", False)


def test_a_slow_destination_does_not_hold_up_the_others(tmp_path: Path) -> None:
    """O-59: within the slots there are, a destination that does not answer costs the healthy one nothing."""

    def answer(got: Got, number: int) -> Reply:
        return None if got.path == "/slow" else 200

    with rig(tmp_path, answer, worker=WorkerSettings(slots=30)) as (app, receiver):
        app.destinations.add(
            "slow", plain(receiver, "/slow", timeouts=Timeouts(first_byte=3), event_types=("slow.one",))
        )
        app.destinations.add("fast", plain(receiver, "/fast", event_types=("fast.one",)))
        for n in range(10):
            app.publish("slow.one", n, event_id=("slow", n))
        done = [app.publish("fast.one", n, event_id=n).deliveries[0] for n in range(50)]

        async def main() -> None:
            async with working(app):
                async with asyncio.timeout(2.5):
                    await until(lambda: all(seen(app, one).disposition == "delivered" for one in done))
                receiver._over.set()

        asyncio.run(main())


def test_the_default_policy_spreads_its_retries_over_hours(tmp_path: Path) -> None:
    """The whole default schedule against a receiver that is down, on a fast clock: 8 requests within three days."""
    from redrive.domain.policy import WEBHOOKS

    worker = WorkerSettings(lease_s=3600, reap_s=0.5, poll_s=0.05)
    with rig(tmp_path, sequence(503), clock=FastClock(40_000), worker=worker, random=lambda: 0.5) as (app, receiver):
        app.destinations.add("a", plain(receiver, policy=WEBHOOKS))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        made = attempts(app, one)
        assert len(made) == len(receiver.got) == WEBHOOKS.max_attempts
        for before, after in pairwise(made):
            assert before.next_at is not None
            assert after.started_at >= before.next_at
            assert before.next_at - before.ended_at == WEBHOOKS.delay(before.number, 0.5)
        assert made[-1].started_at < seen(app, one).deadline_at
        assert_verified(app)
