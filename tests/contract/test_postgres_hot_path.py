"""What the hot path on PostgreSQL relies on: its functions' plans, locks passed over, limits, the server's clock."""

from __future__ import annotations

import json
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import psycopg
import pytest
from tests.contract.harness import work
from tests.contract.reads_support import START, Desk
from tests.contract.test_postgres_statements import BIG, READY, no_scan, nodes, shape, walks

from redrive.domain import identity
from redrive.domain.delivery import Decided
from redrive.domain.outcome import DELIVERED
from redrive.domain.policy import HOUR
from redrive.ledger.base import Accept
from redrive.ledger.postgres import accept
from redrive.ledger.postgres.coalesce import Coalescer, Waiting
from redrive.ledger.postgres.connect import PostgresUrl, connect
from redrive.ledger.postgres.ledger import PostgresLedger
from redrive.ledger.postgres.listen import Listener
from redrive.ledger.postgres.tx import PsycopgTx
from redrive.ledger.tx import Tx

__all__ = ["shape"]

FUNCTIONS = ("accept_1", "publish_1", "reserve_1", "close_1", "extend_1")
EXPLAIN = (
    "LOAD 'auto_explain'",
    "SET LOCAL auto_explain.log_min_duration = 0",
    "SET LOCAL auto_explain.log_nested_statements = on",
    "SET LOCAL auto_explain.log_format = json",
    "SET LOCAL auto_explain.log_level = notice",
)


def test_plans_inside_the_functions_hold_whatever_the_statistics(shape: tuple[str, psycopg.Connection[Any]]) -> None:
    """Of every statement that a claim, a close and an extension run, as the server ran it."""
    state, conn = shape
    seen: list[dict[str, Any]] = []

    def notice(diagnostic: psycopg.errors.Diagnostic) -> None:
        _, _, plan = (diagnostic.message_primary or "").partition("plan:\n")
        if plan:
            seen.append(json.loads(plan))

    conn.add_notice_handler(notice)
    try:
        with conn.transaction(force_rollback=True):
            for setting in EXPLAIN:
                conn.execute(setting)
            conn.execute("SELECT set_config('redrive.now', $1, true)", [str(START + HOUR)])
            rows = conn.execute(
                "SELECT seq, fence, generation, attempt, started_at"
                " FROM redrive.reserve_1(1, '{7,8,9}', '{0,0,0}', 3, 30000000, 0, false)"
            ).fetchall()
            seqs, fences, generations, numbers, starts = ([row[n] for row in rows] for n in range(5))
            none = [0] * len(seqs)
            # The filled tables hold an attempt for each delivery already.
            mark = len(seen)
            conn.execute("SET LOCAL session_replication_role = replica")
            conn.execute("DELETE FROM redrive.attempt WHERE seq = ANY ($1::bigint[])", [seqs])
            conn.execute("SET LOCAL session_replication_role = origin")
            del seen[mark:]
            conn.execute("SELECT redrive.extend_1(1, $1::bigint[], $2::bigint[], 30000000)", [seqs, fences])
            conn.execute(
                "SELECT redrive.close_1(1, $1::bigint[], $2::bigint[], $3::int[], $4::int[], $5::bigint[], $6::int[],"
                " $7::bigint[], 'delivered', 'ok', NULL, 0, 2)",
                [seqs, fences, generations, numbers, starts, none, none],
            )
            conn.execute("SELECT * FROM redrive.reserve_1(1, '{7}', '{0}', 3, 30000000, 0, true)")
    finally:
        conn.remove_notice_handler(notice)
    found = [list(nodes(plan["Plan"])) for plan in seen]
    touching = [plan for plan in found if any(node.get("Relation Name") in BIG for node in plan)]
    assert touching, "nothing was looked at"
    # An extension locks rows too, by their keys; a claim takes so many and no more.
    claims = [plan for plan in touching if {"LockRows", "Limit"} <= {node["Node Type"] for node in plan}]
    assert claims, "no claim was looked at"
    for plan in touching:
        no_scan(plan, state)
    for plan in claims:
        assert walks(plan) == {READY}, f"a claim walks {walks(plan)}"
        assert not [node for node in plan if "Sort" in node["Node Type"]], "a claim sorts"


def test_a_claim_passes_over_what_another_transaction_holds(database: str) -> None:
    with closing(Desk(f"{database}?notify=off")) as desk, psycopg.connect(database) as holder:
        seqs = [desk.enqueue(f"k{n}").seq for n in range(3)]
        holder.execute("SELECT 1 FROM redrive.delivery_state WHERE seq = %s FOR UPDATE", [seqs[0]])
        leases = desk.reserve(10)
        assert [lease.seq for lease in leases] == seqs[1:]
        holder.rollback()
        assert [lease.seq for lease in desk.reserve(10)] == seqs[:1]
        for lease in leases:
            desk.end(lease, DELIVERED)


