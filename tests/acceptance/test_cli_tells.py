"""What the faces say unasked: of a destination that is gone, of a dead delivery, of attempts, of what was mistyped."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import APP, LOCAL, Receiver, call, ok, receiver, run
from tests.contract.reads_support import BUSY, OK, REFUSED, UNSURE, Desk, opened

from redrive.app import Redrive
from redrive.cli.explain import Known, explain
from redrive.domain.outcome import Category, Flag, Outcome, OutcomeKind
from redrive.domain.policy import HOUR, SECOND
from redrive.ledger import timeline

RULED_OUT = Outcome(OutcomeKind.PERMANENT, Category.HTTP_4XX, status=400, flags=Flag.RULED_OUT)


@pytest.fixture
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


def publish(number: int) -> str:
    (delivery,) = ok("publish", "order.paid", "{}", "--event-id", str(number), "-o", "json").json["deliveries"]
    return str(delivery)


# a destination that is gone


def test_a_410_is_told_to_everybody_who_looks(folder: Path, local: Receiver) -> None:
    ok("destination", "add", "orders", local.url("/gone"), "--allow-http")
    local.answers["/gone"] = 410
    gone = publish(1)
    ran = call("up", "--until-idle", cwd=folder)
    warned = r"WARNING redrive\.webhooks: destination dst_\w+ \(orders\) answered 410 Gone; disabled; 0 deliveries held"
    assert re.search(warned, ran.err), ran.err
    assert "attempt 1 ended permanent: gone, 410" in ran.err

    status = ok("status")
    assert re.search(r"disabled +orders since 20\S+ \S+Z \(.*\): 410 Gone", status.out), status.out
    assert "held  " not in status.out, "it is told although nothing waits"
    (told,) = ok("status", "-o", "json").json["disabled"]
    assert (told["name"], told["tenant"], told["why"]) == ("orders", "default", "410 Gone")
    assert told["disabled_at"].endswith("Z")

    story = ok("delivery", "timeline", gone)
    assert "it answered 410 Gone, which disabled destination orders" in story.out.splitlines()[0]
    assert "last gone; 410 Gone disabled its destination" in story.out
    ok("destination", "enable", "orders")
    assert ok("status", "-o", "json").json["disabled"] == []
    assert "410 Gone disabled its destination" in ok("delivery", "timeline", gone).out, "it stays part of the story"


def test_a_410_that_means_something_else_is_not_told_so(folder: Path, local: Receiver) -> None:
    ok("destination", "add", "orders", local.url("/gone"), "--allow-http", "--override", "410=permanent")
    local.answers["/gone"] = 410
    delivery = publish(1)
    assert "WARNING" not in call("up", "--until-idle", cwd=folder).err
    assert "disabled" not in ok("delivery", "timeline", delivery).out
    assert ok("status", "-o", "json").json["disabled"] == []


def test_the_warning_counts_what_is_held(
    folder: Path, local: Receiver, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import logging

    ok("destination", "add", "orders", local.url("/ok"), "--allow-http")
    publish(1)
    publish(2)
    monkeypatch.setattr(logging.getLogger("redrive"), "propagate", True)
    monkeypatch.setattr(logging.getLogger("redrive"), "level", logging.WARNING)
    app = Redrive("sqlite:///redrive.db")
    try:
        (found,) = app.destinations.list()
        app.destinations.disable_gone(found.destination_id)
        app.destinations.disable_gone(found.destination_id)
    finally:
        app.close()
    (told,) = [record.getMessage() for record in caplog.records if record.name == "redrive.webhooks"]
    assert told == f"destination {found.destination_id} (orders) answered 410 Gone; disabled; 2 deliveries held"


# why did it stop, and may it be done again


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with opened(tmp_path / "desk.db") as made:
        yield made


def sentence(desk: Desk, seq: int) -> str:
    view, attempts, entries = desk.ledger.read_sync(
        lambda tx: (timeline.show(tx, seq), timeline.attempts(tx, seq), timeline.timeline(tx, seq))
    )
    assert view.disposition == "dead"
    text = explain(Known(view, attempts, entries, {"dst_1": "orders"}, desk.now))
    assert text.count(" | ") == 1
    assert "redriven" not in text, "this release cannot"
    assert "quarantined" in text
    return text


@pytest.mark.parametrize(
    ("outcomes", "ends"),
    [
        ((BUSY, BUSY, BUSY), "; no attempt can have taken effect"),
        ((REFUSED,), "; no attempt can have taken effect"),
        ((UNSURE, BUSY, REFUSED), "; attempt 1 may have taken effect: "),
        ((UNSURE, BUSY, UNSURE), "; attempts 1, 3 may have taken effect: "),
        ((UNSURE, RULED_OUT), "; no attempt can have taken effect"),
    ],
)
def test_a_dead_delivery_says_which_attempts_may_have_taken_effect(
    desk: Desk, outcomes: tuple[Outcome, ...], ends: str
) -> None:
    (seq,) = desk.publish("e1", ["dst_1"])
    for outcome in outcomes:
        desk.attempt(outcome)
    told = "check with the receiver, or rely on its deduplication by webhook-id"
    assert sentence(desk, seq).endswith(ends + (told if ends.endswith(": ") else ""))
    assert "corrected work is a new event, with another webhook-id" in sentence(desk, seq)


def test_a_success_that_came_too_late_says_not_to_send_again(desk: Desk) -> None:
    (seq,) = desk.publish("e1", ["dst_1"])
    desk.attempt(BUSY)
    desk.attempt(BUSY)
    desk.pass_time(HOUR // 2)
    (lease,) = desk.reserve(lease_us=SECOND)
    desk.pass_time(2 * SECOND)
    desk.reap()
    assert sentence(desk, seq).endswith(
        "; attempt 3 may have taken effect: check with the receiver, or rely on its deduplication by webhook-id"
    )
    desk.end(lease, OK)
    assert re.search(
        r"; the receiver did confirm it late, at 20\S+ \S+Z \(now\): do not send it again$", sentence(desk, seq)
    )


def test_a_job_is_answered_for_by_its_handler(desk: Desk) -> None:
    refused = desk.enqueue("refused").seq
    desk.attempt(REFUSED)
    unsure = desk.enqueue("unsure").seq
    for _ in range(3):
        desk.attempt(UNSURE)
    aged = desk.enqueue("aged").seq
    desk.pass_time(HOUR)
    desk.reap()
    assert [sentence(desk, seq).rpartition("; ")[2] for seq in (refused, unsure, aged)] == [
        "no attempt can have taken effect, by what handler job reported",
        "attempts 1, 2, 3 may have taken effect: check what handler job did, "
        "or rely on its deduplication by delivery ID",
        "no attempt can have taken effect",
    ]


# attempts, as they end


def test_up_tells_attempts_that_did_not_simply_succeed(folder: Path) -> None:
    (folder / "shop.py").write_text(APP)
    (folder / "redrive.toml").write_text('app = "shop:app"\n')
    for key in ("a", "b"):
        call("enqueue", "work", "1", "--key", key, cwd=folder)
    sick = call("enqueue", "work", '"retry"', "--key", "c", "-o", "json", cwd=folder).json["delivery"]
    ran = call("up", "--until-idle", cwd=folder)
    told = [line.partition("Z ")[2] for line in ran.err.splitlines()[1:-1]]
    assert told == [
        *(f"{sick}: attempt {number} ended retryable: retry_requested" for number in (1, 2, 3)),
        "5 attempts ended: 2 delivered, 3 retryable",
    ]
    for number, more in enumerate((["-q"], ["-o", "json"])):
        call("enqueue", "work", '"retry"', "--key", f"quiet-{number}", cwd=folder)
        assert call("up", "--until-idle", *more, cwd=folder).err == ""
    call("enqueue", "work", '"retry"', "--key", "d", cwd=folder)
    assert "attempt" not in call("worker", "--until-idle", cwd=folder).err, "a service's log says it with -v"


# what was mistyped, or would be stored


def test_an_empty_list_says_that_no_destination_is_called_so(folder: Path, local: Receiver) -> None:
    ok("destination", "add", "orders", local.url("/ok"), "--allow-http")
    nothing = ok("delivery", "list", "--destination", "ordres").err
    assert "no registered destination is called 'ordres' (did you mean orders?)" in nothing
    assert "did you mean" not in ok("delivery", "list", "--destination", "zzz").err
    assert (
        "of tenant 'other' is called 'orders'"
        in ok("delivery", "list", "--destination", "orders", "--tenant", "other").err
    )
    assert ok("delivery", "list", "--destination", "orders").err.strip() == "no delivery matches"
    assert ok("delivery", "list").err.strip() == "no delivery matches"
    assert ok("delivery", "list", "--destination", "ordres", "-o", "json").err == ""


@pytest.mark.parametrize("text", ["NaN", "-Infinity", '{"a": NaN}', "[1,", '"x', "undefined", "None", "01", "+1", ""])
def test_what_looks_like_json_is_not_called_text(folder: Path, text: str) -> None:
    ran = run("publish", "a.b", text, "--event-id", "1")
    assert ran.code == 2
    assert "text/plain" not in ran.err


@pytest.mark.parametrize("text", ["hello", "paid: yes", "<a/>", "nanometre", "nothing"])
def test_what_does_not_look_like_json_may_be_text(folder: Path, text: str) -> None:
    assert "--content-type text/plain" in run("publish", "a.b", text, "--event-id", "1").err


def test_repeats_are_counted_in_deliveries(folder: Path, local: Receiver) -> None:
    for name in ("one", "two"):
        ok("destination", "add", name, local.url("/ok"), "--allow-http")
    for _ in range(2):
        again = ok("publish", "order.paid", "{}", "--event-id", "1").out.splitlines()[0]
    assert again.endswith("nothing was added (2 deliveries repeated)")
    assert re.search("deliveries repeated +2 with the same payload, 0 conflicts", ok("status").out)


def test_a_token_in_a_url_is_warned_of_and_never_repeated(folder: Path, local: Receiver) -> None:
    url = local.url("/ok?region=eu&access_token=s3cr3t")
    warned = ok("destination", "add", "orders", url, "--allow-http")
    assert "warning: the URL's parameter access_token looks like a credential" in warned.err
    assert "s3cr3t" not in warned.err + warned.out
    assert "warning" not in ok("destination", "change", "orders", "--max-attempts", "3").err
    assert "parameter sig looks" in ok("destination", "change", "orders", "--url", local.url("/ok?sig=1")).err
    assert "warning" not in ok("destination", "add", "plain", local.url("/ok?region=eu"), "--allow-http").err
    assert "webhook-duplicate" in run("destination", "add", "--help", env={"COLUMNS": "200"}).out
