"""Every statement of the PostgreSQL ledger: it prepares, it is its SQLite namesake's equal, and its plan holds.

PostgreSQL plans by what ANALYZE last saw, and a prepared statement may keep the plan it was given on an empty ledger.
So each plan is looked at on a new ledger, with one delivery, on a backlog, among finished deliveries, and with
statistics from before the ledger grew; with the values given and without (a generic plan).
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest
from tests.contract.reads_support import START, Desk

from redrive.domain.delivery import Disposition
from redrive.domain.policy import HOUR, SECOND
from redrive.ledger.filters import DeadFilter, DeliveryFilter
from redrive.ledger.lookup import delivery_statement
from redrive.ledger.postgres.statements import text_of
from redrive.ledger.postgres.tx import PsycopgTx
from redrive.ledger.schema import compiled
from redrive.ledger.search import count_statement, dead_statement
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.ledger import create as create_sqlite
from redrive.ledger.sqlite.statements import sql as sqlite_text
from redrive.ledger.statements import Named

NAMES = sorted(
    file.name.removesuffix(".sql")
    for file in (files("redrive.ledger.postgres") / "sql").iterdir()
    if file.name.endswith(".sql")
)
SHARED = sorted(
    name
    for name in NAMES
    if (files("redrive.ledger.sqlite") / "sql" / f"{name}.sql").is_file() and not name.startswith("migration_")
)
PREPARABLE = re.compile(r"(SELECT|INSERT|UPDATE|DELETE|WITH)\b")
EFFECTS = {"audit_lock", "purge_begin", "purge_end"}
"""Nobody reads what these return."""


def read(name: str) -> str:
    return text_of(name, "redrive").dollar


def numbers(text: str, sign: str) -> set[int]:
    """The parameters that a file uses, without its comments."""
    bare = re.sub(r"--[^\n]*", "", text)
    return {int(number) for number in re.findall(rf"\{sign}(\d+)", bare)}


def source(dialect: str, name: str) -> str:
    return (files(f"redrive.ledger.{dialect}") / "sql" / f"{name}.sql").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def empty(postgres: Any) -> Iterator[str]:
    """The URL of a new ledger's database."""
    name = postgres.create_database()
    Desk(postgres.url(name, notify="off")).close()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.mark.parametrize("name", [name for name in NAMES if PREPARABLE.match(read(name))])
def test_every_statement_prepares_and_binds_plain_values(empty: str, name: str) -> None:
    """Each parameter is cast, so that any driver can bind plain integers, text and bytes."""
    with psycopg.connect(empty, autocommit=True) as conn:
        conn.execute(f"PREPARE statement AS {read(name)}")
        ((types,),) = conn.execute("SELECT parameter_types::text[] FROM pg_prepared_statements")
    used = numbers(source("postgres", name), "$")
    assert used == set(range(1, len(types) + 1))
    assert set(types) <= {"bigint", "integer", "smallint", "text", "bytea", "boolean"}


@pytest.mark.parametrize("name", SHARED)
def test_a_statement_takes_and_gives_what_its_namesake_does(empty: str, name: str, sqlite_columns: Any) -> None:
    assert numbers(source("postgres", name), "$") == numbers(source("sqlite", name), "?")
    with psycopg.connect(empty, autocommit=True) as conn:
        pgconn = conn.pgconn
        assert pgconn.prepare(b"s", read(name).encode()).error_message == b""
        described = pgconn.describe_prepared(b"s").nfields
    assert described == sqlite_columns(name) or name in EFFECTS


