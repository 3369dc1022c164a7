"""Enqueue and publish inside the caller's own transaction on PostgreSQL, from every driver."""

from __future__ import annotations

import json
from collections.abc import Iterator

import psycopg
import pytest
from tests.acceptance.engine_support import HOOKS, assert_verified, drain
from tests.acceptance.postgres_callers import WAYS, application, calling, count, drive, ledger, query
from tests.services.postgres import PostgresServer

from redrive import Conflict, InvalidInput, Redrive
from redrive.app import JobSpec
from redrive.errors import EnvironmentMismatch, LedgerBusy, LedgerError
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.publish import Event
from redrive.webhooks.settings import DestinationSettings

TABLES = ("mine", "delivery", "delivery_state", "identity", "event", "repeat", "repeat_count", "rejection")


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    """A ledger, seen from sessions whose search_path ends in its schema."""
    with ledger(postgres) as made:
        yield made


def counts(url: str) -> dict[str, int]:
    return {table: count(url, table if table == "mine" else f"redrive.{table}") for table in TABLES}


def add_destination(app: Redrive) -> None:
    """A subscriber to everything; nothing is ever sent to it here."""
    app.address_policy = AddressPolicy.build(["127.0.0.0/8"], [9], True)
    app.destinations.add("a", DestinationSettings("http://127.0.0.1:9/", allow_http=True, policy=HOOKS))


