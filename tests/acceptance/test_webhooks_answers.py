"""What each answer, or none, means: budgets, Retry-After, acknowledgements, ambiguity, and what is never sent."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    HOOKS,
    MS,
    Got,
    Receiver,
    Reply,
    assert_verified,
    attempts,
    dead,
    drain,
    make,
    opened,
    query,
    rig,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive import Policy
from redrive.domain.policy import OnUnknown
from redrive.webhooks.handler import Sent
from redrive.webhooks.sender.request import Timeouts
from redrive.webhooks.settings import DestinationSettings

HOLD = Policy(max_attempts=4, base=MS, cap=5 * MS, on_unknown=OnUnknown.HOLD)
CONFIRM = Policy(max_attempts=4, base=MS, cap=5 * MS, on_unknown=OnUnknown.CONFIRM)
BRIEF = Timeouts(first_byte=0.15, total=0.3)


def plain(receiver: Receiver, path: str = "/a", **options: Any) -> DestinationSettings:
    return settings(receiver.url(path), secrets=(), **options)


def sequence(*replies: Reply) -> Callable[[Got, int], Reply]:
    """The n-th request gets the n-th reply, later ones the last."""
    return lambda got, number: replies[min(number, len(replies)) - 1]


def deliver(
    folder: Path, answer: Callable[[Got, int], Reply], **options: Any
) -> tuple[list[tuple[str, str]], str, int]:
    """One event to one destination: its attempts, how it ended, and how many requests arrived."""
    with rig(folder, answer) as (app, receiver):
        app.destinations.add("a", plain(receiver, **options))
        one = app.publish("order.paid", {"n": 1}, event_id=1).deliveries[0]
        drain(app)
        assert_verified(app)
        recorded = tries(app, one)
        assert len(receiver.got) == len(recorded)  # one attempt row is one request
        return recorded, seen(app, one).disposition, len(receiver.got)


# --- statuses -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "outcome", "category"),
    [
        (200, "delivered", "ok"),
        (204, "delivered", "ok"),
        (299, "delivered", "ok"),
        (301, "permanent", "http_3xx"),
        (308, "permanent", "http_3xx"),
        (400, "permanent", "http_4xx"),
        (404, "permanent", "http_4xx"),
        (410, "permanent", "gone"),
        (408, "retryable", "http_4xx"),
        (409, "retryable", "http_4xx"),
        (425, "retryable", "http_4xx"),
        (429, "retryable", "http_429"),
        (500, "retryable", "http_5xx"),
        (503, "retryable", "http_5xx"),
        (502, "unknown", "http_gateway"),
        (504, "unknown", "http_gateway"),
    ],
)
def test_what_a_status_means(tmp_path: Path, status: int, outcome: str, category: str) -> None:
    recorded, ends, _ = deliver(tmp_path, sequence(status), policy=Policy(max_attempts=1))
    assert recorded == [(outcome, category)]
    assert ends == ("delivered" if outcome == "delivered" else "dead")


@pytest.mark.parametrize("status", [403, 500])
def test_exactly_the_configured_number_of_requests_arrives(tmp_path: Path, status: int) -> None:
    """O-03: a receiver that always refuses sees max_attempts requests (one, where a retry cannot help), then none."""
    overrides = (("403", "retryable"),)
    recorded, ends, requests = deliver(tmp_path, sequence(status), overrides=overrides)
    assert (len(recorded), ends, requests) == (HOOKS.max_attempts, "dead", HOOKS.max_attempts)


def test_acknowledge_and_overrides_are_the_destinations_own(tmp_path: Path) -> None:
    def answer(got: Got, number: int) -> Reply:
        return int(got.path[1:4])

    with rig(tmp_path, answer) as (app, receiver):
        once = Policy(max_attempts=1)
        only = app.destinations.add("only202", plain(receiver, "/200?only", acknowledge="202", policy=once))
        app.destinations.add("range", plain(receiver, "/409?range", acknowledge="200-204,409", policy=once))
        app.destinations.add("over", plain(receiver, "/404?over", overrides=(("404", "delivered"),), policy=once))
        app.destinations.add("perm", plain(receiver, "/500?perm", overrides=(("5xx", "permanent"),), policy=HOOKS))
        made = app.publish("order.paid", 1, event_id=1).deliveries
        drain(app)
        by_name = {app.operations.destination_names()[seen(app, one).destination]: tries(app, one) for one in made}
        assert by_name == {
            "only202": [("unknown", "bad_response")],
            "range": [("delivered", "ok")],
            "over": [("delivered", "ok")],
            "perm": [("permanent", "http_5xx")],
        }
        assert only.enabled


def test_a_receiver_that_had_it_before_can_say_so_and_it_is_counted(tmp_path: Path) -> None:
    def answer(got: Got, number: int) -> Reply:
        if got.path == "/header":
            return 200, {"Webhook-Duplicate": "true"}, b""
        return 208 if got.path == "/status" else 200

    with rig(tmp_path, answer) as (app, receiver):
        app.destinations.add("header", plain(receiver, "/header"))
        app.destinations.add("status", plain(receiver, "/status", duplicate_status=208))
        app.destinations.add("plain", plain(receiver, "/plain"))
        made = app.publish("order.paid", 1, event_id=1).deliveries
        drain(app)
        names = app.operations.destination_names()
        found = {names[seen(app, one).destination]: attempts(app, one)[0] for one in made}
        shown = {name: (attempt.outcome, attempt.category, attempt.flags) for name, attempt in found.items()}
        assert shown == {
            "header": ("delivered", "receiver_duplicate", ("receiver_duplicate",)),
            "status": ("delivered", "receiver_duplicate", ("receiver_duplicate",)),
            "plain": ("delivered", "ok", ()),
        }
        app.publish("order.paid", 2, event_id=2)
        drain(app)
        assert {one.name: one.receiver_duplicates for one in app.destinations.list()} == {
            "header": 2,
            "status": 2,
            "plain": 0,
        }
        assert app.destinations.get("header").as_dict()["receiver_duplicates"] == 2
        assert app.operations.status().receiver_duplicates == 4
        assert_verified(app)


def test_a_receiver_that_had_it_before_and_refuses_all_the_same_is_counted_too(tmp_path: Path) -> None:
    def answer(got: Got, number: int) -> Reply:
        return (503 if number == 1 else 200), {"Webhook-Duplicate": "true"}, b""

    with rig(tmp_path, answer) as (app, receiver):
        app.destinations.add("a", plain(receiver, "/a", policy=HOOKS))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        assert tries(app, one) == [("retryable", "http_5xx"), ("delivered", "receiver_duplicate")]
        assert app.destinations.get("a").receiver_duplicates == 2
        assert_verified(app)


# --- Retry-After ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [429, 503])
def test_the_next_request_comes_not_before_retry_after(tmp_path: Path, status: int) -> None:
    with rig(tmp_path, sequence((status, {"Retry-After": "1"}, b""), 200), random=lambda: 0.0) as (app, receiver):
        app.destinations.add("a", plain(receiver))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        first, second = receiver.got
        assert second.at - first.at >= 1.0
        assert len(attempts(app, one)) == 2
        refused = attempts(app, one)[0]
        assert refused.retry_after_us == 1_000_000
        assert refused.next_at == refused.ended_at + 1_000_000


def test_retry_after_may_be_a_date(tmp_path: Path) -> None:
    when = datetime.now(UTC) + timedelta(hours=2)
    header = {"Retry-After": format_datetime(when, usegmt=True)}
    policy = Policy(max_attempts=3, base=MS, retry_after_cap=86_400_000_000)
    with rig(tmp_path, sequence((503, header, b""))) as (app, receiver):
        app.destinations.add("a", plain(receiver, policy=policy))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: attempts(app, one))

        asyncio.run(main())
        wait = seen(app, one).available_at - attempts(app, one)[0].ended_at
        assert 7100 * 1_000_000 < wait < 7202 * 1_000_000
        assert len(receiver.got) == 1


@pytest.mark.parametrize(
    "text", ["-3", "+3", "1.5", "120junk", "", "Tue, 31 Feb 2026 00:00:00 GMT", "\u0661\u0662\u0660", "1, 2"]
)
def test_a_malformed_retry_after_is_no_retry_after(tmp_path: Path, text: str) -> None:
    """O-04. The own backoff applies, and the worker goes on."""
    raw = b"HTTP/1.1 503 No\r\nContent-Length: 0\r\nConnection: close\r\nRetry-After: " + text.encode() + b"\r\n\r\n"
    with rig(tmp_path, sequence(raw, 200)) as (app, receiver):
        app.destinations.add("a", plain(receiver))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        assert tries(app, one) == [("retryable", "http_5xx"), ("delivered", "ok")]
        assert attempts(app, one)[0].retry_after_us is None


@pytest.mark.parametrize("text", ["9999999999", "9" * 20, "9" * 400])
def test_a_huge_retry_after_is_clamped_and_past_the_age_it_ends(tmp_path: Path, text: str) -> None:
    """O-05: clamped before any arithmetic; past the age budget it is a dead letter, at once."""
    with rig(tmp_path, sequence((429, {"Retry-After": text}, b""))) as (app, receiver):
        patient = Policy(max_attempts=3, base=MS, max_age=60_000_000, retry_after_cap=30_000_000)
        short = Policy(max_attempts=3, base=MS, max_age=60_000_000, retry_after_cap=90_000_000)
        app.destinations.add("patient", plain(receiver, "/p", policy=patient))
        app.destinations.add("short", plain(receiver, "/s", policy=short))
        app.publish("order.paid", 1, event_id=1)

        async def main() -> None:
            async with working(app):
                await until(lambda: query(app, "SELECT count(*) FROM attempt") == [(2,)])

        asyncio.run(main())
        (letter,) = dead(app)
        names = app.operations.destination_names()
        assert (names[letter.destination], letter.cause, letter.category) == ("short", "age_exhausted", "http_429")
        ((wait,),) = query(app, "SELECT next_at - ended_at FROM attempt WHERE next_at IS NOT NULL")
        assert 30_000_000 <= wait <= 31_000_000
        assert len(receiver.got) == 2


# --- redirects ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_not_followed_and_nobody_else_sees_anything(tmp_path: Path, status: int) -> None:
    """O-69, O-70: the internal canary sees no connection at all, so no signature and no secret header either."""
    with Receiver() as canary:
        location = {"Location": canary.url("/internal")}
        recorded, ends, requests = deliver(tmp_path, sequence((status, location, b"")))
        assert (recorded, ends, requests) == ([("permanent", "http_3xx")], "dead", 1)
        assert (canary.connections, canary.got) == (0, [])


# --- ambiguity ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "category"),
    [
        (None, "timeout_sent"),
        (b"", "connection_lost"),
        (b"HTTP/1.1 200 OK\r\nContent-", "connection_lost"),
        (b"HTTP/1.1 2x0 OK\r\n\r\n", "bad_response"),
        (502, "http_gateway"),
    ],
    ids=["no answer", "closed", "half a head", "no status", "502"],
)
def test_without_a_whole_answer_the_outcome_is_unknown_and_retried(tmp_path: Path, reply: Reply, category: str) -> None:
    recorded, ends, _ = deliver(tmp_path, sequence(reply, 200), timeouts=BRIEF)
    assert recorded == [("unknown", category), ("delivered", "ok")]
    assert ends == "delivered"


def test_unknown_hold_is_a_dead_letter_after_one_request(tmp_path: Path) -> None:
    with rig(tmp_path, sequence(None)) as (app, receiver):
        app.destinations.add("a", plain(receiver, policy=HOLD, timeouts=BRIEF))
        app.publish("order.paid", 1, event_id=1)
        drain(app)
        (letter,) = dead(app)
        assert (letter.cause, letter.category, letter.ambiguous, letter.attempts) == (
            "ambiguous",
            "timeout_sent",
            True,
            1,
        )
        assert len(receiver.got) == 1


@pytest.mark.parametrize("there", [True, False, None, ValueError("no")], ids=["there", "not there", "?", "raises"])
def test_unknown_confirm_asks_the_recipient_before_anything_is_sent_again(tmp_path: Path, there: Any) -> None:
    asked: list[Sent] = []
    with rig(tmp_path, sequence(502, 200)) as (app, receiver):

        @app.confirm("ask")
        async def ask(sent: Sent) -> bool | None:
            asked.append(sent)
            if isinstance(there, Exception):
                raise there
            return there  # type: ignore[no-any-return]

        made = app.destinations.add("a", plain(receiver, policy=CONFIRM, confirm="ask"))
        published = app.publish("order.paid", {"n": 1}, event_id=1, tenant="default", scope="shop")
        one = published.deliveries[0]
        drain(app)
        after, requests = {
            True: ([("delivered", "confirmed")], 1),
            False: ([("delivered", "ok")], 2),
        }.get(there, ([("retryable", "confirm_failed")] * 3, 1))
        assert tries(app, one) == [("unknown", "http_gateway"), *after]
        assert len(receiver.got) == requests
        first = asked[0]
        assert first == Sent(
            one, "order.paid", published.event_id, "default", "shop", made.destination_id, 0, 2, b'{"n":1}'
        )
        if there is not True and there is not False:
            assert [(letter.cause, letter.ambiguous) for letter in dead(app)] == [("ambiguous", True)]
        assert_verified(app)


def test_a_confirm_function_that_is_not_here_defers_to_a_worker_that_has_it(tmp_path: Path) -> None:
    with rig(tmp_path, sequence(502, 200)) as (app, receiver):
        app.destinations.add("a", plain(receiver, policy=CONFIRM, confirm="elsewhere"))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: seen(app, one).deferrals)
                assert len(receiver.got) == 1

        asyncio.run(main())
        with make(tmp_path, init=False, address_policy=opened(receiver.port)) as other:

            @other.confirm("elsewhere")
            async def elsewhere(sent: Sent) -> bool | None:
                return True

            drain(other)
        assert tries(app, one) == [("unknown", "http_gateway"), ("delivered", "confirmed")]
        assert len(receiver.got) == 1
        assert_verified(app)


# --- bodies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "raw",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n12345",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n123",
        b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"x" * 200_000,
    ],
    ids=["short", "chunked", "over the cap"],
)
def test_a_whole_head_decides_and_a_cut_body_is_flagged(tmp_path: Path, raw: bytes) -> None:
    """O-61."""
    with rig(tmp_path, sequence(raw)) as (app, receiver):
        app.destinations.add("a", plain(receiver, timeouts=Timeouts(total=5)))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        (attempt,) = attempts(app, one)
        assert (attempt.outcome, attempt.flags) == ("delivered", ("response_truncated",))
        assert len(receiver.got) == 1


def test_a_compressed_body_is_never_decoded(tmp_path: Path) -> None:
    """O-62: a bomb is bytes like any other, up to the cap; its head says 200."""
    bomb = gzip.compress(b"\x00" * 10_000_000)
    for body, status in ((bomb, 200), (b"\x1f\x8bnot gzip at all", 200), (bomb, 503)):
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        reply: Reply = (status, {"Content-Encoding": "gzip"}, body)
        with rig(folder, sequence(reply)) as (app, receiver):
            app.destinations.add("a", plain(receiver, policy=Policy(max_attempts=1), excerpt=200))
            one = app.publish("order.paid", 1, event_id=1).deliveries[0]
            drain(app)
            (attempt,) = attempts(app, one)
            assert (attempt.outcome, attempt.status) == ("delivered" if status == 200 else "retryable", status)
            assert "\x00" not in (attempt.excerpt or "")


def test_excerpts_are_off_unless_turned_on_and_then_redacted(tmp_path: Path) -> None:
    body = b'{"error": "no stock", "token": "abcdef0123456789abcdef0123456789", "mail": "ann@example.org"}\x1b[31m'
    with rig(tmp_path, sequence((400, {}, body))) as (app, receiver):
        app.destinations.add("off", plain(receiver, "/off"))
        app.destinations.add("on", plain(receiver, "/on", excerpt=200))
        app.destinations.add("tiny", plain(receiver, "/tiny", excerpt=10))
        made = app.publish("order.paid", 1, event_id=1).deliveries
        drain(app)
        names = app.operations.destination_names()
        found = {names[seen(app, one).destination]: attempts(app, one)[0].excerpt for one in made}
        assert found["off"] is None
        assert found["on"] is not None
        assert "no stock" in found["on"]
        for hidden in ("abcdef0123456789", "ann@example.org", "\x1b"):
            assert hidden not in found["on"]
        assert len(found["tiny"] or "") <= 10
        app.close()
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert b"abcdef0123456789" not in data
        assert b"ann@example.org" not in data
