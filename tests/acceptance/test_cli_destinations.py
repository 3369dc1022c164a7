"""``destination`` and ``schema``: what is registered, what is refused, and that no secret is ever printed."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import sqlite3
import stat
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import LOCAL, SECRET, Ran, Receiver, ok, receiver, run

TOKEN = "Bearer 0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    ok("init")
    return tmp_path


@pytest.fixture
def local(folder: Path) -> Iterator[Receiver]:
    with receiver() as server:
        (folder / "redrive.toml").write_text(LOCAL.format(port=server.port))
        yield server


def add(name: str, url: str, *more: str) -> Ran:
    return ok("destination", "add", name, url, "--allow-http", *more)


def test_every_option_reaches_the_destination(folder: Path) -> None:
    (folder / "s").write_text(SECRET)
    made = ok(
        "destination", "add", "orders", "https://hooks.example.com/secret-path?t=1", "--tenant", "acme",
        "--scope", "eu", "--event-type", "order.*", "--event-type", "refund.**", "--header", "X-Shop: 7", "--header",
        "Authorization: env:ORDERS_TOKEN", "--secret", "env:A_SECRET", "--secret", f"file:{folder}/s",
        "--max-attempts", "5", "--max-age", "6h", "--base", "30s", "--factor", "3", "--cap", "30m", "--floor", "1s",
        "--jitter", "none", "--retry-after-cap", "2h", "--unknown", "confirm", "--confirm", "was_paid",
        "--dns-timeout", "1s", "--connect-timeout", "2s", "--tls-timeout", "3s", "--first-byte-timeout", "4s",
        "--total-timeout", "500ms", "--acknowledge", "200-204", "--duplicate-status", "409",
        "--duplicate-header", "X-Dup",
        "--override", "404=retryable", "--override", "500-503=unknown", "--certificate", "retryable", "--ca-file",
        "/etc/ca.pem", "--client-cert-file", "/c.pem", "--client-key-file", "/k.pem",
        "--proxy", "proxy.example.com:3128",
        "--proxy-authorization", "env:PROXY_AUTH", "--excerpt", "200", "--max-response-body", "1000", "-o", "json",
    ).json  # fmt: skip
    assert made["destination_id"].startswith("dst_")
    expected = {
        "tenant": "acme",
        "name": "orders",
        "origin": "https://hooks.example.com:443",
        "enabled": True,
        "scope": "eu",
        "event_types": ["order.*", "refund.**"],
        "headers": [["X-Shop", "7"], ["Authorization", "env:ORDERS_TOKEN"]],
        "secrets": [{"ref": "env:A_SECRET", "until": None}, {"ref": f"file:{folder}/s", "until": None}],
        "timeouts": {"dns": 1, "connect": 2, "tls": 3, "first_byte": 4, "total": 0.5},
        "acknowledge": "200-204",
        "duplicate_status": 409,
        "duplicate_header": "X-Dup",
        "overrides": [["404", "retryable"], ["500-503", "unknown"]],
        "certificate": "retryable",
        "confirm": "was_paid",
        "ca_file": "/etc/ca.pem",
        "client_cert_file": "/c.pem",
        "client_key_file": "/k.pem",
        "proxy": "proxy.example.com:3128",
        "proxy_authorization": "env:PROXY_AUTH",
        "excerpt": 200,
        "max_response_body": 1000,
    }
    assert {name: made[name] for name in expected} == expected
    assert made["policy"] == {
        "max_attempts": 5,
        "max_age": 6 * 3600 * 10**6,
        "base": 30 * 10**6,
        "factor": 3.0,
        "cap": 1800 * 10**6,
        "floor": 10**6,
        "jitter": "none",
        "retry_after_cap": 7200 * 10**6,
        "on_unknown": "confirm",
    }
    for shown in (
        ok("destination", "show", "orders", "--tenant", "acme"),
        ok("destination", "list", "--tenant", "acme"),
        ok("destination", "list", "--all-tenants", "-o", "json"),
    ):
        assert "secret-path" not in shown.out
        assert SECRET not in shown.out


def test_change_keeps_what_is_not_mentioned(folder: Path) -> None:
    ok("destination", "add", "orders", "https://a.example.com/x", "--max-attempts", "5", "--header", "X-A: 1")
    changed = ok("destination", "change", "orders", "--base", "9s", "--event-type", "order.paid", "-o", "json").json
    assert (changed["policy"]["max_attempts"], changed["policy"]["base"]) == (5, 9_000_000)
    assert (changed["headers"], changed["event_types"]) == ([["X-A", "1"]], ["order.paid"])
    cleared = ok("destination", "change", "orders", "--clear", "headers", "--clear", "event-type", "-o", "json").json
    assert (cleared["headers"], cleared["event_types"], cleared["policy"]["base"]) == ([], ["*"], 9_000_000)
    moved = ok("destination", "change", "orders", "--url", "https://b.example.com/y", "-o", "json").json
    assert (moved["origin"], moved["destination_id"]) == ("https://b.example.com:443", changed["destination_id"])
    assert run("destination", "change", "orders").code == 2
    assert "one of: " in run("destination", "change", "orders", "--clear", "nonsense").err
    assert run("destination", "change", "gone", "--base", "1s").code == 1


def test_the_same_name_again_is_a_conflict_and_leaves_no_secret_file(folder: Path) -> None:
    ok("destination", "add", "orders", "https://example.com/", "--generate-secret", "one")
    ran = run("destination", "add", "orders", "https://example.com/", "--generate-secret", "two", "-o", "json")
    assert (ran.code, ran.out, ran.error["code"]) == (6, "", "conflict")
    assert not (folder / "two").exists()
    again = run("destination", "add", "other", "https://example.com/", "--generate-secret", "one")
    assert (again.code, "never overwritten" in again.err) == (2, True)


# Refusals: one clear sentence, exit 2, nothing on the ledger.


@pytest.mark.parametrize(
    ("url", "more", "says"),
    [
        ("http://example.com/", [], "plain http is not allowed"),
        ("https://127.0.0.1/", [], "the address guard refuses 127.0.0.1 (loopback)"),
        ("https://[::1]/", [], "the address guard refuses ::1 (loopback)"),
        ("https://169.254.169.254/latest", [], "link_local"),
        ("https://2130706433/", [], "(loopback)"),
        ("https://localhost/", [], "the address guard refuses localhost"),
        ("https://example.com:22/", [], "port 22 is not allowed"),
        ("ftp://example.com/", [], ""),
        ("https://user:hunter2@example.com/", [], ""),
        ("not a url", [], ""),
        ("https://example.com/", ["--header", "X-A: a\r\nX-B: b"], "visible ASCII"),
        ("https://example.com/", ["--header", "X-A\r\n: a"], "a header name must be"),
        ("https://example.com/", ["--header", "X-A: a\nb"], "visible ASCII"),
        ("https://example.com/", ["--header", "X-A"], "a header is 'Name: value'"),
        ("https://example.com/", ["--header", "Host: a"], "written by the sender"),
        ("https://example.com/", ["--header", "X: 1", "--header", "x: 2"], "given twice"),
        ("https://example.com/", ["--event-type", "order.**.x"], ""),
        ("https://example.com/", ["--max-attempts", "0"], "1 to 1000"),
        ("https://example.com/", ["--max-attempts", "-1"], "1 to 1000"),
        ("https://example.com/", ["--max-age", "-1h"], "must not be negative"),
        ("https://example.com/", ["--max-age", "99999w"], "longer than ten years"),
        ("https://example.com/", ["--factor", "nan"], "factor must be 1 to 1000"),
        ("https://example.com/", ["--floor", "1h", "--cap", "1m"], "floor <= cap"),
        ("https://example.com/", ["--total-timeout", "0"], "must be more than 0"),
        ("https://example.com/", ["--unknown", "confirm"], "needs the name of a confirm function"),
        ("https://example.com/", ["--override", "404"], "an override is STATUS=OUTCOME"),
        ("https://example.com/", ["--override", "404=whatever"], ""),
        ("https://example.com/", ["--acknowledge", "1xx"], ""),
        ("https://example.com/", ["--ca-file", "relative.pem"], "must be an absolute path"),
        ("https://example.com/", ["--tenant", "a\nb"], "control character"),
        ("https://example.com/", ["--secret", "file:relative"], "absolute path"),
    ],
)
def test_what_cannot_work_is_refused(url: str, more: list[str], says: str) -> None:
    ran = run("destination", "add", "orders", url, *more, "-o", "json")
    assert (ran.code, ran.out) == (2, "")
    assert says in ran.error["message"]
    assert "hunter2" not in ran.err
    assert ok("destination", "list", "-o", "json").json == {"items": []}


def test_the_hint_of_a_refusal_names_everything_an_operator_must_allow(folder: Path) -> None:
    ran = run("destination", "add", "local", "http://10.1.2.3:443/")
    assert 'redrive.toml: allow_http = true; allowed_private = ["10.1.2.3/32"]' in ran.err
    assert "allowed_private" not in run("destination", "add", "meta", "http://169.254.169.254/").err.split("hint")[1]
    ran = run("destination", "add", "local", "http://127.0.0.1:8080/")
    assert 'redrive.toml: allow_http = true; allowed_ports = [443, 8080]; allowed_private = ["127.0.0.0/8"' in ran.err
    assert "--allow-http on this destination" in ran.err
    (folder / "redrive.toml").write_text(
        'allow_http = true\nallowed_ports = [443, 8080]\nallowed_private = ["127.0.0.0/8"]\n'
    )
    assert "give --allow-http for this destination" in run("destination", "add", "local", "http://127.0.0.1:8080/").err
    ok("destination", "add", "local", "http://127.0.0.1:8080/", "--allow-http")


# Secrets.


@pytest.mark.parametrize(
    "more",
    [
        ["--secret", SECRET],
        ["--secret", f"env:{SECRET}"],
        ["--secret", f"file:{SECRET}"],
        ["--secret", SECRET[6:]],
        ["--header", f"Authorization: {TOKEN}"],
        ["--header", f"X-Api-Key: {SECRET}"],
        ["--header", f"X-Whatever: {SECRET}"],
        ["--header", f"X-Whatever: {TOKEN}"],
        ["--header", f"{SECRET}"],
        ["--proxy-authorization", TOKEN],
        ["--clear", SECRET],
        ["--max-age", SECRET],
        ["--max-attempts", "3", "--jitter", "full", "--base", TOKEN],
    ],
)
def test_a_secret_itself_is_refused_and_never_echoed(folder: Path, more: list[str]) -> None:
    ok("destination", "add", "there", "https://example.com/")
    for line in (["add", "orders", "https://example.com/"], ["change", "there"], ["rotate-secret", "there"]):
        for extra in ([], ["-o", "json"], ["-vv"]):
            ran = run("destination", *line, *more, *extra)
            assert (ran.code, ran.out) == (2, ""), (line, more)
            if more[0] != "--clear" and "No such option" not in ran.err:
                assert SECRET[6:] not in ran.err
                assert TOKEN[7:] not in ran.err
    for path in folder.iterdir():
        assert SECRET[6:].encode() not in path.read_bytes()


def test_generated_secrets_are_in_a_private_file_and_nowhere_else(folder: Path, local: Receiver) -> None:
    old = os.umask(0)
    try:
        ran = add("orders", local.url("/ok"), "--generate-secret", "orders.secret")
    finally:
        os.umask(old)
    path = folder / "orders.secret"
    secret = path.read_text().strip()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret.startswith("whsec_")
    printed = [ran, ok("destination", "show", "orders"), ok("destination", "test", "orders", "-vv")]
    assert all(secret not in shown.out + shown.err for shown in printed)
    assert f"file:{path}" in printed[1].out
    assert all(secret.encode() not in file.read_bytes() for file in folder.glob("redrive.db*"))

    _, headers, body = local.seen[0]
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    digest = hmac.new(b64decode(secret[6:]), signed, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + b64encode(digest).decode()


def test_rotation_signs_with_both_for_the_overlap(folder: Path, local: Receiver) -> None:
    add("orders", local.url("/ok"), "--generate-secret", "old")
    ran = ok("destination", "rotate-secret", "orders", "--generate-secret", "new", "--overlap", "1h")
    assert (folder / "new").read_text().strip() not in ran.out + ran.err
    ok("destination", "test", "orders")
    assert len(local.seen[-1][1]["webhook-signature"].split()) == 2
    refs = [item["ref"] for item in ok("destination", "show", "orders", "-o", "json").json["secrets"]]
    assert refs == [f"file:{folder}/new", f"file:{folder}/old"]
    assert run("destination", "rotate-secret", "orders").code == 2


# destination test: a real request, and nothing on the ledger.


def test_the_test_sends_one_signed_request_and_leaves_nothing(folder: Path, local: Receiver) -> None:
    add("orders", local.url("/ok"), "--generate-secret", "s")
    connection = sqlite3.connect("redrive.db")
    before = list(connection.execute("SELECT (SELECT count(*) FROM delivery), (SELECT count(*) FROM event)"))
    ran = ok("destination", "test", "orders", "-o", "json")
    assert ran.json["delivered"] is True
    assert (ran.json["status"], ran.json["outcome"], ran.json["phase"]) == (200, "delivered", "response")
    assert 0 < ran.json["duration_us"] < 5_000_000
    assert "answered with status 200" in ok("destination", "test", "orders").out
    assert list(connection.execute("SELECT (SELECT count(*) FROM delivery), (SELECT count(*) FROM event)")) == before
    connection.close()
    assert len(local.seen) == 2
    _, headers, body = local.seen[0]
    assert headers["redrive-event-type"] == json.loads(body)["type"] == "redrive.test"
    assert headers["webhook-id"] != local.seen[1][1]["webhook-id"]


def test_the_test_says_why_it_was_not_delivered(folder: Path, local: Receiver) -> None:
    local.answers.update({"/down": 503, "/gone": 410})
    add("down", local.url("/down"))
    ran = run("destination", "test", "down")
    assert (ran.code, "status 503" in ran.out, "retryable (http_5xx)" in ran.out) == (1, True, True)
    add("gone", local.url("/gone"))
    assert run("destination", "test", "gone", "-o", "json").json["category"] == "gone"
    assert ok("destination", "show", "gone", "-o", "json").json["enabled"] is True
    add("unset", local.url("/ok"), "--secret", "env:NOT_SET_HERE")
    missing = run("destination", "test", "unset", "-o", "json")
    assert (missing.code, missing.error["code"]) == (1, "secret_unavailable")
    (folder / "redrive.toml").write_text(LOCAL.format(port=1))
    add("closed", "http://127.0.0.1:1/")
    closed = run("destination", "test", "closed", "-o", "json")
    assert (closed.code, closed.json["phase"], closed.json["sent"]) == (1, "connect", False)
    assert "nothing was sent" in run("destination", "test", "closed").out
    forbidden = run("destination", "test", "down", "-o", "json")
    assert (forbidden.code, forbidden.error["code"]) == (2, "forbidden_address")
    assert run("destination", "test", "nobody").code == 1


# enable, disable and the confirmation


def test_disable_holds_and_enable_releases(local: Receiver) -> None:
    add("orders", local.url("/ok"))
    ok("publish", "order.paid", "{}", "--event-id", "1")
    held = ok("destination", "disable", "orders", "--reason", "maintenance", "-y", "-o", "json").json
    assert (held["enabled"], held["held"]) == (False, 1)
    assert ok("up", "--until-idle").code == 0
    assert local.seen == []
    assert "disabled" in ok("destination", "show", "orders").out
    assert "maintenance" in ok("destination", "show", "orders").out
    assert "1 delivery released" in ok("destination", "enable", "orders").out
    ok("up", "--until-idle")
    assert len(local.seen) == 1


def test_what_receivers_called_duplicates_is_shown(local: Receiver) -> None:
    add("orders", local.url("/ok"))
    assert "duplicates" not in ok("status").out
    made = ok("destination", "show", "orders", "-o", "json").json
    assert made["receiver_duplicates"] == 0
    with contextlib.closing(sqlite3.connect("redrive.db")) as conn:
        conn.execute("INSERT INTO receiver_duplicate VALUES (?, 1234)", (made["destination_id"],))
        conn.commit()
    assert ok("destination", "show", "orders", "-o", "json").json["receiver_duplicates"] == 1234
    assert [one["receiver_duplicates"] for one in ok("destination", "list", "-o", "jsonl").lines] == [1234]
    assert ok("status", "-o", "json").json["receiver_duplicates"] == 1234
    assert "1,234 reported by the receiver" in ok("destination", "show", "orders").out
    assert "1,234" in ok("destination", "list").out
    assert "1,234 reported by receivers" in ok("status").out


def test_a_destructive_command_needs_a_yes(local: Receiver) -> None:
    add("orders", local.url("/ok"))
    for extra in ([], ["--no-input"], ["-o", "json"], ["-o", "jsonl"]):
        ran = run("destination", "disable", "orders", "--reason", "x", *extra, stdin="y\n")
        assert (ran.code, ran.out) == (3, "")
        assert "--yes" in ran.err
        assert ok("destination", "show", "orders", "-o", "json").json["enabled"] is True
    assert run("destination", "disable", "orders", "-y").code == 2
    assert run("destination", "disable", "orders", "-y", "--reason", " ").code == 2


# schema


def test_schemas(folder: Path, local: Receiver) -> None:
    add("orders", local.url("/ok"))
    (folder / "schema.json").write_text('{"type": "object", "required": ["order"]}')
    ok("schema", "set", "order.paid", "@schema.json")
    assert ok("schema", "list", "-o", "jsonl").lines == [
        {"event_type": "order.paid", "schema": {"type": "object", "required": ["order"]}}
    ]
    assert "order.paid" in ok("schema", "list").out
    ok("publish", "order.paid", "{}", "--event-id", "1")
    ok("up", "--until-idle")
    assert local.seen == []
    counted = ok("dead", "count", "-o", "json").json
    assert [(c["cause"], c["category"], c["count"]) for c in counted["items"]] == [("permanent", "payload_invalid", 1)]
    ok("schema", "remove", "order.paid")
    assert ok("schema", "list", "-o", "json").json == {"items": []}
    assert run("schema", "remove", "order.paid").code == 1
    for bad in ("{", '{"type": "nonsense"}', "[]", '{"$ref": "https://example.com/s"}', "@gone.json"):
        assert (run("schema", "set", "order.paid", bad).code, bad) == (2, bad)
    assert ok("schema", "set", "order.paid", "-", stdin="true").code == 0