@pytest.fixture(scope="module")
def sqlite_columns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    path = tmp_path_factory.mktemp("columns") / "l.db"
    create_sqlite(f"sqlite:///{path}", "test")
    conn = connect(path)

    def count(name: str) -> int:
        text = sqlite_text(name)
        values: list[Any] = ["{}" if "json_each" in text else 1] * text.count("?")
        conn.execute("BEGIN")
        try:
            # A statement that returns rows has named them as soon as it is begun, whether or not there are any.
            return len(conn.execute(text, values).description or ())
        except sqlite3.IntegrityError:
            # Refused for the values that it was given here, before it could say what it returns.
            return text.partition("RETURNING")[2].count(",") + ("RETURNING" in text)
        finally:
            conn.execute("ROLLBACK")

    yield count
    conn.close()


# --- plans -------------------------------------------------------------------------------------------

FILL = """
INSERT INTO redrive.identity (seq, first_seen, delivery_id, payload_hash)
SELECT n, 0, decode(lpad(to_hex(n), 32, '0'), 'hex'), '' FROM generate_series(%(first)s::bigint, %(last)s::bigint) n;
INSERT INTO redrive.delivery (seq, policy_version, deadline_at, first_queued_at, first_due_at, max_attempts,
  envelope_version, delivery_id, payload_hash, handler, tenant, destination, key, content_type, payload)
SELECT n, 1, %(due)s::bigint + 86400000000, %(due)s, %(due)s, 3, 1, decode(lpad(to_hex(n), 32, '0'), 'hex'), '',
  'webhook', 't' || n %% 7, 'd' || n %% 5, 'k', 'x', '' FROM generate_series(%(first)s::bigint, %(last)s::bigint) n;
INSERT INTO redrive.delivery_state (seq, route, flow, deadline_at, available_at, fence, generation, attempt,
  max_attempts, lane, priority, disposition)
SELECT n, 7 + n %% 3, n %% 35, %(due)s::bigint + 86400000000, %(due)s::bigint + n, 0, 0, 0, 3, 0, 2, 0
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n;
INSERT INTO redrive.attempt (seq, fence, started_at, ended_at, duration, generation, number, outcome, category)
SELECT n, 1, 0, 0, 0, 0, 1, 'delivered', 'ok' FROM generate_series(%(first)s::bigint, %(last)s::bigint) n;
INSERT INTO redrive.transition (seq, at, fence, generation, kind)
SELECT n, 0, 0, 0, 'held' FROM generate_series(%(first)s::bigint, %(last)s::bigint, 10) n;
INSERT INTO redrive.dead_letter (seq, generation, attempts, policy_version, died_at, ambiguous, handler, tenant,
  destination, cause, category)
SELECT n, 0, 1, 1, 0, 0, 'webhook', 't' || n %% 7, 'd' || n %% 5, 'permanent', 'dns'
FROM generate_series(%(first)s::bigint, %(last)s::bigint, 10) n;
INSERT INTO redrive.event (event_seq, accepted_at, envelope_version, fan_out, event_id, event_key, event_type, tenant,
  content_type, payload_hash, payload)
SELECT n, 0, 1, 0, decode(lpad(to_hex(n), 32, '0'), 'hex'), 'e', 't.x', 't1', 'x', '', ''
FROM generate_series(%(first)s::bigint, %(last)s::bigint) n
"""
LEASE = (
    "UPDATE redrive.delivery_state SET disposition = 1, attempt = 1, fence = 1, leased_by = 1, "
    " started_at = available_at, leased_until = available_at + 30000000 WHERE seq <= %s"
)
FINISH = (
    "UPDATE redrive.delivery_state SET disposition = 2, leased_by = NULL, leased_until = NULL, started_at = NULL"
    " WHERE seq <= %s"
)
FEW = {"empty", "one"}
SHAPES = ("new", "empty", "one", "backlog", "future", "finished", "grown", "emptied")
MANY = 20_000


