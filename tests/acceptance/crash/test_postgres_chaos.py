"""PostgreSQL and the way to it fail under load. Then the faults stop, everything ends, and the three logs agree."""

from __future__ import annotations

import contextlib
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import psycopg
import pytest
from tests.acceptance.crash.conftest import MakeRig
from tests.acceptance.crash.rig import Process, Rig, until
from tests.acceptance.crash.scenario import ENOUGH
from tests.acceptance.crash.story import RUNS, prefix, tell
from tests.services.pgbouncer import PgBouncer
from tests.services.postgres import PostgresServer
from tests.services.proxy import Proxy

from redrive.testing.checker import Report

LOAD = {"events": {"ok": 6, "flaky": 2}, "jobs": {"plain": 2, "sync": 2}}
"""One turn of the stream."""
SOON_S = 30.0
"""Until everything has ended, once faults have: leases, the reaper, and what backoff of a loaded machine is left."""
PATIENT_S = 60.0
OURS = "redrive"
END = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer.start(shared_buffers="64MB", max_connections=60) as process:
        yield process


@pytest.fixture
def place(server: PostgresServer) -> Iterator[Callable[[], str]]:
    names: list[str] = []

    def new() -> str:
        names.append(server.create_database())
        return server.url(names[-1])

    yield new
    for name in names:
        server.drop_database(name)


def ended(rig: Rig) -> int:
    """How many attempts have ended."""
    return int(rig.rows("SELECT count(*) AS n FROM attempt")[0]["n"])


def flows(rig: Rig, more: int = 60) -> None:
    """Wait until work has flowed."""
    least = ended(rig) + more
    until(lambda: ended(rig) >= least, f"work flows: {rig.complaints()}", SOON_S, 0.05)


@contextlib.contextmanager
def load(rig: Rig, workers: list[Process]) -> Iterator[None]:
    """Work is handed over all the time. When the faults in the body are over, everything ends, and is sound."""
    producer = rig.start("stream")
    flows(rig)
    yield
    (rig.folder / ENOUGH).touch()
    assert producer.wait() == 0, rig.complaints()
    settle(rig, workers)


def settle(rig: Rig, workers: list[Process]) -> None:
    """Everything ends soon, and every worker still lives to be told to stop."""
    open_ones = "SELECT count(*) AS n FROM delivery_state WHERE disposition <= 1"
    until(lambda: rig.rows(open_ones)[0]["n"] == 0, f"everything ends: {rig.complaints()}", SOON_S, 0.05)
    assert all(worker.running for worker in workers), rig.complaints()
    for worker in workers:
        worker.signal(signal.SIGTERM)
    assert [worker.wait() for worker in workers] == [0] * len(workers), rig.complaints()


def sound(rig: Rig, least: int) -> Report:
    """Nothing is lost, charged twice or without an explanation, and it was enough to mean something."""
    report = rig.assert_sound()
    assert report.counts["deliveries"] == report.counts["acknowledged"] >= least
    assert report.counts["delivered"] == report.counts["deliveries"]
    return report


def make(make_rig: MakeRig, **fields: Any) -> Rig:
    return make_rig(**{**LOAD, "max_attempts": 20, "first_byte": 4.0, "lease": 2.0, **fields})


def serving(rig: Rig, count: int = 2, **other: Any) -> list[Process]:
    return [rig.start("serve", **other) for _ in range(count)]


# The server.


def test_crash_restarts(server: PostgresServer, make_rig: MakeRig) -> None:
    rig = make(make_rig)
    with load(rig, serving(rig)):
        for _ in range(2):
            server.restart("immediate")
            flows(rig)
    sound(rig, 100)


def test_read_only_for_a_while_and_back(server: PostgresServer, make_rig: MakeRig) -> None:
    rig = make(make_rig)
    with load(rig, serving(rig)):
        server.read_only(True)
        try:
            before = ended(rig)
            time.sleep(1.5)  # the fault's length
            assert ended(rig) == before
        finally:
            server.read_only(False)
        flows(rig)
    sound(rig, 70)


