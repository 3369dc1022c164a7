"""Jobs through the public SQL functions, as any language enqueues them: one SELECT, in its own transaction."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from tests.acceptance.sql_rig import Ledger, opened
from tests.services.process import wait_until

from redrive import Policy, Redrive
from redrive.app import JobSpec
from redrive.domain import identity


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with opened(database) as made:
        yield made


def test_a_job_is_created_found_again_and_executed(ledger: Ledger) -> None:
    call = "SELECT * FROM redrive.enqueue('job', %s, key => %s)"
    made = ledger.row(call, '{"total": 12.50, "order": 7}', '["order", 7]')
    assert made == (identity.to_text("dlv", identity.delivery_id("job", "default", ("order", 7))), "created")
    assert ledger.row(call, '{"order":7,"total":12.5}', '["order",7]') == (made[0], "duplicate")
    assert ledger.row(call, '{"order":7,"total":12.6}', '["order",7]') == (made[0], "conflict")
    ledger.work()
    assert ledger.ran == [(made[0], {"order": 7, "total": 12.5})]
    assert ledger.rows("SELECT decided, path, producer FROM redrive.repeat ORDER BY repeat") == [
        ("duplicate", "sql", "shop-frontend"),
        ("conflict", "sql", "shop-frontend"),
    ]
    report = ledger.app.operations.verify()
    assert report.ok, report.problems


VALUES = [
    None,
    {},
    {"b": [1, 2.0, 1e23, -0.0, 5e-324, 1e16], "a": {"z": None, "\u00e9": True}},
    {"nul": "a\x00b", "\x00": "\\u0000", "quote": '"\\/\n\x7f\u2028'},
    ["\U0001f4e6", "\uffff", {"\U00010000": 1, "\uffff": 2}],
    2**200,
    "text",
]


@pytest.mark.parametrize("sql_first", [True, False])
def test_python_and_sql_name_and_hash_the_same_work_alike(ledger: Ledger, sql_first: bool) -> None:
    def by_sql(n: int, value: object) -> tuple[Any, ...]:
        return ledger.row(
            "SELECT * FROM redrive.enqueue('job', %s, key => %s, tenant => 'acme', scope => 'shop',"
            " destination => 'bank', priority => 1)",
            json.dumps(value, indent=1),
            json.dumps(["k", n]),
        )

    for n, value in enumerate(VALUES):
        if sql_first:
            delivery, decided = by_sql(n, value)
            assert decided == "created"
        job = ledger.app.enqueue(
            "job", value, key=("k", n), tenant="acme", scope="shop", destination="bank", priority=1
        )
        assert job.created is not sql_first
        if not sql_first:
            delivery, decided = by_sql(n, value)
            assert decided == "duplicate"
        assert job.delivery_id == delivery


def test_python_and_sql_write_the_same_facts(ledger: Ledger) -> None:
    named: dict[str, Any] = {"tenant": "acme", "scope": "shop", "destination": "bank"}
    own = Policy(max_attempts=9, max_age=10**9)
    ours = [
        ledger.app.enqueue("job", {"a": 1}, key="p1"),
        ledger.app.enqueue("job", {"a": 1}, key="p2", priority=0, delay=60, **named),
        ledger.app.enqueue("job", {"a": 1}, key="p3", policy=own),
    ]
    theirs = [
        ledger.row("SELECT * FROM redrive.enqueue('job', '{\"a\": 1}', key => '\"s1\"')"),
        ledger.row(
            "SELECT * FROM redrive.enqueue('job', '{\"a\": 1}', key => '\"s2\"', tenant => 'acme', scope => 'shop',"
            " destination => 'bank', priority => 0, delay => interval '1 minute')"
        ),
        ledger.row("SELECT * FROM redrive.enqueue('job', '{\"a\": 1}', key => '\"s3\"', policy => %s)", own.spec()),
    ]
    for job, (delivery, decided) in zip(ours, theirs, strict=True):
        assert decided == "created"
        assert ledger.facts(delivery) == ledger.facts(job.delivery_id)
    assert ledger.rows("SELECT key FROM redrive.delivery ORDER BY seq") == [
        (f"{a}{n}",) for a in "ps" for n in (1, 2, 3)
    ]
    specs = dict(ledger.rows("SELECT version, spec FROM redrive.policy"))
    assert specs[own.version] == own.spec()


def test_when_it_is_due(ledger: Ledger) -> None:
    at = datetime(2031, 5, 6, 7, 8, 9, 123457, tzinfo=UTC)
    delivery, _ = ledger.row("SELECT * FROM redrive.enqueue('job', key => '1', at => %s)", at)
    due = "SELECT first_due_at, first_due_at - first_queued_at FROM redrive.delivery WHERE delivery_id = %s"
    assert ledger.row(due, identity.from_text("dlv", delivery))[0] == (
        at - datetime(1970, 1, 1, tzinfo=UTC)
    ) // timedelta(microseconds=1)
    delivery, _ = ledger.row("SELECT * FROM redrive.enqueue('job', key => '2', delay => '1 day 00:00:00.000001')")
    assert ledger.row(due, identity.from_text("dlv", delivery))[1] == 86_400_000_001


def test_the_callers_transaction_decides(ledger: Ledger) -> None:
    ledger.conn.execute("CREATE TABLE orders (n integer)")
    with ledger.conn.transaction(force_rollback=True):
        ledger.conn.execute("INSERT INTO orders VALUES (1)")
        assert ledger.row("SELECT decided FROM redrive.enqueue('job', key => '1')") == ("created",)
    assert ledger.count() == ledger.count("identity") == 0
    with ledger.conn.transaction():
        ledger.conn.execute("INSERT INTO orders VALUES (2)")
        assert ledger.row("SELECT decided FROM redrive.enqueue('job', '1', key => '1')") == ("created",)
        assert ledger.row("SELECT decided FROM redrive.enqueue('job', '2', key => '1')") == ("conflict",)
        ledger.conn.execute("INSERT INTO orders VALUES (3)")  # the transaction is alive
    assert ledger.rows("SELECT n FROM orders ORDER BY n") == [(2,), (3,)]
    assert ledger.row("SELECT payload FROM redrive.delivery") == (b"1",)


@pytest.mark.parametrize(("end", "decided"), [("COMMIT", "duplicate"), ("ROLLBACK", "created")])
def test_the_same_key_in_an_open_transaction_is_waited_for(
    ledger: Ledger, database: str, end: str, decided: str
) -> None:
    call = "SELECT decided FROM redrive.enqueue('job', '1', key => '1')"
    with ThreadPoolExecutor(1) as pool, psycopg.connect(database, autocommit=True) as other:
        ledger.conn.execute("BEGIN")
        assert ledger.row(call) == ("created",)
        pid = other.info.backend_pid
        later = pool.submit(lambda: other.execute(call).fetchall())
        with psycopg.connect(database, autocommit=True) as watcher:
            waits = "SELECT wait_event_type = 'Lock' FROM pg_stat_activity WHERE pid = %s"
            wait_until("the second one waits", lambda: watcher.execute(waits, [pid]).fetchone() == (True,))
        ledger.conn.execute(end)
        assert later.result(timeout=20) == [(decided,)]
    assert ledger.count() == 1


def test_a_handler_that_no_worker_has_needs_a_policy(ledger: Ledger) -> None:
    with pytest.raises(
        psycopg.errors.InvalidParameterValue, match='no worker has registered a handler "billing"'
    ) as caught:
        ledger.row("SELECT * FROM redrive.enqueue('billing', key => '1')")
    assert "pass the policy" in str(caught.value.diag.message_hint)
    delivery, _ = ledger.row("SELECT * FROM redrive.enqueue('billing', key => '1', policy => '{}')")
    job = ledger.app.enqueue("billing", key=2, policy=Policy(), allow_unknown=True)
    assert ledger.facts(delivery) == ledger.facts(job.delivery_id)


def test_another_environments_call_is_refused(ledger: Ledger) -> None:
    assert ledger.row("SELECT decided FROM redrive.enqueue('job', key => '1', environment => 'shop')") == ("created",)
    for call in (
        "enqueue('job', key => '2', environment => 'prod')",
        'enqueue_many(\'[{"handler": "job", "key": 2}]\', \'prod\')',
        "publish('a', '1', '1', environment => 'prod')",
        'publish_many(\'[{"event_type": "a", "payload": 1, "event_id": 1}]\', environment => \'prod\')',
    ):
        with pytest.raises(psycopg.Error, match="environment") as caught:
            ledger.rows(f"SELECT * FROM redrive.{call}")
        assert caught.value.sqlstate == "RD002"
    assert ledger.count() == 1
    assert ledger.count("event") == 0


def test_the_payload_limit_is_a_setting(ledger: Ledger) -> None:
    with ledger.conn.transaction():
        ledger.conn.execute("SET LOCAL redrive.max_payload_bytes = 2000000")
        row = ledger.row("SELECT decided FROM redrive.enqueue('job', to_json(repeat('x', 1999998)), key => '1')")
        assert row == ("created",)
    with pytest.raises(psycopg.errors.InvalidParameterValue, match="the limit is 1048576"):
        ledger.row("SELECT decided FROM redrive.enqueue('job', to_json(repeat('x', 1999998)), key => '2')")


def test_waking_the_workers_is_a_setting(ledger: Ledger, database: str) -> None:
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN redrive")
        ledger.row("SELECT * FROM redrive.enqueue('job', key => '1')")
        ledger.conn.execute("SET redrive.notify = 'on'")
        with ledger.conn.transaction():
            ledger.row("SELECT * FROM redrive.enqueue('job', key => '2')")
            ledger.rows('SELECT * FROM redrive.enqueue_many(\'[{"handler": "job", "key": 3}]\')')
            ledger.row("SELECT * FROM redrive.publish('a', '1', '1')")
        ledger.conn.execute("NOTIFY redrive, 'last'")
        heard = []
        for notice in listener.notifies(timeout=10):
            heard.append(notice.payload)
            if notice.payload == "last":
                break
        assert heard == ["", "last"]  # one for the transaction, none for the first enqueue


def test_many_jobs_are_each_decided_on_their_own(ledger: Ledger) -> None:
    ledger.app.enqueue("job", {"n": 1}, key=("old", 1))
    items: list[dict[str, Any]] = [
        {"handler": "job", "key": ["old", 1], "payload": {"n": 1}},
        {"handler": "job", "key": ["old", 1], "payload": {"n": 2}},
        {"handler": "job", "key": "nul", "payload": "a\x00b", "tenant": "acme", "delay": 1.5},
        {"handler": "job", "key": "nul", "payload": "a\x00b"},
        {"handler": "job", "key": "nul", "payload": "a\x00b", "scope": None, "at": "2031-01-01T00:00:00.5+01:00"},
        {"handler": "other", "key": "a\x00", "policy": {"max_attempts": 2}, "priority": 0, "delay": "00:00:02"},
        {"handler": "job", "key": "twice", "payload": 1},
        {"handler": "job", "key": "twice", "payload": 2},
    ]
    rows = ledger.rows("SELECT * FROM redrive.enqueue_many(%s)", json.dumps(items))
    assert [(n, decided) for n, _, decided in rows] == [
        (1, "duplicate"),
        (2, "conflict"),
        (3, "created"),
        (4, "created"),
        (5, "duplicate"),
        (6, "created"),
        (7, "created"),
        (8, "conflict"),
    ]
    ids = [identity.delivery_id(item["handler"], item.get("tenant", "default"), item["key"]) for item in items]
    assert [delivery for _, delivery, _ in rows] == [identity.to_text("dlv", raw) for raw in ids]
    waits = (
        "SELECT tenant, handler, payload, max_attempts, first_due_at - first_queued_at"
        " FROM redrive.delivery ORDER BY seq"
    )
    assert sorted(ledger.rows(waits)[1:]) == [
        ("acme", "job", b'"a\\u0000b"', 3, 1_500_000),
        ("default", "job", b'"a\\u0000b"', 3, 0),
        ("default", "job", b"1", 3, 0),
        ("default", "other", b"null", 2, 2_000_000),
    ]
    assert ledger.rows("SELECT * FROM redrive.enqueue_many('[]')") == []
    report = ledger.app.operations.verify()
    assert report.ok, report.problems


def test_a_large_batch_is_python_s_batch(ledger: Ledger) -> None:
    specs = [JobSpec("job", {"n": n, "half": n / 2}, key=("b", n), tenant=f"t{n % 7}") for n in range(500)]
    items = [{"handler": "job", "payload": s.payload, "key": s.key, "tenant": s.tenant} for s in specs]
    rows = ledger.rows("SELECT * FROM redrive.enqueue_many(%s)", json.dumps(items))
    assert [decided for _, _, decided in rows] == ["created"] * 500
    again = ledger.app.enqueue_many(specs)
    assert [(job.delivery_id, job.created) for job in again] == [(delivery, False) for _, delivery, _ in rows]


def test_functions_need_no_search_path(database: str) -> None:
    with Redrive(f"{database}?schema=work_of_shop", environment="shop") as app:
        app.init()
        with psycopg.connect(database, autocommit=True, options="-c search_path=pg_temp") as conn:
            items = json.dumps([{"handler": "job", "key": [1, ["a\\u0000"]], "payload": [0.5, {}], "policy": {}}])
            assert conn.execute("SELECT decided FROM work_of_shop.enqueue_many(%s)", (items,)).fetchall() == [
                ("created",)
            ]
            events = json.dumps([{"event_type": "a", "payload": 1, "event_id": 1}])
            assert conn.execute("SELECT decided FROM work_of_shop.publish_many(%s)", (events,)).fetchall() == [
                ("created",)
            ]