def shaped(conn: psycopg.Connection[Any], shape: str) -> None:
    def fill(first: int, last: int, due: int = START) -> None:
        conn.execute("SET session_replication_role = replica")
        for statement in FILL.split(";\n"):
            conn.execute(statement, {"first": first, "last": last, "due": due})

    if shape in ("one", "grown"):
        fill(1, 1)
    elif shape in ("backlog", "finished", "emptied"):
        fill(1, MANY)
    elif shape == "future":
        fill(1, MANY, START + 3600 * SECOND)
    if shape in ("finished", "emptied"):
        # All but ten when the statistics were taken; or all, and then there is a backlog again.
        for statement in (LEASE, FINISH):
            conn.execute(statement, (MANY if shape == "emptied" else MANY - 10,))
    if shape != "new":
        conn.execute("VACUUM ANALYZE")
    if shape == "grown":
        fill(2, MANY)
    elif shape == "emptied":
        fill(MANY + 1, 2 * MANY)


@pytest.fixture(scope="module", params=SHAPES)
def shape(request: pytest.FixtureRequest, postgres: Any) -> Iterator[tuple[str, psycopg.Connection[Any]]]:
    """A session at a ledger whose statistics were taken in some state."""
    name = postgres.create_database()
    Desk(postgres.url(name, notify="off")).close()
    with psycopg.connect(postgres.url(name), autocommit=True) as conn:
        conn.execute("ALTER TABLE redrive.delivery_state SET (autovacuum_enabled = off)")
        shaped(conn, request.param)
    # A session of its own: settings of the one that filled it are gone.
    with psycopg.connect(postgres.url(name), autocommit=True, cursor_factory=psycopg.RawCursor) as conn:
        yield request.param, conn
    postgres.drop_database(name)


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from nodes(part)


def explain(
    conn: psycopg.Connection[Any], text: str, values: Any, *, generic: bool, steadied: bool = True
) -> list[dict[str, Any]]:
    """The nodes of a statement's plan, as the ledger's own reads have it planned, or its other transactions."""
    with conn.transaction(force_rollback=True):
        conn.execute(read("session_settings"))
        if steadied:
            conn.execute(read("steady_plans"), ["off"])
        conn.execute(f"SET LOCAL plan_cache_mode = force_{'generic' if generic else 'custom'}_plan")
        conn.execute(f"PREPARE looked AS {text}")
        try:
            given = ", ".join("NULL" if v is None else f"'{v}'" for v in values)
            call = f"EXECUTE looked({given})" if given else "EXECUTE looked"
            ((found,),) = conn.execute(f"EXPLAIN (FORMAT JSON) {call}")
        finally:
            conn.execute("DEALLOCATE looked")
    return list(nodes(found[0]["Plan"]))


BIG = {"delivery", "delivery_state", "attempt", "identity", "event", "transition", "dead_letter"}
NOW = START + HOUR
KEYED: dict[str, list[Any]] = {
    "attempt_find": [5, 1],
    "attempt_span": [5, 0],
    "attempts": [5],
    "cancel_request": [5],
    "cancel_waiting": [5],
    "dead_letters": [5],
    "delivery_named": [5],
    "event_find": ["\\x00"],
    "first_budget": [5],
    "hold_pending": ["d1"],
    "identity_find": ["\\x00"],
    "payload": [5],
    "receiver_duplicate_add": [json.dumps({"5": 1, "6": 1})],
    "repeats": [5],
    "repeats_of": [5],
    "show": [5],
    "standing": [5],
    "state_close": [5, 1, 0, 1, NOW, None, 0, 0, 0, "ok", 0],
    "state_find": [5],
    "states_find": ["{5,6,7}"],
    "transition_known": [5, "held", 0, None],
    "transitions": [5],
    "verify_attempt": [5, 2000],
    "verify_dead_letter": [5, 2000],
    "verify_delivery": [5, 2000],
    "verify_event": [5, 2000],
    "verify_event_payload": [5, 2000],
    "verify_identity": [5, 2000],
    "verify_orphans": ["\\x00", 2000],
    "verify_payload": [5, 2000],
    "verify_repeat": [5, 2000],
    "verify_state": [5, 2000],
    "verify_transition": [5, 2000],
    "verify_top": [],
    "verify_window": [5, 2000, 99999],
}
"""Statements that find rows by key, and values for them."""
ENDS, READY, HELD = "delivery_state_ends", "delivery_state_ready", "delivery_state_held"
LIVE: dict[str, tuple[list[Any], set[str]]] = {
    "count_live": ([100], {ENDS}),
    "count_newest": ([100], {"delivery_state_pkey"}),
    "count_ready": ([100], {READY}),
    "hold_destination": (["d1", 1000, 1, 0, 0], {"delivery_by_destination", "delivery_state_pkey"}),
    "hold_destinations": ([], {HELD, "delivery_pkey"}),
    "leases": ([NOW], {ENDS}),
    "next_due_any": (["{7}"], {READY}),
    "outstanding": ([7], {READY, ENDS}),
    "reap_ages": ([NOW, 100, 0], {ENDS, "delivery_pkey"}),
    "reap_due": ([NOW], {ENDS}),
    "reap_leases": ([NOW, 100, 0], {ENDS}),
    "route_due": ([7, 2, NOW, 100], {READY}),
    "route_name": ([7], {READY, "delivery_pkey"}),
    "route_waiting": ([7, 100], {READY}),
    "routes_waiting": ([100], {READY}),
}
"""Statements on live work: the indexes that they walk, and no others, in the order that the index gives."""


