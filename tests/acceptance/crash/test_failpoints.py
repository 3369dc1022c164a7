"""SIGKILL at every failpoint: the contract holds, the three logs agree, and the crash atlas says what happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from tests.acceptance.crash.atlas import PAGE, WHERE, render, structure
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig, NewLedger, databases
from tests.acceptance.crash.rig import KILLED, Rig, receiver
from tests.acceptance.crash.scenario import Scenario
from tests.acceptance.crash.story import JOB, RUNS, WEBHOOK, Stories, Story, tell_all

from redrive.failpoint import NAMES
from redrive.testing.receiver import Receiver

MOST_PASSES = 200
SENT = (("0.1", "200"),)
CALLED = (("0.1", "start"),)
DONE = (*CALLED, ("0.1", "effect"))
LOST = ((1, "unknown", "worker_lost"),)
AT_KILL = {
    "enqueue.before_commit": ("absent", 0, (), ()),
    "enqueue.after_commit": ("waiting", 0, (), ()),
    "reserve.before_commit": ("waiting", 0, (), ()),
    "reserve.after_commit": ("leased", 1, (), ()),
    "execute.before": ("leased", 1, (), ()),
    "connect.before": ("leased", 1, (), ()),
    "send.before": ("leased", 1, (), ()),
    "send.after": ("leased", 1, (), SENT),
    "receive.head": ("leased", 1, (), SENT),
    "execute.after": ("leased", 1, (), SENT),
    "close.before_commit": ("leased", 1, (), SENT),
    "close.after_commit": ("delivered", 1, ((1, "delivered", "ok"),), SENT),
    "close_in.before_commit": ("leased", 1, (), CALLED),
    "extend.before_commit": ("leased", 1, (), CALLED),
    "reap.before_commit": ("leased", 1, (), ()),
    "reap.after_commit": ("waiting", 1, LOST, ()),
}
"""What a kill leaves: disposition, attempts charged, attempts closed, and what the outside has seen."""


@pytest.fixture(scope="module")
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Stories]:
    """Every run on a ledger; each ledger's are made once."""

    @cache
    def tell(ledger: str) -> Stories:
        folder = tmp_path_factory.mktemp(f"failpoints-{ledger}")
        if ledger == "sqlite":
            return tell_all(folder)
        with databases(request.getfixturevalue("postgres")) as new:
            return tell_all(folder, new)

    return tell


@pytest.fixture(params=["sqlite", "postgres"])
def stories(request: pytest.FixtureRequest, told: Callable[[str], Stories]) -> Stories:
    return told(request.param)


def _story(stories: Stories, name: str, kind: str) -> Story:
    story = stories[name, kind]
    if isinstance(story, BaseException):
        raise story
    return story


def test_every_failpoint_has_its_place_and_its_expectation() -> None:
    assert tuple(WHERE) == tuple(AT_KILL) == NAMES
    assert {name for name, _ in RUNS} == set(NAMES)
    assert {kind for _, kind in RUNS} == {WEBHOOK, JOB}


@pytest.mark.parametrize(("name", "kind"), RUNS)
def test_killed_once_everything_is_delivered_and_every_log_agrees(stories: Stories, name: str, kind: str) -> None:
    story = _story(stories, name, kind)  # raises what the run raised: it asserts the kill, the checker and verify
    standing = story.at_kill
    disposition, attempt, attempts, seen = AT_KILL[name]
    expected = DONE if seen == SENT and kind == JOB else seen
    assert (standing.disposition, standing.attempt, standing.attempts) == (disposition, attempt, attempts)
    assert standing.seen == expected
    assert story.at_end.disposition == "delivered"
    charged = [attempt for attempt in story.at_end.attempts if attempt[2] == "worker_lost"]
    lost = standing.disposition == "leased" or name == "reap.after_commit"
    assert bool(charged) == lost
    if standing.seen in (SENT, DONE) and standing.disposition == "leased":
        assert story.summary["duplicates_explained"] >= 1
    # The one that is refused for good, and the job that is.
    assert story.summary["dead"] == 2


def test_the_crash_atlas_tells_what_these_runs_showed(told: Callable[[str], Stories]) -> None:
    on_sqlite, on_postgres = ({run: _story(told(ledger), *run) for run in RUNS} for ledger in ("sqlite", "postgres"))
    written = PAGE.read_text(encoding="utf-8")
    again = structure(render(on_sqlite, on_postgres))
    assert structure(written) == again, "write it again: python -m tests.acceptance.crash.atlas"


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
@pytest.mark.parametrize("action", ["exit", "stop"])
def test_other_ways_to_die(make_rig: MakeRig, action: str) -> None:
    rig = make_rig()
    rig.produce()
    worker = rig.start("work", f"send.after:2:{action}")
    if action == "exit":
        assert worker.wait() == 97
    else:
        worker.until_stopped()
        worker.end()
    rig.finish()
    rig.assert_sound()


@pytest.fixture
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    prefixes = [f"/{name}/{n}" for name in NAMES for n in range(1, MOST_PASSES + 1)]
    with receiver(tmp_path_factory.mktemp("crowd"), prefixes) as process:
        yield process


def _kill_at(name: str, n: int, folder: Path, process: Receiver, ledger: str) -> bool:
    """Whether the process passed the failpoint ``n`` times, and so was killed. The contract holds either way."""
    with Rig(folder / str(n), process, Scenario(process.port, f"/{name}/{n}", ledger=ledger)) as rig:
        if name.startswith("enqueue."):
            status = rig.run("produce", f"{name}:{n}")
            rig.produce()
        else:
            rig.produce()
            if name.startswith("reap."):
                assert rig.run("work", "execute.before:6") == KILLED, rig.complaints()
            status = rig.run("work", f"{name}:{n}")
        assert status in (0, KILLED), rig.complaints()
        rig.finish()
        rig.assert_sound()
        return status == KILLED


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_killed_at_each_passage_until_nothing_fires(
    tmp_path: Path, crowd: Receiver, place: NewLedger, name: str
) -> None:
    killed = 0
    with ThreadPoolExecutor(4) as pool:
        for first in range(1, MOST_PASSES, 4):
            fired = list(pool.map(lambda n: _kill_at(name, n, tmp_path, crowd, place()), range(first, first + 4)))
            killed += sum(fired)
            if not all(fired):
                break
        else:
            pytest.fail(f"{name} was passed {MOST_PASSES} times and more")
    assert killed >= 1
