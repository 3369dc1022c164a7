"""What the command-line tests share: a folder with an application, ways to run the command, a receiver."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from redrive.cli.main import app

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOCAL = 'allow_http = true\nallowed_private = ["127.0.0.0/8"]\nallowed_ports = [{port}]\n'
APP = """
import os, signal, time
from redrive import NoOp, Permanent, Policy, Redrive, Retry

app = Redrive(worker=__import__("redrive.worker.settings", fromlist=["x"]).WorkerSettings(lease_s=1.0, reap_s=0.05))
QUICK = Policy(max_attempts=3, base=1000, cap=10000)


@app.handler("work", policy=QUICK)
async def work(ctx, payload):
    if payload == "retry":
        raise Retry
    if payload == "permanent":
        raise Permanent("policy")
    if payload == "no_op":
        raise NoOp


@app.handler("die", policy=QUICK)
def die(ctx, payload):
    os.kill(os.getpid(), signal.SIGKILL)


@app.handler("hang", policy=QUICK)
def hang(ctx, payload):
    with open("hanging", "a") as file:
        file.write(f"{os.getpid()}\\n")
    time.sleep(payload)
"""


@dataclass(frozen=True)
class Ran:
    """What one run of the command did."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """stdout as one document; raises if it is anything else."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """stdout as JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """stderr as the one error document of the JSON modes."""
        return json.loads(self.err)["error"]


def run(*arguments: str, stdin: bytes | str | None = None, env: dict[str, str] | None = None) -> Ran:
    """In this process. What the command did not handle is raised here."""
    result = CliRunner().invoke(app, list(arguments), input=stdin, env=env or {}, catch_exceptions=False)
    assert "Traceback" not in result.stderr
    return Ran(result.exit_code, result.stdout, result.stderr)


def ok(*arguments: str, **more: Any) -> Ran:
    """As :func:`run`; it must succeed."""
    ran = run(*arguments, **more)
    assert ran.code == 0, ran
    return ran


def environment(**extra: str) -> dict[str, str]:
    """A child's environment: this process's packages, and no setting that happens to be here."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REDRIVE_")}
    source = str(Path(sys.modules["redrive"].__file__ or "").parents[1])
    return {**clean, "PYTHONPATH": source, **extra}


def command(*arguments: str) -> list[str]:
    """The command line of a real process."""
    return [sys.executable, "-P", "-m", "redrive", *arguments]


def spawn(*arguments: str, cwd: Path, **extra: str) -> subprocess.Popen[str]:
    """A real process, its output in pipes."""
    return subprocess.Popen(
        command(*arguments),
        cwd=cwd,
        env=environment(**extra),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str], timeout_s: float = 20) -> Ran:
    """Wait for a process and take its output; kill it if it does not end."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    assert "Traceback" not in err, err
    return Ran(process.returncode, out, err)


def call(*arguments: str, cwd: Path, **extra: str) -> Ran:
    """Run a real process to its end."""
    return finished(spawn(*arguments, cwd=cwd, **extra))


def until(condition: Callable[[], Any], timeout_s: float = 15) -> Any:
    """What ``condition`` returns once it is true."""
    end = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.02)
    return found


def children(pid: int) -> list[int]:
    """The living children of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[1]) == pid and fields[0] != "Z":
                    found.append(int(entry.name))
    return sorted(found)


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@dataclass
class Receiver:
    """Answers every path as ``answers`` says, 200 otherwise, and keeps what it saw."""

    port: int = 0
    answers: dict[str, int] = field(default_factory=dict)
    seen: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def url(self, path: str) -> str:
        """The address of a path."""
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def receiver() -> Iterator[Receiver]:
    """A real HTTP server on the loopback."""
    state = Receiver()

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            state.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
            self.send_response(state.answers.get(self.path, 200))
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.port = server.server_port
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write(folder: Path, files: Sequence[tuple[str, str]]) -> None:
    """Files of a test's folder."""
    for name, text in files:
        (folder / name).write_text(text)
