"""Rows that somebody else's transaction holds, connections that died unseen, claims that nobody waited for."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy

from redrive import Redrive
from redrive.app import JobSpec
from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.outcome import DELIVERED, OutcomeKind
from redrive.errors import LedgerUnavailable
from redrive.ledger.postgres.ledger import PostgresLedger
from redrive.worker.settings import WorkerSettings

JOB = [("job", 1)]
LEASE_US = 30_000_000


@contextlib.contextmanager
def application(url: str, **settings: Any) -> Iterator[Redrive]:
    with Redrive(url, worker=WorkerSettings(**settings)) as app:
        app.init()
        app.handler("job")(lambda context, payload: None)
        yield app


def ledger_of(app: Redrive) -> PostgresLedger:
    assert isinstance(app.ledger, PostgresLedger)
    return app.ledger


async def leased(app: Redrive, count: int) -> tuple[int, list[Lease]]:
    app.enqueue_many([JobSpec("job", n, key=n) for n in range(count)])
    worker = await app.ledger.register_worker("wrk_test", JOB)
    return worker, await app.ledger.reserve(worker, JOB, count, LEASE_US)


def closing(x: Lease) -> Closing:
    return Closing(x.seq, x.fence, x.generation, x.attempt, x.started_at, x.deferrals, DELIVERED, 0.0, 1)


def hold(conn: psycopg.Connection[Any], seq: int) -> None:
    conn.execute("SELECT 1 FROM redrive.delivery_state WHERE seq = %s FOR UPDATE", [seq])


def test_a_row_that_is_held_keeps_no_other_lease_from_being_extended(database: str) -> None:
    with application(database) as app, psycopg.connect(database) as other:

        async def main() -> None:
            worker, leases = await leased(app, 3)
            hold(other, leases[1].seq)
            held = [(lease.seq, lease.fence) for lease in leases]
            done = await asyncio.to_thread(app.ledger.extend_sync, worker, [*held, (leases[2].seq, 9)], 2 * LEASE_US)
            assert done.untouched == {leases[1].seq}
            assert done.lost == set()
            gone = await asyncio.to_thread(app.ledger.extend_sync, worker, [(leases[0].seq, 9)], LEASE_US)
            assert gone.lost == {leases[0].seq}
            until = dict(other.execute("SELECT seq, leased_until FROM redrive.delivery_state").fetchall())
            assert until[leases[0].seq] > leases[0].leased_until
            assert until[leases[1].seq] == leases[1].leased_until

        asyncio.run(main())


def test_a_row_that_is_held_keeps_no_other_outcome_from_being_stored(database: str) -> None:
    with application(database) as app, psycopg.connect(database) as other:

        async def main() -> None:
            worker, leases = await leased(app, 3)
            hold(other, leases[1].seq)
            closings = [closing(lease) for lease in leases]
            assert await app.ledger.close_attempts(worker, closings) == [Closed.APPLIED, Closed.LATER, Closed.APPLIED]
            other.rollback()
            assert await app.ledger.close_attempts(worker, closings[1:2]) == [Closed.APPLIED]
            assert await app.ledger.close_attempts(worker, closings[1:2]) == [Closed.ALREADY]

        asyncio.run(main())


def test_work_beside_a_long_transaction_of_a_handler_runs_once(database: str) -> None:
    """A handler closes in its own transaction and goes on in it, for longer than a lease lasts."""
    runs: dict[int, int] = {}
    with application(database, slots=6, lease_s=1.0, reap_s=0.1, drain_s=5.0) as app:

        @app.handler("slow")
        async def slow(context: Any, number: int) -> None:
            runs[number] = runs.get(number, 0) + 1
            await asyncio.sleep(2.5)

        @app.handler("long")
        def long(context: Any, payload: Any) -> None:
            with psycopg.connect(database) as conn:
                context.close_in(conn)
                time.sleep(3)

        app.enqueue("long", key=1)
        app.enqueue_many([JobSpec("slow", n, key=n) for n in range(3)])
        app.run(until_idle=True)
        assert runs == {0: 1, 1: 1, 2: 1}
        assert app.operations.status().dispositions["delivered"].count == 4
        assert app.operations.verify().ok


def test_two_closings_of_one_delivery_in_one_batch_are_both_judged(database: str) -> None:
    with application(database) as app:

        async def main() -> None:
            worker, (lease,) = await leased(app, 1)
            unknown = closing(lease)._replace(outcome=DELIVERED.__class__(OutcomeKind.UNKNOWN, DELIVERED.category))
            results = await app.ledger.close_attempts(worker, [unknown, closing(lease)])
            assert results[0] is Closed.APPLIED
            assert results[1] is not Closed.APPLIED
            assert app.operations.search().items[0].last_category == DELIVERED.category

        asyncio.run(main())


def test_an_adopted_lease_lasts_as_long_as_the_worker_believes(database: str) -> None:
    """The claim was committed, its answer lost, and the server away for most of the lease."""
    with application(database) as direct, Proxy.start(database) as proxy:
        direct.enqueue("job", key=1)
        with application(proxy.url_of(database)) as app:

            async def main() -> None:
                worker = await app.ledger.register_worker("wrk_test", JOB)
                cut = proxy.cut_after("reserve_1")
                before = await app.ledger.now()
                (lease,) = await app.ledger.reserve(worker, JOB, 5, LEASE_US)
                cut.wait()
                assert lease.attempt == 1
                assert lease.leased_until >= before + LEASE_US
                assert lease.leased_until > lease.started_at + LEASE_US, "it was extended when it was adopted"

            asyncio.run(main())


def test_an_idle_connection_that_died_costs_nothing(database: str, postgres: PostgresServer) -> None:
    """Whatever looks at the connection first: what was never sent is sent on another one."""
    with application(database) as app:

        async def main() -> None:
            worker, leases = await leased(app, 2)
            await asyncio.sleep(1.2)  # a session is looked after once a second
            with psycopg.connect(database, autocommit=True) as other:
                other.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            assert await app.ledger.reserve(worker, JOB, 5, LEASE_US) == []
            assert set(await app.ledger.close_attempts(worker, [closing(x) for x in leases])) == {Closed.APPLIED}
            assert (await asyncio.to_thread(app.ledger.extend_sync, worker, [], LEASE_US)).lost == set()

        asyncio.run(main())


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_claim_whose_wait_is_cancelled_with_the_whole_loop_is_given_back(
    kind: str, request: pytest.FixtureRequest, tmp_path: Any
) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}" if kind == "sqlite" else request.getfixturevalue("database")
    with application(url, slots=4, drain_s=2.0) as app:
        app.enqueue_many([JobSpec("job", n, key=n) for n in range(40)])
        ledger: Any = app.ledger

        async def main() -> None:
            reserve = ledger.reserve
            asked = asyncio.Event()

            async def noticed(*arguments: Any) -> list[Lease]:
                asked.set()
                leases: list[Lease] = await reserve(*arguments)
                return leases

            ledger.reserve = noticed
            running = asyncio.create_task(app.work())
            await asked.wait()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running
            del ledger.reserve

        asyncio.run(main())
        counts = app.operations.status().dispositions
        assert counts["leased"].count == 0
        assert counts["waiting"].count + counts["delivered"].count == 40
        assert app.operations.verify().ok


def test_a_wake_up_that_fails_fails_nothing(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with application(database) as app:
        job = app.enqueue("job", key=1)

        def fail(*arguments: Any, **more: Any) -> None:
            raise LedgerUnavailable("not now")

        monkeypatch.setattr(ledger_of(app), "hot", fail)
        assert app.operations.cancel(job.delivery_id, reason="test")
        assert app.operations.show(job.delivery_id).disposition == "cancelled"


def test_what_was_written_last_is_announced_though_the_process_ends(database: str) -> None:
    with psycopg.connect(database, autocommit=True) as listener:
        listener.execute("LISTEN redrive")
        with application(database) as app:
            app.enqueue("job", key=0)
            deadline = time.monotonic() + 5
            while not list(listener.notifies(timeout=0.2, stop_after=1)):
                assert time.monotonic() < deadline
            for key in (1, 2, 3):
                app.enqueue("job", key=key)
        heard = list(listener.notifies(timeout=0.5))
        assert heard, "the end of a burst is not left unannounced"
