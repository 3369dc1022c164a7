"""``up`` and ``worker`` as real processes: signals, supervision, crashes, orphans, logs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.acceptance.cli_rig import (
    APP,
    alive,
    call,
    children,
    command,
    environment,
    finished,
    spawn,
    until,
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    (tmp_path / "redrive.toml").write_text('app = "shop:app"\n')
    assert call("init", "-q", cwd=tmp_path).code == 0
    return tmp_path


@pytest.fixture
def running(folder: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are killed at the end, whatever happened."""
    found: list[subprocess.Popen[str]] = []
    yield found
    for process in found:
        if process.poll() is None:
            pids = children(process.pid)
            process.kill()
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        process.communicate()


def enqueue(folder: Path, handler: str, payload: str, key: str) -> None:
    assert call("enqueue", handler, payload, "--key", key, "-q", cwd=folder).code == 0


def counts(folder: Path) -> dict[str, int]:
    import json

    shown = json.loads(call("status", "-o", "json", cwd=folder).out)
    return {word: count["count"] for word, count in shown["dispositions"].items()}


def clean(folder: Path) -> bool:
    return call("verify", cwd=folder).code == 0


def test_up_says_in_one_line_what_it_does(folder: Path) -> None:
    enqueue(folder, "work", "1", "a")
    ran = call("up", "--until-idle", "--slots", "7", cwd=folder)
    assert (ran.code, ran.out) == (0, "")
    first, counted, last = ran.err.splitlines()
    assert first == (
        "redrive up: sqlite:///redrive.db (development), handlers die, hang, work, webhook, 0 destinations, 7 slots, "
        "lease 1 s; Ctrl-C drains"
    )
    assert re.fullmatch(r"\d\d:\d\d:\d\dZ 1 attempt ended: 1 delivered", counted)
    assert last == "nothing is left to do"
    assert call("up", "--until-idle", "-q", cwd=folder).err == ""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_first_signal_drains(folder: Path, running: list[subprocess.Popen[str]], number: signal.Signals) -> None:
    enqueue(folder, "hang", "1", "a")
    process = spawn("worker", cwd=folder)
    running.append(process)
    until(lambda: (folder / "hanging").exists())
    process.send_signal(number)
    ran = finished(process)
    assert (ran.code, ran.err.splitlines()[-1]) == (0, "drained and stopped")
    assert counts(folder)["delivered"] == 1
    assert clean(folder)


