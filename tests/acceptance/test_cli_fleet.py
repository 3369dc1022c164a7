"""``worker --burst``, ``worker list``, ``status --due`` and ``envelope list``, on both kinds of ledger."""

from __future__ import annotations

import asyncio
import json
import re
import signal
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import APP, call, children, environment, finished, ok, run, spawn, until
from tests.acceptance.fleet_support import execute, plant_step, registered

from redrive import Redrive, __version__
from redrive.domain.ports import LIVE_US
from redrive.ledger.fleet import SILENT_US

DAY_US = 86_400_000_000


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A ledger's URL, in the settings of the working directory, with an application for it."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    if request.param == "postgres":
        url = request.getfixturevalue("database").replace("postgres@", "postgres:swordfish@")
    (tmp_path / "shop.py").write_text(APP.replace("Redrive(", f"Redrive({url!r}, ", 1))
    (tmp_path / "redrive.toml").write_text(f'ledger = "{url}"\nenvironment = "development"\n')
    monkeypatch.chdir(tmp_path)
    for name in environment():
        if name.startswith("REDRIVE_"):
            monkeypatch.delenv(name)
    ok("init", "-q")
    return url


JOBS = ("--app", "shop:app")


def enqueue(key: str, *more: str, handler: str = "work", payload: str = "1") -> str:
    known = ("--allow-unknown", "--default-policy")
    found: str = ok("enqueue", handler, payload, "--key", key, *known, *more, "-o", "json").json["delivery"]
    return found


def test_a_burst_ends_with_0_and_prints_when_the_next_is_due(ledger: str, tmp_path: Path) -> None:
    ran = call("worker", *JOBS, "--burst", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "nothing waits\n")
    assert ran.err.splitlines()[-1] == "nothing is due"
    assert "swordfish" not in ran.err
    enqueue("now")
    enqueue("later", "--delay", "45m")
    ran = call("worker", *JOBS, "--burst", "-q", cwd=tmp_path)
    assert (ran.code, ran.err) == (0, "")
    assert re.fullmatch(r"next due at (\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\dZ, in 4[45] min\n", ran.out)
    shown = call("worker", *JOBS, "--burst", "--linger", "100ms", "-o", "json", cwd=tmp_path)
    assert (shown.code, shown.err) == (0, "")
    due = ok("status", "--due", "-o", "json").json
    assert shown.json["spent"] is True
    assert shown.out.count("\n") == 1
    assert shown.json["due_elsewhere"] == {"count": 0, "more": False}
    assert shown.json["next_due_at"] == due["next_due_at"]
    assert 0 < due["next_due_us"] <= shown.json["next_due_us"] < 45 * 60_000_000
    counts = ok("status", "-o", "json").json["dispositions"]
    assert (counts["delivered"]["count"], counts["waiting"]["count"]) == (1, 1)


def test_a_worker_that_ends_says_what_is_due_for_others(ledger: str, tmp_path: Path) -> None:
    for number in range(3):
        enqueue(str(number), handler="else")
    told = "(3 due for handlers that it does not have: redrive envelope list)"
    ran = call("worker", *JOBS, "--burst", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "nothing waits for the handlers of this worker\n")
    assert ran.err.splitlines()[-1] == f"nothing that this worker executes is due {told}"
    shown = call("worker", *JOBS, "--burst", "--processes", "2", "-o", "json", cwd=tmp_path).json
    assert (shown["spent"], shown["due_elsewhere"]) == (True, {"count": 3, "more": False})
    with Redrive(ledger) as app:
        worker = registered(app, ("work", 1))
        nobody = "partly stopped: no running worker executes else (envelope 1), for which 3 deliveries wait |"
        assert ok("status").out.startswith(nobody)
        asyncio.run(app.ledger.retire_worker(worker))
    ran = call("up", *JOBS, "--until-idle", cwd=tmp_path)
    assert ran.err.splitlines()[-1] == f"nothing that this worker executes is left to do {told}"


