"""The hot path's query plans: no scan of a table and no sort, whatever the statistics say.

SQLite plans by what ANALYZE last saw. After one on a big backlog it likes to skip through the ready index and
sort everything that is due (measured elsewhere: 129,000 to 17,000 jobs/s), so each plan is looked at on an empty
ledger, on a backlog, behind many rows that are not due yet, and among finished ones.
"""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest
from tests.contract.harness import JOB, PATIENT
from tests.contract.sqlite_subject import ENVIRONMENT

from redrive.domain import identity
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.ledger import create
from redrive.ledger.sqlite.statements import arranged, numbered, sql

ROUTE = identity.route_of(*JOB)
NOW = 1_000_000
SEQUENCE = "WITH RECURSIVE n (x) AS (VALUES (?1) UNION ALL SELECT x + 1 FROM n WHERE x < ?2) "
FILL = (
    SEQUENCE
    + "INSERT INTO identity (seq, delivery_id, payload_hash, first_seen) SELECT x, randomblob(16), x'00', 0 FROM n",
    SEQUENCE
    + """INSERT INTO delivery (seq, delivery_id, handler, tenant, destination, key, payload, content_type,
           envelope_version, policy_version, max_attempts, deadline_at, first_queued_at, first_due_at)
         SELECT x, zeroblob(16), 'job', 'acme', 'dst_1', 'k', x'00', 'text/plain', 1, ?3, 3, ?4, 0, ?5 FROM n""",
    SEQUENCE
    + """INSERT INTO delivery_state (seq, route, flow, lane, priority, disposition, generation, attempt, max_attempts,
           deadline_at, available_at, fence)
         SELECT x, ?3, 7, 0, 2, 0, 0, 0, 3, ?4, ?5 + x % 1000, 0 FROM n""",
)


def fill(path: Path, first: int, last: int, due: int) -> None:
    """Waiting deliveries ``first`` to ``last``, due about ``due``."""
    conn = connect(path)
    conn.execute("BEGIN IMMEDIATE")
    for text, values in zip(FILL, ((), (PATIENT.version, due + 10**12, due), (ROUTE, due + 10**12, due)), strict=True):
        statement = numbered(text)
        conn.execute(statement, arranged(statement, (first, last, *values)))
    conn.execute("COMMIT")
    conn.close()


def lease(path: Path, last: int) -> None:
    conn = connect(path)
    conn.execute(
        "UPDATE delivery_state SET disposition = 1, attempt = 1, fence = 1, leased_by = 1, started_at = available_at, "
        "leased_until = 1000 + seq WHERE seq <= ?",
        (last,),
    )
    conn.close()


def finish(path: Path, last: int) -> None:
    lease(path, last)
    conn = connect(path)
    conn.execute(
        "UPDATE delivery_state SET disposition = 2, leased_by = NULL, leased_until = NULL, started_at = NULL "
        "WHERE seq <= ?",
        (last,),
    )
    conn.close()


def made(path: Path, shape: str) -> Path:
    create(f"sqlite:///{path}", ENVIRONMENT)
    if shape == "backlog":
        fill(path, 1, 50_000, 0)
    elif shape == "future":
        fill(path, 1, 100_000, 10**15)
        fill(path, 100_001, 100_020, 0)
    elif shape == "leased":
        fill(path, 1, 5_000, 0)
        lease(path, 4_000)
    elif shape == "finished":
        fill(path, 1, 20_000, 0)
        finish(path, 19_990)
    if shape != "new":
        conn = connect(path)
        conn.execute("ANALYZE")
        conn.close()
    if shape == "grown":
        fill(path, 1, 20_000, 0)
    return path


