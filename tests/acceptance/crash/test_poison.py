"""A handler that kills its process, every time: charged every time, and in quarantine after exactly its budget."""

from __future__ import annotations

import signal

import pytest
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig, everywhere
from tests.acceptance.crash.rig import KILLED

BUDGET = 3
DEATHS = [("kill", KILLED), ("exit", 3), ("segv", -signal.SIGSEGV)]


@pytest.mark.parametrize(("place", "how", "status"), everywhere(DEATHS, DEATHS[:1]), indirect=["place"])
def test_a_poison_job_is_quarantined_after_exactly_its_budget(make_rig: MakeRig, how: str, status: int) -> None:
    rig = make_rig(
        events={"ok": 3}, jobs={"plain": 3, "sync": 2, "ledgered": 1, "poison": 1}, max_attempts=BUDGET, poison=how
    )
    rig.produce()
    statuses = []
    while (ended := rig.run("work")) != 0:
        statuses.append(ended)
        assert len(statuses) <= BUDGET, "it was started again, past its budget"
    assert statuses == [status] * BUDGET
    (poison,) = rig.of("poison")
    calls = [attempt for delivery, attempt in rig.starts() if delivery == poison["name"]]
    assert calls == [f"0.{number}" for number in range(1, BUDGET + 1)]
    assert [(a["outcome"], a["category"]) for a in rig.attempts(poison["seq"])] == [("unknown", "worker_lost")] * BUDGET
    assert (poison["disposition"], poison["attempt"]) == ("dead", BUDGET)
    (letter,) = rig.rows("SELECT * FROM dead_letter")
    assert (letter["seq"], letter["cause"], letter["attempts"]) == (poison["seq"], "worker_lost", BUDGET)
    neighbours = [row for row in rig.deliveries() if row["handler"] != "poison"]
    assert {row["disposition"] for row in neighbours} == {"delivered"}
    assert len(neighbours) == 9
    rig.assert_sound()


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_quarantine_costs_no_worker_anything(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"poison": 1}, max_attempts=1, poison="exit")
    rig.produce()
    assert rig.run("work") == 3
    rig.finish()
    before = rig.deliveries()
    rig.finish()
    assert rig.deliveries() == before
    assert len(rig.starts()) == 1
    rig.assert_sound()