def test_a_burst_of_several_processes_says_it_once(ledger: str, tmp_path: Path) -> None:
    for number in range(4):
        enqueue(str(number), handler="hang", payload="0.3")
    ran = call("worker", *JOBS, "--burst", "--processes", "2", "--slots", "1", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "nothing waits\n")
    assert len(set((tmp_path / "hanging").read_text().split())) == 2
    assert ok("status", "-o", "json").json["dispositions"]["delivered"]["count"] == 4


@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_burst_that_is_stopped_says_nothing_of_the_next(tmp_path: Path, processes: str) -> None:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "redrive.toml").write_text('app = "shop:app"\n')
    assert call("init", "-q", cwd=tmp_path).code == 0
    command = ("worker", "--burst", "--linger", "60s", "--processes", processes, "-o", "json")
    process = spawn(*command, cwd=tmp_path)
    try:
        until(lambda: call("worker", "list", "-o", "json", cwd=tmp_path).json["items"])
        pids = children(process.pid)
        process.send_signal(signal.SIGTERM)
        ran = finished(process)
    finally:
        process.kill()
    assert len(pids) == (0 if processes == "1" else 2)
    assert ran.out.count("\n") == 1
    assert (ran.code, ran.json) == (
        0,
        {"spent": False, "next_due_at": None, "next_due_us": None, "due_elsewhere": None},
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--burst", "--until-idle"), "give one"),
        (("--linger", "3s"), "give --burst too"),
        (("--burst", "--linger", "soon"), "linger"),
        (("--burst", "list"), "list takes no --burst"),
        (("lst",), "No such command 'lst'"),
    ],
)
def test_what_makes_no_sense_is_refused(ledger: str, arguments: tuple[str, ...], said: str) -> None:
    ran = run("worker", *arguments)
    assert (ran.code, ran.out) == (2, "")
    assert said in ran.err


def test_an_autoscaler_asks_in_one_line(ledger: str) -> None:
    ran = ok("status", "--due", "-o", "json")
    assert ran.out.count("\n") == 1
    none = {"count": 0, "more": False}
    shown = ran.json
    assert shown.pop("now_at").endswith("Z")
    assert shown == {
        "due": none,
        "oldest_due_us": None,
        "next_due_at": None,
        "next_due_us": None,
        "leased": 0,
        "expired_leases": 0,
    }
    assert ok("status", "--due").out == "0 due; 0 running; nothing waits for a later time\n"
    enqueue("a")
    enqueue("b", "--delay", "10m")
    assert ok("worker", "list", "-o", "json").json == {"items": []}, "no worker is needed to know"
    shown = ok("status", "--due", "-o", "json").json
    assert (shown["due"]["count"], shown["leased"]) == (1, 0)
    assert shown["oldest_due_us"] >= 0
    assert 0 < shown["next_due_us"] <= 600_000_000
    line = ok("status", "--due").out
    assert re.fullmatch(r"1 due, the oldest for .+; 0 running; next due at .+Z, in .+\n", line)
    other = run("status", "--due", "-o", "json", "--environment", "prod")
    assert (other.code, other.out) == (4, ""), "what is not known is not 0"
    plant_step(ledger, 900, breaking=True)
    broken = run("status", "--due", "-o", "json")
    assert (broken.code, broken.out, broken.error["code"]) == (1, "", "ledger_version")
    assert "swordfish" not in other.err + broken.err


