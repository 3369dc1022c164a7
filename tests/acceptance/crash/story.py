"""One kill at one failpoint, and what it came to: the run behind a test, and behind a section of the crash atlas."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.acceptance.crash.rig import KILLED, Rig, receiver
from tests.acceptance.crash.scenario import CLOSES_IN, Scenario

from redrive.failpoint import NAMES
from redrive.testing.receiver import Receiver

JOBS_LATER_S: Final = 1.0
AT_ONCE: Final = {"close_in.before_commit": (CLOSES_IN,), "extend.before_commit": ("slow",)}
"""Failpoints that only these handlers' jobs pass: there the jobs come first, elsewhere the webhooks."""
AT_A_TIME: Final = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """One delivery at one moment: what is on the ledger, and what the outside saw."""

    disposition: str
    """``absent`` where the ledger does not know it."""
    attempt: int
    fence: int
    attempts: tuple[tuple[int, str, str], ...]
    """(number, outcome, category) of each closed attempt."""
    seen: tuple[tuple[str, str], ...]
    """(attempt, answer): requests with their answers, or a handler's steps."""


@dataclass(frozen=True, slots=True)
class Story:
    """What one kill came to. Times are milliseconds after the kill."""

    failpoint: str
    subject: str
    """What the process was busy with: a destination or a handler."""
    webhook: bool
    at_kill: Standing
    at_end: Standing
    next_start_ms: int | None
    """When the subject was attempted again; None if it was not."""
    totals_at_kill: dict[str, int]
    summary: dict[str, int]
    """The checker's report at the end."""


def tell(name: str, folder: Path, process: Receiver, prefix: str) -> Story:
    """Kill at ``name``, first time it is passed, one slot; then finish, check and describe. Asserts the contract."""
    first = AT_ONCE.get(name, ())
    scenario = Scenario(process.port, prefix, jobs_delay=JOBS_LATER_S, at_once=first)
    with Rig(folder, process, scenario) as rig:
        if name.startswith("enqueue."):
            assert rig.run("produce", f"{name}:1") == KILLED, rig.complaints()
            killed_at = time.time_ns() // 1000
            subject, at_kill, totals = _look(rig, name)
            rig.produce()
        else:
            rig.produce()
            if name.startswith("reap."):
                assert rig.run("work", "reserve.after_commit:1", 1) == KILLED, rig.complaints()
            assert rig.run("work", f"{name}:1", 1) == KILLED, rig.complaints()
            killed_at = time.time_ns() // 1000
            subject, at_kill, totals = _look(rig, name)
        rig.finish()
        report = rig.assert_sound()
        row = next(row for row in rig.deliveries() if row["key"] == subject)
        starts = [a["started_at"] - killed_at for a in rig.attempts(row["seq"])]
        again = [start for start in starts if start > 0]
        return Story(
            name,
            subject.rpartition("-")[0],
            row["handler"] == "webhook",
            at_kill,
            _standing(rig, row),
            min(again) // 1000 if again else None,
            totals,
            report.summary(),
        )


def _look(rig: Rig, name: str) -> tuple[str, Standing, dict[str, int]]:
    """The ledger and the receiver's log as the kill left them: whom it hit, how that stands, and all by disposition."""
    rows = rig.deliveries()
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["disposition"]] = totals.get(row["disposition"], 0) + 1
    if not rows:
        return "ok-0", Standing("absent", 0, 0, (), ()), totals
    lost = [row for row in rows if any(a["category"] == "worker_lost" for a in rig.attempts(row["seq"]))]
    leased = sorted((row for row in rows if row["disposition"] == "leased"), key=lambda row: row["started_at"])
    touched = [row for row in rows if row["fence"] > 0]
    ended = [row for row in touched if row["disposition"] != "leased"] if name == "close.after_commit" else []
    hit = (ended or lost or leased or touched or rows)[0]
    return hit["key"], _standing(rig, hit), totals


def _standing(rig: Rig, row: dict[str, Any]) -> Standing:
    attempts = tuple((a["number"], a["outcome"], a["category"]) for a in rig.attempts(row["seq"]))
    if row["handler"] == "webhook":
        seen = [(seen["attempt"], str(seen["answer"])) for seen in rig.requests() if seen["delivery"] == row["name"]]
    else:
        seen = [(step["attempt"], step["step"]) for step in rig.effects() if step["delivery"] == row["name"]]
    return Standing(row["disposition"], row["attempt"], row["fence"], attempts, tuple(seen))


def tell_all(folder: Path) -> dict[str, Story | BaseException]:
    """Every failpoint once, a few at a time: most of a run is waiting for a lease to end."""
    prefixes = {name: f"/{name}" for name in NAMES}

    def told(name: str) -> Story | BaseException:
        try:
            return tell(name, folder / name, process, prefixes[name])
        except BaseException as exc:
            return exc

    with receiver(folder / "receiver", list(prefixes.values())) as process, ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(NAMES, pool.map(told, NAMES), strict=True))
