"""A fleet on one ledger, on both kinds: the register, what is due, decoders, newer schemas, many idle workers."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.acceptance.engine_support import DEADLINE_S, assert_verified, seen, tries, until, working
from tests.acceptance.fleet_support import (
    LATER,
    POLICY,
    burst,
    execute,
    job,
    made,
    plant_step,
    registered,
    reserved,
)

from redrive import Context, Redrive, __version__
from redrive.app import JobSpec
from redrive.domain.envelope import decode_json
from redrive.domain.ports import LIVE_US
from redrive.errors import LedgerBusy, LedgerVersion
from redrive.ledger import fleet
from redrive.ledger.postgres.ledger import LOOK_S, PostgresLedger
from redrive.ledger.postgres.statements import text_of
from redrive.ledger.records import Count
from redrive.ledger.sqlite.connect import connect
from redrive.ledger.sqlite.statements import arranged, sql
from redrive.worker.heart import Heart
from redrive.worker.settings import WorkerSettings


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A ledger to be made, of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    found: str = request.getfixturevalue("database")
    return found


# --- the register ---------------------------------------------------------------------------------------


def test_workers_are_listed_with_what_they_handle_and_hold(url: str) -> None:
    with made(url) as app:
        job(app)
        app.enqueue_many([JobSpec("job", n, n) for n in range(3)])
        old = registered(app, ("job", 1), name="wrk_0")
        new = registered(app, ("job", 1), ("job", 2), ("webhook", 1), name="wrk_1")
        assert reserved(app, old, [("job", 1)], 2) == 2
        first, second = app.operations.workers()
        assert (first.name, first.routes, first.leases) == ("wrk_1", (("job", 1), ("job", 2), ("webhook", 1)), 0)
        assert (second.name, second.version, second.leases, second.stale) == ("wrk_0", __version__, 2, False)
        assert second.started_at == second.seen_at
        before = second.seen_at
        app.ledger.extend_sync(old, [], 1_000_000)
        assert app.operations.workers()[1].seen_at > before, "a heartbeat is seen"
        execute(url, f"UPDATE {{s}}worker SET seen_at = seen_at - {LIVE_US + 1_000_000} WHERE worker = {old}")
        assert [worker.stale for worker in app.operations.workers()] == [False, True]
        execute(url, f"UPDATE {{s}}worker SET seen_at = seen_at - {fleet.LISTED_US} WHERE worker = {old}")
        assert [worker.name for worker in app.operations.workers()] == ["wrk_1"], "forgotten after a day"
        asyncio.run(app.ledger.retire_worker(new))
        assert app.operations.workers() == ()


# --- due ------------------------------------------------------------------------------------------------


def test_what_is_due_is_told_without_any_worker(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with made(url) as app:
        job(app)
        empty = app.operations.due()
        assert (empty.due, empty.oldest_due_us, empty.next_due_at, empty.next_due_us) == (Count(0), None, None, None)
        app.enqueue("job", 1, key=1, priority=0)
        app.enqueue_many([JobSpec("job", n, n) for n in range(2, 5)])
        app.enqueue("job", key="later", delay=3600)
        app.enqueue("job", key="sooner", delay=600, priority=3)
        app.enqueue("other", key="unknown here", policy=POLICY, allow_unknown=True)
        held = app.enqueue("job", key="held").delivery_id
        seq = execute(url, "SELECT max(seq) FROM {s}delivery")[0][0]
        assert seen(app, held).disposition == "waiting"
        execute(url, f"UPDATE {{s}}delivery_state SET hold = 1 WHERE seq = {seq}")
        now = app.operations.due()
        assert (now.due, now.leased, now.expired_leases) == (Count(5), 0, 0)
        assert now.oldest_due_us is not None
        assert 0 <= now.oldest_due_us < DEADLINE_S * 1e6
        assert now.next_due_us is not None
        assert (600 - DEADLINE_S) * 1e6 < now.next_due_us <= 600 * 1e6
        assert now.next_due_at == now.now_at + now.next_due_us
        worker = registered(app, ("job", 1))
        assert reserved(app, worker, [("job", 1)], 1) == 1
        assert reserved(app, worker, [("job", 1)], 1, lease_s=0.0) == 1
        now = app.operations.due()
        assert (now.due, now.leased, now.expired_leases) == (Count(3), 2, 1)
        monkeypatch.setattr(fleet, "DUE_CAP", 2)
        assert app.operations.due().due == Count(2, more=True)


WAITING = 20_000


def waiting(url: str, app: Redrive) -> None:
    """Work of three routes that waits for later, and a few due ones; the statistics are those of an empty ledger."""
    for version in (1, 2, 3):
        job(app, name=f"job{version}")
        app.enqueue_many([JobSpec(f"job{version}", n, n) for n in range(5)])
    columns = "route, flow, lane, priority, disposition, generation, attempt, max_attempts, deadline_at, fence"
    numbers = "(WITH RECURSIVE n (x) AS (VALUES (1) UNION ALL SELECT x + 1 FROM n WHERE x < {}) SELECT x FROM n)"
    execute(
        url,
        f"INSERT INTO {{s}}delivery_state (seq, available_at, {columns}) "
        f"SELECT 1000000 + n.x, 4000000000000000 + n.x, {columns.replace('deadline_at', '9000000000000000')} "
        f"FROM {numbers.format(WAITING)} AS n "
        "CROSS JOIN (SELECT * FROM {s}delivery_state ORDER BY seq LIMIT 1) AS one",
    )


def test_looking_for_due_work_costs_a_few_steps_of_an_index(url: str) -> None:
    """By the work the database does, not by a clock: it must not grow with what waits."""
    with made(url) as app:
        waiting(url, app)
        found = app.operations.due()
        assert found.due == Count(15)
        assert found.next_due_at == 4_000_000_000_000_001
        if url.startswith("sqlite:"):
            conn = connect(Path(url.removeprefix("sqlite:///")))
            steps = [0]

            def count() -> int:
                steps[0] += 1
                return 0

            conn.set_progress_handler(count, 100)
            conn.execute(sql("due"), arranged(sql("due"), (found.now_at, 100_001, 1000))).fetchall()
            conn.close()
            assert steps[0] * 100 < 20_000, "instructions of SQLite's machine"
            return
        with psycopg.connect(url, autocommit=True) as session:
            app.ledger.read_sync(lambda tx: None)
            for name in ("enable_seqscan", "enable_bitmapscan"):
                session.execute(f"SET {name} = off")
            text = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + text_of("due", "redrive").dollar
            cursor = psycopg.RawCursor(session)
            ((plan,),) = cursor.execute(text, (found.now_at, 100_001, 1000)).fetchall()
            assert read(plan[0]["Plan"]) < 500, "rows"


def read(plan: dict[str, Any]) -> float:
    """Rows that a plan's scans of deliveries returned or threw away."""
    own = 0.0
    if plan.get("Relation Name") == "delivery_state":
        own = (plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)) * plan["Actual Loops"]
    return own + sum(read(part) for part in plan.get("Plans", ()))


