"""The connection breaks at one statement, before it reached the server or after its answer: each is done once.

A proxy does the cutting. What "after" cuts has been committed, and nobody was told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

import psycopg
import pytest
from tests.acceptance.crash.conftest import databases
from tests.acceptance.crash.rig import Rig
from tests.acceptance.crash.scenario import Scenario, application
from tests.services.postgres import PostgresServer
from tests.services.proxy import Fault, Proxy

from redrive.domain.delivery import Closed, Closing, Lease
from redrive.domain.outcome import Category, Outcome, OutcomeKind
from redrive.errors import LedgerUnavailable
from redrive.ledger.base import Ledger
from redrive.ledger.postgres.connect import lost, translate
from redrive.testing.receiver import Receiver

When = Literal["before", "after"]
T = TypeVar("T")
JOBS = 3
ROUTES = [("plain", 1)]
LEASE_US = 30_000_000
DELIVERED = Outcome(OutcomeKind.DELIVERED, Category.OK)
RETRYABLE = Outcome(OutcomeKind.RETRYABLE, Category.HANDLER_ERROR)
both = pytest.mark.parametrize("when", ["before", "after"])


class Cut:
    """A ledger behind a proxy, with jobs on it, and one worker of this process."""

    def __init__(self, rig: Rig, proxy: Proxy) -> None:
        self.rig = rig
        self.proxy = proxy
        self.app = application(rig.folder, rig.scenario)
        self._runner = asyncio.Runner()

    @property
    def ledger(self) -> Ledger:
        return self.app.ledger

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(doing)

    def at(self, when: When, what: str | Callable[[str], bool], times: int = 1) -> Fault:
        cut = self.proxy.cut_after if when == "after" else self.proxy.cut_before
        return cut(what, times=times)

    def register(self, name: str = "wrk_tests") -> int:
        return self.run(self.ledger.register_worker(name, ROUTES))

    def reserve(self, worker: int, lease_us: int = LEASE_US) -> list[Lease]:
        return self.run(self.ledger.reserve(worker, ROUTES, 10, lease_us))

    def close(self, worker: int, leases: list[Lease], outcome: Outcome) -> list[Closed]:
        closings = [
            Closing(x.seq, x.fence, x.generation, x.attempt, x.started_at, x.deferrals, outcome, 0.5, 1000)
            for x in leases
        ]
        return self.run(self.ledger.close_attempts(worker, closings))

    def count(self, rows: str, *arguments: Any) -> int:
        return int(self.rig.rows(f"SELECT count(*) AS n FROM {rows}", *arguments)[0]["n"])

    def shut(self) -> None:
        self.app.close()
        self._runner.close()


@pytest.fixture
def cut(tmp_path: Path, oracle: Receiver, postgres: PostgresServer) -> Iterator[Cut]:
    with databases(postgres) as new, Proxy.start(postgres.url()) as proxy:
        url = new()
        scenario = Scenario(oracle.port, "/cut", events={"ok": 1}, jobs={"plain": JOBS}, ledger=proxy.url_of(url))
        with Rig(tmp_path, oracle, scenario, url) as rig:
            rig.produce()
            made = Cut(rig, proxy)
            yield made
            made.shut()


def test_a_connection_that_answers_twice_is_lost(postgres: PostgresServer) -> None:
    """What psycopg says of a pooler's last words followed by the end, in the middle of a COMMIT."""
    said = psycopg.InternalError("received 2 results from command 'COMMIT'")
    assert lost(said)
    assert isinstance(translate(said, "here"), LedgerUnavailable)
    with postgres.connect() as conn, pytest.raises(psycopg.InternalError) as real:
        conn.execute("DO $$ BEGIN RAISE internal_error; END $$")
    assert not lost(real.value)


def test_the_checker_turns_red_on_a_servers_ledger_too(cut: Cut) -> None:
    """Closed as delivered with no effect in any log; and what nobody has worked on is not at its end."""
    worker = cut.register()
    cut.close(worker, cut.reserve(worker), DELIVERED)
    report = cut.rig.check()
    assert [problem.rule for problem in report.problems] == ["untrue"] * JOBS + ["overdue"]
    assert report.counts["acknowledged"] == report.counts["deliveries"] == JOBS + 1


@both
def test_reserving(cut: Cut, when: When) -> None:
    """What was reserved without the worker's knowing is handed to it by re-reading: charged once, under one fence."""
    worker = cut.register()
    fault = cut.at(when, "reserve_1")
    leases = cut.reserve(worker)
    assert fault.done
    assert [(lease.attempt, lease.fence) for lease in leases] == [(1, 1)] * JOBS
    states = cut.rig.rows("SELECT attempt, fence, leased_by FROM delivery_state WHERE attempt > 0")
    assert states == [{"attempt": 1, "fence": 1, "leased_by": worker}] * JOBS
    assert cut.reserve(worker) == []


