"""The verbs on a PostgreSQL ledger: destinations, schemas, deliveries and dead letters, from one to the next."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import APP, LOCAL, call, ok, receiver, run

JOBS = ("--app", "shop:app")
KNOWN = ("--allow-unknown", "--default-policy")


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: str) -> str:
    """A new ledger, in the settings of the working directory, with an application for it."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    (tmp_path / "shop.py").write_text(APP.replace("Redrive(", f"Redrive({database!r}, ", 1))
    monkeypatch.setenv("REDRIVE_LEDGER", database)
    ok("init", "-q")
    return database


def dispositions() -> dict[str, int]:
    found = ok("status", "-o", "json").json["dispositions"]
    return {word: count["count"] for word, count in found.items() if count["count"]}


def test_the_verbs_do_on_a_server_what_they_do_on_a_file(ledger: str, tmp_path: Path) -> None:
    assert ok("status").out.startswith("empty: nothing was ever accepted")
    with receiver() as server:
        (tmp_path / "redrive.toml").write_text(LOCAL.format(port=server.port))
        server.answers["/gone"] = 404
        for name in ("orders", "gone", "off"):
            ok("destination", "add", name, server.url(f"/{name}"), "--allow-http", "--event-type", f"{name}.*")
        assert run("destination", "add", "orders", server.url("/x"), "--allow-http").code == 6
        changed = ok("destination", "change", "gone", "--max-attempts", "2", "-o", "json").json
        assert changed["policy"]["max_attempts"] == 2
        assert ok("destination", "show", "gone", "-o", "json").json["event_types"] == ["gone.*"]
        assert ok("destination", "test", "orders").code == 0
        ok("destination", "disable", "off", "--reason", "moving", "--yes")
        ok("schema", "set", "orders.strict", '{"type": "object", "required": ["id"]}')
        assert [item["event_type"] for item in ok("schema", "list", "-o", "json").json["items"]] == ["orders.strict"]

        for event, body in (("orders.paid", "1"), ("orders.strict", "1"), ("gone.out", "1"), ("off.x", "1")):
            ok("publish", event, body, "--event-id", event)
        assert run("publish", "orders.paid", "2", "--event-id", "orders.paid").code == 6
        ok("enqueue", "work", '"no_op"', "--key", "noop", *KNOWN)
        later = ok("enqueue", "work", "1", "--key", "later", "--delay", "1h", *KNOWN, "-o", "json").json["delivery"]
        ok("worker", *JOBS, "--burst")
        assert dispositions() == {"waiting": 2, "delivered": 1, "no_op": 1, "dead": 2}
        status = ok("status")
        assert status.out.startswith("partly held: 1 wait for a disabled destination; 2 open dead letters")
        assert "6 in all" in status.out
        assert "1 conflict\n" in status.out

        items = ok("delivery", "list", "-o", "json").json["items"]
        assert len(items) == 6
        pages = ok("delivery", "list", "--limit", "4", "-o", "json").json
        rest = ok("delivery", "list", "--after", pages["next"], "-o", "json").json["items"]
        assert [item["id"] for item in (*pages["items"], *rest)] == [item["id"] for item in items]
        dead = ok("delivery", "list", "--state", "dead", "-o", "json").json["items"]
        assert {item["id"] for item in dead} == {
            item["delivery"] for item in ok("dead", "list", "-o", "json").json["items"]
        }
        counted = ok("dead", "count", "-o", "json").json
        assert (counted["total"], {item["destination_name"] for item in counted["items"]}) == (2, {"gone", "orders"})
        assert "404" in ok("dead", "show", next(item["id"] for item in dead if item["event_type"] == "gone.out")).out
        payload = call("delivery", "show", later, "--payload", cwd=tmp_path, REDRIVE_LEDGER=ledger)
        assert (payload.code, payload.out) == (0, "1")
        assert ok("delivery", "show", later, "-o", "json").json["disposition"] == "waiting"
        assert "accepted" in ok("delivery", "timeline", later).out
        ok("delivery", "cancel", later, "--reason", "not needed", "--yes")

        ok("schema", "remove", "orders.strict")
        ok("destination", "enable", "off")
        ok("up", *JOBS, "--until-idle")
        rotated = ok("destination", "rotate-secret", "orders", "--secret", "env:NEW", "-o", "json").json
        assert [secret["ref"] for secret in rotated["secrets"]] == ["env:NEW"]
        assert [item["name"] for item in ok("destination", "list", "-o", "json").json["items"]] == [
            "gone",
            "off",
            "orders",
        ]
    assert dispositions() == {"delivered": 2, "no_op": 1, "dead": 2, "cancelled": 1}
    assert sorted(path for path, _, _ in server.seen) == ["/gone", "/off", "/orders", "/orders"]
    assert ok("verify").code == 0