# --- envelopes ------------------------------------------------------------------------------------------


def listed(app: Redrive) -> dict[tuple[str, int, str | None], tuple[int, int, int, int]]:
    """(waiting, leased, held, workers) of each (handler, envelope version, policy version)."""
    return {
        (one.handler, one.envelope_version, one.policy_version): (
            one.waiting.count,
            one.leased.count,
            one.held.count,
            one.workers,
        )
        for one in app.operations.envelopes().items
    }


def test_an_operator_sees_when_an_old_decoder_may_go(url: str) -> None:
    one, two = str(POLICY.version), str(LATER.version)
    with made(url) as app, made(url, init=False) as newer:
        job(app)
        job(newer, decoders={1: decode_json, 2: decode_json}, envelope_version=2)
        assert listed(app) == {}
        app.enqueue_many([JobSpec("job", n, n) for n in range(3)])
        app.enqueue("job", key="other policy", policy=LATER)
        newer.enqueue("job", key="new")
        assert listed(app) == {
            ("job", 1, one): (3, 0, 0, 0),
            ("job", 1, two): (1, 0, 0, 0),
            ("job", 2, one): (1, 0, 0, 0),
        }
        first = app.operations.envelopes()
        assert first.complete
        assert first.items[0].oldest_at == execute(url, "SELECT min(first_queued_at) FROM {s}delivery")[0][0]
        old = registered(app, ("job", 1))
        execute(url, "UPDATE {s}worker SET version = '0.0.9'")
        registered(app, ("job", 1), ("job", 2))
        assert reserved(app, old, [("job", 1)], 1) == 1
        held = "SELECT min(seq) FROM {s}delivery_state WHERE disposition = 0"
        execute(url, f"UPDATE {{s}}delivery_state SET hold = 1 WHERE seq = ({held})")
        shown = app.operations.envelopes().items
        assert [item.worker_versions for item in shown] == [("0.0.9", __version__)] * 2 + [(__version__,)]
        counts = listed(app)
        assert counts["job", 2, one] == (1, 0, 0, 1)
        assert [sum(column) for column in zip(counts["job", 1, one], counts["job", 1, two], strict=True)] == [
            2,
            1,
            1,
            4,
        ]
        execute(url, "UPDATE {s}delivery_state SET hold = 0 WHERE hold <> 0")
        execute(url, "UPDATE {s}worker SET seen_at = 1, stopped_at = 1")
        execute(url, "UPDATE {s}delivery_state SET leased_until = 1 WHERE disposition = 1")
        burst(newer, linger=0.1)
        assert listed(app) == {}, "nothing is live, and nobody works"
        registered(app, ("job", 1), ("job", 2))
        assert listed(app) == {("job", 1, None): (0, 0, 0, 1), ("job", 2, None): (0, 0, 0, 1)}
        assert_verified(app)


