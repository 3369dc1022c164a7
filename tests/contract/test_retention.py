"""Retention: what has ended goes in its own time, whole, and what is left keeps duplicates out, on both ledgers."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.contract.harness import NO_OP
from tests.contract.reads_support import BUSY, LEDGERS, OK, REFUSED, SEEN, UNSURE, Churn, Desk, opened, place

from redrive import Redrive, running
from redrive.domain.delivery import Decided
from redrive.domain.identity import to_text
from redrive.domain.policy import DAY, HOUR, SECOND
from redrive.errors import ConfigError, InvalidInput, NotFound, RedriveError
from redrive.ledger import purge as purging
from redrive.ledger import retention
from redrive.ledger.base import Accept
from redrive.ledger.opening import create, open_ledger
from redrive.ledger.postgres.tx import PsycopgTx
from redrive.ledger.purge import purge, take_turn
from redrive.ledger.retention import Purged, RetentionRules
from redrive.ledger.statements import sql
from redrive.ledger.verify import verify
from redrive.recovery.operations import Operations

ROOT = Path(__file__).parents[2]
RELEASE_0_1_0 = ROOT / "tests" / "data" / "ledger_0_1_0.sql"
TABLES = (
    "attempt",
    "dead_letter",
    "delivery",
    "delivery_state",
    "generation",
    "repeat",
    "repeat_count",
    "transition",
)
RULES = RetentionRules(delivered=2 * DAY, no_op=3 * DAY, dead=4 * DAY, cancelled=5 * DAY, identity=30 * DAY)
ALL = RetentionRules(delivered=DAY, no_op=DAY, dead=DAY, cancelled=DAY, identity=30 * DAY)


@pytest.fixture(params=LEDGERS)
def desk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Desk]:
    with opened(place(request, tmp_path)) as made:
        yield made


def there(desk: Desk, seq: int) -> set[str]:
    """The tables that say anything of a delivery, but for its identity."""
    return {table for table in TABLES if desk.ask(f"SELECT 1 FROM @{table} WHERE seq = ? LIMIT 1", seq)}


def tombstones(desk: Desk) -> list[int]:
    return [row[0] for row in desk.ask("SELECT seq FROM @identity WHERE purged_at IS NOT NULL ORDER BY seq")]


def discard(desk: Desk, seq: int) -> None:
    assert desk.change("UPDATE @dead_letter SET state = 'discarded' WHERE seq = ?", seq) == 1


def ended(desk: Desk, key: str, how: str) -> tuple[int, int]:
    """A delivery that has just ended: seq, and when."""
    seq = desk.enqueue(key, handler=key).seq
    if how == "cancelled":
        desk.cancel(seq)
    else:
        desk.kill([{"delivered": OK, "no_op": NO_OP, "dead": REFUSED}[how]], seq)
    if how == "dead":
        discard(desk, seq)
    return seq, desk.now


def clean(desk: Desk) -> None:
    assert verify(desk.ledger, chunk=7).problems == ()


# --- what goes, and when


@pytest.mark.parametrize("how", ["delivered", "no_op", "dead", "cancelled"])
def test_each_disposition_goes_in_its_own_time_after_it_ended(desk: Desk, how: str) -> None:
    desk.enqueue("k", handler="later", delay_us=400 * DAY)
    desk.pass_time(3 * HOUR)
    seq, at = ended(desk, "k", how)
    kept = getattr(RULES, how)
    desk.now = at + kept - 1
    assert purge(desk.ledger, RULES) == Purged()
    assert there(desk, seq) >= {"delivery", "delivery_state"}
    desk.now = at + kept
    assert purge(desk.ledger, RULES) == Purged(**{how: 1})
    assert there(desk, seq) == set()
    assert tombstones(desk) == [seq]
    clean(desk)


@pytest.mark.parametrize("how", ["delivered", "no_op", "dead", "cancelled"])
def test_what_is_kept_for_ever_never_goes(desk: Desk, how: str) -> None:
    seq, _ = ended(desk, "k", how)
    desk.pass_time(3000 * DAY)
    others = {each: DAY for each in ("delivered", "no_op", "dead", "cancelled") if each != how}
    assert purge(desk.ledger, RetentionRules(**others)) == Purged()
    assert there(desk, seq)


def test_nothing_goes_while_it_is_live_or_under_an_open_dead_letter(desk: Desk) -> None:
    waiting = desk.enqueue("waiting", delay_us=900 * DAY).seq
    leased = desk.enqueue("leased", handler="leased").seq
    (held,) = desk.publish("e1", ["dst_1"])
    dead = desk.enqueue("dead", handler="dead").seq
    desk.kill([REFUSED], dead)
    desk.hold("dst_1", True)
    assert [lease.seq for lease in desk.reserve(routes=[("leased", 1)])] == [leased]
    desk.pass_time(500 * DAY)
    for _ in range(2):
        assert purge(desk.ledger, ALL) == Purged()
    assert all(there(desk, seq) for seq in (waiting, leased, held, dead))
    discard(desk, dead)
    assert purge(desk.ledger, ALL) == Purged(dead=1)
    clean(desk)


def test_a_redriven_life_goes_whole_after_its_last_entry(desk: Desk) -> None:
    seq = desk.enqueue("k").seq
    desk.kill([BUSY, UNSURE, BUSY], seq)
    desk.pass_time(5 * DAY)
    desk.redrive(seq)
    desk.kill([BUSY, SEEN], seq)
    desk.enqueue("k")
    assert there(desk, seq) == set(TABLES) - {"transition"}
    desk.pass_time(2 * DAY - SECOND)
    assert purge(desk.ledger, RULES) == Purged()
    desk.pass_time(SECOND)
    assert purge(desk.ledger, RULES) == Purged(delivered=1)
    assert there(desk, seq) == set()
    clean(desk)  # the count of what its receiver had seen is still there
    assert desk.ask("SELECT sum(count) FROM @receiver_duplicate") == [(1,)]


# --- what is left


def test_a_tombstone_keeps_duplicates_out_and_says_that_it_is_one(desk: Desk) -> None:
    first = desk.enqueue("k")
    desk.kill([OK], first.seq)
    desk.enqueue("other")
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL).delivered == 1
    again, other = desk.enqueue("k"), desk.enqueue("k", b"[]")
    assert (again.decided, again.seq, again.delivery_id) == (Decided.DUPLICATE, first.seq, first.delivery_id)
    assert other.decided is Decided.CONFLICT
    assert there(desk, first.seq) == set(), "no repeat is listed of what is gone"
    clean(desk)
    operations, name = Operations(desk.ledger), to_text("dlv", first.delivery_id)
    for ask in (
        operations.show,
        operations.timeline,
        operations.attempts,
        operations.payload,
        lambda name: operations.cancel(name, reason="not needed"),
    ):
        with pytest.raises(NotFound) as caught:
            ask(name)
        assert caught.value.hint == "only its identity is kept"


def test_after_the_identitys_time_the_same_key_is_new_work(desk: Desk) -> None:
    first = desk.enqueue("k")
    desk.kill([OK], first.seq)
    desk.enqueue("newer", delay_us=900 * DAY)
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL).delivered == 1
    desk.pass_time(30 * DAY - 1)
    assert not purge(desk.ledger, ALL).anything
    assert desk.enqueue("k").decided is Decided.DUPLICATE
    desk.pass_time(1)
    assert purge(desk.ledger, ALL, dry_run=True).identities_forgotten == 1
    assert purge(desk.ledger, ALL) == Purged(identities_forgotten=1)
    new = desk.enqueue("k")
    assert (new.decided, new.delivery_id) == (Decided.CREATED, first.delivery_id)
    assert new.seq > first.seq
    clean(desk)


def test_numbers_are_never_dealt_twice(desk: Desk) -> None:
    seqs = []
    for n in range(3):
        seqs.append(ended(desk, f"k{n}", "delivered")[0])
        seqs += desk.publish(f"e{n}", [])
        desk.pass_time(40 * DAY)
        for _ in range(2):
            purge(desk.ledger, ALL)
            desk.pass_time(40 * DAY)
    assert len(set(seqs)) == 3
    assert seqs == sorted(seqs)
    assert len(desk.ask("SELECT event_seq FROM @event")) <= 1
    assert len(tombstones(desk)) <= 1
    clean(desk)


def test_an_events_payload_goes_with_its_last_delivery(desk: Desk) -> None:
    one, other = desk.publish("e1", ["dst_1", "dst_2"])
    desk.kill([OK, REFUSED])
    dead = next(seq for seq in (one, other) if desk.state(seq)["disposition"] == 4)
    desk.publish("newer", [])
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL) == Purged(delivered=1, events=1), "the one that went to nobody"
    clean(desk)
    payloads = "SELECT event_key, length(payload), purged_at IS NULL FROM @event ORDER BY event_seq"
    assert [row[:2] for row in desk.ask(payloads)] == [("e1", 7), ("newer", 0)]
    discard(desk, dead)
    assert purge(desk.ledger, ALL) == Purged(dead=1, events=1)
    assert [row[:2] for row in desk.ask(payloads)] == [("e1", 0), ("newer", 0)]
    clean(desk)
    assert published(desk, "e1").decided is Decided.DUPLICATE
    assert published(desk, "e1", b"[2]").decided is Decided.CONFLICT
    assert published(desk, "newer", destinations=()).decided is Decided.DUPLICATE
    desk.enqueue("a")
    desk.publish("newest", [])
    desk.pass_time(30 * DAY)
    gone = purge(desk.ledger, ALL)
    assert (gone.identities_forgotten, gone.events_forgotten) == (2, 2)
    new = published(desk, "e1")
    assert (new.decided, len(new.deliveries)) == (Decided.CREATED, 2)
    clean(desk)


def published(
    desk: Desk, key: str, body: bytes = b'{"n":1}', destinations: tuple[str, ...] = ("dst_1", "dst_2")
) -> Any:
    """What became of a publish."""
    results: list[Any] = []
    take = desk.ledger.take

    def noting(order: Any, rejected: Any) -> Any:
        results.extend(take(order, rejected))
        return results

    desk.ledger.take = noting
    try:
        desk.publish(key, list(destinations), body=body)
    finally:
        del desk.ledger.take
    return results[0]


def test_events_that_went_to_nobody_are_kept_a_day_at_least(desk: Desk) -> None:
    desk.publish("e1", [])
    rules = RetentionRules(delivered=HOUR)
    desk.pass_time(DAY - 1)
    assert not purge(desk.ledger, rules).anything
    desk.pass_time(1)
    assert purge(desk.ledger, rules).events == 1
    assert not purge(desk.ledger, rules).anything


def test_no_event_is_forgotten_before_the_tombstones_of_its_deliveries(desk: Desk) -> None:
    desk.publish("e1", ["dst_1", "dst_2"])
    desk.kill([OK, OK])
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL).delivered == 2
    desk.enqueue("newer", delay_us=900 * DAY)
    desk.publish("newer", [])
    desk.pass_time(30 * DAY)
    part = purge(desk.ledger, ALL, limit=1)
    assert (part.identities_forgotten, part.events_forgotten, part.more) == (1, 0, True)
    clean(desk)
    assert published(desk, "e1").decided is Decided.DUPLICATE
    rest = purge(desk.ledger, ALL)
    assert (rest.identities_forgotten, rest.events_forgotten) == (1, 1)
    assert len(published(desk, "e1").deliveries) == 2
    clean(desk)


# --- how it goes on


def test_it_goes_in_chunks_up_to_its_limit_and_leaves_one_audit_row_for_each_run(desk: Desk) -> None:
    for n in range(11):
        ended(desk, f"k{n}", "delivered")
    desk.pass_time(2 * DAY)
    before = everything(desk)
    assert purge(desk.ledger, ALL, dry_run=True) == Purged(delivered=11, dry_run=True)
    assert purge(desk.ledger, ALL, dry_run=True, limit=4) == Purged(delivered=4, more=True, dry_run=True)
    assert everything(desk) == before
    left = []

    def between(took: float) -> bool:
        left.append(len(desk.ask("SELECT seq FROM @delivery")))
        return True

    part = purge(desk.ledger, ALL, chunk=3, limit=8, actor="ada", between=between)
    assert part == Purged(delivered=8, more=True)
    assert left[:3] == [8, 5, 3]
    assert purge(desk.ledger, ALL, chunk=3, between=lambda took: False) == Purged(delivered=3, more=True)
    assert purge(desk.ledger, ALL) == Purged()
    rows = desk.ask("SELECT actor, action, target, after FROM @audit ORDER BY audit")
    assert [(row[0], json.loads(row[3])["delivered"]) for row in rows] == [("ada", 8), ("redrive", 3)]
    assert {row[1:3] for row in rows} == {("retention.purged", "ledger")}
    assert Operations(desk.ledger).retention().purged == 11
    clean(desk)
    with pytest.raises(InvalidInput):
        purge(desk.ledger, ALL, chunk=0)
    with pytest.raises(InvalidInput):
        purge(desk.ledger, ALL, limit=0)


def everything(desk: Desk) -> dict[str, list[Any]]:
    tables = (*TABLES, "identity", "event", "audit", "retention", "retention_span")
    return {table: sorted(map(repr, desk.ask(f"SELECT * FROM @{table}"))) for table in tables}


@pytest.mark.parametrize("seed", range(4))
def test_run_after_run_takes_exactly_what_is_past_its_time(
    desk: Desk, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Against one plain look at everything, with spans so small that each of them matters."""
    monkeypatch.setattr(purging, "_SPAN", 3)
    rules = RetentionRules(delivered=2 * HOUR, no_op=HOUR, dead=2 * DAY, cancelled=DAY, identity=3 * DAY)
    rng, churn, looked = random.Random(seed), Churn(desk, seed), 0
    discarded: set[int] = set()
    letters = "SELECT 1 FROM @dead_letter l WHERE l.seq = s.seq AND l.state = 'open'"
    last = (
        "SELECT max(x.at) FROM (SELECT ended_at AS at FROM @attempt a WHERE a.seq = s.seq UNION ALL"
        " SELECT at FROM @transition t WHERE t.seq = s.seq UNION ALL SELECT died_at FROM @dead_letter l"
        " WHERE l.seq = s.seq UNION ALL SELECT first_queued_at FROM @delivery d WHERE d.seq = s.seq) AS x"
    )
    expected = f"SELECT seq FROM (SELECT s.seq, s.disposition, ({last}) AS ended FROM @delivery_state s" + (
        f" WHERE NOT EXISTS ({letters})) AS y WHERE (disposition = 2 AND ended <= ?)"
        " OR (disposition = 3 AND ended <= ?) OR (disposition = 4 AND ended <= ?) OR (disposition = 5 AND ended <= ?)"
    )
    for _ in range(14):
        for _ in range(40):
            known = {row[0] for row in desk.ask("SELECT seq FROM @delivery")}
            churn.seqs = [seq for seq in churn.seqs if seq in known - discarded]
            churn.step()
        for seq, number in desk.ask("SELECT seq, dead_letter FROM @dead_letter WHERE state = 'open'"):
            if desk.state(seq)["disposition"] == 4 and rng.random() < 0.5:
                desk.change("UPDATE @dead_letter SET state = 'discarded' WHERE dead_letter = ?", number)
                discarded.add(seq)
        desk.pass_time(rng.choice((HOUR, 5 * HOUR, DAY, 2 * DAY)))
        desk.reap()
        cuts = [desk.now - kept for kept in (rules.delivered, rules.no_op, rules.dead, rules.cancelled) if kept]
        due = {row[0] for row in desk.ask(expected, *cuts)}
        all_there = {row[0] for row in desk.ask("SELECT seq FROM @delivery")}
        counted = purge(desk.ledger, rules, dry_run=True).deliveries
        taken = purge(desk.ledger, rules, chunk=rng.randrange(1, 6)).deliveries
        assert all_there - {row[0] for row in desk.ask("SELECT seq FROM @delivery")} == due
        assert taken == counted == len(due)
        looked += taken
        clean(desk)
    assert looked > 20
    assert desk.ask("SELECT count(*) FROM @retention_span")[0][0] > 3


