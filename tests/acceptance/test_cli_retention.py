"""``purge``, and what ``check``, ``status`` and ``config`` say of retention."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.cli_rig import ok, run

from redrive import Redrive
from redrive.domain.policy import DAY
from redrive.ledger.sqlite.clock import wall_us

TABLE = '[retention]\ndelivered = "90d"\nno_op = "2d"\nidentity = "100d"\n'


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a ledger on which three jobs were done 95 days ago, and one is waiting."""
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    url = f"sqlite:///{tmp_path / 'l.db'}" if request.param == "sqlite" else str(request.getfixturevalue("database"))
    monkeypatch.setenv("REDRIVE_LEDGER", url)
    now = wall_us() - 95 * DAY
    app = Redrive(url, environment="development", clock=lambda: now)
    app.init()
    app.handler("work")(lambda ctx, payload: None)
    app.enqueue_many([])
    for key in range(3):
        app.enqueue("work", key=key)
    app.run(until_idle=True)
    app.enqueue("work", key="later", delay="365d")
    app.close()
    return url


def data(*arguments: str) -> Any:
    return json.loads(ok(*arguments, "-o", "json").out)


def checked() -> Any:
    """What ``check`` says of retention; of the server, whose fsync is off here, it says something else."""
    (found,) = [each for each in json.loads(run("check", "-o", "json").out)["checks"] if each["check"] == "retention"]
    return found


def test_purge_counts_takes_and_says_what_is_in_force(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text(TABLE)
    would = data("purge", "--dry-run")
    assert (would["delivered"], would["dry_run"], would["more"]) == (3, True, False)
    assert "would take 3 deliveries (3 delivered)" in ok("purge", "--dry-run").out
    first = data("purge", "--limit", "2")
    assert (first["delivered"], first["more"], first["rules"]["delivered"]) == (2, True, 90 * DAY)
    assert "took 1 delivery (1 delivered)" in ok("purge", "--actor", "ada").out
    assert "took 0 deliveries" in ok("purge").out
    status = data("status")["retention"]
    assert (status["rules"]["identity"], status["purged"], status["ran_at"]) == (100 * DAY, 3, None)
    assert "delivered=90d, no_op=2d" in ok("status").out
    ok("verify")


def test_the_deduplication_window_is_stated(ledger: str, tmp_path: Path) -> None:
    found = checked()
    assert (found["state"], found["value"]) == ("ok", "off: nothing is taken; a key that was ever enqueued stays known")
    (tmp_path / "redrive.toml").write_text(TABLE)
    found = checked()
    window = (
        "a key enqueued again later than 190d after it ended as delivered, 102d after it ended as no_op, is new work"
    )
    assert found["value"].endswith(window)
    assert data("config")["settings"]["retention"] == {
        "value": "delivered=90d, no_op=2d, dead=forever, cancelled=forever, identity=100d",
        "origin": "redrive.toml",
    }


def test_without_rules_nothing_is_taken(ledger: str, tmp_path: Path) -> None:
    refused = run("purge")
    assert refused.code == 2
    assert "retention is not set" in refused.err
    assert ok("purge", "--dry-run").out == "nothing would be taken: retention is not set\n"
    assert data("purge", "--dry-run")["rules"] is None
    (tmp_path / "redrive.toml").write_text('[retention]\nidentity = "400d"\n')
    assert run("purge").code == 2
    status = data("status")["retention"]
    assert (status["purged"], status["oldest_at"] is None) == (0, False)


def test_an_application_may_say_it_and_a_setting_says_it_over_it(ledger: str, tmp_path: Path) -> None:
    name = f"shop_{ledger.partition(':')[0]}"  # a module is imported once in a process
    (tmp_path / f"{name}.py").write_text(
        f"from redrive import Redrive\napp = Redrive({ledger!r}, retention={{'delivered': '96d'}})\n"
    )
    assert data("purge", "--app", f"{name}:app")["rules"]["delivered"] == 96 * DAY
    assert data("purge", "--app", f"{name}:app", "--retention", "delivered=94d", "--dry-run")["delivered"] == 3
    (tmp_path / "redrive.toml").write_text(TABLE)
    assert data("purge", "--app", f"{name}:app", "--dry-run")["delivered"] == 3