def test_a_big_backlog_is_counted_to_a_bound_and_hides_no_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "ENVELOPE_CAP", 3)
    with made(url) as app:
        for name in ("a", "b", "c"):
            job(app, name=name)
            app.enqueue_many([JobSpec(name, n, n) for n in range(6)])
        app.enqueue("d", key=1, policy=POLICY, allow_unknown=True)
        execute(
            url, "UPDATE {s}delivery_state SET hold = 1 WHERE seq IN (SELECT seq FROM {s}delivery WHERE handler > 'b')"
        )
        view = app.operations.envelopes()
        assert [item.handler for item in view.items] == ["a", "b", "c", "d"]
        assert [item.waiting for item in view.items] == [Count(3, True), Count(3, True), Count(0), Count(0)]
        assert sum(item.held.count for item in view.items) >= 3
        assert [item.held.more for item in view.items[2:]] == [True, True]
        assert all(item.held.count >= 1 for item in view.items[2:]), "every flow that is held is looked at"
        assert view.complete
        assert reserved(app, registered(app, ("a", 1)), [("a", 1)], 5) == 5
        assert not app.operations.envelopes().complete, "there may be leases of versions that were not looked at"


# --- versions -------------------------------------------------------------------------------------------


def test_work_that_a_worker_does_not_know_is_left_for_one_that_does(url: str) -> None:
    ran: dict[str, list[Any]] = {"old": [], "new": []}
    with made(url) as old, made(url, init=False) as new:
        job(old, ran["old"])
        job(new, ran["new"], decoders={2: decode_json}, envelope_version=2)
        job(new, ran["new"], name="added")
        for n in range(20):
            old.enqueue("job", ["job 1", n], key=("one", n))
            new.enqueue("job", ["job 2", n], key=("two", n))
            new.enqueue("added", ["added", n], key=("three", n))
        nobodys = new.enqueue("gone", key=1, policy=POLICY, allow_unknown=True).delivery_id

        async def main() -> None:
            async with working(old), working(new):
                await until(lambda: len(ran["old"]) == 20 and len(ran["new"]) == 40)

        asyncio.run(main())
        assert {what for what, _ in ran["old"]} == {"job 1"}
        assert {what for what, _ in ran["new"]} == {"job 2", "added"}
        left = seen(old, nobodys)
        assert (left.disposition, left.attempt, left.deferrals) == ("waiting", 0, 0)
        assert_verified(old)


