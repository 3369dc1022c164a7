"""The demo: it ends well and quickly, shows what it should, and can fail."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "examples" / "demo" / "run.py"
LINES = (
    "lost",
    "unexplained duplicates",
    "over budget",
    "early",
    "bodies altered",
    "unrecorded requests",
    "false successes",
    "unfinished",
    "bad signatures",
    "redrive verify",
)


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name not in ("FORCE_COLOR", "COLUMNS")}
    return subprocess.run(
        [sys.executable, DEMO, *arguments],
        cwd=ROOT,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@dataclass(frozen=True)
class Demo:
    folder: Path
    output: str
    errors: str
    status: int
    took: float


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Demo:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    begun = time.monotonic()
    done = run("--keep", folder)
    return Demo(folder, done.stdout, done.stderr, done.returncode, time.monotonic() - begun)


@pytest.fixture
def kept(demo: Demo, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(demo.folder, tmp_path / "kept"))


def found(output: str) -> dict[str, int]:
    """The figures of the cross-check."""
    figures = {}
    for name in LINES:
        match = re.search(rf"^ +{name} +(\d+) ", output, re.MULTILINE)
        assert match, f"{name!r} is not in the cross-check"
        figures[name] = int(match[1])
    return figures


def row(output: str, destination: str) -> list[int]:
    match = re.search(rf"^ +{destination}((?: +[\d,]+){{8}}) *$", output, re.MULTILINE)
    assert match, f"no figures for {destination}"
    return [int(figure.replace(",", "")) for figure in match[1].split()]


def test_the_demo_ends_well_in_under_a_minute(demo: Demo) -> None:
    assert (demo.status, demo.errors) == (0, ""), demo.output + demo.errors
    assert demo.took < 60
    assert found(demo.output) == dict.fromkeys(LINES, 0)
    assert "Every promise held." in demo.output


def test_the_table_by_destination_says_what_happened(demo: Demo) -> None:
    accepted, delivered, dead, attempts, retryable, unknown, permanent, requests = row(demo.output, "orders")
    assert (accepted, delivered, dead, retryable, permanent) == (240, 240, 0, 0, 0)
    assert attempts == 240 + unknown
    assert 240 <= requests <= attempts

    accepted, delivered, dead, attempts, retryable, unknown, permanent, requests = row(demo.output, "flaky")
    assert (accepted, delivered + dead, permanent) == (240, 240, 0)
    assert dead > 0
    assert retryable > 0
    assert unknown > 0
    assert requests <= attempts

    # 26 refused by the receiver; 14 violated their schema, and no request was made for them.
    accepted, delivered, dead, _, _, _, permanent, requests = row(demo.output, "broken")
    assert (accepted, delivered, dead) == (40, 0, 40)
    assert permanent == 40
    assert requests >= 26
    assert re.search(r"broken +permanent +payload_invalid +14\b", demo.output)
    assert re.search(r"broken +permanent +http_4xx +26\b", demo.output)
    assert re.search(r"flaky +attempts_exhausted +\w+ +\d+\b", demo.output)


def test_a_worker_was_killed_with_requests_in_flight_and_one_story_shows_it(demo: Demo) -> None:
    killed = re.search(r"Worker \d+ got SIGKILL after \d+ requests, with (\d+) attempts open", demo.output)
    assert killed
    assert int(killed[1]) > 0
    story = demo.output[demo.output.index("from both sides") : demo.output.index("Dead letters")]
    whose = re.findall(r"^ +\+\d+\.\d{3} +(ledger|receiver) ", story, re.MULTILINE)
    assert {"ledger", "receiver"} == set(whose)
    assert "ended unknown: worker_lost" in story
    assert "ended delivered" in story


def test_the_receiver_saw_each_kind_of_trouble(demo: Demo) -> None:
    seen = requests(demo.folder)
    assert {200, 400, 429, 503, "hang"} <= {request["answer"] for request in seen}
    assert len(seen) == sum(row(demo.output, name)[-1] for name in ("orders", "flaky", "broken"))


def test_it_reads_well_without_a_terminal(demo: Demo) -> None:
    assert "\x1b" not in demo.output
    # What is to be copied is never broken into two lines.
    lines = [line for line in demo.output.splitlines() if str(demo.folder) not in line]
    assert max(map(len, lines)) <= 100


@pytest.mark.parametrize(("no_color", "coloured"), [("1", False), ("", True)])
def test_colour_is_for_terminals_that_want_it(demo: Demo, no_color: str, coloured: bool) -> None:
    environ = os.environ | {"NO_COLOR": no_color, "TERM": "xterm-256color"}
    output = on_a_terminal([sys.executable, str(DEMO), "--check", str(demo.folder)], environ)
    assert "Every promise held." in output
    assert bool(re.search(r"\x1b\[[\d;]*3\d", output)) is coloured


def on_a_terminal(command: list[str], environ: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    output = b""
    try:
        process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ)
        os.close(theirs)
        while True:
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux: the other side is closed
                break
            if not data:
                break
            output += data
        assert process.wait(60) == 0, output.decode()
    finally:
        os.close(ours)
    return output.decode()


def test_it_keeps_nothing_unless_told_and_overwrites_nothing(demo: Demo) -> None:
    before = sorted(path.name for path in demo.folder.iterdir())
    done = run("--keep", demo.folder)
    assert done.returncode == 2
    assert "is not empty" in done.stderr
    assert sorted(path.name for path in demo.folder.iterdir()) == before


def test_a_folder_without_a_ledger_is_not_checked(tmp_path: Path) -> None:
    done = run("--check", tmp_path)
    assert done.returncode == 2
    assert not list(tmp_path.iterdir())


def requests(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "receiver.jsonl").read_text().splitlines()]


Requests = list[dict[str, Any]]


def plain(seen: Requests) -> dict[str, Any]:
    """The only request of a delivery, answered 200."""
    return next(
        request
        for request in seen
        if request["answer"] == 200 and sum(other["delivery"] == request["delivery"] for other in seen) == 1
    )


def lose_a_success(seen: Requests) -> None:
    seen.remove(plain(seen))


def deliver_twice(seen: Requests) -> None:
    request = plain(seen)
    seen.append({**request, "at_us": request["at_us"] + 1000, "n": 2})


def come_before_the_reservation(seen: Requests) -> None:
    plain(seen)["at_us"] -= 60_000_000


def invent_an_attempt(seen: Requests) -> None:
    request = plain(seen)
    other = next(item for item in seen if item["delivery"] != request["delivery"])
    seen.append({**request, "attempt": "0.2", "attempt_id": other["attempt_id"], "answer": 503, "effect": False})


def alter_a_body(seen: Requests) -> None:
    plain(seen)["body_sha256"] = "0" * 64


def spoil_a_signature(seen: Requests) -> None:
    plain(seen)["signature"] = "bad"


def meet_a_stranger(seen: Requests) -> None:
    seen.append({**plain(seen), "delivery": "dlv_" + "0" * 26})


@pytest.mark.parametrize(
    ("tamper", "line"),
    [
        (lose_a_success, "false successes"),
        (deliver_twice, "unexplained duplicates"),
        (come_before_the_reservation, "unrecorded requests"),
        (invent_an_attempt, "unrecorded requests"),
        (alter_a_body, "bodies altered"),
        (spoil_a_signature, "bad signatures"),
        (meet_a_stranger, "lost"),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_a_tampered_receiver_log_fails_the_check(kept: Path, tamper: Callable[[Requests], None], line: str) -> None:
    seen = requests(kept)
    tamper(seen)
    (kept / "receiver.jsonl").write_text("".join(json.dumps(request) + "\n" for request in seen))
    done = run("--check", kept)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found(done.stdout)[line] > 0
    assert "A promise was broken." in done.stdout


def test_a_delivery_that_was_acknowledged_and_is_not_there_fails_the_check(kept: Path) -> None:
    line = {"kind": "acknowledged", "deliveries": ["dlv_" + "0" * 26], "event": None, "body_sha256": None}
    with (kept / "producer.jsonl").open("a") as log:
        log.write(json.dumps(line) + "\n")
    done = run("--check", kept)
    assert done.returncode == 1
    assert found(done.stdout)["lost"] > 0


def test_the_untouched_copy_passes_the_check(kept: Path) -> None:
    done = run("--check", kept)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(autouse=True)
def _nothing_is_left_running(demo: Demo) -> Iterator[None]:
    yield
    mine = str(demo.folder)
    left = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                arguments = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if mine in arguments:
                left.append(arguments.replace("\0", " "))
    assert left == []