@pytest.mark.parametrize("way", WAYS)
def test_work_becomes_visible_with_the_callers_transaction_and_not_before(url: str, way: str) -> None:
    async def main(app: Redrive) -> None:
        before = counts(url)
        async with calling(url, way) as caller:
            job = await caller.call(app, "enqueue", "job", {"n": 1}, key=1)
            assert job.created
            same = await caller.call(app, "enqueue", "job", {"n": 1}, key=1)
            assert (same.delivery_id, same.created) == (job.delivery_id, False)
            many = await caller.call(app, "enqueue_many", [JobSpec("job", n, ("n", n)) for n in (1, 2, 2, 3)])
            assert [each.created for each in many] == [True, True, False, True]
            event = await caller.call(app, "publish", "order.paid", {"n": 1}, event_id=1)
            assert (event.created, len(event.deliveries)) == (True, 1)
            again = await caller.call(app, "publish_many", [Event("order.paid", {"n": n}, n) for n in (1, 2, 3)])
            assert [(each.created, len(each.deliveries)) for each in again] == [(False, 1), (True, 1), (True, 1)]
            assert again[0].deliveries == event.deliveries
            assert counts(url) == before
            await caller.commit()
        after = {name: number - before[name] for name, number in counts(url).items()}
        assert after == {
            "mine": 1,
            "delivery": 7,
            "delivery_state": 7,
            "identity": 7,
            "event": 3,
            "repeat": 3,
            "repeat_count": 3,
            "rejection": 0,
        }
        assert query(url, "SELECT DISTINCT path, decided FROM redrive.repeat") == [("connection", "duplicate")]
        assert not app.enqueue("job", {"n": 1}, key=1).created

    with application(url) as app:
        add_destination(app)
        drive(way, main(app))
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
def test_work_is_rolled_back_with_the_callers_transaction(url: str, way: str) -> None:
    async def main(app: Redrive) -> None:
        before = counts(url)
        async with calling(url, way) as caller:
            await caller.call(app, "enqueue", "job", {"n": 1}, key=1)
            await caller.call(app, "enqueue_many", [JobSpec("job", n, ("n", n)) for n in range(3)])
            await caller.call(app, "publish", "order.paid", {"n": 1}, event_id=1)
            await caller.call(app, "publish_many", [Event("order.paid", {"n": n}, n) for n in (1, 2)])
            await caller.rollback()
        assert counts(url) == before

    with application(url) as app:
        add_destination(app)
        drive(way, main(app))
        # The keys are as free as before, for other payloads too.
        assert app.enqueue("job", {"n": 2}, key=1).created
        assert app.publish("order.paid", {"n": 2}, event_id=1).created
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
def test_a_conflict_leaves_the_callers_transaction_usable(url: str, way: str) -> None:
    async def main(app: Redrive) -> None:
        async with calling(url, way) as caller:
            await caller.call(app, "enqueue", "job", 0, key="before")
            with pytest.raises(Conflict) as caught:
                await caller.call(app, "enqueue_many", [JobSpec("job", 0, "new"), JobSpec("job", {"n": 2}, 1)])
            assert caught.value.param == "key"
            with pytest.raises(Conflict):
                await caller.call(app, "enqueue_many", [JobSpec("job", 0, "twice"), JobSpec("job", 1, "twice")])
            with pytest.raises(Conflict) as caught:
                await caller.call(app, "publish_many", [Event("a.new", 1, "new"), Event("order.paid", 2, 1)])
            assert caught.value.param == "event_id"
            with pytest.raises(Conflict):
                await caller.call(app, "publish", "order.refunded", 1, event_id=1)
            assert await caller.execute("SELECT n FROM mine") == [(1,)]
            await caller.call(app, "enqueue", "job", 0, key="after")
            await caller.execute("INSERT INTO mine VALUES (2)")
            await caller.commit()

    with application(url) as app:
        add_destination(app)
        app.enqueue("job", {"n": 1}, key=1)
        app.publish("order.paid", 1, event_id=1)
        drive(way, main(app))
        assert query(url, "SELECT n FROM mine ORDER BY n") == [(1,), (2,)]
        keys = query(url, "SELECT key FROM redrive.delivery WHERE event_seq IS NULL ORDER BY seq")
        assert keys == [("1",), ("before",), ("after",)]
        assert query(url, "SELECT event_key FROM redrive.event") == [("1",)]
        # One for the key, two for the event's one delivery; a key that never was is nobody's.
        assert query(url, "SELECT decided, count(*) FROM redrive.repeat GROUP BY 1") == [("conflict", 3)]
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
def test_savepoints_of_the_callers_own(url: str, way: str) -> None:
    async def main(app: Redrive) -> None:
        async with calling(url, way) as caller:
            await caller.execute("SAVEPOINT one")
            await caller.call(app, "enqueue", "job", 1, key=1)
            await caller.call(app, "publish", "a.b", 1, event_id=1)
            await caller.execute("ROLLBACK TO SAVEPOINT one")
            await caller.call(app, "enqueue", "job", 2, key=1)
            await caller.execute("SAVEPOINT two")
            assert not (await caller.call(app, "enqueue", "job", 2, key=1)).created
            await caller.call(app, "enqueue", "job", 2, key=2)
            await caller.execute("ROLLBACK TO SAVEPOINT two")
            await caller.call(app, "enqueue", "job", 3, key=3)
            await caller.execute("RELEASE SAVEPOINT two")
            await caller.commit()

    with application(url) as app:
        drive(way, main(app))
        assert query(url, "SELECT key, payload FROM redrive.delivery ORDER BY seq") == [("1", b"2"), ("3", b"3")]
        assert (count(url, "redrive.event"), count(url, "redrive.repeat")) == (0, 0)
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
def test_the_callers_snapshot(url: str, way: str, level: str) -> None:
    """What others committed since it was taken is never a second delivery: the transaction has to be tried again."""

    async def main(app: Redrive) -> None:
        async with calling(url, way, level) as caller:
            # The policy is stored, and another process's policies come, after the snapshot was taken.
            with application(url) as other:
                other.enqueue("job", 1, key="other")
            assert (await caller.call(app, "enqueue", "job", 1, key="own")).created
            assert not (await caller.call(app, "enqueue", "job", 1, key="own")).created
            assert (await caller.call(app, "publish", "a.b", 1, event_id="own")).created
            await caller.commit()
        async with calling(url, way, level) as caller:
            assert not (await caller.call(app, "enqueue", "job", 1, key="other")).created
            with application(url) as other:
                other.enqueue("job", 1, key="later")
                other.publish("a.b", 1, event_id="later")
            with pytest.raises(LedgerBusy) as caught:
                await caller.call(app, "enqueue", "job", 1, key="later")
            assert "tried again" in caught.value.message
            await caller.rollback()
        async with calling(url, way, level) as caller:
            with application(url) as other:
                other.publish("a.b", 1, event_id="last")
            with pytest.raises(LedgerBusy):
                await caller.call(app, "publish", "a.b", 1, event_id="last")
            await caller.rollback()

    with application(url) as app:
        drive(way, main(app))
        keys = query(url, "SELECT key FROM redrive.delivery ORDER BY key")
        assert keys == [("later",), ("other",), ("own",)]
        assert count(url, "redrive.event") == 3
        assert_verified(app)