def walks(found: list[dict[str, Any]]) -> set[str]:
    return {node["Index Name"] for node in found if "Index Name" in node}


def no_scan(found: list[dict[str, Any]], name: str) -> None:
    for node in found:
        kind = node["Node Type"]
        if node.get("Relation Name") in BIG:
            assert "Seq Scan" not in kind, f"{name} scans {node['Relation Name']}"
            assert "Bitmap" not in kind, f"{name} makes a bitmap of {node['Relation Name']}"
        assert kind not in ("Hash Join", "Merge Join"), f"{name}: {kind}"


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_rows_are_found_by_key_whatever_the_statistics(
    shape: tuple[str, psycopg.Connection[Any]], generic: bool
) -> None:
    state, conn = shape
    for name, values in KEYED.items():
        found = explain(conn, read(name), values, generic=generic)
        no_scan(found, name)
        # Of indexes on nothing, or on one row, one is as good as another until the next plan is made.
        partial = walks(found) & {ENDS, READY, HELD}
        assert state in FEW or not partial, f"{name} looks through {partial}"


@pytest.mark.parametrize("generic", [False, True], ids=["custom", "generic"])
def test_live_work_is_found_by_its_indexes_whatever_the_statistics(
    shape: tuple[str, psycopg.Connection[Any]], generic: bool
) -> None:
    state, conn = shape
    for name, (values, indexes) in LIVE.items():
        found = explain(conn, read(name), values, generic=generic)
        no_scan(found, name)
        walked = walks(found)
        if state in FEW:
            walked, indexes = ({one for one in some if one.startswith("delivery_state")} for some in (walked, indexes))
        assert walked == indexes, f"{name} walks {walked}"
        sorted_ = [node for node in found if node["Node Type"] in ("Sort", "Incremental Sort")]
        assert name == "count_newest" or not sorted_, f"{name} sorts"
        for node in found:
            if node.get("Index Name") == ENDS and name not in ("count_live", "reap_due"):
                assert "<=" in node.get("Index Cond", ""), f"{name} reads all live work"


STEADY = {"count_live", "count_newest", "count_ready", "leases", "route_due", "route_name", "route_waiting"}
STEADY |= {"routes_waiting", "hold_destination", "hold_destinations", "hold_pending"}
"""What only people's reads and decisions ask, with steady plans."""
BITMAPS = {"outstanding", "reap_ages", "reap_leases"}
"""What may read all that has run out at once where statistics say that it is little: it is to be read anyway."""