def test_a_run_looks_only_where_something_is_due(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(purging, "_SPAN", 4)
    for n in range(10):
        ended(desk, f"d{n}", "delivered")
    survivor = ended(desk, "c", "cancelled")[0]
    for n in range(10, 19):
        ended(desk, f"d{n}", "delivered")
    desk.pass_time(2 * DAY)
    looks: list[tuple[int, int]] = []
    look = purging._Run._look

    def noting(run: purging._Run, after: int, last: int, limit: int) -> Any:
        looks.append((after, last))
        return look(run, after, last, limit)

    monkeypatch.setattr(purging._Run, "_look", noting)
    assert purge(desk.ledger, RULES).delivered == 19
    assert len(looks) == 6
    looks.clear()
    assert purge(desk.ledger, RULES) == Purged()
    assert len(looks) == 1, "only what is new"
    assert looks[0][0] > survivor
    desk.pass_time(3 * DAY)
    looks.clear()
    assert purge(desk.ledger, RULES) == Purged(cancelled=1)
    ((first, last), _) = looks
    assert first < survivor <= last
    assert desk.ask("SELECT count(*) FROM @retention_span WHERE delivered_at IS NOT NULL OR unfinished = 1") == [(0,)]


@pytest.mark.parametrize("where", ["between", "within"])
def test_a_run_that_is_killed_leaves_a_whole_ledger_and_the_next_one_finishes(desk: Desk, where: str) -> None:
    for n in range(9):
        ended(desk, f"k{n}", "delivered")
    desk.pass_time(2 * DAY)
    script = f"""
import os, signal
from redrive.ledger import purge as page
from redrive.ledger.opening import open_ledger
from redrive.ledger.retention import RetentionRules
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
if {where == "within"}:
    delete, calls = page._delete, []
    def deleting(*arguments):
        emptied = delete(*arguments)
        calls.append(1)
        return emptied if len(calls) < 2 else die()
    page._delete = deleting
left = [1]
ledger = open_ledger({desk.url!r}, "test", lambda: {desk.now})
rules = RetentionRules.parse({str(ALL)!r})
page.purge(ledger, rules, chunk=4, between=lambda took: True if {where == "within"} or left.pop() > 1 else die())
"""
    if where == "between":
        script = script.replace("left = [1]", "left = [2]").replace("left.pop() > 1", "left.pop() > 9")
    child = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)},
        timeout=60,
        check=False,
        capture_output=True,
        text=True,
    )
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert len(tombstones(desk)) == 4
    clean(desk)
    for statement in ("DELETE FROM @attempt", "DELETE FROM @delivery"):
        with pytest.raises(Exception, match=r"append-only|insert-only"):
            desk.change(statement)
    assert purge(desk.ledger, ALL) == Purged(delivered=5)
    clean(desk)


