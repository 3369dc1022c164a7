"""What goes over the wire: the bytes, the signatures, the headers, and no secret anywhere else."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.engine_support import (
    MS,
    SECRET,
    FastClock,
    Got,
    Reply,
    assert_verified,
    attempts,
    dead,
    drain,
    query,
    rig,
    seen,
    settings,
    tries,
    until,
    working,
)

from redrive import Policy
from redrive.errors import RedriveError
from redrive.webhooks.settings import SigningSecret
from redrive.webhooks.signing import SignatureInvalid, generate_keypair, verify

OTHER = "whsec_" + "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY="


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)
    monkeypatch.setenv("OTHER_SECRET", OTHER)


def checks(secret: str, got: Got) -> bool:
    try:
        verify([secret], got.headers, got.body, now=time.time())
    except SignatureInvalid:
        return False
    return True


def flaky(times: int) -> Any:
    """503 for the first requests of each delivery."""
    counts: dict[str, int] = {}

    def answer(got: Got, number: int) -> Reply:
        counts[got.delivery] = counts.get(got.delivery, 0) + 1
        return 503 if counts[got.delivery] <= times else 200

    return answer


# --- bytes ----------------------------------------------------------------------------------------------

BODIES: list[Any] = [
    rb'{"a": "\u001B", "b": "\u001b"}',
    b'{"z": 1, "a": 2, "z2": {"y": 1, "b": 2}}',
    b'{"f": 1.0, "e": 1E400e}'.replace(b"1E400e", b"1e22"),
    b"[1.10, 100000000000000000001, -0.0, 1e-7]",
    '{"text": "grüße \u2028 \U0001f600"}'.encode(),
    b'{"a": 1}\n',
    b' \r\n\t{"a":1} ',
    b'{"dup": 1, "dup": 2}',
    b'"' + b"x" * 200_000 + b'"',
]


@pytest.mark.parametrize("body", BODIES, ids=lambda body: repr(body[:30]))
def test_the_payload_is_sent_byte_for_byte_on_every_attempt(tmp_path: Path, body: bytes) -> None:
    with rig(tmp_path, flaky(2)) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        one = app.publish("order.paid", body, event_id=1).deliveries[0]
        drain(app)
        assert [got.body for got in receiver.got] == [body] * 3
        assert len({hashlib.sha256(got.body).digest() for got in receiver.got}) == 1
        assert all(checks(SECRET, got) for got in receiver.got)
        assert app.operations.payload(one) == ("application/json", body)
        assert_verified(app)


@pytest.mark.parametrize(
    ("payload", "content_type", "body"),
    [
        ({"b": "é", "a": [1, None]}, "application/json", '{"a":[1,null],"b":"é"}'.encode()),
        ("plain text, ünicode", "text/plain; charset=utf-8", "plain text, ünicode".encode()),
        (bytes(range(256)), "application/octet-stream", bytes(range(256))),
        (b"", "text/plain", b""),
        (bytearray(b"[1]"), "application/json", b"[1]"),
    ],
    ids=["json", "text", "binary", "empty", "bytearray"],
)
def test_payloads_of_other_kinds(tmp_path: Path, payload: Any, content_type: str, body: bytes) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        app.publish("order.paid", payload, event_id=1, content_type=content_type)
        drain(app)
        (got,) = receiver.got
        assert (got.body, got.headers["content-type"], got.headers["content-length"]) == (
            body,
            content_type,
            str(len(body)),
        )
        assert checks(SECRET, got)


# --- signatures -----------------------------------------------------------------------------------------


def test_signatures_verify_for_both_schemes_and_with_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private, public = generate_keypair()
    monkeypatch.setenv("ED_SECRET", private)
    with rig(tmp_path) as (app, receiver):
        secrets = (SigningSecret("env:HOOK_SECRET"), SigningSecret("env:ED_SECRET"))
        app.destinations.add("both", settings(receiver.url("/both"), secrets=secrets))
        app.destinations.add("v1a", settings(receiver.url("/v1a"), secrets=secrets[1:]))
        app.destinations.add("none", settings(receiver.url("/none"), secrets=()))
        app.publish("order.paid", {"n": 1}, event_id=1)
        drain(app)
        (both,), (v1a,), (none,) = receiver.to("/both"), receiver.to("/v1a"), receiver.to("/none")
        assert [part.partition(",")[0] for part in both.headers["webhook-signature"].split(" ")] == ["v1", "v1a"]
        assert checks(SECRET, both)
        assert checks(public, both)
        assert not checks(OTHER, both)
        assert (checks(public, v1a), checks(SECRET, v1a)) == (True, False)
        assert "webhook-signature" not in none.headers
        tampered = Got(both.path, both.headers, both.body.replace(b"1", b"2"))
        assert not checks(SECRET, tampered)


def test_a_rotation_signs_with_both_secrets_until_the_old_one_has_run_out(tmp_path: Path) -> None:
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        app.publish("order.paid", 1, event_id="before")
        drain(app)
        app.destinations.rotate_secret("a", "env:OTHER_SECRET", overlap_us=1_000_000)
        app.publish("order.paid", 1, event_id="overlap")
        drain(app)
        (old,) = [secret for secret in app.destinations.get("a").settings.secrets if secret.until]
        assert old.until is not None
        time.sleep(max(0.0, old.until / 1e6 - time.time()) + 0.01)
        app.publish("order.paid", 1, event_id="after")
        drain(app)
        assert [(checks(SECRET, got), checks(OTHER, got)) for got in receiver.got] == [
            (True, False),
            (True, True),
            (False, True),
        ]


# --- headers --------------------------------------------------------------------------------------------


def test_every_request_names_the_delivery_the_event_and_the_attempt(tmp_path: Path) -> None:
    with rig(tmp_path, flaky(2)) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a?x=1"), headers=(("X-Team", "billing"),)))
        made = app.publish("order.paid", {"n": 1}, event_id=1)
        (one,) = made.deliveries
        drain(app)
        heads = [got.headers for got in receiver.got]
        constant = {
            "webhook-id": one,
            "idempotency-key": f'"{one}"',
            "redrive-event-id": made.event_id,
            "redrive-event-type": "order.paid",
            "x-team": "billing",
            "accept-encoding": "identity",
            "host": f"127.0.0.1:{receiver.port}",
        }
        assert [{name: head[name] for name in constant} for head in heads] == [constant] * 3
        assert [got.path for got in receiver.got] == ["/a?x=1"] * 3
        assert [head["redrive-attempt"] for head in heads] == ["0.1", "0.2", "0.3"]
        assert [head["redrive-attempt-id"] for head in heads] == [attempt.id for attempt in attempts(app, one)]
        assert len({head["redrive-attempt-id"] for head in heads}) == 3
        assert all(abs(int(head["webhook-timestamp"]) - time.time()) < 60 for head in heads)
        assert re.fullmatch(r"dlv_[0-9a-z]{26}", one)
        assert all("redirect" not in head and "cookie" not in head for head in heads)


def test_proxies_of_the_environment_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        app.publish("order.paid", 1, event_id=1)
        drain(app)
        assert len(receiver.got) == 1


# --- secrets --------------------------------------------------------------------------------------------


def test_no_secret_is_in_any_file_log_error_or_output(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    caplog.set_level(logging.DEBUG)
    header = "Bearer s3cr3t-header-value-0123456789"
    monkeypatch.setenv("AUTH", header)
    monkeypatch.setenv("BROKEN", "whsec_not-base64-but-secret!")
    with rig(tmp_path, lambda got, number: 503 if number % 2 else 200) as (app, receiver):
        made = app.destinations.add(
            "a",
            settings(
                receiver.url("/a"),
                headers=(("Authorization", "env:AUTH"),),
                secrets=(SigningSecret("env:HOOK_SECRET"),),
            ),
        )
        app.destinations.add("broken", settings(receiver.url("/b"), secrets=(SigningSecret("env:BROKEN"),)))
        app.destinations.rotate_secret("a", "env:OTHER_SECRET", overlap_us=10**9)
        one, two = app.publish("order.paid", {"n": 1}, event_id=1).deliveries

        async def main() -> None:
            async with working(app):
                states = {"delivered"}
                await until(lambda: {seen(app, x).disposition for x in (one, two)} & states)
                await until(lambda: max(seen(app, x).deferrals for x in (one, two)) >= 1)

        asyncio.run(main())
        assert all(got.headers["authorization"] == header for got in receiver.got)
        assert all(checks(SECRET, got) and checks(OTHER, got) for got in receiver.got)
        texts = [
            repr(made),
            str(made),
            repr(made.settings),
            json.dumps(made.as_dict()),
            repr(app.destinations.get("a")),
        ]
        texts += [json.dumps([entry.as_dict() for entry in app.operations.timeline(x)]) for x in (one, two)]
        texts += [json.dumps(app.operations.show(one).as_dict()), caplog.text, *capsys.readouterr()]
        hidden = [value.removeprefix("whsec_") for value in (SECRET, OTHER, "whsec_not-base64-but-secret!")]
        hidden += ["s3cr3t-header-value"]
        for text in texts:
            assert not [value for value in hidden if value in text]
        files = [path for path in tmp_path.rglob("*") if path.is_file()]  # the write-ahead log is still there
        assert any(path.name.endswith("-wal") and path.stat().st_size for path in files)
        for path in files:
            data = path.read_bytes()
            assert not [value for value in hidden if value.encode() in data], path
        assert "env:HOOK_SECRET" in json.dumps(made.as_dict())  # a reference is shown


@pytest.mark.parametrize("value", [None, "garbage", "whsec_short", "", "whpk_AAAA"], ids=str)
def test_a_secret_that_cannot_be_used_defers_and_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("HOOK_SECRET")
    if value is not None:
        monkeypatch.setenv("HOOK_SECRET", value)
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a")))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]

        async def main() -> None:
            async with working(app):
                await until(lambda: seen(app, one).deferrals >= 1)
                view = seen(app, one)
                assert (view.disposition, view.attempt, view.last_category) == ("waiting", 0, "own_fault")
                assert view.available_at - view.first_queued_at >= 1_000_000
                assert receiver.connections == 0
                monkeypatch.setenv("HOOK_SECRET", SECRET)
                await until(lambda: seen(app, one).disposition == "delivered")

        asyncio.run(main())
        assert [attempt.deferrals for attempt in attempts(app, one)] == [1]
        assert tries(app, one) == [("delivered", "ok")]
        assert_verified(app)


def test_the_twentieth_own_fault_in_a_row_is_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from redrive.worker.settings import WorkerSettings

    monkeypatch.delenv("HOOK_SECRET")
    quick = WorkerSettings(lease_s=3600, reap_s=0.2, poll_s=0.05)
    with rig(tmp_path, clock=FastClock(50), worker=quick) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), policy=Policy(max_attempts=2, base=MS)))
        one = app.publish("order.paid", 1, event_id=1).deliveries[0]
        drain(app)
        assert [(a.outcome, a.category, a.deferrals) for a in attempts(app, one)] == [("deferred", "own_fault", 19)] * 2
        assert [(letter.cause, letter.category) for letter in dead(app)] == [("attempts_exhausted", "own_fault")]
        assert seen(app, one).fence == 40
        assert receiver.connections == 0
        assert query(app, "SELECT count(*) FROM transition WHERE kind = 'deferred'")[0][0] <= 2  # coalesced
        assert_verified(app)


def test_a_secret_from_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(SECRET + "\n")
    with rig(tmp_path) as (app, receiver):
        app.destinations.add("a", settings(receiver.url("/a"), secrets=(SigningSecret(f"file:{file}"),)))
        app.publish("order.paid", 1, event_id=1)
        drain(app)
        file.write_text(OTHER + "\n")
        app.publish("order.paid", 1, event_id=2)
        drain(app)
        assert [(checks(SECRET, got), checks(OTHER, got)) for got in receiver.got] == [(True, False), (False, True)]


def test_errors_about_secrets_name_the_reference_only(tmp_path: Path) -> None:
    from redrive.webhooks.secrets import parse_ref, resolve

    with pytest.raises(RedriveError) as caught:
        resolve(parse_ref("env:NOT_THERE"))
    assert "env:NOT_THERE" in str(caught.value)
    with pytest.raises(RedriveError) as caught:
        parse_ref(SECRET)
    assert SECRET[6:] not in str(caught.value)
    assert SECRET[6:] not in repr(caught.value)
