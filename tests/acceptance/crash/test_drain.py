"""SIGTERM: what runs may finish, what has not begun goes back uncharged, and a second signal ends it at once."""

from __future__ import annotations

import signal
import time

import pytest
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig
from tests.acceptance.crash.rig import Process, Rig, until

JOBS, THREADS = 6, 2


def _draining(rig: Rig) -> Process:
    """A worker with two jobs running and four waiting for a thread, which has been told to stop."""
    rig.produce()
    worker = rig.start("serve")
    until(lambda: len(rig.starts()) == THREADS and len(_in(rig, "leased")) == JOBS, "all are leased, two run")
    worker.signal(signal.SIGTERM)
    until(lambda: len(_in(rig, "waiting")) == JOBS - THREADS, "what has not begun is given back")
    return worker


def _in(rig: Rig, disposition: str) -> list[dict[str, object]]:
    return [row for row in rig.deliveries() if row["disposition"] == disposition]


def test_sigterm_finishes_what_runs_and_returns_the_rest_uncharged(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"blocking": JOBS}, threads=THREADS, slots=JOBS, drain=10.0)
    worker = _draining(rig)
    given_back = _in(rig, "waiting")
    assert [(row["attempt"], row["fence"]) for row in given_back] == [(0, 1)] * (JOBS - THREADS)
    assert worker.running
    (rig.folder / "release").touch()
    assert worker.wait() == 0, rig.complaints()
    assert len(_in(rig, "delivered")) == THREADS
    assert len(_in(rig, "waiting")) == JOBS - THREADS
    rig.finish()
    # Each was called once: the reservation that was given back is no attempt.
    assert sorted(attempt for _, attempt in rig.starts()) == ["0.1"] * JOBS
    kinds = rig.rows("SELECT kind, category FROM transition")
    assert kinds == [{"kind": "interrupted", "category": "shutdown"}] * (JOBS - THREADS)
    report = rig.assert_sound()
    assert (report.counts["attempts"], report.counts["unknown"]) == (JOBS, 0)


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_a_second_signal_stops_at_once(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"blocking": JOBS}, threads=THREADS, slots=JOBS, drain=60.0)
    worker = _draining(rig)
    begun = time.monotonic()
    worker.signal(signal.SIGTERM)
    assert worker.wait(10) == 130
    assert time.monotonic() - begun < 5
    running = _in(rig, "leased")
    assert len(running) == THREADS
    (rig.folder / "release").touch()
    rig.finish()
    report = rig.assert_sound()
    # What ran was charged and recorded as lost, and was done again.
    assert (report.counts["delivered"], report.counts["unknown"]) == (JOBS, THREADS)
    assert {row["attempt"] for row in rig.deliveries() if row["name"] in {r["name"] for r in running}} == {2}


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_what_outlives_the_drain_is_left_to_expire(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"blocking": JOBS}, threads=THREADS, slots=JOBS, drain=0.2)
    worker = _draining(rig)
    until(lambda: "outlived the drain" in worker.stderr.read_text(), "the drain gives up")
    (rig.folder / "release").touch()
    worker.wait()
    rig.finish()
    assert {row["disposition"] for row in rig.deliveries()} == {"delivered"}
    rig.assert_sound()
