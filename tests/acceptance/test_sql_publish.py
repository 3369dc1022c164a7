"""Events through the public SQL functions; what the functions refuse; and whether their page tells the truth."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from tests.acceptance.sql_rig import Ledger, opened, subscribe
from tests.services.postgres import PostgresServer

from redrive import Conflict, Policy, Redrive
from redrive.domain import identity
from redrive.errors import LedgerError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "sql.md"


@pytest.fixture
def ledger(database: str) -> Iterator[Ledger]:
    with opened(database) as made:
        yield made


@pytest.fixture(scope="module")
def untouched(postgres: PostgresServer) -> Iterator[Ledger]:
    """One for the tests that write nothing."""
    name = postgres.create_database()
    with opened(postgres.url(name)) as made:
        yield made
    postgres.drop_database(name)


def test_an_event_goes_to_who_subscribes_and_its_fan_out_is_frozen(ledger: Ledger) -> None:
    first, second = subscribe(ledger, "a", "order.*"), subscribe(ledger, "b", "order.paid", "**")
    subscribe(ledger, "c", "user.*")
    subscribe(ledger, "other", "**", tenant="acme")
    call = "SELECT * FROM redrive.publish('order.paid', %s, %s)"
    event_id = identity.event_id("default", "evt-1")
    expected = {
        identity.to_text("dlv", identity.webhook_delivery_id("default", event_id, destination))
        for destination in (first, second)
    }
    published, decided, deliveries = ledger.row(call, '{"b": 1, "a": 2}', '"evt-1"')
    assert (published, decided, set(deliveries)) == (identity.to_text("evt", event_id), "created", expected)
    subscribe(ledger, "late", "**")
    assert ledger.row(call, '{"a":2,"b":1}', '"evt-1"') == (published, "duplicate", deliveries)
    assert ledger.row(call, '{"a":2,"b":2}', '"evt-1"')[1] == "conflict"
    other = "SELECT decided FROM redrive.publish('order.sent', '{\"a\":2,\"b\":1}', '\"evt-1\"')"
    assert ledger.row(other) == ("conflict",)
    again = ledger.app.publish("order.paid", {"a": 2, "b": 1}, event_id="evt-1")
    assert (again.event_id, again.created, list(again.deliveries)) == (published, False, deliveries)
    with pytest.raises(Conflict):
        ledger.app.publish("order.paid", {}, event_id="evt-1")
    report = ledger.app.operations.verify()
    assert report.ok, report.problems


def test_bytes_are_published_as_they_are(ledger: Ledger) -> None:
    body, at = b'{"b": 1,\n "a": 1, "a": 2}', datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=UTC)
    call = (
        "SELECT * FROM redrive.publish('a', event_id => '[1]', body => %s, occurred_at => %s,"
        " tenant => 't', scope => 's')"
    )
    assert ledger.row(call, body, at)[1:] == ("created", [])
    again = ledger.app.publish("a", body, event_id=1, tenant="t", scope="s", occurred_at=at)
    assert not again.created
    anything = "SELECT decided FROM redrive.publish('a', event_id => '2', body => %s, content_type => 'text/csv')"
    assert ledger.row(anything, b"\xff\x00") == ("created",)
    assert not ledger.app.publish("a", b"\xff\x00", event_id=2, content_type="text/csv").created
    facts = "SELECT event_key, tenant, scope, payload, content_type, occurred_at FROM redrive.event ORDER BY event_seq"
    assert ledger.rows(facts) == [
        ("1", "t", "s", body, "application/json", -1),
        ("2", "default", None, b"\xff\x00", "text/csv", None),
    ]


def test_many_events_are_each_decided_on_their_own(ledger: Ledger) -> None:
    subscribe(ledger, "a", "order.*")
    events = [
        {"event_type": "order.paid", "payload": {"n": 1}, "event_id": "e1"},
        {"event_type": "order.paid", "payload": {"n": 1.0}, "event_id": "e1"},
        {"event_type": "order.paid", "payload": {"n": 1}, "event_id": "e1"},
        {"event_type": "user.new", "body": '{"n": "\x00"}'.replace("\x00", "\\u0000"), "event_id": ["e", 2]},
        {"event_type": "order.sent", "body": "n,\x00\n", "content_type": "text/csv", "event_id": "e3", "scope": "s"},
        {"event_type": "order.sent", "payload": None, "event_id": "e4", "occurred_at": "2026-01-01T00:00:00Z"},
    ]
    rows = ledger.rows("SELECT * FROM redrive.publish_many(%s)", json.dumps(events))
    assert [(n, decided, len(deliveries)) for n, _, decided, deliveries in rows] == [
        (1, "created", 1),
        (2, "conflict", 1),
        (3, "duplicate", 1),
        (4, "created", 0),
        (5, "created", 1),
        (6, "created", 1),
    ]
    assert ledger.rows("SELECT payload, occurred_at FROM redrive.event ORDER BY event_seq") == [
        (b'{"n":1}', None),
        (b'{"n": "\\u0000"}', None),
        (b"n,\x00\n", None),
        (b"null", 1767225600000000),
    ]
    assert not ledger.app.publish("order.sent", None, event_id="e4").created
    assert ledger.rows("SELECT * FROM redrive.publish_many('[]')") == []


# --- bad input ----------------------------------------------------------------------------------------

BAD: list[tuple[str, str]] = [
    ("enqueue('job')", "key is missing"),
    ("enqueue('job', key => '[\"\", null]')", "key is missing"),
    ("enqueue('job', key => '1.5')", "must be an integer"),
    ("enqueue('a job', key => '1')", "handler is not a name"),
    ("enqueue(NULL, key => '1')", "handler must not be empty"),
    ("enqueue('webhook', key => '1')", "published, not enqueued"),
    ("enqueue('job', key => '1', tenant => '')", "tenant must not be empty"),
    ("enqueue('job', key => '1', tenant => NULL)", "tenant must not be empty"),
    ("enqueue('job', key => '1', tenant => ' a')", "tenant begins or ends with white space"),
    ("enqueue('job', key => '1', scope => E'a\\nb')", "scope contains a control character"),
    ("enqueue('job', key => '1', destination => repeat('x', 201))", "destination is longer than 200"),
    ("enqueue('job', key => '1', priority => 4)", "priority must be"),
    ("enqueue('job', key => '1', priority => NULL)", "priority must be"),
    ("enqueue('job', key => '1', delay => '1 s', at => now())", "both delay and at"),
    ("enqueue('job', key => '1', delay => '-1 s')", "delay must be zero to ten years"),
    ("enqueue('job', key => '1', delay => '11 years')", "delay must be zero to ten years"),
    ("enqueue('job', key => '1', at => now() + interval '11 years')", "longer than ten years"),
    ("enqueue('job', key => '1', at => 'infinity')", "not a point in time"),
    ("enqueue('job', to_json(repeat('x', 1048575)), key => '1')", "is 1048577 bytes, the limit is 1048576"),
    ("enqueue('job', '{\"a\":1,\"a\":2}', key => '1')", "a key twice"),
    ("enqueue('job', '1e999', key => '1')", "not finite"),
    ("enqueue('job', key => '1', policy => '{\"max_attempts\": 0}')", "max_attempts is out of range"),
    ("enqueue_many(NULL)", "items must be an array"),
    ("enqueue_many('{}')", "items must be an array"),
    ('enqueue_many(\'[{"handler": "job", "key": 1}, 5]\')', "item 2: this is not an object"),
    ('enqueue_many(\'[{"handler": "job", "keys": 1}]\')', "item 1: there is a member that is not known"),
    ('enqueue_many(\'[{"handler": "job", "key": 1, "key": 2}]\')', "item 1: there is a member twice"),
    ('enqueue_many(\'[{"handler": 5, "key": 1}]\')', "item 1: handler must be a string"),
    ('enqueue_many(\'[{"handler": "job"}]\')', "item 1: key is missing"),
    ('enqueue_many(\'[{"handler": "job", "key": 1, "at": "2030-01-01T00:00:00"}]\')', "item 1: at is not a time"),
    ('enqueue_many(\'[{"handler": "job", "key": 1, "at": "2030-13-01T00:00:00Z"}]\')', "item 1: at is not a time"),
    ('enqueue_many(\'[{"handler": "job", "key": 1, "delay": "soon"}]\')', "item 1: delay is not a length of time"),
    ('enqueue_many(\'[{"handler": "job", "key": 1, "priority": 1.0}]\')', "item 1: priority must be"),
    ("publish('order..paid', '1', '1')", "event_type must be segments"),
    ("publish('order.paid', '1')", "event_id is missing"),
    ("publish('order.paid', event_id => '1')", "give payload or body"),
    ("publish('order.paid', '1', '1', body => '1')", "give payload or body"),
    ("publish('order.paid', '1', '1', content_type => 'json')", "content type is not one"),
    ("publish('order.paid', event_id => '1', body => '{')", "the body is not JSON"),
    ("publish('order.paid', event_id => '1', body => '\\xff')", "the body is not JSON"),
    ("publish('order.paid', event_id => '1', body => '[1e999]')", "not finite"),
    (
        'publish_many(\'[{"event_type": "a", "event_id": 1, "payload": 1}, {"event_type": "a"}]\')',
        "item 2: give payload",
    ),
]


@pytest.mark.parametrize(("call", "says"), BAD)
def test_bad_input_says_what_and_where(untouched: Ledger, call: str, says: str) -> None:
    with pytest.raises(psycopg.errors.InvalidParameterValue) as caught:
        untouched.rows(f"SELECT * FROM redrive.{call}")
    assert says in str(caught.value.diag.message_primary)
    assert str(caught.value.diag.message_primary).startswith("redrive: ")
    assert untouched.count() == untouched.count("event") == 0


# --- the page -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["enqueue", "enqueue_many", "publish", "publish_many"])
def test_the_page_shows_the_function_as_it_is(untouched: Ledger, name: str) -> None:
    block = re.search(rf"```\nredrive\.{name}\((.*?)\n\) RETURNS (.*?)\n```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    arguments, result = untouched.row(
        "SELECT pg_get_function_arguments(p.oid), pg_get_function_result(p.oid) FROM pg_proc p"
        " WHERE p.pronamespace = 'redrive'::regnamespace AND p.proname = %s",
        name,
    )
    assert " ".join(block[1].split()) == re.sub(r"::[a-z ]+", "", arguments)
    assert block[2] == result


def test_the_page_s_first_example_works_on_a_new_ledger(database: str) -> None:
    example = re.findall(r"```sql\n(BEGIN;.*?COMMIT;)\n```", PAGE.read_text("utf-8"), re.DOTALL)[0]
    with Redrive(database, environment="shop") as app:
        app.init()
        with psycopg.connect(database, autocommit=True) as conn:
            conn.execute("CREATE TABLE orders (id integer, total numeric)")
            conn.execute(example)
        assert app.operations.status().accepted.count == 1


def test_the_page_s_grants_are_enough_and_needed(ledger: Ledger, database: str) -> None:
    (grants,) = re.findall(r"```sql\n(GRANT .*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    role = f"shop_{database.rpartition('/')[2]}"
    subscribe(ledger, "a", "**")
    jobs = json.dumps([{"handler": "job", "key": 1}, {"handler": "new", "key": 1, "policy": {}}])
    changed = json.dumps([{"handler": "job", "key": 1, "payload": 2}])

    def produce() -> None:
        with ledger.conn.transaction():
            ledger.conn.execute(f"SET LOCAL ROLE {role}")
            for _ in range(2):
                ledger.rows("SELECT * FROM redrive.enqueue_many(%s)", jobs)
                ledger.rows("SELECT * FROM redrive.publish('a', '1', '1')")
            assert ledger.rows("SELECT decided FROM redrive.enqueue_many(%s)", changed) == [("conflict",)]
            assert ledger.row("SELECT decided FROM redrive.publish('a', '2', '1')") == ("conflict",)
            assert ledger.row("SELECT decided FROM redrive.publish('b', '2', '2', tenant => 'nobody')") == ("created",)
            assert ledger.row("SELECT decided FROM redrive.publish('b', '3', '2', tenant => 'nobody')") == ("conflict",)

    ledger.conn.execute(f"CREATE ROLE {role} LOGIN")
    try:
        for statement in grants.replace("TO shop", f"TO {role}").strip().rstrip(";").split(";"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                produce()
            ledger.conn.execute(statement)
        produce()
        with Redrive(database.replace("postgres@", f"{role}@"), environment="shop") as app:
            for decided in (True, False):
                assert app.enqueue("job", 5, key=5, policy=Policy(), allow_unknown=True).created is decided
                assert len(app.publish("a", 5, event_id="5").deliveries) == 1
            with psycopg.connect(database.replace("postgres@", f"{role}@")) as own:
                app.enqueue("job", 6, key=6, policy=Policy(), allow_unknown=True, connection=own)
            with pytest.raises(Conflict):
                app.enqueue("job", 7, key=5, policy=Policy(), allow_unknown=True)
            with pytest.raises(LedgerError, match="permission denied") as caught:
                app.run(until_idle=True)
            assert (type(caught.value), caught.value.hint) == (LedgerError, "see: redrive check")
    finally:
        ledger.conn.execute(f"DROP OWNED BY {role}")
        ledger.conn.execute(f"DROP ROLE {role}")
