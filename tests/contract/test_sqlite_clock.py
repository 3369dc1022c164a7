"""Ledger time on SQLite, where it is the processes' own clocks that make it."""

from __future__ import annotations

import logging
import time

import pytest
from tests.contract.bench import Bench
from tests.contract.conftest import LEDGERS
from tests.contract.harness import DELIVERED, RETRYABLE, START, Factory

from redrive.domain.delivery import Closed, Disposition
from redrive.domain.policy import HOUR, SECOND
from redrive.ledger.sqlite.clock import ALARM_US, LedgerClock


@pytest.fixture(params=["sqlite"])
def ledger(request: pytest.FixtureRequest) -> Factory:
    return LEDGERS[request.param](request)


def test_a_host_that_is_ahead_takes_the_ledger_with_it_once_and_is_alarmed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    ahead = bench.host(skew=HOUR)
    ahead.enqueue("a")
    assert ahead.now() == START + HOUR
    assert caplog.records == [], "the wrong host cannot know"
    bench.enqueue("b")
    for key in "cde":
        bench.advance(SECOND)
        bench.enqueue(key)
    assert bench.now() == START + HOUR + 3 * SECOND, "it goes on from there, never back"
    (alarm,) = [record for record in caplog.records if record.name == "redrive.ledger"]
    assert alarm.levelno == logging.WARNING
    assert "3600 s ahead of this host's clock" in alarm.getMessage()


def test_a_jump_ahead_ends_leases_but_doubles_no_effect(bench: Bench) -> None:
    """O-22 on a ledger without a clock of its own: the lease is gone, the fence still holds."""
    made = bench.enqueue()
    lease = bench.lease()
    ahead = bench.host(skew=HOUR)
    assert ahead.reap().expired_leases == 1
    assert ahead.reserve() == [], "its retry is not early by ledger time either"
    assert bench.close(lease, RETRYABLE) is Closed.EVIDENCE
    assert bench.close(lease, DELIVERED) is Closed.LATE_ACCEPTED
    assert bench.standing(made.seq) is Disposition.DELIVERED


@pytest.mark.parametrize(("skew", "alarms"), [(ALARM_US, 0), (ALARM_US + 1, 1)])
def test_the_alarm_is_for_more_than_a_little(
    bench: Bench, caplog: pytest.LogCaptureFixture, skew: int, alarms: int
) -> None:
    bench.host(skew=skew).enqueue("a")
    bench.enqueue("b")
    assert len(caplog.records) == alarms


def test_an_alarm_that_passed_can_sound_again(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.host(skew=HOUR).enqueue("a")
    bench.enqueue("b")
    bench.clock.skew = HOUR
    bench.enqueue("c")
    bench.clock.skew = 0
    bench.enqueue("d")
    assert len(caplog.records) == 2


def test_an_estimate_takes_the_highest_of_wall_and_monotonic() -> None:
    now = {"wall": 100, "monotonic": 0}
    clock = LedgerClock(wall=lambda: now["wall"], monotonic=lambda: now["monotonic"])
    assert clock.estimate() == 100
    clock.observed(500)
    assert (clock.estimate(), clock.skew_us) == (500, 400)
    now.update(wall=150, monotonic=30)
    assert clock.estimate() == 530
    now.update(wall=900)
    assert clock.estimate() == 900
    assert clock.stored(400) == 900, "a stored time that is behind moves nothing"
    assert clock.stored(2000) == 2000
    now.update(monotonic=40)
    assert clock.estimate() == 2010
    clock.forget()
    assert clock.estimate() == 900


def test_by_default_it_is_the_hosts_clock() -> None:
    clock = LedgerClock()
    first = clock.estimate()
    assert abs(first / 1e6 - time.time()) < 60
    clock.observed(first + HOUR)
    assert clock.estimate() >= first + HOUR
