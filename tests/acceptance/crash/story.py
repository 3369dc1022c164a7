"""One kill at one failpoint, and what it came to: the run behind a test, and behind a section of the crash atlas."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.acceptance.crash.rig import KILLED, Rig, receiver
from tests.acceptance.crash.scenario import CLOSES_IN, Scenario

from redrive.failpoint import NAMES
from redrive.testing.receiver import Receiver

AT_A_TIME: Final = 3
WEBHOOK, JOB = "webhook", "job"
_JOBS_ONLY: Final = {"close_in.before_commit": CLOSES_IN, "extend.before_commit": "slow"}
"""Failpoints that take a handler of their own, so that nothing else is in their way."""
_WEBHOOKS_ONLY: Final = ("connect.before", "send.before", "send.after", "receive.head")
RUNS: Final = tuple(
    (name, kind)
    for name in NAMES
    for kind in (WEBHOOK, JOB)
    if not (name in _JOBS_ONLY and kind == WEBHOOK) and not (name in _WEBHOOKS_ONLY and kind == JOB)
)
"""Every failpoint with every kind of work that passes it."""


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
    kind: str
    """``webhook`` or ``job``."""
    subject: str
    """What the process was busy with: a destination or a handler."""
    at_kill: Standing
    at_end: Standing
    next_start_ms: int | None
    """When the subject was attempted again; None if it was not."""
    totals_at_kill: dict[str, int]
    summary: dict[str, int]
    """The checker's report at the end."""


def tell(name: str, kind: str, folder: Path, process: Receiver, ledger: str = "") -> Story:
    """Kill at ``name``, first time it is passed, one slot; then finish, check and describe. Asserts the contract.

    Only work of ``kind`` is there when the process dies, so that a run is the same on a slow machine; the rest is
    handed over afterwards.
    """
    whole = Scenario(process.port, prefix(name, kind), ledger=ledger)
    jobs = {_JOBS_ONLY[name]: 1} if name in _JOBS_ONLY else {"plain": 2}
    first = replace(whole, jobs={}) if kind == WEBHOOK else replace(whole, events={}, jobs=jobs)
    with Rig(folder, process, first) as rig:
        if name.startswith("enqueue."):
            assert rig.run("produce", f"{name}:1") == KILLED, rig.complaints()
            killed_at = time.time_ns() // 1000
            subject, at_kill, totals = _look(rig, name, kind)
        else:
            rig.produce()
            if name.startswith("reap."):
                assert rig.run("work", "reserve.after_commit:1", 1) == KILLED, rig.complaints()
            assert rig.run("work", f"{name}:1", 1) == KILLED, rig.complaints()
            killed_at = time.time_ns() // 1000
            subject, at_kill, totals = _look(rig, name, kind)
        whole.save(folder)
        rig.produce()
        rig.finish()
        report = rig.assert_sound()
        row = next(row for row in rig.deliveries() if row["key"] == subject)
        starts = [a["started_at"] - killed_at for a in rig.attempts(row["seq"])]
        again = [start for start in starts if start > 0]
        return Story(
            name,
            kind,
            subject.rpartition("-")[0],
            at_kill,
            _standing(rig, row),
            min(again) // 1000 if again else None,
            totals,
            report.summary(),
        )


def prefix(name: str, kind: str) -> str:
    """Where a run's requests arrive."""
    return f"/{name}/{kind}"


def _look(rig: Rig, name: str, kind: str) -> tuple[str, Standing, dict[str, int]]:
    """The ledger and the receiver's log as the kill left them: whom it hit, how that stands, and all by disposition."""
    rows = rig.deliveries()
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["disposition"]] = totals.get(row["disposition"], 0) + 1
    if not rows:
        return "ok-0" if kind == WEBHOOK else "plain-0", Standing("absent", 0, 0, (), ()), totals
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


Stories = dict[tuple[str, str], Story | BaseException]


def tell_all(folder: Path, new_ledger: Callable[[], str] = str) -> Stories:
    """Every run once, a few at a time: most of a run is waiting for a lease to end. Each has a ledger of its own."""

    def told(run: tuple[str, str]) -> Story | BaseException:
        try:
            return tell(*run, folder / "-".join(run), process, new_ledger())
        except BaseException as exc:
            return exc

    prefixes = [prefix(*run) for run in RUNS]
    with receiver(folder / "receiver", prefixes) as process, ThreadPoolExecutor(AT_A_TIME) as pool:
        return dict(zip(RUNS, pool.map(told, RUNS), strict=True))