def test_a_claim_whose_answer_was_lost_is_handed_over_without_what_was_held_before(database: str) -> None:
    claim = "SELECT seq, fence, started_at FROM redrive.reserve_1(1, ARRAY[%s::bigint], '{0}', 1, 30000000, %s, %s)"
    with closing(Desk(f"{database}?notify=off")) as desk, psycopg.connect(database, autocommit=True) as conn:
        seqs = [desk.enqueue(f"k{n}").seq for n in range(3)]
        conn.execute("SELECT set_config('redrive.now', %s, false)", [str(desk.now)])
        route = identity.route_of("job", 1)
        ((held, _, since),) = conn.execute(claim, [route, 0, False]).fetchall()
        (lost,) = conn.execute(claim, [route, since, False]).fetchall()
        assert (held, lost[0]) == (seqs[0], seqs[1])
        assert conn.execute(claim, [route, since, True]).fetchall() == [lost], "charged once, and under the same fence"
        assert [row[0] for row in conn.execute(claim, [route, lost[2], True])] == seqs[2:], "nothing was lost: a claim"


def test_a_batch_takes_its_keys_in_one_order_whatever_order_it_was_given_in(database: str) -> None:
    """Else two batches with the same keys would each wait for the other. One that waits for its first key has none."""
    with closing(Desk(f"{database}?notify=off")) as desk:
        desk.enqueue("warm")  # its policy is on the ledger: nobody waits for that
        first, last = sorted((desk.item(f"k{n}") for n in range(2)), key=lambda item: item.delivery_id)
        held, started = threading.Event(), threading.Event()
        done = threading.Event()

        def hold() -> None:
            def operation(tx: Tx, now: int) -> None:
                accept.accept_each(tx, "test", [first], "library", "tests")
                held.set()
                assert done.wait(10)

            desk.ledger.transact_sync(operation, "enqueue")

        def batch() -> list[bool]:
            def operation(tx: Tx, now: int) -> Any:
                started.set()
                return accept.accept_each(tx, "test", [last, first], "library", "tests")

            return [made.decided == Decided.CREATED for made in desk.ledger.transact_sync(operation, "enqueue")]

        with ThreadPoolExecutor(2) as threads, psycopg.connect(database, autocommit=True) as conn:
            holder = threads.submit(hold)
            try:
                assert held.wait(10)
                waiting = threads.submit(batch)
                assert started.wait(10)
                waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
                end = time.monotonic() + 10
                while not conn.execute(waits).fetchall():
                    assert time.monotonic() < end, "it does not wait"
                    time.sleep(0.01)
                conn.execute("SET lock_timeout = '200ms'")
                with conn.transaction(force_rollback=True):
                    (row,) = conn.execute(
                        "INSERT INTO redrive.identity (seq, first_seen, delivery_id, payload_hash)"
                        " VALUES (99, 0, %s, '') ON CONFLICT DO NOTHING RETURNING seq",
                        [last.delivery_id],
                    ).fetchall()
                assert row == (99,)
            finally:
                done.set()
            holder.result(10)
            assert waiting.result(10) == [True, False]


def shown(tx: PsycopgTx) -> dict[str, str]:
    names = ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout", "synchronous_commit", "jit")
    return {name: tx.conn.execute(f"SHOW {name}").fetchall()[0][0] for name in names}


@pytest.mark.parametrize("pooled", ["off", "on"])
def test_no_statement_of_ours_waits_for_ever_and_every_commit_is_durable(database: str, pooled: str) -> None:
    """Whatever the database's defaults are; behind a pooler each transaction brings its settings along."""
    limits = {
        "statement_timeout": "1min",
        "lock_timeout": "10s",
        "idle_in_transaction_session_timeout": "1min",
        "synchronous_commit": "on",
        "jit": "off",
    }
    with psycopg.connect(database, autocommit=True) as conn:
        name = conn.info.dbname
        for setting in ("synchronous_commit = off", "statement_timeout = 0", "lock_timeout = 0"):
            conn.execute(f"ALTER DATABASE {name} SET {setting}")
    with closing(Desk(f"{database}?notify=off")):
        pass
    with closing(PostgresLedger(f"{database}?notify=off&pooled={pooled}", "test")) as ledger:
        assert ledger.transact_sync(lambda tx, now: shown(tx)) == limits
    with psycopg.connect(database) as conn:
        rows = conn.execute(
            "SELECT proname, proconfig FROM pg_proc"
            " WHERE pronamespace = 'redrive'::regnamespace AND proname = ANY (%s)",
            [list(FUNCTIONS)],
        ).fetchall()
    settings = {name: dict(one.split("=") for one in config) for name, config in rows}
    assert settings.keys() == set(FUNCTIONS)
    for name in FUNCTIONS[2:]:
        most = "100ms" if name == "close_1" else "5s"
        assert settings[name]["lock_timeout"] == most, f"{name}: a claim or a close stands behind nobody for long"
    assert all(one["enable_seqscan"] == "off" for one in settings.values())