def test_a_running_worker_leaves_a_ledger_that_a_newer_release_broke(url: str) -> None:
    """It drains, what runs is recorded, nothing more is claimed, and the error says what to do."""
    with made(url, worker=WorkerSettings(slots=1, lease_s=0.6, reap_s=0.05, poll_s=0.1, drain_s=10)) as app:
        begun, release = asyncio.Event(), asyncio.Event()

        @app.handler("job", policy=POLICY)
        async def handle(context: Context, payload: Any) -> None:
            begun.set()
            await release.wait()

        first = app.enqueue("job", key=1).delivery_id
        second = app.enqueue("job", key=2, delay=0.001).delivery_id

        async def main() -> None:
            task = asyncio.create_task(app.work())
            async with asyncio.timeout(DEADLINE_S):
                await begun.wait()
            plant_step(url, 900, breaking=False)
            seen_at = app.operations.workers()[0].seen_at
            await until(lambda: app.operations.workers()[0].seen_at > seen_at + 500_000)
            assert not task.done(), "a step that breaks nothing does not matter"
            plant_step(url, 901, breaking=True)
            seen_at = app.operations.workers()[0].seen_at
            await until(lambda: app.operations.workers()[0].seen_at > seen_at + 500_000)
            release.set()  # it has the whole drain for this
            async with asyncio.timeout(DEADLINE_S):
                await task

        with pytest.raises(LedgerVersion, match="step 901 is not compatible with this release") as caught:
            asyncio.run(main())
        assert "upgrade redrive on this host" in str(caught.value.hint)
        assert tries(app, first) == [("delivered", "ok")]
        assert seen(app, second).attempt == 0, "nothing more was claimed"
        assert app.operations.workers() == ()
        with made(url, init=False) as again, pytest.raises(LedgerVersion, match="step 901 is not compatible"):
            again.ledger  # noqa: B018 - it does not even open


def test_the_schema_is_looked_at_until_it_must_not_be_used_and_leases_are_extended_all_along() -> None:
    answers = iter([LedgerBusy("busy"), None, OSError(), LedgerVersion("broken"), LedgerVersion("asked once more")])
    told: list[LedgerVersion] = []
    beats: list[int] = []
    enough = threading.Event()

    def extend(leases: list[tuple[int, int]]) -> set[int]:
        beats.append(len(told))
        if beats.count(1) == 3:
            enough.set()
        return set()

    def check() -> None:
        answer = next(answers)
        if answer is not None:
            raise answer

    heart = Heart(extend, list, 0.03, check, told.append)
    heart.start()
    try:
        assert enough.wait(DEADLINE_S)
    finally:
        heart.stop()
    assert [str(error) for error in told] == ["broken"]
    assert beats[:5] == [0, 0, 0, 0, 1]


# --- many idle workers ----------------------------------------------------------------------------------


def test_without_notify_new_work_is_found_within_a_look(database: str) -> None:
    took: list[float] = []
    with (
        made(f"{database}?notify=off", worker=WorkerSettings(poll_s=60, reap_s=60)) as app,
        made(f"{database}?notify=off", init=False) as producer,
    ):
        ran: list[float] = []

        @app.handler("job", policy=POLICY)
        async def handle(context: Context, payload: Any) -> None:
            ran.append(time.monotonic())

        async def main() -> None:
            async with working(app):
                await until(app.operations.workers)
                for n in range(6):
                    await asyncio.sleep(0.1)
                    await asyncio.to_thread(producer.enqueue, "job", key=n, policy=POLICY, allow_unknown=True)
                    durable = time.monotonic()
                    await until(lambda n=n: len(ran) == n + 1)  # type: ignore[misc]
                    took.append(ran[-1] - durable)

        asyncio.run(main())
    # The machine may be busy: most of them, not each.
    assert sorted(took)[2] < LOOK_S + 0.05, took
    assert max(took) < 10, "none waited for the poll"


def test_idle_workers_do_not_all_look_in_one_instant(database: str) -> None:
    made(database).close()
    ledgers = [PostgresLedger(database, "development") for _ in range(6)]
    try:
        end = time.monotonic() + 2 * LOOK_S
        last = [ledger.stamp() for ledger in ledgers]
        changed: list[set[float]] = [set() for _ in ledgers]
        while time.monotonic() < end:
            now = time.monotonic()
            for index, ledger in enumerate(ledgers):
                if ledger.stamp() != last[index]:
                    last[index] = ledger.stamp()
                    changed[index].add(now % LOOK_S)
            time.sleep(0.001)
        assert all(changed), "each looks in every quarter of a second"
        first = [min(moments) for moments in changed]
        assert max(first) - min(first) > 0.01
    finally:
        for ledger in ledgers:
            ledger.close()
