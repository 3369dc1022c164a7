"""``verify``: clean whatever happened, also while it happens, and exact about each thing that is wrong."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.contract.reads_support import (
    BUSY,
    LEDGERS,
    OK,
    OWN_FAULT,
    REFUSED,
    SEEN,
    SHUTDOWN,
    UNSURE,
    Churn,
    Desk,
    opened,
    place,
)

from redrive.domain.policy import HOUR, SECOND
from redrive.errors import Conflict, InvalidInput, LedgerCorrupt
from redrive.ledger import verify as page
from redrive.ledger.audit import GENESIS, append_audit, audit_digest
from redrive.ledger.opening import open_ledger
from redrive.ledger.verify import Report, repair_clock, verify


def rules(report: Report) -> set[str]:
    return {problem.rule for problem in report.problems}


@pytest.fixture(params=LEDGERS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with opened(place(request, tmp_path)) as made:
        yield made


only_sqlite = pytest.mark.parametrize("desk", ["sqlite"], indirect=True)
only_postgres = pytest.mark.parametrize("desk", ["postgres"], indirect=True)


# --- clean -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_whatever_happens_to_deliveries_their_fold_is_their_state(desk: Desk, seed: int) -> None:
    churn = Churn(desk, seed)
    for _ in range(400):
        churn.step()
    report = verify(desk.ledger, chunk=17, quick_check=True)
    assert report.problems == ()
    assert report.checked == len(set(churn.seqs)) > 50


def test_verify_raises_no_false_alarm_while_workers_work(desk: Desk) -> None:
    churn = Churn(desk, 99)
    failed: list[BaseException] = []
    done = threading.Event()

    def work() -> None:
        try:
            for _ in range(1000):
                churn.step()
        except BaseException as exc:
            failed.append(exc)
        finally:
            done.set()

    for _ in range(50):
        churn.step()
    thread = threading.Thread(target=work)
    thread.start()
    looks = 0
    try:
        while not done.is_set() and looks < 500:
            report = verify(desk.ledger, chunk=5)
            assert report.problems == ()
            looks += not done.is_set()
    finally:
        thread.join(60)
    assert not failed
    assert looks >= 3, "verify never ran while deliveries moved"
    assert verify(desk.ledger).problems == ()


def test_an_empty_ledger_is_clean(desk: Desk) -> None:
    assert verify(desk.ledger, quick_check=True) == Report(0, (), 0)


# --- planted faults ----------------------------------------------------------------------------------

NAMES = (
    "spent",
    "redriven",
    "dead",
    "done",
    "known",
    "cancelled",
    "delivered_late",
    "retried",
    "unsure",
    "deferred",
    "held",
    "leased",
    "fresh",
)


def tell(desk: Desk) -> dict[str, int]:
    """A ledger with one delivery for each thing that can become of one."""
    story = {}
    for name, outcomes in {
        "spent": [BUSY, BUSY, BUSY],
        "redriven": [BUSY, UNSURE, BUSY],
        "dead": [REFUSED],
        "done": [OK],
        "known": [SEEN],
    }.items():
        story[name] = desk.enqueue(name, handler=name, scope=f"scope of {name}").seq
        desk.kill(outcomes, story[name])
    desk.redrive(story["redriven"])
    desk.attempt(BUSY, story["redriven"])
    for _ in range(10):
        desk.enqueue("done", handler="done")
    desk.enqueue("done", b"[]", handler="done")
    story["cancelled"] = desk.enqueue("cancelled", handler="cancelled").seq
    desk.cancel(story["cancelled"])
    story["delivered_late"] = desk.enqueue("delivered_late", handler="delivered_late").seq
    late = desk.attempt(UNSURE, story["delivered_late"])
    desk.end(late, OK)
    story["deferred"] = desk.enqueue("deferred", handler="deferred").seq
    desk.kill([OWN_FAULT, OWN_FAULT, SHUTDOWN, OWN_FAULT, OWN_FAULT], story["deferred"])
    story["retried"] = desk.enqueue("retried", handler="retried").seq
    desk.attempt(BUSY, story["retried"])
    story["unsure"] = desk.enqueue("unsure", handler="unsure").seq
    desk.attempt(UNSURE, story["unsure"])
    (story["held"],) = desk.publish("event-1", ["dst_1"])
    desk.hold("dst_1", True)
    story["leased"] = desk.enqueue("leased", handler="leased").seq
    assert [lease.seq for lease in desk.reserve(routes=[("leased", 1)])] == [story["leased"]]
    story["fresh"] = desk.enqueue("fresh", delay_us=HOUR).seq
    for action in ("destination.disabled", "destination.enabled"):
        desk.ledger.transact_sync(
            lambda tx, now, action=action: append_audit(tx, now, "ada", action, "dst_1", "maintenance")
        )
    return story


@dataclass(frozen=True)
class Told:
    """A closed ledger, and the copies of it that are made to be damaged."""

    place: Path | str
    story: dict[str, int]
    now: int
    copy: Callable[[Path], Path | str]

    @property
    def dialect(self) -> str:
        return "sqlite" if isinstance(self.place, Path) else "postgres"


@pytest.fixture(scope="module", params=LEDGERS)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Told]:
    numbers = itertools.count(1)
    copies: list[str] = []
    where: Path | str
    if request.param == "sqlite":
        where = tmp_path_factory.mktemp("told") / "l.db"
    else:
        server = request.getfixturevalue("postgres")
        database = server.create_database()
        where = server.url(database, notify="off")

    def copy(folder: Path) -> Path | str:
        if isinstance(where, Path):
            shutil.copy(where, folder / "l.db")
            return folder / "l.db"
        copies.append(server.create_database(f"{database}_{next(numbers)}", database))
        return str(server.url(copies[-1], notify="off"))

    with opened(where) as desk:
        story = tell(desk)
        assert verify(desk.ledger, quick_check=True).problems == ()
        assert set(story) == set(NAMES)
        now = desk.now
    if isinstance(where, Path):
        with contextlib.closing(sqlite3.connect(where)) as conn:
            conn.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    yield Told(where, story, now, copy)
    if request.param == "postgres":
        for name in (*copies, database):
            server.drop_database(name)


FAULTS: list[tuple[str, str]] = [
    ("identity", "DELETE FROM identity WHERE seq = {done}"),
    ("identity", "DELETE FROM delivery WHERE seq = {done}"),
    ("identity", "DELETE FROM delivery_state WHERE seq = {done}"),
    ("identity", "UPDATE delivery SET delivery_id = zeroblob(16) WHERE seq = {done}"),
    ("identity", "INSERT INTO attempt (seq, fence, generation, number, started_at, ended_at, duration, outcome,"
     " category) SELECT 999, fence, generation, number, started_at, ended_at, duration, outcome, category FROM attempt"
     " WHERE seq = {done}"),
    ("identity", "INSERT INTO transition (seq, at, kind, generation, fence) SELECT 999, at, kind, generation, fence"
     " FROM transition WHERE seq = {cancelled}"),
    ("event", "DELETE FROM event"),
    ("event", "UPDATE event SET fan_out = 2"),
    ("payload", "UPDATE delivery SET payload = x'5b5d' WHERE seq = {done}"),
    ("payload", "UPDATE delivery SET content_type = 'text/plain' WHERE seq = {done}"),
    ("payload", "UPDATE delivery SET content_type = 'text/plain' WHERE seq = {held}"),
    ("payload", "UPDATE identity SET payload_hash = zeroblob(32) WHERE seq = {done}"),
    ("payload", "UPDATE identity SET payload_hash = zeroblob(32) WHERE seq = {held}"),
    ("payload", "UPDATE event SET payload = x'5b5d'"),
    ("policy", "DELETE FROM policy"),
    ("policy", "UPDATE policy SET spec = replace(spec, '\"base\":2000000', '\"base\":3000000')"),
    ("policy", "UPDATE policy SET spec = 'nonsense'"),
    ("policy", "UPDATE generation SET policy_version = 1"),
    ("grant", "UPDATE delivery_state SET max_attempts = 9 WHERE seq = {done}"),
    ("grant", "UPDATE delivery_state SET deadline_at = deadline_at + 1 WHERE seq = {done}"),
    ("grant", "UPDATE delivery_state SET generation = 1 WHERE seq = {done}"),
    ("grant", "UPDATE delivery_state SET max_attempts = 3 WHERE seq = {redriven}"),
    ("grant", "UPDATE delivery SET max_attempts = 9 WHERE seq = {done};"
     "UPDATE delivery_state SET max_attempts = 9 WHERE seq = {done}"),
    ("grant", "UPDATE generation SET replay_id = zeroblob(16)"),
    ("grant", "UPDATE generation SET parent = 7"),
    ("numbering", "UPDATE attempt SET number = 7 WHERE seq = {spent} AND number = 2"),
    ("budget", "UPDATE generation SET max_attempts = 0; UPDATE delivery_state SET max_attempts = 0"
     " WHERE seq = {redriven}"),
    ("attempt", "UPDATE delivery_state SET attempt = 0 WHERE seq = {retried}"),
    ("attempt", "UPDATE delivery_state SET attempt = 2 WHERE seq = {leased}"),
    ("fence", "UPDATE delivery_state SET fence = fence + 1 WHERE seq = {done}"),
    ("fence", "UPDATE delivery_state SET fence = fence - 1 WHERE seq = {done}"),
    ("fence", "UPDATE delivery_state SET deferrals = deferrals + 1 WHERE seq = {deferred}"),
    ("fence", "UPDATE attempt SET deferrals = 5 WHERE seq = {done}"),
    ("fence", "UPDATE transition SET fence = 99 WHERE seq = {cancelled}"),
    ("age", "UPDATE attempt SET next_at = (SELECT deadline_at FROM delivery d WHERE d.seq = attempt.seq)"
     " WHERE seq = {retried}; UPDATE delivery_state SET available_at = deadline_at WHERE seq = {retried}"),
    ("early", "UPDATE attempt SET started_at = started_at - 1 WHERE seq = {spent} AND number = 2"),
    ("early", "UPDATE delivery_state SET started_at = available_at - 1 WHERE seq = {leased}"),
    ("terminal", "UPDATE attempt SET next_at = NULL WHERE seq = {spent} AND number = 1"),
    ("terminal", "UPDATE attempt SET next_at = ended_at + 1 WHERE seq = {done};"
     "UPDATE delivery_state SET available_at = (SELECT next_at FROM attempt WHERE seq = {done}), lane = 1"
     " WHERE seq = {done}"),
    ("disposition", "UPDATE delivery_state SET disposition = 5 WHERE seq = {done}"),
    ("disposition", "UPDATE delivery_state SET disposition = 0 WHERE seq = {dead}"),
    ("disposition", "UPDATE delivery_state SET disposition = 0 WHERE seq = {leased}"),
    ("disposition", "UPDATE delivery_state SET disposition = 4 WHERE seq = {cancelled}"),
    ("disposition", "UPDATE delivery_state SET disposition = 0 WHERE seq = {delivered_late}"),
    ("disposition", "UPDATE delivery_state SET disposition = 2 WHERE seq = {fresh}"),
    ("dead_letter", "DELETE FROM dead_letter WHERE seq = {dead}"),
    ("dead_letter", "DELETE FROM dead_letter WHERE seq = {redriven}"),
    ("dead_letter", "INSERT INTO dead_letter (seq, generation, state, handler, tenant, scope, destination, cause,"
     " category, attempts, first_at, last_at, ambiguous, policy_version, died_at) SELECT {retried}, generation, state,"
     " handler, tenant, scope, destination, cause, category, attempts, first_at, last_at, ambiguous, policy_version,"
     " died_at FROM dead_letter WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET generation = 5 WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET attempts = attempts + 1 WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET cause = 'attempts_exhausted' WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET category = 'dns' WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET tenant = 'other' WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET last_at = NULL WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET ambiguous = 1 WHERE seq = {dead}"),
    ("dead_letter", "UPDATE dead_letter SET state = 'open' WHERE seq = {redriven}"),
    ("available", "UPDATE delivery_state SET available_at = available_at - 1 WHERE seq = {retried}"),
    ("available", "UPDATE delivery_state SET available_at = available_at + 1 WHERE seq = {fresh}"),
    ("available", "UPDATE delivery_state SET available_at = 5 WHERE seq = {deferred}"),
    ("category", "UPDATE delivery_state SET last_category = 'dns' WHERE seq = {done}"),
    ("category", "UPDATE delivery_state SET last_category = NULL WHERE seq = {deferred}"),
    ("ambiguous", "UPDATE delivery_state SET ambiguous = 1 WHERE seq = {done}"),
    ("ambiguous", "UPDATE delivery_state SET ambiguous = 0 WHERE seq = {unsure}"),
    ("hold", "UPDATE delivery_state SET hold = 1 WHERE seq = {retried}"),
    ("hold", "UPDATE delivery_state SET hold = 1 WHERE seq = {done}"),
    ("hold", "UPDATE delivery_state SET hold = 0 WHERE seq = {held}"),
    ("lane", "UPDATE delivery_state SET lane = 0 WHERE seq = {retried}"),
    ("cancel", "UPDATE delivery_state SET cancel_requested = 1 WHERE seq = {leased}"),
    ("route", "UPDATE delivery_state SET route = route + 1 WHERE seq = {fresh}"),
    ("route", "UPDATE delivery_state SET flow = flow + 1 WHERE seq = {fresh}"),
    ("deferrals", "UPDATE delivery_state SET own_faults = 1 WHERE seq = {deferred}"),
    ("deferrals", "UPDATE transition SET fence = 2 WHERE seq = {deferred} AND fence = 1"),
    ("lease", "UPDATE delivery_state SET leased_until = started_at WHERE seq = {leased}"),
    ("lease", "UPDATE delivery_state SET leased_until = NULL WHERE seq = {leased}"),
    ("lease", "UPDATE delivery_state SET started_at = started_at + 600000000, leased_until = leased_until + 900000000"
     " WHERE seq = {leased}"),
    ("clock", "UPDATE transition SET at = at + 86400000000 WHERE seq = {cancelled}"),
    ("clock", "UPDATE attempt SET ended_at = started_at - 1 WHERE seq = {done}"),
    ("clock", "UPDATE repeat SET at = at + 86400000000"),
    ("clock", "UPDATE worker SET seen_at = seen_at + 86400000000"),
    ("clock", "UPDATE event SET accepted_at = accepted_at + 86400000000"),
    ("repeat", "UPDATE repeat_count SET duplicates = 3"),
    ("repeat", "DELETE FROM repeat WHERE number = 4"),
    ("repeat", "DELETE FROM repeat_count"),
    ("receiver_duplicate", "UPDATE receiver_duplicate SET count = 2"),
    ("receiver_duplicate", "DELETE FROM receiver_duplicate"),
    ("receiver_duplicate", "UPDATE attempt SET flags = 0 WHERE seq = {known}"),
    ("receiver_duplicate", "UPDATE attempt SET flags = 2 WHERE seq = {dead}"),
    ("receiver_duplicate", "INSERT INTO receiver_duplicate VALUES ('dst_nobody', 1)"),
    ("audit", "UPDATE audit SET reason = 'another' WHERE audit = 1"),
    ("audit", "UPDATE audit SET actor = 'eve' WHERE audit = 2"),
    ("audit", "DELETE FROM audit WHERE audit = 1"),
    ("audit", "UPDATE audit SET digest = zeroblob(32) WHERE audit = 2"),
]  # fmt: skip


OTHERWISE = {
    "DELETE FROM repeat WHERE number = 4": "DELETE FROM repeat WHERE repeat = (SELECT min(repeat) FROM repeat)",
    "INSERT INTO receiver_duplicate VALUES ('dst_nobody', 1)":
        "INSERT INTO receiver_duplicate (destination, session, count) VALUES ('dst_nobody', 1, 1)",
}  # fmt: skip
"""Faults that have another text on PostgreSQL."""


def corrupt(told: Told, folder: Path, fault: str) -> Path | str:
    """A copy of the ledger with a fault that its triggers and checks would not have let in."""
    where = told.copy(folder)
    if isinstance(where, Path):
        with contextlib.closing(sqlite3.connect(where, isolation_level=None)) as conn:
            for (name,) in conn.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall():
                conn.execute(f"DROP TRIGGER {name}")
            conn.execute("PRAGMA ignore_check_constraints = ON")
            for statement in fault.format(**told.story).split(";"):
                assert conn.execute(statement).rowcount > 0, statement
        return where
    fault = OTHERWISE.get(fault, fault).replace("x'5b5d'", "'\\x5b5d'::bytea")
    fault = re.sub(r"zeroblob\((\d+)\)", r"decode(repeat('00', \1), 'hex')", fault)
    with psycopg.connect(where.partition("?")[0], autocommit=True, options="-c search_path=redrive") as pg:
        pg.execute("SET session_replication_role = replica")
        for table, name in pg.execute(
            "SELECT conrelid::regclass::text, conname FROM pg_constraint WHERE contype = 'c'"
            " AND connamespace = 'redrive'::regnamespace"
        ).fetchall():
            pg.execute(f"ALTER TABLE {table} DROP CONSTRAINT {name}")
        for statement in fault.format(**told.story).split(";"):
            assert pg.execute(statement).rowcount > 0, statement
    return where


def examine(told: Told, where: Path | str, check: Callable[[Any], Report] = verify, now: int | None = None) -> Report:
    url = f"sqlite:///{where}" if isinstance(where, Path) else where
    # A file keeps ledger time by itself; a server is told.
    clock = None if isinstance(where, Path) else lambda: told.now if now is None else now
    ledger = open_ledger(url, "test", clock)
    try:
        return check(ledger)
    finally:
        ledger.close()


@pytest.mark.parametrize(("rule", "fault"), FAULTS, ids=[f"{n}-{rule}" for n, (rule, _) in enumerate(FAULTS)])
def test_each_fault_is_reported_by_its_own_rule_and_no_other(told: Told, tmp_path: Path, rule: str, fault: str) -> None:
    report = examine(told, corrupt(told, tmp_path, fault))
    assert rules(report) == {rule}, report.problems
    assert not report.ok
    assert report.total == len(report.problems)


def test_every_rule_of_the_page_has_a_planted_fault() -> None:
    assert page.__doc__ is not None
    planted = {rule for rule, _ in FAULTS} | {"file"}
    named = set(re.findall(r"\*(\w+)\*", page.__doc__))
    table = page.__doc__.split("=\n")[2]
    for line in table.splitlines()[:-1]:
        named.add(re.sub("^(``\\w+``,? *)+", "", line).split()[0])
    assert planted == named


def test_every_column_that_changes_is_in_the_table_of_the_page(told: Told) -> None:
    assert page.__doc__ is not None
    if isinstance(told.place, Path):
        with contextlib.closing(sqlite3.connect(told.place)) as conn:
            columns = {row[1] for row in conn.execute("PRAGMA table_info(delivery_state)")}
    else:
        with psycopg.connect(told.place.partition("?")[0]) as pg:
            columns = {column.name for column in pg.execute("TABLE redrive.delivery_state LIMIT 0").description or ()}
    unnamed = {column for column in columns if f"``{column}``" not in page.__doc__}
    assert unnamed == {"seq"}


def test_a_missing_attempt_is_a_gap_in_numbers_and_fences(told: Told, tmp_path: Path) -> None:
    damaged = corrupt(told, tmp_path, "DELETE FROM attempt WHERE seq = {spent} AND number = 2")
    assert {"numbering", "fence", "attempt", "dead_letter"} <= rules(examine(told, damaged))


def test_a_clock_below_what_is_stored_is_reported(told: Told, tmp_path: Path) -> None:
    fault = "UPDATE clock SET now = 5" if told.dialect == "sqlite" else "UPDATE ledger SET created_at = 5"
    assert rules(examine(told, corrupt(told, tmp_path, fault), now=5)) == {"clock", "lease"}


@pytest.mark.parametrize("told", ["sqlite"], indirect=True)
def test_a_damaged_page_is_reported_on_request(told: Told, tmp_path: Path) -> None:
    path = told.copy(tmp_path)
    assert isinstance(path, Path)
    with contextlib.closing(sqlite3.connect(path)) as conn:
        (size,) = conn.execute("PRAGMA page_size").fetchone()
        (root,) = conn.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'delivery_by_tenant'").fetchone()
    with path.open("r+b") as file:
        file.seek((root - 1) * size)
        file.write(b"\xff" * 8)
    assert examine(told, path).ok
    assert rules(examine(told, path, lambda ledger: verify(ledger, quick_check=True))) == {"file"}


def test_the_report_names_deliveries_and_is_bounded(desk: Desk) -> None:
    for n in range(page.MAX_PROBLEMS + 30):
        desk.enqueue(f"k{n}")
    assert desk.change("UPDATE @delivery_state SET lane = 1") == page.MAX_PROBLEMS + 30
    report = verify(desk.ledger, chunk=50)
    assert report.total == report.checked == page.MAX_PROBLEMS + 30
    assert len(report.problems) == page.MAX_PROBLEMS
    shown = report.as_dict()["problems"][0]
    assert shown["rule"] == "lane"
    assert shown["delivery"].startswith("dlv_")


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_progress_rises_to_the_end_in_chunks(told: Told, tmp_path: Path, chunk: int) -> None:
    damaged = corrupt(told, tmp_path, "UPDATE event SET fan_out = 2")
    seen: list[tuple[int, int]] = []
    report = examine(told, damaged, lambda ledger: verify(ledger, lambda *at: seen.append(at), chunk))
    assert (report.checked, report.total) == (len(NAMES), 1)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
    assert seen[-1][0] == seen[-1][1] == max(told.story.values()) + 1
    with pytest.raises(InvalidInput):
        examine(told, damaged, lambda ledger: verify(ledger, chunk=0))


def test_large_payloads_are_read_a_few_at_a_time(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "_PAYLOAD_BYTES", 100)
    for n in range(5):
        desk.enqueue(f"k{n}", b"x" * 60)
        desk.publish(f"e{n}", ["dst_1"], body=b"y" * 300)
    assert verify(desk.ledger).problems == ()
    assert list(page._batches([(1, 60), (2, 30), (4, 60), (9, 500), (10, 1)])) == [(1, 2), (4, 4), (9, 9), (10, 10)]
    assert list(page._batches([])) == []


# --- the audit chain ---------------------------------------------------------------------------------


def test_the_audit_digest_is_frozen() -> None:
    first = audit_digest(GENESIS, 1, "ada", "a.b", "t", None, None, "1")
    assert first.hex() == "34c4bc61a65954109c5ac124d3dc0514f2ce97205e705516ec75c4940a630426"
    assert audit_digest(first, 1, "ada", "a.b", "t", None, None, "1") != first


def test_audit_rows_cannot_be_changed_and_names_must_be_printable(desk: Desk) -> None:
    desk.ledger.transact_sync(lambda tx, now: append_audit(tx, now, "ada", "x.y", "t", None, "{}", "{}"))
    for statement in ("UPDATE @audit SET actor = 'eve'", "DELETE FROM @audit"):
        with pytest.raises((LedgerCorrupt, psycopg.IntegrityError), match="audit is append-only"):
            desk.change(statement)
    for actor, action, target, reason in (
        ("", "x", "t", None),
        ("a", "x\n", "t", None),
        ("a", "x", "", None),
        ("a", "x", "t", "r" * 5000),
    ):
        with pytest.raises(InvalidInput):
            desk.ledger.transact_sync(lambda tx, now, row=(actor, action, target, reason): append_audit(tx, now, *row))
    assert verify(desk.ledger).ok


def test_audit_rows_that_are_appended_side_by_side_make_one_chain(desk: Desk) -> None:
    failed: list[BaseException] = []

    def append(name: str) -> None:
        try:
            for n in range(15):
                desk.ledger.transact_sync(lambda tx, now, n=n: append_audit(tx, now, name, "x.y", f"t{n}"))
        except BaseException as exc:
            failed.append(exc)

    threads = [threading.Thread(target=append, args=(f"actor {n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert desk.ask("SELECT count(*), min(audit), max(audit) FROM @audit") == [(60, 1, 60)]
    assert verify(desk.ledger).problems == ()


# --- the clock ---------------------------------------------------------------------------------------


@only_sqlite
def test_a_clock_that_ran_ahead_is_set_back_once_and_audited(desk: Desk) -> None:
    desk.pass_time(9 * HOUR)
    desk.enqueue("a")
    ahead = desk.now
    desk.now -= 9 * HOUR - SECOND
    desk.enqueue("b")
    assert desk.ledger.clock.skew_us > 8 * HOUR
    done = repair_clock(desk.ledger, "ada", "the host's clock was wrong")
    assert (done.repaired, done.after_at) == (True, desk.now)
    assert done.before_at >= ahead
    made = desk.enqueue("c")
    assert desk.ledger.clock.skew_us == 0
    assert desk.state(made.seq)["available_at"] == desk.now
    again = repair_clock(desk.ledger, "ada")
    assert not again.repaired
    with contextlib.closing(sqlite3.connect(desk.path)) as conn:
        rows = conn.execute("SELECT actor, action, reason, before, after FROM audit").fetchall()
    expected = ("ada", "clock.repaired", "the host's clock was wrong", str(done.before_at), str(done.after_at))
    assert rows == [expected]


@only_sqlite
def test_what_a_repaired_clock_explains_is_not_held_against_the_ledger(desk: Desk) -> None:
    churn = Churn(desk, 7)
    for _ in range(150):
        churn.step()
    desk.pass_time(5 * HOUR)
    for _ in range(150):
        churn.step()
    desk.now -= 5 * HOUR
    assert repair_clock(desk.ledger, "ada").repaired
    assert verify(desk.ledger).problems == ()
    for step in range(300):
        churn.step()
        assert step % 20 or verify(desk.ledger).problems == ()
    assert verify(desk.ledger).problems == ()


@only_sqlite
def test_the_clock_is_not_repaired_under_a_running_worker(desk: Desk) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(30)
    desk.pass_time(HOUR)
    for name, pid in (("gone", gone.pid), ("running", os.getppid())):
        desk.register(name, pid=pid)
    with contextlib.closing(sqlite3.connect(desk.path)) as conn:
        conn.execute("UPDATE worker SET host = ? WHERE name = 'gone'", (socket.gethostname(),))
        conn.commit()
    desk.now -= HOUR
    assert repair_clock(desk.ledger, "ada").repaired, "a worker that died needs no stopping"
    desk.pass_time(HOUR)
    desk.enqueue("a")
    desk.now -= HOUR
    with contextlib.closing(sqlite3.connect(desk.path)) as conn:
        conn.execute("UPDATE worker SET host = ? WHERE name = 'running'", (socket.gethostname(),))
        conn.commit()
    with pytest.raises(Conflict, match="would bring the old time back"):
        repair_clock(desk.ledger, "ada")
    assert desk.ledger.clock.estimate() >= desk.now + HOUR, "refused: nothing was changed"
    assert repair_clock(desk.ledger, "ada", force=True).after_at == desk.now


@only_postgres
def test_a_servers_clock_is_not_ours_to_set(desk: Desk) -> None:
    with pytest.raises(InvalidInput, match="the database server's clock"):
        repair_clock(desk.ledger, "ada")