def test_no_connection_to_spare_for_a_while(server: PostgresServer, make_rig: MakeRig) -> None:
    rig = make(make_rig)
    with load(rig, serving(rig)):
        with ExitStack() as hogs:
            control = hogs.enter_context(server.connect())
            end = time.monotonic() + 1.5
            refused = 0
            while time.monotonic() < end or not refused:
                control.execute(END, [OURS])
                with pytest.raises(psycopg.OperationalError, match="too many clients"):  # noqa: PT012
                    while True:
                        hogs.enter_context(server.connect())
                refused += 1
                assert time.monotonic() < end + 20
        flows(rig)
    sound(rig, 70)


def test_sessions_are_ended_again_and_again(server: PostgresServer, make_rig: MakeRig) -> None:
    rig = make(make_rig)
    with load(rig, serving(rig)):
        killed = 0
        for _ in range(12):
            killed += server.kill_sessions(OURS)
            time.sleep(0.1)  # the faults' rate
        assert killed >= 12
        flows(rig)
    sound(rig, 70)


def test_the_listening_connection_is_lost_and_comes_back(server: PostgresServer, make_rig: MakeRig) -> None:
    """Polling is a minute away, so that the hint, or the look that stands in for it, is what finds the work."""
    rig = make_rig(events={"ok": 3}, jobs={}, poll=60.0, first_byte=4.0, lease=10.0)
    worker = rig.start("serve")
    listening = (
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'listen%'"
        " AND backend_type = 'client backend'"
    )
    until(lambda: len(rig.rows(listening)) == 1, "it listens", every_s=0.05)
    (lost,) = rig.rows(listening)
    rig.rows("SELECT pg_terminate_backend(?)", lost["pid"])
    rig.produce()
    settle(rig, [])
    until(lambda: [row for row in rig.rows(listening) if row != lost] != [], "it listens again", every_s=0.05)
    worker.signal(signal.SIGTERM)
    assert worker.wait() == 0, rig.complaints()
    sound(rig, 3)


# The way to it.


def test_a_partition_longer_than_the_lease(server: PostgresServer, make_rig: MakeRig) -> None:
    """Another worker takes over; what the one that was cut off knows arrives late, and is kept as evidence."""
    rig = make(make_rig, jobs={"blocking": 1}, events={}, lease=0.5)
    rig.produce()
    with Proxy.start(server.url()) as proxy:
        away = rig.start("serve", ledger=proxy.url_of(rig.server))
        until(lambda: len(rig.starts()) == 1, "it is called", every_s=0.05)
        proxy.freeze(True)
        other = rig.start("serve")
        until(lambda: len(rig.starts()) == 2, "another worker takes over", every_s=0.05)
        (rig.folder / "release").touch()
        until(lambda: rig.deliveries()[0]["disposition"] == "delivered", "it is done", every_s=0.05)
        proxy.freeze(False)
        settle(rig, [away, other])
    (row,) = rig.deliveries()
    assert [(a["outcome"], a["category"]) for a in rig.attempts(row["seq"])] == [
        ("unknown", "worker_lost"),
        ("delivered", "ok"),
    ]
    kinds = rig.rows("SELECT kind, fence FROM transition")
    assert kinds == [{"kind": "evidence_delivered", "fence": 1}]
    rig.assert_sound()


def test_replies_are_lost_at_every_statement(server: PostgresServer, make_rig: MakeRig) -> None:
    """With leases that nothing outlasts: what was reserved is found again, not left to expire."""
    rig = make(make_rig, lease=60.0)
    hot = ("reserve_1", "close_1", "accept_1", "publish_1", "COMMIT")
    with Proxy.start(server.url()) as proxy:
        way = proxy.url_of(rig.server)
        workers = serving(rig, ledger=way)
        producer = rig.start("stream", ledger=way)
        flows(rig)
        for text in hot * 2:
            proxy.cut_after(text).wait(20)
            proxy.cut_before(text).wait(20)
        flows(rig)
        (rig.folder / ENOUGH).touch()
        assert producer.wait() == 0, rig.complaints()
        settle(rig, workers)
        assert proxy.counters.cut_after == proxy.counters.cut_before == len(hot) * 2
    assert rig.rows("SELECT seq FROM attempt WHERE category = 'worker_lost'") == []
    report = sound(rig, 70)
    assert report.counts["duplicates_explained"] == 0