def test_reserving_when_the_repeat_is_cut_too(cut: Cut) -> None:
    worker = cut.register()
    fault = cut.at("after", "reserve_1", times=2)
    with pytest.raises(LedgerUnavailable):
        cut.reserve(worker)
    assert fault.done
    leases = cut.reserve(worker)
    assert [(lease.attempt, lease.fence) for lease in leases] == [(1, 1)] * JOBS
    assert cut.reserve(worker) == []


def test_another_worker_is_not_given_what_the_first_one_lost_sight_of(cut: Cut) -> None:
    first, second = cut.register(), cut.register("wrk_other")
    cut.at("after", "reserve_1", times=2)
    with pytest.raises(LedgerUnavailable):
        cut.reserve(first)
    assert cut.reserve(second) == []
    assert len(cut.reserve(first)) == JOBS


@both
@pytest.mark.parametrize(("outcome", "statement"), [(DELIVERED, "close_1"), (RETRYABLE, "COMMIT")])
def test_closing(cut: Cut, when: When, outcome: Outcome, statement: str) -> None:
    """The repeat is told that it was done, and there is one attempt row."""
    worker = cut.register()
    leases = cut.reserve(worker)
    fault = cut.at(when, statement)
    closed = cut.close(worker, leases, outcome)
    assert fault.done
    assert closed == [Closed.ALREADY if when == "after" else Closed.APPLIED] * JOBS
    rows = cut.rig.rows("SELECT seq, number, outcome FROM attempt ORDER BY seq")
    assert rows == [{"seq": lease.seq, "number": 1, "outcome": str(outcome.kind)} for lease in leases]
    assert cut.count("transition") == 0
    assert cut.close(worker, leases, outcome) == [Closed.ALREADY] * JOBS


@both
def test_extending(cut: Cut, when: When) -> None:
    worker = cut.register()
    leases = cut.reserve(worker)
    fault = cut.at(when, "extend_1")
    held = [(lease.seq, lease.fence) for lease in leases]
    assert cut.ledger.extend_sync(worker, held, 4 * LEASE_US).lost == set()
    assert fault.done
    until = {row["seq"]: row["leased_until"] for row in cut.rig.rows("SELECT * FROM delivery_state WHERE fence > 0")}
    assert all(until[lease.seq] >= lease.leased_until + 2 * LEASE_US for lease in leases)


@both
def test_reaping(cut: Cut, when: When) -> None:
    worker = cut.register()
    leases = cut.reserve(worker, 1)
    assert len(leases) == JOBS
    fault = cut.at(when, "COMMIT")
    assert cut.run(cut.ledger.reap(100, [0.5], ROUTES)).expired_leases == JOBS
    assert fault.done
    rows = cut.rig.rows("SELECT number, category FROM attempt")
    assert rows == [{"number": 1, "category": "worker_lost"}] * JOBS
    assert cut.run(cut.ledger.reap(100, [0.5], ROUTES)).expired_leases == 0


@both
def test_registering_a_worker(cut: Cut, when: When) -> None:
    fault = cut.at(when, "COMMIT")
    number = cut.register()
    assert fault.done
    assert cut.rig.rows("SELECT worker FROM worker") == [{"worker": number}]


@both
def test_an_operators_decision(cut: Cut, when: When) -> None:
    """Each of its transactions: the decision and its audit entry, then the holds."""
    assert cut.app.ledger
    fault = cut.at(when, "COMMIT", times=2)
    assert cut.app.destinations.disable("ok", reason="tests") == 1
    assert fault.done
    (entry,) = cut.rig.rows("SELECT * FROM audit WHERE action = 'destination.disable'")
    assert entry["reason"] == "tests"
    assert cut.count("delivery_state WHERE hold = 1") == 1
    assert cut.app.destinations.enable("ok") == 1


@both
def test_adding_a_destination(cut: Cut, when: When) -> None:
    assert cut.app.ledger
    fault = cut.at(when, "COMMIT")
    settings = cut.app.destinations.get("ok").settings
    added = cut.app.destinations.add("another", settings)
    assert fault.done
    (row,) = cut.rig.rows("SELECT destination_id FROM destination WHERE name = ?", "another")
    assert row["destination_id"] == added.destination_id
    assert cut.count("audit WHERE target = ?", added.destination_id) == 1


@both
def test_enqueueing(cut: Cut, when: When) -> None:
    fault = cut.at(when, "accept_1")
    job = cut.app.enqueue("plain", {"n": 1}, key="mine")
    assert fault.done
    assert job.created
    assert cut.count("delivery WHERE key = ?", "mine") == 1
    assert cut.count("repeat") == cut.count("repeat_count") == 0
    assert not cut.app.enqueue("plain", {"n": 1}, key="mine").created


@both
def test_publishing(cut: Cut, when: When) -> None:
    fault = cut.at(when, "publish_1")
    publication = cut.app.publish("ok.happened", {"n": 1}, event_id="mine")
    assert fault.done
    assert publication.created
    assert len(publication.deliveries) == 1
    assert cut.count("event WHERE event_key = ?", "mine") == cut.count("delivery WHERE key = ?", "mine") == 1
    assert cut.count("repeat") == cut.count("repeat_count") == 0