@pytest.fixture(scope="module", params=["new", "empty", "grown", "backlog", "future", "leased", "finished"])
def ledger_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A ledger whose statistics were taken in some state (``grown``: empty then, 20,000 rows now)."""
    return made(tmp_path_factory.mktemp(request.param) / "ledger.db", request.param)


def plan(path: Path, name: str) -> list[str]:
    """The query plan of a named statement, on a connection that has just read the statistics."""
    text = sql(name)
    parameters = text.count("?")
    conn = connect(path)
    try:
        return [row[3] for row in conn.execute("EXPLAIN QUERY PLAN " + text, [1] * parameters)]
    finally:
        conn.close()


def names_used() -> set[str]:
    """Every statement that accepting, working and reaping run."""
    root = files("redrive.ledger")
    found: set[str] = set()
    own = ("sqlite/enqueue", "sqlite/reserve", "sqlite/close", "sqlite/writer", "sqlite/ledger")
    for module in (*own, "close", "reap"):
        found |= set(re.findall(r'sql\("(\w+)"\)', root.joinpath(f"{module}.py").read_text(encoding="utf-8")))
    return found


SMALL = {"clock", "ledger", "worker", "rejection"}
"""Tables of a few rows, or one: reading all of them is the plan."""


def test_no_hot_statement_scans_a_table_or_sorts(ledger_file: Path) -> None:
    names = names_used()
    assert {"reserve_select", "reserve_update", "state_close", "reap_leases", "reap_ages"} <= names
    for name in sorted(names):
        for step in plan(ledger_file, name):
            assert "TEMP B-TREE" not in step, f"{name}: {step}"
            scan = re.match(r"SCAN (?!\()(\S+)(?: USING (?:COVERING )?INDEX (\S+))?", step)
            if scan is None or "VIRTUAL TABLE" in step or scan[1] in SMALL | {"CONSTANT"}:
                continue
            # What is leased now is bounded by the workers' slots.
            assert scan[2] == "delivery_state_leased", f"{name}: {step}"


@pytest.mark.parametrize(
    ("name", "steps"),
    [
        (
            "reserve_select",
            ["CO-ROUTINE"]
            + [r"SEARCH s USING INDEX delivery_state_ready \(route=\? AND priority=\? AND available_at<\?\)"]
            + [rf"SEARCH {table} USING INTEGER PRIMARY KEY \(rowid=\?\)" for table in "die"]
            + [r"SCAN \("],
        ),
        (
            "reserve_update",
            [r"SEARCH delivery_state USING INTEGER PRIMARY KEY \(rowid=\?\)", "LIST SUBQUERY", "SCAN json_each"],
        ),
        ("reap_leases", [r"SEARCH delivery_state USING INDEX delivery_state_leased \(leased_until<\?\)"]),
        (
            "reap_ages",
            [
                r"SEARCH s USING INDEX delivery_state_deadline \(deadline_at<\?\)",
                r"SEARCH d USING INTEGER PRIMARY KEY",
            ],
        ),
        (
            "success_attempts",
            ["SCAN j VIRTUAL TABLE", r"SEARCH s USING INTEGER PRIMARY KEY \(rowid=\?\)"],
        ),
        (
            "receiver_duplicate_add",
            ["SCAN j VIRTUAL TABLE", r"SEARCH d USING INTEGER PRIMARY KEY \(rowid=\?\)"],
        ),
        (
            "success_states",
            [r"SEARCH delivery_state USING INTEGER PRIMARY KEY \(rowid=\?\)", "LIST SUBQUERY", "SCAN json_each"],
        ),
        ("state_close", [r"SEARCH delivery_state USING INTEGER PRIMARY KEY \(rowid=\?\)"]),
        ("extend", [r"SEARCH delivery_state USING INTEGER PRIMARY KEY \(rowid=\?\)"]),
    ],
)
def test_the_hot_statements_walk_their_indexes(ledger_file: Path, name: str, steps: list[str]) -> None:
    found = plan(ledger_file, name)
    assert len(found) == len(steps), found
    for step, expected in zip(found, steps, strict=True):
        assert re.match(expected, step), f"{name}: {step}"


def test_looking_for_something_to_reap_reads_only_what_has_run_out(ledger_file: Path) -> None:
    found = " ".join(plan(ledger_file, "reap_due"))
    assert "INDEX delivery_state_leased (leased_until<?)" in found
    assert "INDEX delivery_state_deadline (deadline_at<?)" in found


def test_what_a_start_looks_for_reads_only_what_is_held_or_a_disabled_destinations_own(ledger_file: Path) -> None:
    held = plan(ledger_file, "hold_destinations")
    tables = [step for step in held if re.match(r"(SCAN|SEARCH) (s|d|delivery_state)\b", step)]
    assert tables
    for step in tables:
        assert "delivery_state_held" in step or step == "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)", held
    assert [step for step in held if "BLOOM" in step or (step in tables and step.startswith("SCAN"))] == []
    assert plan(ledger_file, "hold_pending") == [
        "SCAN CONSTANT ROW",
        "SCALAR SUBQUERY 1",
        "SEARCH d USING INDEX delivery_by_destination (destination=?)",
        "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)",
    ]


def test_looking_for_held_work_costs_nothing_however_much_there_is_that_is_not_held(tmp_path: Path) -> None:
    """Counted in the virtual machine's own steps: 20,000 deliveries that are not held, then 5,000 that are."""
    path = made(tmp_path / "ledger.db", "finished")
    conn = connect(path)
    steps = 0

    def tick() -> None:
        nonlocal steps
        steps += 1

    def look() -> tuple[list[str], int]:
        nonlocal steps
        steps = 0
        conn.set_progress_handler(tick, 1)
        found = [row[0] for row in conn.execute(sql("hold_destinations"))]
        conn.set_progress_handler(None, 1)
        return found, steps

    none, before = look()
    assert (none, before < 500) == ([], True), before
    fill(path, 20_001, 25_000, 0)
    conn.execute("DROP TRIGGER delivery_no_update")
    conn.execute("UPDATE delivery SET handler = 'webhook' WHERE seq > 20000")
    conn.execute("UPDATE delivery_state SET hold = 1, flow = 8 WHERE seq > 20000")
    found, after = look()
    conn.close()
    assert (found, after < 1000) == (["dst_1"], True), after


def test_finished_rows_weigh_nothing_on_the_hot_indexes(tmp_path: Path) -> None:
    path = made(tmp_path / "ledger.db", "finished")
    conn = connect(path)
    sizes = {}
    for index in ("delivery_state_ready", "delivery_state_leased", "delivery_state_deadline", "delivery_state_held"):
        where = conn.execute("SELECT sql FROM sqlite_schema WHERE name = ?", (index,)).fetchone()[0]
        condition = where.split("WHERE", 1)[1]
        sizes[index] = conn.execute(
            f"SELECT count(*) FROM delivery_state INDEXED BY {index} WHERE {condition}"
        ).fetchone()[0]
    conn.close()
    assert sizes == {
        "delivery_state_ready": 10,
        "delivery_state_leased": 0,
        "delivery_state_deadline": 10,
        "delivery_state_held": 0,
    }