@pytest.mark.parametrize("way", WAYS)
def test_another_database_or_environment_is_refused(
    url: str, database: str, postgres: PostgresServer, way: str
) -> None:
    async def main(app: Redrive, foreign: str, same_name: str) -> None:
        for target, error in (
            (database, InvalidInput),  # no ledger there
            (foreign, EnvironmentMismatch),
            (same_name, InvalidInput),  # another ledger, of an environment with the same name
        ):
            async with calling(target, way) as caller:
                for method, arguments, key in (("enqueue", ("job", 1), "key"), ("publish", ("a.b", 1), "event_id")):
                    await caller.execute("SAVEPOINT here")
                    with pytest.raises(error) as caught:
                        await caller.call(app, method, *arguments, **{key: 1})
                    if error is InvalidInput:
                        assert caught.value.param == "connection"
                        assert "another database" in caught.value.message
                    await caller.execute("ROLLBACK TO SAVEPOINT here")
                await caller.commit()
            assert count(target, "mine") == 1

    with psycopg.connect(database) as conn:
        conn.execute("CREATE TABLE mine (n integer)")
    with ledger(postgres) as foreign, ledger(postgres) as same_name, application(url) as app:
        with psycopg.connect(foreign) as conn:
            conn.execute("UPDATE redrive.ledger SET environment = 'other'")
        drive(way, main(app, foreign, same_name))
        for each in (url, foreign, same_name):
            assert count(each, "redrive.identity") == 0


@pytest.mark.parametrize("way", WAYS)
def test_the_callers_session_is_left_as_it_was(url: str, way: str) -> None:
    """Its search_path may hide names of ours, and settings of its transaction are its own."""
    names = ("search_path", "lock_timeout", "statement_timeout", "jit", "enable_seqscan", "synchronous_commit")
    show = f"SELECT {', '.join(f'current_setting({chr(39)}{name}{chr(39)})' for name in names)}"

    async def main(app: Redrive) -> None:
        async with calling(url, way) as caller:
            await caller.execute("CREATE SCHEMA trap")
            for table in ("identity", "delivery", "delivery_state", "policy", "event", "ledger", "repeat"):
                await caller.execute(f"CREATE TABLE trap.{table} (only_here integer)")
            await caller.execute("CREATE FUNCTION trap.clock_us() RETURNS text LANGUAGE sql AS 'SELECT ''trap'''")
            await caller.execute("SET LOCAL search_path = trap")
            await caller.execute("SET LOCAL lock_timeout = 1234")
            await caller.execute("SET LOCAL bytea_output = escape")
            before = await caller.execute(show)
            for _ in range(2):
                await caller.call(app, "enqueue", "job", {"n": 1}, key=1)
                made = await caller.call(app, "publish", "a.b", {"n": 1}, event_id=1)
                assert made.deliveries[0].startswith("dlv_")
            assert await caller.execute(show) == before
            await caller.commit()

    with application(url) as app:
        add_destination(app)
        drive(way, main(app))
        assert (count(url, "redrive.delivery"), count(url, "redrive.repeat")) == (2, 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_lock_that_is_not_given_in_time_is_busy(url: str, way: str) -> None:
    """Whatever the driver wraps its errors into; and a broken transaction says so."""

    async def main(app: Redrive) -> None:
        async with calling(url, way) as caller:
            await caller.execute("SET LOCAL lock_timeout = 50")
            with pytest.raises(LedgerBusy) as caught:
                await caller.call(app, "enqueue", "job", 1, key=1)
            assert "locked" in caught.value.message
            with pytest.raises(LedgerError) as broken:
                await caller.call(app, "enqueue", "job", 1, key=2)
            assert "25P02" in broken.value.message
            await caller.rollback()

    with application(url) as app, psycopg.connect(url) as holder:
        app.enqueue("job", 1, key=1, connection=holder)
        drive(way, main(app))
        holder.commit()
        assert count(url, "redrive.delivery") == 1


@pytest.mark.parametrize("way", WAYS)
def test_what_a_caller_committed_is_worked_off(url: str, way: str) -> None:
    async def main(app: Redrive) -> None:
        async with calling(url, way) as caller:
            await caller.call(app, "enqueue", "job", {"text": "a\0b\\u0000 \N{SNOWMAN}"}, key=1, tenant="Zoe\u0308")
            await caller.commit()

    with application(url) as app:
        drive(way, main(app))
        drain(app)
        assert query(url, "SELECT disposition FROM redrive.delivery_state") == [(2,)]
        ((payload, tenant),) = query(url, "SELECT payload, tenant FROM redrive.delivery")
        assert json.loads(payload) == {"text": "a\0b\\u0000 \N{SNOWMAN}"}
        assert tenant == "Zoe\u0308"
        assert_verified(app)