def test_two_runs_at_once_take_each_a_part_and_nothing_twice(desk: Desk) -> None:
    for n in range(40):
        desk.publish(f"e{n}", ["dst_1", "dst_2"])
    desk.end_all([desk.closing(lease, OK) for lease in desk.reserve(100)])
    desk.pass_time(2 * DAY)
    other = open_ledger(desk.url, "test", desk.clock)
    results: list[Purged | BaseException] = []
    start = threading.Barrier(2, timeout=30)

    def run(ledger: Any) -> None:
        try:
            results.append(
                purge(ledger, ALL, chunk=3, between=lambda took: start.wait() >= 0 if start.n_waiting < 9 else True)
            )
        except threading.BrokenBarrierError:
            pass
        except BaseException as exc:
            results.append(exc)
        finally:
            start.abort()

    threads = [threading.Thread(target=run, args=(ledger,)) for ledger in (desk.ledger, other)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    other.close()
    purge(desk.ledger, ALL)
    assert all(isinstance(result, Purged) for result in results), results
    assert Operations(desk.ledger).retention().purged == 80
    assert desk.ask("SELECT count(*) FROM @event WHERE purged_at IS NULL") == [(0,)]
    clean(desk)


def test_beside_workers_and_producers_no_work_is_lost_and_the_ledger_agrees_with_itself(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What ended goes at once, and its tombstone too: the same few keys are new, duplicate and gone all the time."""
    monkeypatch.setattr(retention, "SHORTEST", 0)
    rules = RetentionRules(delivered=0, no_op=0, dead=0, cancelled=0, identity=0)
    done = threading.Event()
    failed: list[BaseException] = []
    created: list[bytes] = []
    executed: list[bytes] = []

    def guarded(work: Any) -> None:
        try:
            work()
        except BaseException as exc:
            failed.append(exc)
            done.set()

    def produce(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(120):
            keys = rng.sample("abcdefgh", rng.randrange(1, 4))
            order = Accept("library", "tests", [desk.item(key) for key in keys])
            for result in desk.ledger.take(order, {}):
                if result.decided is Decided.CREATED:
                    created.append(result.delivery_id)

    def execute() -> None:
        while not done.is_set():
            leases = desk.reserve(5)
            executed.extend(lease.delivery_id for lease in leases)
            desk.end_all([desk.closing(lease, OK) for lease in leases])

    def take() -> None:
        while not done.is_set():
            purge(desk.ledger, rules, chunk=2)

    producers = [threading.Thread(target=guarded, args=(lambda seed=seed: produce(seed),)) for seed in range(3)]
    others = [threading.Thread(target=guarded, args=(work,)) for work in (execute, take, take)]
    for thread in (*producers, *others):
        thread.start()
    for thread in producers:
        thread.join(60)
    done.set()
    for thread in others:
        thread.join(60)
    assert not failed, failed
    while leases := desk.reserve(50):
        executed.extend(lease.delivery_id for lease in leases)
        desk.end_all([desk.closing(lease, OK) for lease in leases])
    assert sorted(created) == sorted(executed)
    assert len(created) > 30, "keys became new work again"
    clean(desk)
    purge(desk.ledger, rules)
    clean(desk)
    assert desk.ask("SELECT count(*) FROM @delivery") == [(0,)]


def test_a_row_that_somebody_is_at_is_passed_over_and_taken_next_time(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.param = "postgres"
    import psycopg

    with opened(place(request, tmp_path)) as desk:
        seqs = [ended(desk, f"k{n}", "delivered")[0] for n in range(3)]
        desk.pass_time(2 * DAY)
        schema = desk.ledger.url.schema
        with psycopg.connect(desk.ledger.url.conninfo) as conn:
            conn.execute(f"SELECT 1 FROM {schema}.delivery_state WHERE seq = {seqs[1]} FOR UPDATE")
            assert purge(desk.ledger, ALL) == Purged(delivered=2)
            conn.rollback()
            # A producer that has noted a duplicate and is not done keeps the delivery, too.
            conn.execute("BEGIN")
            assert desk.ledger.take_in(conn, Accept("connection", "tests", [desk.item("k1", handler="k1")]))
            assert purge(desk.ledger, ALL) == Purged()
            conn.commit()
        clean(desk)
        assert purge(desk.ledger, ALL) == Purged(delivered=1)
        clean(desk)


def test_of_two_runs_at_an_events_last_deliveries_the_second_takes_its_payload(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    request.param = "postgres"
    import psycopg

    with opened(place(request, tmp_path)) as desk:
        one, other = desk.publish("e1", ["dst_1", "dst_2"])
        desk.kill([OK, OK])
        desk.pass_time(2 * DAY)
        results: list[Purged] = []
        desk.change(
            "UPDATE @retention SET event_after = 99"
        )  # they were not without deliveries when they were looked at
        with psycopg.connect(desk.ledger.url.conninfo) as conn:
            tx = PsycopgTx(conn, desk.ledger.url.schema)
            tx.rows(sql("purge_begin"))
            locked = tx.rows(sql("purge_lock"), (f"{{{one}}}",))
            assert purging._delete(tx, desk.now, locked) == 0, "the other delivery is there"
            second = threading.Thread(target=lambda: results.append(purge(desk.ledger, ALL)))
            second.start()
            try:
                waiting = (
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE wait_event_type = 'Lock' AND datname = current_database()"
                )
                deadline = time.monotonic() + 20
                while desk.ask(waiting) == [(0,)]:
                    assert time.monotonic() < deadline, "it does not wait for the first to be done"
                    time.sleep(0.01)
            finally:
                conn.commit()
                second.join(30)
        assert results == [Purged(delivered=1, events=1)]
        assert tombstones(desk) == [one, other]
        clean(desk)


# --- what only retention may do


@pytest.mark.parametrize("table", [*TABLES, "identity", "event"])
def test_rows_are_not_deleted_without_the_switch(desk: Desk, table: str) -> None:
    seq = desk.enqueue("k").seq
    desk.kill([BUSY, BUSY, BUSY], seq)
    desk.redrive(seq)
    desk.kill([OK], seq)
    desk.enqueue("k")
    cancelled = desk.enqueue("c", handler="c").seq
    desk.cancel(cancelled)
    desk.publish("e", [])
    assert desk.ask(f"SELECT count(*) FROM @{table}")[0][0] > 0
    if table == "repeat_count":
        return  # a count, not evidence: 0.1.0 lets it be deleted
    with pytest.raises(Exception, match="redrive: "):
        desk.change(f"DELETE FROM @{table}")


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM @delivery_state WHERE disposition = 0",
        "DELETE FROM @dead_letter WHERE state = 'open'",
        "DELETE FROM @identity",
        "DELETE FROM @event",
        "UPDATE @identity SET purged_at = 5, first_seen = 7",
        "UPDATE @identity SET first_seen = 7",
        "UPDATE @event SET purged_at = 5",
        "UPDATE @event SET purged_at = 5, payload = ?, event_type = 'other'",
        "UPDATE @event SET payload = ?",
        "UPDATE @attempt SET number = 9",
    ],
)
def test_the_switch_opens_no_other_door(desk: Desk, statement: str) -> None:
    desk.enqueue("live", delay_us=DAY)
    desk.kill([REFUSED], desk.enqueue("dead", handler="dead").seq)
    desk.publish("e", [])
    values = [b""] * statement.count("?")

    def operation(tx: Any, now: int) -> None:
        tx.rows(sql("purge_begin"))
        tx.run(desk.text(statement), values)

    with pytest.raises(Exception, match="redrive: "):
        desk.ledger.transact_sync(operation)
    clean(desk)


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("identity", "UPDATE @identity SET purged_at = 5 WHERE seq = {kept}"),
        ("identity", "UPDATE @identity SET purged_at = NULL WHERE seq = {gone}"),
        ("identity", "DELETE FROM @delivery WHERE seq = {dead}"),
        ("identity", "DELETE FROM @delivery WHERE seq = {kept}"),
    ],
)
def test_verify_tells_what_retention_did_from_what_it_would_not_do(desk: Desk, rule: str, fault: str) -> None:
    gone, _ = ended(desk, "gone", "delivered")
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL).delivered == 1
    kept, _ = ended(desk, "kept", "delivered")
    dead = desk.enqueue("dead", handler="dead").seq
    desk.kill([REFUSED], dead)
    clean(desk)

    def operation(tx: Any, now: int) -> None:
        if desk.dialect == "sqlite":
            for (name,) in tx.rows("SELECT name FROM sqlite_schema WHERE type = 'trigger'"):
                tx.run(f"DROP TRIGGER {name}")
        else:
            tx.rows("SELECT set_config('session_replication_role', 'replica', true)")
        assert tx.run(desk.text(fault.format(gone=gone, kept=kept, dead=dead))) == 1

    desk.ledger.transact_sync(operation)
    problems = verify(desk.ledger).problems
    assert {problem.rule for problem in problems} == {rule}, problems


def test_the_previous_releases_ledger_takes_retention_on(tmp_path: Path) -> None:
    path, url = tmp_path / "ledger.db", f"sqlite:///{tmp_path / 'ledger.db'}"
    with closing(sqlite3.connect(path)) as conn:
        conn.executescript(RELEASE_0_1_0.read_text(encoding="utf-8"))
        (latest,) = conn.execute("SELECT now FROM clock").fetchone()
        (identities,) = conn.execute("SELECT count(*) FROM identity").fetchone()
        (finished,) = conn.execute(
            "SELECT count(*) FROM delivery_state s WHERE disposition > 1 AND NOT EXISTS"
            " (SELECT 1 FROM dead_letter l WHERE l.seq = s.seq AND l.state = 'open')"
        ).fetchone()
    steps = create(url, "test")
    assert not any(step.breaking for step in steps), "0.1.0 goes on working"
    ledger = open_ledger(url, "test", lambda: latest + 40 * DAY)
    try:
        assert purge(ledger, ALL).deliveries == finished > 0
        assert verify(ledger).problems == ()
        # What 0.1.0 writes when it finds the identity of a delivery that is gone.
        seq, name = ledger.read_sync(
            lambda tx: tx.rows("SELECT seq, delivery_id FROM identity WHERE purged_at IS NOT NULL LIMIT 1")[0]
        )

        def as_before(tx: Any, now: int) -> int:
            text = (
                "INSERT INTO repeat_count (seq, duplicates, conflicts) VALUES (?, 1, 0)"
                " ON CONFLICT (seq) DO UPDATE SET duplicates = duplicates + 1 RETURNING duplicates + conflicts"
            )
            total: int = tx.rows(text, (seq,))[0][0]
            tx.run("INSERT INTO repeat VALUES (?, ?, ?, 'duplicate', 'library', 'old')", (seq, total, now))
            return total

        assert [ledger.transact_sync(as_before) for _ in range(2)] == [1, 1]
        assert verify(ledger).problems == ()
        assert ledger.read_sync(lambda tx: tx.rows("SELECT count(*) FROM identity")) == [(identities,)]
        assert len(name) == 16
    finally:
        ledger.close()


# --- rules and turns


def test_one_worker_of_all_has_a_turn_in_an_hour(desk: Desk) -> None:
    other = open_ledger(desk.url, "test", desk.clock)
    try:
        assert [take_turn(desk.ledger), take_turn(other), take_turn(desk.ledger)] == [True, False, False]
        desk.pass_time(HOUR - 1)
        assert not take_turn(other)
        desk.pass_time(1)
        assert [take_turn(other), take_turn(desk.ledger)] == [True, False]
        assert Operations(desk.ledger).retention().ran_at == desk.now
    finally:
        other.close()


def test_a_worker_does_it_by_itself_and_stops_at_once(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(6):
        ended(desk, f"k{n}", "delivered")
    desk.pass_time(2 * DAY)
    monkeypatch.setattr(running, "PURGE_LOOK_S", 0.02)
    monkeypatch.setattr(purging, "CHUNK", 2)
    app = Redrive(desk.url, environment="test", clock=desk.clock, retention={"delivered": "1d"})

    async def work() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))
        for _ in range(600):
            if len(tombstones(desk)) == 6 and desk.ask("SELECT 1 FROM @audit"):
                break
            await asyncio.sleep(0.05)
        stop.set()
        await worker

    try:
        asyncio.run(work())
    finally:
        app.close()
    assert len(tombstones(desk)) == 6
    ((actor, after),) = desk.ask("SELECT actor, after FROM @audit")
    assert (actor, json.loads(after)["delivered"]) == ("redrive", 6)
    clean(desk)


def test_a_stopping_worker_ends_its_run_between_two_transactions(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(3):
        ended(desk, f"k{n}", "delivered")
    desk.pass_time(2 * DAY)
    monkeypatch.setattr(running, "PURGE_LOOK_S", 0.02)
    began, go_on = threading.Event(), threading.Event()
    done: list[Purged] = []

    def slow(ledger: Any, rules: RetentionRules, **more: Any) -> Purged:
        def between(took: float) -> bool:
            began.set()
            assert go_on.wait(30)
            return bool(more["between"](30.0))

        done.append(purge(ledger, rules, chunk=1, between=between))
        return done[0]

    monkeypatch.setattr(running, "purge", slow)
    app = Redrive(desk.url, environment="test", clock=desk.clock, retention={"delivered": "1d"})

    async def work() -> None:
        stop = asyncio.Event()
        worker = asyncio.create_task(app.work(stop=stop))
        assert await asyncio.to_thread(began.wait, 30)
        stop.set()
        await asyncio.sleep(0.2)
        assert not worker.done(), "the ledger is not closed under a run"
        go_on.set()
        await asyncio.wait_for(worker, 20)

    try:
        asyncio.run(work())
    finally:
        go_on.set()
        app.close()
    assert [(each.delivered, each.more) for each in done] == [(1, True)]
    clean(desk)


def test_rules_are_read_and_written_as_text_and_as_a_table() -> None:
    rules = RetentionRules.parse({"delivered": "90d", "dead": "forever", "no_op": 90_000})
    assert (rules.delivered, rules.no_op, rules.dead, rules.cancelled) == (90 * DAY, 25 * HOUR, None, None)
    assert rules.identity == 365 * DAY
    assert str(rules) == "delivered=90d, no_op=25h, dead=forever, cancelled=forever, identity=365d"
    assert RetentionRules.parse(str(rules)) == rules == RetentionRules.parse(rules)
    assert RetentionRules.parse({"delivered": "800d"}).identity == 800 * DAY
    assert "455d after it ended as delivered" in rules.window
    assert "stays known" in RetentionRules.parse("delivered=1d, identity=forever").window
    assert (rules.shortest, RetentionRules().shortest) == (25 * HOUR, None)


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"delivered": "90d", "identity": "30d"}, "identity must be at least 90d"),
        ({"delivered": "59m"}, "delivered must be at least 1h"),
        ({"delivered": "soon"}, "delivered"),
        ({"delivered": True}, "delivered must be a duration"),
        ({"delievered": "1d"}, "retention has no 'delievered'; there are: delivered, no_op"),
        ("hunter2", "retention has another rule than there is"),
        (5, "retention must be a table"),
    ],
)
def test_rules_that_make_no_sense_are_refused(raw: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        RetentionRules.parse(raw)
    assert "hunter2" not in str(caught.value)


def test_a_run_that_fails_tells_the_first_error_and_keeps_its_count(desk: Desk) -> None:
    for n in range(4):
        ended(desk, f"k{n}", "delivered")
    desk.pass_time(2 * DAY)

    def between(took: float) -> bool:
        raise RedriveError("stop")

    with pytest.raises(RedriveError, match="stop"):
        purge(desk.ledger, ALL, chunk=1, between=between)
    ((after,),) = desk.ask("SELECT after FROM @audit")
    assert json.loads(after)["delivered"] == 1
    assert purge(desk.ledger, ALL).delivered == 3


def test_publishing_to_what_is_gone_takes_no_worker(desk: Desk) -> None:
    """A repeated publish names the deliveries that are left, and makes none."""
    desk.publish("e1", ["dst_1"])
    desk.kill([OK])
    desk.pass_time(DAY)
    assert purge(desk.ledger, ALL) == Purged(delivered=1, events=1)
    again = published(desk, "e1", destinations=("dst_1",))
    assert (again.decided, again.deliveries) == (Decided.DUPLICATE, ())
    assert desk.reserve() == []
    assert not asyncio.run(desk.ledger.outstanding([("webhook", 1)]))