def test_the_register_shows_who_works_and_who_is_gone(ledger: str, tmp_path: Path) -> None:
    assert ok("worker", "list").out == ""
    enqueue("a", handler="hang", payload="30")
    process = spawn("worker", *JOBS, "--drain", "0s", cwd=tmp_path)
    try:
        until(lambda: (tmp_path / "hanging").exists())
        (shown,) = ok("worker", "list", "-o", "json").json["items"]
        assert (shown["version"], shown["pid"], shown["leases"]) == (__version__, process.pid, 1)
        assert shown["routes"] == [["die", 1], ["hang", 1], ["webhook", 1], ["work", 1]]
        assert (shown["stale"], shown["started_at"] <= shown["seen_at"]) == (False, True)
        assert json.loads(ok("worker", "list", "-o", "jsonl").out)["name"] == shown["name"]
        head, row = ok("worker", "list").out.splitlines()
        assert head.split() == ["WORKER", "STATE", "WHERE", "VERSION", "HANDLERS", "STARTED", "SEEN", "LEASES"]
        decodes = "die v1, hang v1, webhook v1, work v1"
        where = rf"\S+:{process.pid} +{re.escape(__version__)}"
        assert re.match(rf"wrk_\w+ +running +{where} +{decodes} +.+ 1$", row), row
    finally:
        process.kill()
        process.communicate()
    execute(ledger, f"UPDATE {{s}}worker SET seen_at = seen_at - {SILENT_US + 1_000_000}")
    assert " silent " in ok("worker", "list").out
    execute(ledger, f"UPDATE {{s}}worker SET seen_at = seen_at - {LIVE_US - SILENT_US}")
    assert " stale " in ok("worker", "list").out
    execute(ledger, f"UPDATE {{s}}worker SET seen_at = seen_at - {DAY_US}")
    assert ok("worker", "list").out == ""


def test_an_operator_sees_which_decoders_live_work_needs(ledger: str) -> None:
    empty = ok("envelope", "list")
    assert (empty.out, empty.err) == ("", "no delivery is live, and no worker is running\n")
    enqueue("a")
    enqueue("b")
    with Redrive(ledger) as app:
        registered(app, ("work", 1), ("work", 2), name="wrk_1")
        execute(ledger, "UPDATE {s}worker SET version = '7.0.0'")
        registered(app, ("work", 2), name="wrk_2")
        shown = ok("envelope", "list", "-o", "json").json
        assert shown["complete"] is True
        one, two = shown["items"]
        assert (one["envelope_version"], one["waiting"]["count"], one["worker_versions"]) == (1, 2, ["7.0.0"])
        assert (two["envelope_version"], two["policy_version"], two["workers"]) == (2, None, 2)
        assert [json.loads(line) for line in ok("envelope", "list", "-o", "jsonl").out.splitlines()] == [one, two]
        told = ok("envelope", "list")
        head, first, second = told.out.splitlines()
        assert head.split()[:6] == ["HANDLER", "ENVELOPE", "POLICY", "WAITING", "LEASED", "HELD"]
        assert re.match(r"work +v1 +\d+ +2 +0 +0 .+ 1 worker \(7\.0\.0\)$", first)
        assert re.match(rf"work +v2 +- +0 +0 +0 +- +2 workers \({re.escape(__version__)}, 7\.0\.0\)$", second), second
        assert "no live delivery needs these decoders: work v2; dead letters may" in told.err


def test_a_worker_leaves_a_ledger_that_a_newer_release_broke(ledger: str, tmp_path: Path) -> None:
    process = spawn("worker", *JOBS, cwd=tmp_path)
    try:
        until(lambda: ok("worker", "list", "-o", "json").json["items"])
        plant_step(ledger, 900, breaking=True)
        ran = finished(process)
    finally:
        process.kill()
    assert (ran.code, ran.out) == (1, "")
    last = ran.err.splitlines()[-2:]
    assert last[0].startswith("error: ledger ")
    assert "step 900 is not compatible with this release" in last[0]
    assert last[1] == "hint: upgrade redrive on this host; nothing was changed"
    assert "swordfish" not in ran.err
    assert execute(ledger, "SELECT count(*) FROM {s}worker WHERE stopped_at IS NULL") == [(0,)], "it ended in order"


def test_the_ledger_may_be_named_by_a_flag_too(ledger: str, tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").unlink()
    enqueue("a", "--ledger", ledger)
    flags = ("--ledger", ledger, *JOBS)
    ran = call("worker", *flags, "--burst", "--processes", "2", cwd=tmp_path)
    assert (ran.code, ran.out) == (0, "nothing waits\n")
    told = call("status", "--ledger", ledger, cwd=tmp_path)
    assert "delivered 1" in told.out
    assert "swordfish" not in told.out + told.err + ran.err
