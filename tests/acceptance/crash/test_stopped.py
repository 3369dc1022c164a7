"""A worker that is stopped for longer than its lease, while another one finishes its work, and then goes on."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig, everywhere
from tests.acceptance.crash.rig import Process, Rig, until

BEFORE = [("execute.before",), ("connect.before",), ("send.before",)]
AFTER = [("receive.head",), ("send.after",), ("execute.after",)]


def _stopped(make_rig: MakeRig, failpoint: str | None = None, **fields: Any) -> tuple[Rig, Process]:
    """A worker that has stopped (at a failpoint, or in its handler) with one lease, and without the write lock."""
    for _ in range(5):
        rig = make_rig(slots=1, **fields)
        rig.produce()
        worker = rig.start("work", None if failpoint is None else f"{failpoint}:1:stop")
        worker.until_stopped()
        if rig.unlocked():
            return rig, worker
        worker.end()
    raise AssertionError("it stopped in a transaction every time")


def _overtake(rig: Rig, stopped: Process) -> None:
    """Another worker does everything; then the stopped one is let go, and ends by itself."""
    rig.finish()
    assert {row["disposition"] for row in rig.deliveries()} == {"delivered"}
    stopped.signal(signal.SIGCONT)
    assert stopped.wait() == 0, rig.complaints()


def _evidence(rig: Rig) -> list[tuple[str, int]]:
    return [(row["kind"], row["fence"]) for row in rig.rows("SELECT kind, fence FROM transition ORDER BY transition")]


@pytest.mark.parametrize(("place", "failpoint"), everywhere(BEFORE, BEFORE[-1:]), indirect=["place"])
def test_stopped_before_the_write_it_sends_nothing_with_the_old_fence(make_rig: MakeRig, failpoint: str) -> None:
    rig, worker = _stopped(make_rig, failpoint, events={"ok": 1}, jobs={})
    _overtake(rig, worker)
    assert [seen["attempt"] for seen in rig.requests()] == ["0.2"]
    assert _evidence(rig) == []
    report = rig.assert_sound()
    assert report.counts["duplicates_explained"] == 0


@pytest.mark.parametrize(("place", "failpoint"), everywhere(AFTER, AFTER[:1]), indirect=["place"])
def test_stopped_after_the_write_its_late_success_is_kept_as_evidence(make_rig: MakeRig, failpoint: str) -> None:
    rig, worker = _stopped(make_rig, failpoint, events={"ok": 1}, jobs={})
    _overtake(rig, worker)
    assert [seen["attempt"] for seen in rig.requests()] == ["0.1", "0.2"]
    assert _evidence(rig) == [("evidence_delivered", 1)]
    (row,) = rig.deliveries()
    assert [(a["number"], a["outcome"]) for a in rig.attempts(row["seq"])] == [(1, "unknown"), (2, "delivered")]
    report = rig.assert_sound()
    assert report.counts["duplicates_explained"] == 1


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_a_job_that_was_not_called_yet_is_not_called_with_the_old_fence(make_rig: MakeRig) -> None:
    rig, worker = _stopped(make_rig, "execute.before", events={}, jobs={"sync": 1})
    _overtake(rig, worker)
    assert [attempt for _, attempt in rig.starts()] == ["0.2"]
    rig.assert_sound()


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_a_job_that_waits_for_a_thread_is_not_called_with_the_old_fence(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"blocking": 2}, threads=1)
    rig.produce()
    worker = rig.start("work")
    until(lambda: bool(rig.starts()) and all(row["fence"] == 1 for row in rig.deliveries()), "both are leased")
    worker.signal(signal.SIGSTOP)
    worker.until_stopped()
    while not rig.unlocked():
        worker.signal(signal.SIGCONT)
        until(lambda: not worker.stopped, "it goes on")
        worker.signal(signal.SIGSTOP)
        worker.until_stopped()
    (rig.folder / "release").touch()
    first = rig.starts()[0][0]
    _overtake(rig, worker)
    calls = rig.starts()
    assert [attempt for delivery, attempt in calls if delivery == first] == ["0.1", "0.2"]
    assert [attempt for delivery, attempt in calls if delivery != first] == ["0.2"]
    rig.assert_sound()


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_a_job_stopped_in_its_handler_reports_late(make_rig: MakeRig) -> None:
    rig, worker = _stopped(make_rig, events={}, jobs={"stopping": 1})
    _overtake(rig, worker)
    assert [attempt for _, attempt in rig.starts()] == ["0.1", "0.2"]
    assert _evidence(rig) == [("evidence_delivered", 1)]
    rig.assert_sound()


def test_a_success_that_is_late_but_not_yet_retried_buys_no_second_effect(make_rig: MakeRig) -> None:
    """Stopped past its lease with nobody to reap it: it closes its own attempt, and nothing is sent again."""
    rig, worker = _stopped(make_rig, "send.after", events={"ok": 1}, jobs={})
    (row,) = rig.deliveries()
    until(lambda: bool(row["leased_until"] < time.time_ns() // 1000), "the lease runs out", 10)
    assert row["disposition"] == "leased"
    worker.signal(signal.SIGCONT)
    assert worker.wait() == 0, rig.complaints()
    rig.finish()
    (row,) = rig.deliveries()
    assert row["disposition"] == "delivered"
    # Its own reaper and its own outcome race: either the close is late and valid, or the reaper was first.
    seen = [seen["attempt"] for seen in rig.requests()]
    outcomes = [a["outcome"] for a in rig.attempts(row["seq"])]
    assert (seen, outcomes) in (
        (["0.1"], ["delivered"]),
        (["0.1"], ["unknown"]),
        (["0.1", "0.2"], ["unknown", "delivered"]),
    )
    rig.assert_sound()
