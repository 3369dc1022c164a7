"""Many producers at once on PostgreSQL: races for one key, open transactions, coalescing, lost answers."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from tests.acceptance.engine_support import DEADLINE_S, HOOKS, assert_verified, drain, until
from tests.acceptance.postgres_callers import application, count, ledger, query
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy

from redrive import UNIQUE, Conflict, InvalidInput, Redrive
from redrive.app import JobSpec
from redrive.webhooks.guard import AddressPolicy
from redrive.webhooks.publish import Event
from redrive.webhooks.settings import DestinationSettings
from redrive.worker.settings import WorkerSettings


@pytest.fixture
def url(postgres: PostgresServer) -> Iterator[str]:
    with ledger(postgres) as made:
        yield made


def add_destination(app: Redrive, name: str = "a") -> None:
    app.address_policy = AddressPolicy.build(["127.0.0.0/8"], [9], True)
    app.destinations.add(name, DestinationSettings("http://127.0.0.1:9/", allow_http=True, policy=HOOKS))


def accept(app: Redrive, method: str, key: Any, conn: Any = None) -> Any:
    if method == "enqueue":
        return app.enqueue("job", 1, key=key, connection=conn)
    return app.publish("a.b", 1, event_id=key, connection=conn)


# --- races ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["enqueue", "publish"])
def test_fifty_producers_of_one_key_make_one_delivery_if_any_of_them_commits(url: str, method: str) -> None:
    dice = random.Random(7)
    rounds = [[dice.random() < 0.5 for _ in range(50)], [dice.random() < 0.1 for _ in range(50)], [False] * 50]
    pauses = [dice.choice((0, 0, 0.002)) for _ in range(50)]
    with application(url) as app, ThreadPoolExecutor(50) as threads:
        add_destination(app)
        connections = [psycopg.connect(url) for _ in range(50)]
        try:
            for number, commits in enumerate(rounds):
                start = threading.Barrier(50, timeout=DEADLINE_S)

                def produce(n: int, number: int = number, commits: Any = commits, start: Any = start) -> bool | None:
                    conn = connections[n]
                    start.wait()
                    made = accept(app, method, ("race", number), conn)
                    time.sleep(pauses[n])
                    if commits[n]:
                        conn.commit()
                        return bool(made.created)
                    conn.rollback()
                    return None

                created = [answer for answer in threads.map(produce, range(50)) if answer is not None]
                assert created.count(True) == (1 if any(commits) else 0)
                assert len(created) == sum(commits)
            # Nothing of the last round was kept: its key is free.
            assert accept(app, method, ("race", 2)).created
        finally:
            for conn in connections:
                conn.close()
        assert count(url, "redrive.delivery") == 3
        assert count(url, "redrive.identity") == 3
        assert_verified(app)


@pytest.mark.parametrize("method", ["enqueue", "publish"])
def test_batches_with_the_same_keys_in_another_order_do_not_lock_each_other_out(url: str, method: str) -> None:
    def produce(seed: int) -> int:
        order = list(range(150))
        random.Random(seed).shuffle(order)
        with psycopg.connect(url) as conn:
            start.wait()
            if method == "enqueue":
                made: list[Any] = app.enqueue_many([JobSpec("job", n, n) for n in order], connection=conn)
            else:
                made = app.publish_many([Event("a.b", n, n) for n in order], connection=conn)
            conn.commit()
        return sum(each.created for each in made)

    start = threading.Barrier(8, timeout=DEADLINE_S)
    with application(url) as app, ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(produce, range(8))) == 150
        assert count(url, "redrive.delivery" if method == "enqueue" else "redrive.event") == 150
        assert_verified(app)


def test_a_row_that_went_away_meanwhile_is_no_reason_to_say_created(url: str) -> None:
    """Retention may take a tombstone between the insert that it stopped and the look at it."""
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA trap")
        conn.execute("CREATE SEQUENCE trap.turn")
        conn.execute(
            "CREATE FUNCTION trap.skip_first() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN IF nextval(''trap.turn'') % 3 = 1 THEN RETURN NULL; END IF; RETURN NEW; END'"
        )
        for table in ("identity", "event"):
            conn.execute(
                f"CREATE TRIGGER skip BEFORE INSERT ON redrive.{table} EXECUTE FUNCTION trap.skip_first()".replace(
                    "EXECUTE", "FOR EACH ROW EXECUTE"
                )
            )
    with application(url) as app:
        made = app.enqueue_many([JobSpec("job", n, n) for n in range(2)])
        assert [each.created for each in made] == [True, True]
        assert count(url, "redrive.delivery") == 2
        assert [app.publish("a.b", n, event_id=n).created for n in range(2)] == [True, True]
        assert count(url, "redrive.event") == 2
        assert query(url, "SELECT last_value > 6 FROM trap.turn") == [(True,)]


def test_what_is_held_in_an_open_transaction_is_released_though_its_destination_was_enabled_meanwhile(url: str) -> None:
    with application(url) as app, psycopg.connect(url) as conn:
        add_destination(app)
        app.destinations.disable("a", reason="test")
        app.publish("a.b", 1, event_id=1, connection=conn)
        # Whoever enables it neither sees the delivery nor waits for it.
        assert app.destinations.enable("a") == 0
        conn.commit()
        assert query(url, "SELECT hold FROM redrive.delivery_state") == [(1,)]
        assert app.destinations.reconcile() == 1
        assert query(url, "SELECT hold FROM redrive.delivery_state") == [(0,)]
        assert_verified(app)


# --- open transactions ----------------------------------------------------------------------------------


def test_an_open_transaction_hides_and_slows_nothing_of_the_same_tenant(url: str) -> None:
    slots = WorkerSettings(slots=50, reap_s=5, drain_s=5, poll_s=0.5)
    with Proxy.start(url) as proxy, application(proxy.url_of(url), worker=slots) as app, psycopg.connect(url) as holder:
        app.enqueue("job", 0, key="known")
        app.enqueue_many([JobSpec("job", n, ("open", n)) for n in range(1000)], connection=holder)
        assert not app.enqueue("job", 0, key="known", connection=holder).created
        app.enqueue_many([JobSpec("job", n, ("committed", n)) for n in range(999)])
        with psycopg.connect(url, options="-c lock_timeout=100") as other:
            assert app.enqueue("job", 1, key="other", connection=other).created
            assert not app.enqueue("job", 0, key="known", connection=other).created
            assert not app.enqueue("job", 5, key=("committed", 5), connection=other).created
            other.rollback()
        drain(app)
        assert query(url, "SELECT disposition, count(*) FROM redrive.delivery_state GROUP BY 1") == [(2, 1000)]
        # As many claims as the slots ask for, and a few that find nothing: none was spent on what is not committed.
        assert proxy.executions("reserve_1") <= 3 * 1000 / slots.slots
        holder.rollback()
        assert count(url, "redrive.delivery") == 1000
        assert query(url, "SELECT sum(duplicates) FROM redrive.repeat_count") == [(None,)]
        assert_verified(app)


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "rollback"])
@pytest.mark.parametrize("blocked", [1, 30])
def test_an_enqueue_that_waits_for_an_open_transaction_keeps_no_other_waiting(
    url: str, blocked: int, commit: bool
) -> None:
    """Though they are all written by the same process, together."""

    async def main() -> None:
        waiting = [asyncio.create_task(app.enqueue_async("job", n, key=("open", n))) for n in range(blocked)]
        first = await asyncio.gather(*(app.enqueue_async("job", n, key=("free", n)) for n in range(200)))
        assert all(job.created for job in first)
        assert (await app.enqueue_async("job", 0, key="later")).created
        assert not (await app.enqueue_async("job", 0, key="later")).created
        assert not any(task.done() for task in waiting)
        end = holder.commit if commit else holder.rollback
        end()
        assert {job.created for job in await asyncio.gather(*waiting)} == {not commit}

    async def bounded() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await main()

    with application(url) as app, psycopg.connect(url) as holder:
        app.enqueue_many([JobSpec("job", n, ("open", n)) for n in range(blocked)], connection=holder)
        asyncio.run(bounded())
        assert count(url, "redrive.delivery") == 201 + blocked
        assert_verified(app)


# --- coalescing -----------------------------------------------------------------------------------------


def test_single_enqueues_from_many_tasks_share_statements_and_get_their_own_answers(url: str) -> None:
    async def main(app: Redrive) -> list[Any]:
        return await asyncio.gather(
            *(app.enqueue_async("job", n, key=n) for n in range(1000)),
            *(app.enqueue_async("job", n, key=n) for n in range(500)),  # duplicates
            *(app.enqueue_async("job", 0, key=("bad", n), tenant="refused") for n in range(2)),
            app.enqueue_async("job", -1, key=7),
            app.enqueue_async("job", 1, key=None),
            *(app.publish_async("a.b", n, event_id=n) for n in range(500)),
            return_exceptions=True,
        )

    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("CREATE SCHEMA trap")
        conn.execute(
            "CREATE FUNCTION trap.refuse() RETURNS trigger LANGUAGE plpgsql AS"
            " 'BEGIN RAISE EXCEPTION ''no'' USING ERRCODE = ''P0001''; END'"
        )
        conn.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON redrive.delivery FOR EACH ROW WHEN (NEW.tenant = 'refused')"
            " EXECUTE FUNCTION trap.refuse()"
        )
    with Proxy.start(url) as proxy, application(proxy.url_of(url)) as app:
        add_destination(app)
        answers = asyncio.run(main(app))
        assert [job.created for job in answers[:1000]] == [True] * 1000
        assert [job.created for job in answers[1000:1500]] == [False] * 500
        assert [job.delivery_id for job in answers[1000:1500]] == [job.delivery_id for job in answers[:500]]
        assert ["no" in str(error) for error in answers[1500:1502]] == [True, True]
        assert isinstance(answers[1502], Conflict)
        assert isinstance(answers[1503], InvalidInput)
        assert [(made.created, len(made.deliveries)) for made in answers[1504:]] == [(True, 1)] * 500
        assert proxy.executions("accept_1") + proxy.executions("publish_1") < 100
        assert count(url, "redrive.delivery") == 1500
        # In the order in which one task handed them in.
        order = query(
            url,
            "SELECT convert_from(payload, 'UTF8')::int FROM redrive.delivery WHERE payload IS NOT NULL ORDER BY seq",
        )
        assert [n for (n,) in order] == list(range(1000))
        assert_verified(app)


def test_single_enqueues_from_threads_share_statements(url: str) -> None:
    with Proxy.start(url) as proxy, application(proxy.url_of(url)) as app, ThreadPoolExecutor(40) as threads:
        made = list(threads.map(lambda n: app.enqueue("job", n % 500, key=n % 500), range(1000)))
        assert sum(job.created for job in made) == 500
        assert len({job.delivery_id for job in made}) == 500
        assert proxy.executions("accept_1") < 500
        assert query(url, "SELECT sum(duplicates) FROM redrive.repeat_count") == [(500,)]


def test_notifications_are_few_and_the_last_enqueue_is_followed_by_one(url: str) -> None:
    with application(url) as app, psycopg.connect(url, autocommit=True) as listener:
        app.enqueue("job", 0, key="first")
        time.sleep(0.05)
        listener.execute("LISTEN redrive")
        began = time.monotonic()
        for n in range(100):
            app.enqueue("job", n, key=n)
        lasted = time.monotonic() - began
        # What was owed comes within moments of the last commit; nothing comes after that.
        heard = [note.channel for note in listener.notifies(timeout=0.5)]
        assert 1 <= len(heard) <= lasted / 0.01 + 2
        for burst in range(3):
            for n in range(2):
                app.enqueue("job", n, key=(burst, n))
            # The second of two in a row comes too soon to carry one: it is made up for.
            asyncio.run(until(lambda: next(listener.notifies(timeout=0.1, stop_after=1), None)))
            time.sleep(0.03)
            list(listener.notifies(timeout=0))


# --- lost answers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["cut_before", "cut_after"])
@pytest.mark.parametrize("key", ["named", UNIQUE], ids=["key", "UNIQUE"])
@pytest.mark.parametrize("method", ["enqueue", "publish"])
def test_an_answer_that_was_lost_is_given_once_more(url: str, method: str, key: Any, when: str) -> None:
    with Proxy.start(url) as proxy, application(proxy.url_of(url)) as app:
        add_destination(app)
        accept(app, method, "warm")
        fault = getattr(proxy, when)("accept_1" if method == "enqueue" else "publish_1")
        made = accept(app, method, key)
        assert fault.done
        assert made.created
        if key is not UNIQUE:
            assert not accept(app, method, key).created
        assert count(url, "redrive.delivery") == 2
        assert count(url, "redrive.repeat") == (key is not UNIQUE)
        assert_verified(app)


@pytest.mark.parametrize("method", ["enqueue", "publish"])
def test_a_lost_answer_is_no_excuse_to_claim_what_others_made(url: str, method: str) -> None:
    with Proxy.start(url) as proxy, application(url) as other, application(proxy.url_of(url)) as app:
        add_destination(other)
        accept(other, method, "theirs")
        with psycopg.connect(url) as conn:
            conn.execute("SET session_replication_role = replica")
            conn.execute("UPDATE redrive.identity SET first_seen = first_seen - 10000000")
            conn.execute("UPDATE redrive.event SET accepted_at = accepted_at - 10000000")
        fault = proxy.cut_after("accept_1" if method == "enqueue" else "publish_1")
        assert not accept(app, method, "theirs").created
        assert fault.done


def test_enqueues_wait_for_a_server_that_is_away_for_a_moment(own_postgres: PostgresServer) -> None:
    with ledger(own_postgres) as url, application(url) as app, ThreadPoolExecutor(20) as threads:
        app.enqueue("job", 0, key="warm")
        stopped = threading.Event()

        def produce(n: int) -> list[bool]:
            made = [app.enqueue("job", n, key=(n, 0)).created]
            stopped.wait(DEADLINE_S)
            return [*made, *(app.enqueue("job", n, key=(n, k)).created for k in range(1, 4))]

        producers = [threads.submit(produce, n) for n in range(20)]
        own_postgres.stop("immediate")
        stopped.set()
        time.sleep(2)
        own_postgres.start_again()
        assert [producer.result(DEADLINE_S) for producer in producers] == [[True] * 4] * 20
        assert count(url, "redrive.delivery") == 81
        assert count(url, "redrive.repeat") == 0
        assert_verified(app)