def test_the_second_signal_stops_at_once(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    enqueue(folder, "hang", "30", "a")
    process = spawn("worker", "-v", cwd=folder)
    running.append(process)
    until(lambda: (folder / "hanging").exists())
    process.terminate()
    assert process.stderr is not None
    while "draining" not in process.stderr.readline():
        pass
    process.terminate()
    assert process.wait(5) == 130
    assert counts(folder)["leased"] == 1
    assert clean(folder)


# --processes


def pids_of(folder: Path) -> set[int]:
    path = folder / "hanging"
    return set(map(int, path.read_text().split())) if path.exists() else set()


def test_processes_share_the_work_and_end_when_idle(folder: Path) -> None:
    for number in range(4):
        enqueue(folder, "hang", "0.5", str(number))
    ran = call("worker", "--processes", "2", "--slots", "1", "--until-idle", cwd=folder)
    assert ran.code == 0
    assert ran.err.startswith("redrive worker: 2 processes, each: sqlite:///redrive.db")
    assert len(pids_of(folder)) == 2
    assert counts(folder)["delivered"] == 4


def test_a_signal_drains_every_child(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    for number in range(2):
        enqueue(folder, "hang", "1.5", str(number))
    process = spawn("worker", "--processes", "2", "--slots", "1", cwd=folder)
    running.append(process)
    until(lambda: len(pids_of(folder)) == 2)
    pids = children(process.pid)
    assert set(pids) == pids_of(folder)
    process.send_signal(signal.SIGINT)
    ran = finished(process)
    assert ran.code == 0
    assert "SIGINT: 2 workers drain; a second signal kills them" in ran.err
    assert not any(map(alive, pids))
    assert counts(folder)["delivered"] == 2
    assert clean(folder)


def test_a_second_signal_kills_every_child(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    for number in range(2):
        enqueue(folder, "hang", "60", str(number))
    process = spawn("worker", "--processes", "2", "--slots", "1", "--drain", "60s", cwd=folder)
    running.append(process)
    until(lambda: len(pids_of(folder)) == 2)
    pids = children(process.pid)
    process.terminate()
    assert process.stderr is not None
    while "drain; a second signal" not in process.stderr.readline():
        pass
    begun = time.monotonic()
    process.terminate()
    assert process.wait(5) == 130
    assert time.monotonic() - begun < 5
    assert not any(map(alive, pids))
    assert counts(folder)["leased"] == 2
    assert clean(folder)


def test_a_child_that_dies_is_replaced(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    process = spawn("worker", "--processes", "2", cwd=folder)
    running.append(process)
    first = until(lambda: len(found := children(process.pid)) == 2 and found)
    os.kill(first[0], signal.SIGKILL)
    until(lambda: len(found := children(process.pid)) == 2 and first[0] not in found)
    process.terminate()
    ran = finished(process)
    assert ran.code == 0
    assert f"(pid {first[0]}) was ended by SIGKILL; starting it again in 0.5 s" in ran.err


def test_a_poison_job_kills_its_worker_exactly_as_often_as_its_budget(folder: Path) -> None:
    """O-01: every start is charged before user code runs; the third death is a dead letter, and no fourth start."""
    enqueue(folder, "die", "null", "a")
    enqueue(folder, "work", "1", "b")
    timing = ("--slots", "1", "--lease", "500ms", "--reap", "50ms")
    ran = call("worker", "--processes", "2", "--until-idle", *timing, cwd=folder)
    assert ran.code == 0
    assert ran.err.count("was ended by SIGKILL") == 3
    pauses = sorted(float(line.split()[-2]) for line in ran.err.splitlines() if "starting it again" in line)
    assert pauses in ([0.5, 0.5, 1.0], [0.5, 1.0, 2.0])
    assert (counts(folder)["dead"], counts(folder)["delivered"]) == (1, 1)
    assert "worker_lost" in call("dead", "count", cwd=folder).out
    assert clean(folder)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_no_orphans_when_the_supervisor_is_killed(
    folder: Path, running: list[subprocess.Popen[str]], how: signal.Signals
) -> None:
    process = spawn("worker", "--processes", "2", cwd=folder)
    running.append(process)
    pids = until(lambda: len(found := children(process.pid)) == 2 and found)
    if how is signal.SIGSTOP:
        process.send_signal(how)
        time.sleep(0.2)
        assert all(map(alive, pids))
    process.kill()
    process.wait(5)
    until(lambda: not any(map(alive, pids)), 10)


def test_a_child_that_can_never_start_stops_all(folder: Path) -> None:
    """The application works for the supervisor and not for its children: said once, and no restart loop."""
    (folder / "shop.py").write_text(
        "import sys\nif '--parent-pipe' in sys.argv:\n    raise RuntimeError\n"
        "from redrive import Redrive\napp = Redrive()\n"
    )
    ran = call("worker", "--processes", "2", cwd=folder)
    assert ran.code == 2
    assert "could not start; stopping all" in ran.err
    assert "starting it again" not in ran.err


def test_wrong_settings_are_said_once_before_any_child(folder: Path) -> None:
    ran = call("worker", "--processes", "2", "--environment", "prod", cwd=folder)
    assert (ran.code, ran.out) == (2, "")  # the application says development
    assert ran.err.count("error: ") == 1
    (folder / "redrive.db").unlink()
    gone = call("worker", "--processes", "2", cwd=folder)
    assert (gone.code, gone.err.count("error: ")) == (1, 1)


def test_children_get_the_same_settings(folder: Path) -> None:
    from redrive.cli.session import Session
    from redrive.cli.work import child_arguments

    flags = {"slots": "3", "allow_http": False, "allowed_ports": ["443", "8080"], "processes": "4", "ledger": None}
    session = Session(flags, config="c.toml", profile="p", verbosity=1)
    assert child_arguments(session, True) == [
        *command("worker", "--processes", "1", "--slots", "3", "--no-allow-http"),
        *("--allowed-ports", "443", "--allowed-ports", "8080", "--config", "c.toml", "--profile", "p"),
        *("--until-idle", "-v"),
    ]


SUPERVISED = """
import sys
from redrive.worker.processes import Supervisor

def command(fd):
    return [sys.executable, "-c", sys.argv[1]]

sys.exit(Supervisor(command, 2, drain_s=0.1, linger_s=0.1, first_pause_s=0.01, report=print).run())
"""


def supervised(folder: Path, child: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", "-c", SUPERVISED, child],
        cwd=folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_child_that_does_not_drain_is_killed_in_the_end(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); open('up', 'a').write('x'); time.sleep(60)"
    process = supervised(folder, stubborn)
    running.append(process)
    until(lambda: (folder / "up").exists() and (folder / "up").read_text() == "xx")
    process.terminate()
    ran = finished(process)
    assert ran.code == 128 + signal.SIGKILL
    assert "outlived its drain" in ran.out


def test_the_worst_status_counts(folder: Path, running: list[subprocess.Popen[str]]) -> None:
    """Both drain, and one of them ends badly."""
    child = (
        "import os, signal, sys, time; fd = os.open('first', os.O_CREAT | os.O_WRONLY | os.O_APPEND); "
        "os.write(fd, b'x'); code = 7 if os.fstat(fd).st_size == 2 else 0; "
        "signal.signal(15, lambda *a: sys.exit(code)); open('ready', 'a').write('x'); time.sleep(60)"
    )
    process = supervised(folder, child)
    running.append(process)
    until(lambda: (folder / "ready").exists() and (folder / "ready").read_text() == "xx")
    process.terminate()
    assert finished(process).code == 7


# A person at a terminal.


def at_terminal(
    folder: Path, *arguments: str, typed: str, wait_for: str, ready: Callable[[int], bool] = lambda pid: True
) -> tuple[int, str]:
    """Run on a pseudo-terminal of its own; once ``wait_for`` was printed and the process is ``ready``, type."""
    main, side = pty.openpty()
    env = environment(TERM="xterm-256color", COLUMNS="100", NO_COLOR="")
    process = subprocess.Popen(
        command(*arguments),
        cwd=folder,
        env=env,
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(side)
    shown, end = "", time.monotonic() + 20
    sent = False
    while time.monotonic() < end:
        if not sent and wait_for in shown and ready(process.pid):
            os.write(main, typed.encode())
            sent = True
        if select.select([main], [], [], 0.05)[0]:
            try:
                piece = os.read(main, 65536)
            except OSError:
                break
            shown += piece.decode()
        elif process.poll() is not None:
            break
    if process.poll() is None and time.monotonic() >= end:
        process.kill()
    code = process.wait(5)
    os.close(main)
    return code, shown


@pytest.mark.parametrize(("typed", "code", "enabled"), [("n\n", 3, True), ("\n", 3, True), ("y\n", 0, False)])
def test_a_terminal_is_asked(folder: Path, typed: str, code: int, enabled: bool) -> None:
    assert call("destination", "add", "orders", "https://example.com/", "-q", cwd=folder).code == 0
    arguments = ("destination", "disable", "orders", "--reason", "x")
    got, shown = at_terminal(folder, *arguments, typed=typed, wait_for="[y/N]")
    assert (got, "disable orders and hold everything" in shown) == (code, True)
    assert ('"enabled": true' in call("destination", "show", "orders", "-o", "json", cwd=folder).out) is enabled


def test_ctrl_c_at_a_terminal_drains_the_children_once(folder: Path) -> None:
    code, shown = at_terminal(
        folder,
        *("worker", "--processes", "2"),
        typed="\x03",
        wait_for="2 processes",
        ready=lambda pid: len(children(pid)) == 2,
    )
    assert (code, "Traceback" in shown, "second signal:" in shown) == (0, False, False)


def test_a_terminal_gets_icons_and_colour_unless_it_says_no(folder: Path) -> None:
    enqueue(folder, "work", '"permanent"', "a")
    assert call("up", "--until-idle", "-q", cwd=folder).code == 0
    _, shown = at_terminal(folder, "delivery", "list", typed="", wait_for="never")
    assert "✗ dead" in shown
    assert "\x1b[31m" in shown
    env = environment(NO_COLOR="1")
    done = subprocess.run(
        [sys.executable, "-c", "import pty, sys; sys.exit(pty.spawn(sys.argv[1:]) >> 8)", *command("delivery", "list")],
        cwd=folder,
        env={**env, "TERM": "xterm-256color"},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=20,
    )
    assert "✗ dead" in done.stdout
    assert "\x1b[31m" not in done.stdout


def test_the_log_is_on_stderr_and_asked_for(folder: Path) -> None:
    enqueue(folder, "work", '"retry"', "a")
    quiet = call("up", "--until-idle", cwd=folder)
    loud = call("up", "--until-idle", "-vv", cwd=folder)
    assert (quiet.out, loud.out) == ("", "")
    assert " redrive." not in quiet.err
