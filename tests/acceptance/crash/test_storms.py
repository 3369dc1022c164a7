"""Workers on one file that are killed, stopped and told to stop at random moments, by a seed."""

from __future__ import annotations

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.acceptance.crash.conftest import POSTGRES_IN_FULL, MakeRig, NewLedger
from tests.acceptance.crash.rig import Process, Rig, receiver
from tests.acceptance.crash.scenario import Scenario

from redrive.testing.receiver import Receiver

WORKERS = 2
SEEDS, SEEDS_S, FEWEST = 200, 180.0, 40
SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM)


def storm(rig: Rig, chance: random.Random, signals: int, longest_s: float) -> None:
    """Signals at random moments; whoever is hit is replaced, whoever is stopped goes on later."""
    workers = [rig.start("serve") for _ in range(WORKERS)]
    stopped: list[Process] = []
    for _ in range(signals):
        time.sleep(chance.uniform(0.02, longest_s))
        place = chance.randrange(WORKERS)
        number = chance.choice(SIGNALS)
        workers[place].signal(number)
        if number == signal.SIGSTOP:
            stopped.append(workers[place])
        workers[place] = rig.start("serve")
        if stopped and chance.random() < 0.5:
            stopped.pop(0).signal(signal.SIGCONT)
    for worker in stopped:
        worker.signal(signal.SIGCONT)
    for worker in workers + stopped:
        worker.signal(signal.SIGTERM)
    for worker in workers + stopped:
        worker.wait()


@pytest.mark.parametrize("place", POSTGRES_IN_FULL, indirect=True)
def test_two_workers_three_hundred_deliveries_and_random_kills(make_rig: MakeRig) -> None:
    seed = 20260821
    rig = make_rig(
        events={"ok": 110, "flaky": 50}, jobs={"plain": 60, "sync": 60, "ledgered": 20}, max_attempts=20, slots=20
    )
    producer = rig.start("produce")  # while the workers work
    storm(rig, random.Random(seed), signals=8, longest_s=0.7)
    assert producer.wait() == 0, rig.complaints()
    rig.finish()
    report = rig.assert_sound()
    assert report.counts["deliveries"] == report.counts["acknowledged"] == 300
    assert report.counts["delivered"] == 300
    assert len(rig.rows("SELECT DISTINCT delivery FROM effect")) == len(rig.rows("SELECT * FROM effect")) == 20


def _seeded(seed: int, folder: Path, process: Receiver, ledger: str) -> str | None:
    """What went wrong under this seed, or None."""
    chance = random.Random(seed)
    scenario = Scenario(
        process.port,
        f"/{seed}",
        slots=chance.choice((1, 3, 32)),
        threads=chance.choice((1, 8)),
        max_attempts=20,
        ledger=ledger,
    )
    try:
        with Rig(folder / str(seed), process, scenario) as rig:
            rig.produce()
            storm(rig, chance, signals=chance.randint(1, 6), longest_s=chance.choice((0.2, 0.5, 0.9)))
            rig.finish()
            rig.assert_sound()
    except Exception as exc:
        return f"seed {seed}: {exc}"
    return None


@pytest.mark.full
def test_two_hundred_storms(tmp_path: Path, place: NewLedger) -> None:
    end = time.monotonic() + SEEDS_S
    done = 0

    def one(seed: int) -> str | None:
        nonlocal done
        if time.monotonic() > end:
            return None
        done += 1
        return _seeded(seed, tmp_path, process, place())

    prefixes = [f"/{seed}" for seed in range(SEEDS)]
    with receiver(tmp_path / "receiver", prefixes) as process, ThreadPoolExecutor(3) as pool:
        wrong = [text for text in pool.map(one, range(SEEDS)) if text is not None]
    assert not wrong, "\n".join(wrong)
    assert done >= FEWEST, f"only {done} storms in {SEEDS_S} s"