def test_what_workers_run_needs_no_settings_where_there_is_much(shape: tuple[str, psycopg.Connection[Any]]) -> None:
    """A table of a few rows is read at once; any bigger one by its indexes, on the values given."""
    state, conn = shape
    if state in FEW | {"new"}:
        return
    for name, values in KEYED.items():
        if not name.startswith("verify_") and name not in STEADY:
            no_scan(explain(conn, read(name), values, generic=False, steadied=False), name)
    for name in LIVE.keys() - STEADY:
        found = explain(conn, read(name), LIVE[name][0], generic=False, steadied=False)
        no_scan([node for node in found if name not in BITMAPS or "Bitmap" not in node["Node Type"]], name)
        assert walks(found) == LIVE[name][1], f"{name} walks {walks(found)}"


TENANT, DESTINATION, KEY = "delivery_by_tenant", "delivery_by_destination", "delivery_pkey"
SEARCHES: list[tuple[DeliveryFilter, str]] = [
    (DeliveryFilter(), KEY),
    (DeliveryFilter(handler="webhook", category="dns"), KEY),
    (DeliveryFilter(dispositions=[Disposition.DELIVERED], event_type="t.x"), KEY),
    (DeliveryFilter(tenant="t1"), TENANT),
    (DeliveryFilter(tenant="t1", since=START, held=False), TENANT),
    (DeliveryFilter(tenant="t1", destination="d1"), DESTINATION),
    (DeliveryFilter(dispositions=[Disposition.LEASED], tenant="t1"), ENDS),
    (DeliveryFilter(dispositions=[Disposition.WAITING]), ENDS),
    (DeliveryFilter(held=True, destination="d1"), ENDS),
    (DeliveryFilter(dispositions=[Disposition.DEAD], destination="d1"), "dead_letter_seq_generation_key"),
]
"""Filters, and the index that leads to what they want."""


def leader(found: list[dict[str, Any]]) -> str:
    """The index that the outermost loop walks."""
    node = found[0]
    while "Index Name" not in node:
        node = node["Plans"][0]
    return str(node["Index Name"])


def explained(conn: psycopg.Connection[Any], make: Any) -> list[dict[str, Any]]:
    with conn.transaction(force_rollback=True):
        tx = PsycopgTx(conn, "redrive")
        tx.rows(Named("steady_plans"), ("on",))
        text, values = compiled(tx, make(tx))
        ((found,),) = conn.execute(f"EXPLAIN (FORMAT JSON) {text}", values)
    return list(nodes(found[0]["Plan"]))


def test_searches_start_from_their_index_whatever_the_statistics(
    shape: tuple[str, psycopg.Connection[Any]],
) -> None:
    _, conn = shape
    for filters, index in SEARCHES:
        for before in (None, 1000):
            found = explained(conn, lambda tx, f=filters, b=before: delivery_statement(tx, f, b, 50))
            no_scan(found, str(filters))
            assert leader(found) == index, f"{filters}: {leader(found)}"
            sorts = [node for node in found if node["Node Type"] in ("Sort", "Incremental Sort")]
            assert index == ENDS or not sorts, f"{filters} sorts"
            # Sorted before anything is looked up for it.
            assert all(
                "Join" not in n["Node Type"] and n["Node Type"] != "Nested Loop" for s in sorts for n in nodes(s)
            )


def test_open_dead_letters_are_found_and_counted_by_their_indexes(
    shape: tuple[str, psycopg.Connection[Any]],
) -> None:
    _, conn = shape
    tenant = explained(conn, lambda tx: dead_statement(tx, DeadFilter(tenant="t1"), 1000, 50))
    no_scan(tenant, "tenant")
    assert leader(tenant) == "dead_letter_by_tenant"
    for filters in (DeadFilter(), DeadFilter(destination="d1", cause="permanent", category="dns")):
        for make in (dead_statement, count_statement):
            more: tuple[Any, ...] = (None, 50) if make is dead_statement else ()
            no_scan(explained(conn, lambda tx, m=make, a=more, f=filters: m(tx, f, *a)), str(filters))
