"""``ctx.close_in``: effect and outcome are in one transaction, so a kill takes both or neither."""

from __future__ import annotations

import pytest
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig
from tests.acceptance.crash.rig import KILLED


def test_killed_between_effect_and_outcome_neither_is_committed(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"ledgered": 1})
    rig.produce()
    assert rig.run("work", "close_in.before_commit:1") == KILLED
    (row,) = rig.deliveries()
    assert rig.rows("SELECT * FROM effect") == []
    assert (row["disposition"], row["attempt"], rig.attempts(row["seq"])) == ("leased", 1, [])
    rig.finish()
    (row,) = rig.deliveries()
    effects = rig.rows("SELECT delivery, attempt, fence FROM effect")
    assert effects == [{"delivery": row["name"], "attempt": "0.2", "fence": 2}]
    assert [(a["outcome"], a["category"]) for a in rig.attempts(row["seq"])] == [
        ("unknown", "worker_lost"),
        ("delivered", "ok"),
    ]
    report = rig.assert_sound()
    assert (report.counts["recovered"], report.counts["duplicates_explained"]) == (1, 0)


def test_killed_right_after_the_commit_both_are_there_and_nothing_is_repeated(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"ledgered": 1}, die_after_commit=True)
    rig.produce()
    assert rig.run("work") == KILLED
    for _ in range(2):
        (row,) = rig.deliveries()
        effects = rig.rows("SELECT delivery, attempt, fence FROM effect")
        assert effects == [{"delivery": row["name"], "attempt": "0.1", "fence": 1}]
        assert (row["disposition"], row["attempt"]) == ("delivered", 1)
        assert [a["outcome"] for a in rig.attempts(row["seq"])] == ["delivered"]
        rig.finish()
    assert [attempt for _, attempt in rig.starts()] == ["0.1"]
    rig.assert_sound()


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_killed_again_and_again_the_effect_is_there_once(make_rig: MakeRig) -> None:
    rig = make_rig(events={}, jobs={"ledgered": 5}, slots=5, threads=5)
    rig.produce()
    for passage in (1, 2, 3):
        assert rig.run("work", f"close_in.before_commit:{passage}") in (0, KILLED)
    rig.finish()
    rows = rig.rows("SELECT delivery, count(*) AS times FROM effect GROUP BY delivery")
    assert [row["times"] for row in rows] == [1] * 5
    assert {row["disposition"] for row in rig.deliveries()} == {"delivered"}
    rig.assert_sound()