@pytest.mark.full
def test_partitions_again_and_again(server: PostgresServer, make_rig: MakeRig) -> None:
    rig = make(make_rig, lease=0.5)
    with Proxy.start(server.url()) as proxy:
        away = rig.start("serve", ledger=proxy.url_of(rig.server))
        with load(rig, [away, rig.start("serve")]):
            for _ in range(5):
                proxy.freeze(True)
                time.sleep(1.2)  # the fault's length: more than a lease
                proxy.freeze(False)
                flows(rig)
                proxy.refuse(True)
                proxy.cut_all()
                time.sleep(0.5)
                proxy.refuse(False)
                flows(rig)
    sound(rig, 200)


# The workers.


def test_wrong_clocks_on_workers_change_nothing(make_rig: MakeRig) -> None:
    rig = make(make_rig)
    begun = time.time_ns() // 1000
    workers = [rig.start("serve", skew_s=3600), rig.start("serve", skew_s=-3600)]
    with load(rig, workers):
        done = "SELECT count(DISTINCT worker) AS n FROM attempt"
        until(lambda: rig.rows(done)[0]["n"] == 2, "both have worked", SOON_S, 0.05)
        flows(rig)
    report = sound(rig, 70)
    assert report.counts["unknown"] == 0
    ((first, last),) = [
        row.values() for row in rig.rows("SELECT min(started_at) AS a, max(ended_at) AS b FROM attempt")
    ]
    assert begun <= first < last <= time.time_ns() // 1000
    waits = rig.rows("SELECT next_at - ended_at AS us FROM attempt WHERE next_at IS NOT NULL")
    assert waits
    assert all(10_000 <= row["us"] <= 200_000 for row in waits)


@pytest.mark.full
def test_workers_are_stopped_beyond_their_lease_and_go_on(make_rig: MakeRig) -> None:
    rig = make(make_rig, lease=0.5)
    workers = serving(rig)
    with load(rig, workers):
        for turn in range(6):
            worker = workers[turn % 2]
            worker.signal(signal.SIGSTOP)
            time.sleep(1.2)  # the fault's length: more than a lease
            worker.signal(signal.SIGCONT)
            flows(rig)
    sound(rig, 200)


# A pooler in between.


@pytest.fixture
def pooler(server: PostgresServer) -> Iterator[PgBouncer]:
    with PgBouncer.start(server) as process:
        yield process


def pooled(pooler: PgBouncer, url: str) -> str:
    return pooler.url(url.rpartition("/")[2], notify="off", pooled="on")


def test_through_a_transaction_pooler_with_kills(
    server: PostgresServer, pooler: PgBouncer, place: Callable[[], str], make_rig: MakeRig
) -> None:
    rig = make(make_rig, ledger=pooled(pooler, place()))
    workers = serving(rig)
    with load(rig, workers):
        workers[0].signal(signal.SIGKILL)
        workers[0].wait()
        workers[0] = rig.start("serve")
        for _ in range(4):
            server.kill_sessions()
            flows(rig, 20)
        pooler.stop()
        pooler.start_again()
        flows(rig)
    sound(rig, 70)


@pytest.mark.full
@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_killed_at_each_failpoint_through_a_transaction_pooler(
    tmp_path: Any, pooler: PgBouncer, place: Callable[[], str], name: str, kind: str
) -> None:
    from tests.acceptance.crash.rig import receiver

    with receiver(tmp_path / "receiver", [prefix(name, kind)]) as process:
        story = tell(name, kind, tmp_path / "rig", process, pooled(pooler, place()))
    assert story.at_end.disposition == "delivered"
