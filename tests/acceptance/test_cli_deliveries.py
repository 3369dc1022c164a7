"""Work in and its history out: enqueue, publish, delivery, dead, status, verify, and what their sentences say."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import APP, LOCAL, Receiver, call, finished, ok, receiver, run, spawn, until


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "shop.py").write_text(APP)
    sys.modules.pop("shop", None)
    ok("init")
    yield tmp_path
    sys.modules.pop("shop", None)


@pytest.fixture
def local(folder: Path) -> Iterator[Receiver]:
    with receiver() as server:
        (folder / "redrive.toml").write_text(LOCAL.format(port=server.port) + 'app = "shop:app"\n')
        yield server


def work(folder: Path) -> None:
    assert call("up", "--until-idle", "--app", "shop:app", cwd=folder).code == 0


def enqueue(payload: object, key: str, *more: str) -> str:
    arguments = ("enqueue", "work", json.dumps(payload), "--key", key, "--app", "shop:app", *more)
    return str(ok(*arguments, "-o", "json").json["delivery"])


# enqueue and publish


def test_the_same_work_twice_is_one_delivery(folder: Path) -> None:
    first = ok("enqueue", "work", '{"n": 1}', "--key", "a", "--app", "shop:app", "-o", "json").json
    again = ok("enqueue", "work", '{"n":1}', "--key", "a", "--app", "shop:app", "-o", "json").json
    assert (first["created"], again["created"]) == (True, False)
    assert first["delivery"] == again["delivery"]
    ran = run("enqueue", "work", '{"n": 2}', "--key", "a", "--app", "shop:app", "-o", "json")
    assert (ran.code, ran.out, ran.error["code"]) == (6, "", "conflict")
    unique = {ok("enqueue", "work", "--unique", "--app", "shop:app", "-o", "json").json["delivery"] for _ in range(2)}
    assert len(unique) == 2


def test_what_came_from_the_command_line_says_so(folder: Path) -> None:
    delivery = enqueue({"n": 1}, "a")
    enqueue({"n": 1}, "a", "--actor", "ann@desk")
    elsewhere = ("enqueue", "other", "--key", "b", "--allow-unknown", "--default-policy")
    ok(*elsewhere)
    other = ok(*elsewhere, "-o", "json").json["delivery"]
    for one in (delivery, other):
        entries = ok("delivery", "timeline", one, "-o", "json").json["entries"]
        assert [entry["facts"]["path"] for entry in entries if entry["kind"] == "duplicate"] == ["cli"]
    assert "(cli, cli:ann@desk)" in ok("delivery", "timeline", delivery).out


def test_keys_keep_their_types_and_parts(folder: Path) -> None:
    def made(*key: str) -> str:
        return str(ok("enqueue", "work", *key, "--app", "shop:app", "-o", "json").json["delivery"])

    assert made("--key", "5") == made("--key-json", '"5"')
    assert len({made("--key", "5"), made("--key-json", "5"), made("--key", "a", "--key", "b")}) == 3
    assert made("--key", "a", "--key", "b") == made("--key-json", '["a", "b"]')
    for bad in ("1.5", "{}", "null", "[]", "nonsense", '""'):
        assert (run("enqueue", "work", "--key-json", bad, "--app", "shop:app").code, bad) == (2, bad)
    assert run("enqueue", "work", "--key", "", "--app", "shop:app").code == 2


BAD_JSON = [
    '{"a": NaN}',
    '{"a": Infinity}',
    '{"a": -Infinity}',
    '{"a": 1e999}',
    '"\\ud800"',
    '{"\\udfff": 1}',
    "{",
    "",
    "{} {}",
    "\ufeff{}",
    "[" * 100 + "]" * 100,
]


@pytest.mark.parametrize("payload", BAD_JSON)
def test_bad_json_is_refused_and_changes_nothing(folder: Path, payload: str) -> None:
    for arguments in (["enqueue", "work", "--app", "shop:app", "--key", "1"], ["publish", "a.b", "--event-id", "1"]):
        for text, stdin in ((payload, None), ("-", payload.encode("utf-8", "surrogatepass"))):
            ran = run(*arguments, "-o", "json", "--", text, stdin=stdin)
            assert (ran.code, ran.out) == (2, "")
            assert ran.error["code"] == "payload_invalid"
    assert ok("delivery", "list", "-o", "json").json == {"items": [], "next": None}


def test_bytes_that_are_not_text(folder: Path) -> None:
    for stdin in (b"\xff", b'"\xed\xa0\x80"', b'{"a": "\x00"}'):
        ran = run("publish", "a.b", "-", "--event-id", "1", "-o", "json", stdin=stdin)
        assert (ran.code, ran.error["code"]) == (2, "payload_invalid")
    argument = os.fsdecode(b'"\xff"')
    assert call("publish", "a.b", argument, "--event-id", "1", cwd=folder).code == 2


def test_payloads_over_the_limit(folder: Path) -> None:
    big = json.dumps("x" * 2000)
    for text, stdin in ((big, None), ("-", big), ("@big", None)):
        (folder / "big").write_text(big)
        for arguments in (
            ["enqueue", "work", "--app", "shop:app", "--key", "1"],
            ["publish", "a.b", "--event-id", "1"],
        ):
            ran = run(*arguments, "--max-payload", "1KiB", "-o", "json", "--", text, stdin=stdin)
            assert (ran.code, ran.error["code"]) == (2, "payload_too_large")
    assert run("publish", "a.b", "@gone", "--event-id", "1").code == 2
    ok("publish", "a.b", "@big", "--event-id", "1", "--max-payload", "2KiB")


@pytest.mark.parametrize(
    "more",
    [
        ["--delay", "-5"],
        ["--delay", "99999w"],
        ["--delay", "soon"],
        ["--delay", "1s", "--at", "2030-01-01T00:00:00Z"],
        ["--at", "2030-01-01T00:00:00"],
        ["--at", "tomorrow"],
        ["--at", "9999-01-01T00:00:00Z"],
        ["--priority", "9"],
        ["--tenant", "a\x00b"],
        ["--tenant", ""],
        ["--scope", "a\r\nb"],
        ["--destination", "\x1b[31m"],
    ],
)
def test_bad_options_of_enqueue(folder: Path, more: list[str]) -> None:
    ran = run("enqueue", "work", "null", "--key", "1", "--app", "shop:app", *more, "-o", "json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.error["message"]
    assert ok("delivery", "list", "-o", "json").json["items"] == []


def test_unknown_handlers(folder: Path) -> None:
    for more, says in (([], "--app MODULE:ATTR"), (["--app", "shop:app"], "shop:app has: die, hang, work")):
        ran = run("enqueue", "other", "--key", "1", *more)
        assert (ran.code, ran.out) == (2, "")
        assert "there is no handler 'other' here" in ran.err
        assert says in ran.err
    for more in ([], ["--app", "shop:app"]):
        ran = run("enqueue", "other", "--key", "1", "--allow-unknown", "-o", "json", *more)
        assert (ran.code, ran.error["code"], ran.error["param"]) == (2, "invalid_input", "policy")
        assert "--default-policy" in ran.error["hint"]
    ok("enqueue", "other", "--key", "1", "--allow-unknown", "--default-policy")
    ok("enqueue", "other", "--key", "2", "--allow-unknown", "--max-attempts", "2", "--unknown", "hold")
    assert budgets() == [(7, "retry"), (2, "hold")]
    assert "webhooks are published" in run("enqueue", "webhook", "--key", "1", "--allow-unknown").err


def budgets() -> list[tuple[int, str]]:
    with contextlib.closing(sqlite3.connect("redrive.db")) as connection:
        rows = connection.execute(
            "SELECT d.max_attempts, p.spec FROM delivery d JOIN policy p ON p.version = d.policy_version ORDER BY d.seq"
        ).fetchall()
    return [(attempts, json.loads(spec)["on_unknown"]) for attempts, spec in rows]


def test_policy_options_go_over_the_handlers_own_policy(folder: Path) -> None:
    enqueue(1, "a")
    enqueue(1, "b", "--unknown", "hold")
    enqueue(1, "c", "--max-attempts", "9", "--max-age", "2h")
    enqueue(1, "d", "--default-policy")
    enqueue(1, "e", "--default-policy", "--unknown", "hold")
    assert budgets() == [(3, "retry"), (3, "hold"), (9, "retry"), (7, "retry"), (7, "hold")]
    for bad in (["--max-attempts", "0"], ["--max-age", "soon"], ["--cap", "1s", "--floor", "2s"], ["--unknown", "x"]):
        assert (run("enqueue", "work", "1", "--key", "f", "--app", "shop:app", *bad).code, bad) == (2, bad)
    ran = run("enqueue", "work", "1", "--key", "f", "--app", "shop:app", "--unknown", "confirm", "-o", "json")
    assert (ran.code, ran.error["param"]) == (2, "policy")
    assert len(budgets()) == 5


def test_refused_work_is_counted_on_the_ledger(folder: Path) -> None:
    assert run("publish", "Order Paid", "{}", "--event-id", "1").code == 2
    assert ok("status", "-o", "json").json["rejections"] == {"invalid_input": 1}
    assert run("publish", "a.b", "{", "--event-id", "1").code == 2
    assert run("publish", "a.b", "[1, 2]", "--event-id", "1", "--max-payload", "2").code == 2
    assert run("enqueue", "work", "{", "--key", "1", "--app", "shop:app").code == 2
    assert run("enqueue", "other", "--key", "1", "--app", "shop:app").code == 2
    counts = {"invalid_input": 1, "payload_invalid": 2, "payload_too_large": 1, "unknown_handler": 1}
    assert ok("status", "-o", "json").json["rejections"] == counts


def test_publish_says_when_nobody_listens(folder: Path) -> None:
    ran = ok("publish", "order.paid", "{}", "--event-id", "1")
    assert "published: 0 deliveries" in ran.out
    assert "no destination of tenant 'default' subscribed to order.paid" in ran.err
    assert ok("publish", "order.paid", "{}", "--event-id", "1", "-o", "json").json["created"] is False
    assert run("publish", "order.paid", '{"x": 1}', "--event-id", "1").code == 6
    assert run("publish", "Order Paid", "{}", "--event-id", "2").code == 2


def test_published_bytes_arrive_as_they_are(local: Receiver, folder: Path) -> None:
    ok("destination", "add", "orders", local.url("/ok"), "--allow-http")
    body = b'{ "b":1,\n "a": "\xc3\xa9" }'
    ok("publish", "order.paid", "-", "--event-id", "1", stdin=body)
    ok("publish", "order.paid", "-", "--event-id", "2", "--content-type", "application/octet-stream", stdin=b"\x00\xff")
    work(folder)
    assert sorted(seen[2] for seen in local.seen) == sorted([body, b"\x00\xff"])
    assert {seen[1]["content-type"] for seen in local.seen} == {"application/json", "application/octet-stream"}


# The first sentence of a timeline: why it stopped, and what happens next.


def sentence(delivery: str) -> str:
    text = ok("delivery", "timeline", delivery).out.splitlines()[0]
    assert ok("delivery", "timeline", delivery, "-o", "json").json["explanation"].count(" | ") == 1
    return text


def test_sentences_of_what_has_ended(folder: Path, local: Receiver) -> None:
    local.answers["/down"] = 503
    quick = ("--allow-http", "--max-attempts", "3", "--base", "1ms", "--floor", "0", "--cap", "2ms")
    ok("destination", "add", "orders", local.url("/down"), *quick)
    (hook,) = ok("publish", "order.paid", "{}", "--event-id", "1", "-o", "json").json["deliveries"]
    jobs = {word: enqueue(word, word) for word in ("fine", "retry", "permanent", "no_op")}
    cancelled = enqueue(None, "c", "--delay", "1h")
    ok("delivery", "cancel", cancelled, "--reason", "not wanted", "-y", "--actor", "ann@desk")
    work(folder)

    stamp = r"at 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ \((now|\d+ s ago)\)"
    aside = "it is quarantined, and nothing sends it again"
    sent = r"\(corrected work is a new event, with another webhook-id\); no attempt can have taken effect"
    done = "no attempt can have taken effect, by what handler work reported"
    for delivery, pattern in (
        (hook, rf"dead: attempts_exhausted after 3 of 3 attempts, last http_503 from orders {stamp} \| {aside} {sent}"),
        (
            jobs["retry"],
            rf"dead: attempts_exhausted after 3 .*, last retry_requested .* {stamp} \| {aside}; {done}",
        ),
        (
            jobs["permanent"],
            rf"dead: permanent after 1 of 3 .*, last policy from .* work {stamp} \| {aside}; {done}",
        ),
        (jobs["fine"], rf"delivered at attempt 1 of 3, by handler work {stamp} \| nothing more happens"),
        (jobs["no_op"], rf"no_op: there was nothing to do at attempt 1 of 3, .* {stamp} \| nothing more happens"),
        (cancelled, rf"cancelled by ann@desk {stamp}: not wanted, after 0 of 3 attempts \| nothing more happens.*"),
    ):
        import re

        assert re.fullmatch(pattern, sentence(delivery)), sentence(delivery)

    entries = ok("delivery", "timeline", hook, "-o", "json").json["entries"]
    assert [entry["kind"] for entry in entries if entry["kind"] in ("accepted", "dead_letter")] == [
        "accepted",
        "dead_letter",
    ]
    assert sum(entry["kind"] == "attempt" for entry in entries) == 3
    assert [line["kind"] for line in ok("delivery", "timeline", hook, "-o", "jsonl").lines] == [
        entry["kind"] for entry in entries
    ]
    assert ok("dead", "show", hook).out.splitlines()[0].startswith("dead: attempts_exhausted")
    assert "order.paid 1 → orders" in ok("delivery", "timeline", hook).out


def test_sentences_of_what_waits(folder: Path, local: Receiver) -> None:
    later = enqueue(1, "later", "--delay", "1h")
    due = enqueue(1, "due")
    ok("destination", "add", "orders", local.url("/ok"), "--allow-http")
    (held,) = ok("publish", "order.paid", "{}", "--event-id", "1", "-o", "json").json["deliveries"]
    ok("destination", "disable", "orders", "--reason", "x", "-y")
    assert "waiting: not attempted yet | attempt 1 of 3 is due at 20" in sentence(later)
    assert "(in 59 min" in sentence(later)
    assert "is due since" in sentence(due)
    assert "no running worker executes handler 'work': start one with redrive up" in sentence(due)
    assert sentence(held).startswith("held: destination orders is disabled, after 0 of 8 attempts | ")
    assert "redrive destination enable orders" in sentence(held)


def test_the_sentence_of_what_is_running(folder: Path) -> None:
    delivery = ok("enqueue", "hang", "2", "--key", "1", "--app", "shop:app", "-o", "json").json["delivery"]
    worker = spawn("worker", "--app", "shop:app", "--drain", "10s", cwd=folder)
    until(lambda: (folder / "hanging").exists())
    assert sentence(delivery).startswith("running: 1 of 3 attempts is open since ")
    asked = ok("delivery", "cancel", delivery, "--reason", "x", "-y", "-o", "json").json
    assert (asked["cancelled"], asked["requested"]) == (False, True)
    assert "unless the attempt delivers" in sentence(delivery)
    worker.terminate()
    assert finished(worker).code == 0
    assert sentence(delivery).startswith("delivered at attempt 1 of 3")
    assert run("delivery", "cancel", delivery, "--reason", "x", "-y").code == 6


# Lists


def test_filters_and_pages(folder: Path, local: Receiver) -> None:
    ok("destination", "add", "orders", local.url("/ok"), "--allow-http", "--tenant", "acme")
    for number in range(3):
        ok("publish", "order.paid", "{}", "--event-id", f"e{number}", "--tenant", "acme", "--scope", "eu")
    for number in range(4):
        enqueue("permanent" if number % 2 else 1, f"k{number}", "--destination", "db")
    work(folder)

    def found(*arguments: str) -> int:
        return len(ok("delivery", "list", "-o", "json", *arguments).json["items"])

    assert found() == 7
    assert found("--tenant", "acme") == found("--destination", "orders") == found("--event-type", "order.paid") == 3
    assert found("--scope", "eu", "--handler", "webhook", "--since", "1h") == 3
    assert found("--event-id", "e1", "--tenant", "acme") == found("--key", "k1") == 1
    assert found("--state", "dead") == found("--category", "policy") == 2
    assert found("--state", "dead,delivered", "--destination", "db") == 4
    assert found("--state", "waiting", "--state", "leased") == found("--until", "1h") == found("--held") == 0
    assert found("--since", "2020-01-01T00:00:00Z", "--until", "2021-01-01T00:00:00+01:00") == 0
    for bad in (["--state", "x"], ["--since", "x"], ["--since", "2020-01-01T00:00:00"], ["--category", "x"]):
        assert run("delivery", "list", *bad).code == 2
    for bad in (["--limit", "0"], ["--limit", "1001"], ["--after", "nonsense"]):
        assert run("delivery", "list", *bad).code == 2

    seen: list[str] = []
    cursor: list[str] = []
    for _ in range(4):
        page = ok("delivery", "list", "--limit", "2", "-o", "json", *cursor).json
        seen += [item["id"] for item in page["items"]]
        cursor = ["--after", page["next"] or ""]
    assert page["next"] is None
    assert seen == [item["id"] for item in ok("delivery", "list", "--all", "-o", "jsonl").lines]
    assert len(set(seen)) == 7
    assert ok("delivery", "list", "--all", "-o", "json").json["next"] is None
    table = ok("delivery", "list", "--limit", "2")
    assert len(table.out.splitlines()) == 3
    assert "there are more: --after " in table.err
    named = ok("delivery", "list", "--destination", "orders", "-o", "json").json["items"][0]
    assert (named["destination_name"], named["destination"][:4]) == ("orders", "dst_")


def test_dead_letters_are_counted_and_listed_alike(folder: Path) -> None:
    for number in range(3):
        enqueue("permanent", f"p{number}", "--destination", "db")
    enqueue("retry", "r", "--destination", "mail")
    work(folder)
    counted = ok("dead", "count", "-o", "json").json
    assert counted["total"] == 4
    assert [(c["destination"], c["cause"], c["category"], c["count"]) for c in counted["items"]] == [
        ("db", "permanent", "policy", 3),
        ("mail", "attempts_exhausted", "retry_requested", 1),
    ]
    for more in ([], ["--destination", "db"], ["--cause", "permanent"], ["--category", "policy"], ["--since", "1h"]):
        listed = ok("dead", "list", "--all", "-o", "jsonl", *more).lines
        assert len(listed) == ok("dead", "count", "-o", "json", *more).json["total"] > 0
    assert ok("dead", "count", "--tenant", "other", "-o", "json").json == {"items": [], "total": 0}
    assert "4 dead letters in all" in ok("dead", "count").err
    assert ok("dead", "count").out.splitlines()[1].split()[:4] == ["3", "db", "permanent", "policy"]
    assert len(ok("dead", "list").out.splitlines()) == 5
    assert run("dead", "count", "--cause", "nonsense").code == 2


def test_show_and_payload(folder: Path) -> None:
    delivery = enqueue({"card": "4242"}, "k")
    shown = ok("delivery", "show", delivery)
    assert "4242" not in shown.out + ok("delivery", "show", delivery, "-o", "json").out
    assert call("delivery", "show", delivery, "--payload", cwd=folder).out == '{"card":"4242"}'
    for bad, code in ((f"{delivery[:-3]}000", 1), ("dlv_x", 2), ("nonsense", 2)):
        assert run("delivery", "show", bad).code == code


def test_text_from_the_ledger_cannot_drive_the_terminal(folder: Path) -> None:
    delivery = enqueue(1, "\x1b[31mred\x07\u202egnp\n")
    for arguments in (["delivery", "list"], ["delivery", "show", delivery], ["delivery", "timeline", delivery]):
        out = ok(*arguments).out
        assert not any(mark in out for mark in ("\x1b", "\x07", "\u202e"))
        assert "\\x1b[31mred\\x07" in out
    assert ok("delivery", "list", "-o", "json").json["items"][0]["key"].startswith("\x1b[31m")


def test_cancel_needs_a_yes_and_a_reason(folder: Path) -> None:
    delivery = enqueue(1, "k", "--delay", "1h")
    for more, code in (
        (["--reason", "x"], 3),
        (["--reason", "x", "-o", "json"], 3),
        (["--reason", "x", "--no-input"], 3),
        (["-y"], 2),
        (["-y", "--reason", " "], 2),
    ):
        assert (run("delivery", "cancel", delivery, *more).code, more) == (code, more)
    assert ok("delivery", "show", delivery, "-o", "json").json["disposition"] == "waiting"
    assert "is cancelled" in ok("delivery", "cancel", delivery, "--reason", "x", "-y").out


# status and verify


def test_status_says_what_is_wrong_first(folder: Path, local: Receiver) -> None:
    def first() -> str:
        assert " | " in ok("status", "-o", "json").json["explanation"]
        return ok("status").out.splitlines()[0]

    assert first() == "empty: nothing was ever accepted | redrive publish or redrive enqueue adds work"
    later = enqueue(1, "later", "--delay", "1h")
    assert first().startswith("on time: 1 waiting for their time, 0 running | no worker is running")
    enqueue("permanent", "due")
    assert first().startswith("stopped: 1 due")
    assert "no worker is running | start one: redrive up" in first()
    ok("delivery", "cancel", later, "--reason", "x", "-y")
    work(folder)
    assert first() == "idle: nothing waits; 1 open dead letter | see why: redrive dead count"
    ok("destination", "add", "orders", local.url("/ok"), "--allow-http")
    ok("publish", "a.b", "{}", "--event-id", "1")
    ok("destination", "disable", "orders", "--reason", "x", "-y")
    assert first().startswith("partly held: 1 wait for a disabled destination; 1 open dead letter |")
    shown = ok("status", "-o", "json").json
    assert shown["dispositions"]["dead"] == {"count": 1, "more": False}


def test_verify_is_clean_and_then_is_not(folder: Path) -> None:
    delivery = enqueue("permanent", "k")
    work(folder)
    assert "1 delivery verified: the ledger agrees with itself" in ok("verify").out
    clean = ok("verify", "-o", "json").json
    assert (clean["ok"], clean["checked"], clean["problems"]) == (True, 1, [])
    connection = sqlite3.connect("redrive.db")
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for (trigger,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
        connection.execute(f'DROP TRIGGER "{trigger}"')
    connection.execute("UPDATE delivery_state SET attempt = 2")
    connection.commit()
    connection.close()
    ran = run("verify")
    assert (ran.code, delivery in ran.out) == (1, True)
    assert ran.out.splitlines()[0].endswith("in 1 delivery")
    broken = run("verify", "-o", "json")
    assert (broken.code, broken.json["ok"], broken.err) == (1, False, "")
    assert broken.json["total"] == len(broken.json["problems"]) > 0


def test_a_clock_that_is_not_ahead_needs_no_repair(folder: Path) -> None:
    ran = ok("verify", "--repair-clock")
    assert "ledger time was not ahead" in ran.err
    assert "the ledger agrees with itself" in ran.out


def test_a_clock_that_ran_ahead_is_repaired_on_request(folder: Path) -> None:
    import time

    from redrive import Redrive
    from redrive.webhooks.settings import DestinationSettings

    ahead = Redrive(clock=lambda: time.time_ns() // 1000 + 7_200_000_000)
    ahead.destinations.add("later", DestinationSettings("https://example.com/"))
    ahead.close()
    assert ok("status", "-o", "json").json["skew_us"] > 7_000_000_000
    assert "ahead of this host's clock" in ok("status").err
    ran = ok("verify", "--repair-clock", "--actor", "ann@desk")
    assert "ledger time was 2 h ahead, and is set back" in ran.err or "ledger time was 1 h 59 min" in ran.err
    assert "ledger time was not ahead" in ok("verify", "--repair-clock").err
    assert ok("status", "-o", "json").json["skew_us"] < 1_000_000