class Slow:
    """A writer that writes nothing, and takes its time over the first group."""

    def __init__(self) -> None:
        self.groups: list[tuple[list[bytes], bool]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()

    def write(self, group: list[Waiting], notify: bool) -> list[Waiting]:
        self.groups.append(([key for waiting in group for key in accept.keys_of(waiting.order)], notify))
        self.entered.set()
        assert self.go_on.wait(10)
        return []

    def write_aside(self, waiting: Waiting, notify: bool, brief: bool) -> bool:
        raise AssertionError("nobody waits for anybody")


def order(*keys: str) -> Accept:
    items = [work(key) for key in keys]
    return Accept("library", "tests", items)


def test_orders_share_a_statement_unless_they_name_the_same_work() -> None:
    writer = Slow()
    coalescer = Coalescer(writer, None)
    with ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(coalescer.take, order("first"), {})]
        assert writer.entered.wait(10)
        for keys in (["a"], ["b", "c"], ["b"], ["d"]):
            futures.append(threads.submit(coalescer.take, order(*keys), {}))
            end = time.monotonic() + 10
            while coalescer._queue.qsize() < len(futures) - 1:
                assert time.monotonic() < end
                time.sleep(0.001)
        writer.go_on.set()
        for future in futures:
            future.result(10)
    coalescer.close()
    of = {identity.delivery_id("job", "acme", key): key for key in ("first", "a", "b", "c", "d")}
    assert [[of[key] for key in keys] for keys, _ in writer.groups] == [["first"], ["a", "b", "c"], ["b", "d"]]


def test_a_notification_that_came_too_soon_is_made_up_for() -> None:
    writer, woken = Slow(), threading.Event()
    writer.go_on.set()
    coalescer = Coalescer(writer, woken.set, clock=lambda: 0.0)
    coalescer.take(order("a"), {})
    assert not woken.is_set(), "the first one carries its own"
    coalescer.take(order("b"), {})
    assert woken.wait(10)
    coalescer.close()
    assert [notify for _, notify in writer.groups] == [True, False]


def test_ledger_time_is_the_servers_clock_and_goes_on_within_a_transaction(database: str) -> None:
    with closing(Desk(f"{database}?notify=off")):
        pass
    url = PostgresUrl.parse(database)
    with closing(connect(url)) as conn, conn.transaction():
        ((first, before),) = conn.execute(
            "SELECT redrive.clock_us(), (extract(epoch FROM now()) * 1000000)::bigint"
        ).fetchall()
        conn.execute("SELECT pg_sleep(0.002)")
        ((second, after),) = conn.execute(
            "SELECT redrive.clock_us(), (extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
        ).fetchall()
    assert before < first <= second - 2000
    assert second <= after + 1


def test_only_live_work_is_on_the_hot_tables_indexes_and_its_pages_are_kept_apart(database: str) -> None:
    with closing(Desk(f"{database}?notify=off")), psycopg.connect(database) as conn:
        partial = conn.execute(
            "SELECT c.relname, pg_get_expr(i.indpred, i.indrelid)"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = 'redrive.delivery_state'::regclass AND NOT i.indisprimary"
        ).fetchall()
        ((options,),) = conn.execute("SELECT reloptions FROM pg_class WHERE oid = 'redrive.delivery_state'::regclass")
    assert partial
    for name, predicate in partial:
        assert any(word in str(predicate) for word in ("disposition", "hold")), f"{name} holds finished work too"
    given = dict(option.split("=") for option in options)
    assert int(given["fillfactor"]) < 100
    assert float(given["autovacuum_vacuum_scale_factor"]) < 0.2, "the server's own default waits for a fifth to be dead"


def test_whoever_listens_does_so_again_when_the_connection_was_lost(database: str) -> None:
    heard: queue.SimpleQueue[None] = queue.SimpleQueue()
    with psycopg.connect(database, autocommit=True) as conn:
        listener = Listener(PostgresUrl.parse(database), lambda: heard.put(None), ())
        listener.start()
        try:
            heard.get(timeout=10)  # it listens
            conn.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
                " AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
            )
            heard.get(timeout=10)  # it listens again, and looks for what it missed
            conn.execute("NOTIFY redrive")
            heard.get(timeout=10)
        finally:
            listener.stop()
