"""An oracle receiver: it writes down what it saw, durably, before it answers, and answers by a script.

Run it as a process of its own, so that killing a worker cannot harm its evidence::

    python -m redrive.testing.receiver --log seen.jsonl --script script.json --port-file port

or from Python, as a context manager::

    with Receiver(folder, script={"/flaky": {"answers": [{"status": 503}, {"status": 200}]}}) as receiver:
        receiver.url("/flaky")
        receiver.requests()

**Script.** JSON: a request target (``/flaky``, or ``*`` for every other one) to ``{"answers": [...]}`` or
``{"share": {"0.3": [...], "default": [...]}}``. Answers are taken by how many requests the delivery has made to that
target, and the last one repeats. A share gives that part of all deliveries, chosen by a hash of the delivery ID, its
own answers. What no script names gets 200. An answer is one of

- ``{"status": 503, "headers": {"Retry-After": "1"}, "delay_s": 0.1, "body": "text"}``: a response (all but
  ``status`` are optional);
- ``{"hang_s": 5}``: nothing for that long, then the connection is closed; ``{"close": true}``: closed at once;
  ``{"rst": true}``: reset.

and may say ``"effect": true``: the receiver acted on the request whatever the sender gets to see. Without it, a 2xx
status is an effect and nothing else is.

**Log.** One JSON object a line, :class:`Seen`; it is on disk (fsync, shared by the requests that arrive meanwhile)
before the first byte of the answer leaves. A receiver that is started again on the same log goes on counting.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Literal, Self, TypedDict

from redrive.testing.script import Answer, Plan, Script
from redrive.testing.wire import Connection
from redrive.webhooks.signing import SignatureInvalid, verify

START_S: Final = 10.0
STOP_S: Final = 10.0


class Seen(TypedDict):
    """One request, as the receiver saw it. Nothing in it comes from the ledger."""

    at_us: int
    """Unix microseconds at which its first byte was read."""
    path: str
    delivery: str
    """``webhook-id``."""
    event: str
    event_type: str
    attempt: str
    """``generation.number``."""
    attempt_id: str
    body_sha256: str
    bytes: int
    signature: Literal["ok", "missing", "bad", "unchecked"]
    """``unchecked``: there is a signature, and this receiver was given no secret."""
    answer: int | Literal["hang", "rst", "close"]
    effect: bool
    """The receiver acted on it."""
    n: int
    """How many requests this delivery has made to this path, this one included."""


class Log:
    """Appends lines; each is fsynced before its callback runs. One fsync serves all that wait for it."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self._waiting: list[tuple[bytes, Callable[[], None]]] = []
        self._task: asyncio.Task[None] | None = None

    def append(self, line: bytes, done: Callable[[], None]) -> None:
        """Queue a line. Call from the event loop only."""
        self._waiting.append((line, done))
        if self._task is None:
            self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                await asyncio.to_thread(self._sync, b"".join(line for line, _ in batch))
                for _, done in batch:
                    done()
        except OSError as exc:
            # Evidence that cannot be kept must not be answered for.
            print(f"receiver: the log cannot be written: {exc}", file=sys.stderr, flush=True)
            os._exit(1)
        finally:
            self._task = None

    def _sync(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._file.write(view) :]
        os.fsync(self._file.fileno())

    async def close(self) -> None:
        while self._task is not None:
            await self._task
        self._file.close()


class Oracle:
    """What all connections share: the plan, the log, the counts, the secrets."""

    def __init__(self, plan: Plan, log: Log, counts: Counter[tuple[str, str]], secrets: Sequence[str]) -> None:
        self._plan = plan
        self._log = log
        self._counts = counts
        self._secrets = secrets

    def receive(
        self, at_us: int, path: str, headers: Mapping[str, str], body: bytes, reply: Callable[[Answer], None]
    ) -> None:
        """Record one request, then have it answered."""
        delivery = headers.get("webhook-id", "")
        self._counts[path, delivery] += 1
        n = self._counts[path, delivery]
        answer = self._plan.answer(path, delivery, n)
        status = answer.get("status")
        kind: Any = status or ("hang" if "hang_s" in answer else "rst" if "rst" in answer else "close")
        seen = Seen(
            at_us=at_us,
            path=path,
            delivery=delivery,
            event=headers.get("redrive-event-id", ""),
            event_type=headers.get("redrive-event-type", ""),
            attempt=headers.get("redrive-attempt", ""),
            attempt_id=headers.get("redrive-attempt-id", ""),
            body_sha256=hashlib.sha256(body).hexdigest(),
            bytes=len(body),
            signature=self._signature(headers, body),
            answer=kind,
            effect=bool(answer.get("effect", status is not None and status < 300)),
            n=n,
        )
        line = json.dumps(seen, separators=(",", ":")).encode() + b"\n"
        self._log.append(line, lambda: reply(answer))

    def _signature(self, headers: Mapping[str, str], body: bytes) -> Literal["ok", "missing", "bad", "unchecked"]:
        if "webhook-signature" not in headers:
            return "missing"
        if not self._secrets:
            return "unchecked"
        try:
            verify(self._secrets, headers, body, now=time.time())
        except SignatureInvalid:
            return "bad"
        return "ok"


def read_log(path: Path) -> list[Seen]:
    """The whole lines of a log. A last line that a killed receiver did not finish was never answered."""
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


class Receiver:
    """The receiver as a process, for tests and demos. Stops by its PID, and by itself if this process dies.

    ``secrets`` are ``whsec_`` secrets or ``whpk_`` keys; they reach the process in its environment. ``script`` is as
    on this page. ``port`` 0 takes a free one.
    """

    def __init__(
        self,
        folder: Path | str | None = None,
        *,
        script: Script | None = None,
        secrets: Sequence[str] = (),
        host: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        Plan(script or {})
        self._own = tempfile.TemporaryDirectory(prefix="redrive-receiver-") if folder is None else None
        self.folder = Path(self._own.name if folder is None and self._own is not None else folder or ".")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = self.folder / "receiver.jsonl"
        self.host = host
        self.port = port
        self._script = dict(script or {})
        self._secrets = tuple(secrets)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process, while it runs."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process and wait until it listens. Raises :class:`RuntimeError` if it does not."""
        if self._process is not None:
            raise RuntimeError("the receiver is running")
        script, port_file = self.folder / "script.json", self.folder / "receiver.port"
        script.write_text(json.dumps(self._script))
        port_file.unlink(missing_ok=True)
        names = [f"REDRIVE_RECEIVER_SECRET_{i}" for i in range(len(self._secrets))]
        command = [sys.executable, "-m", "redrive.testing.receiver", "--until-eof", "--host", self.host]
        command += ["--log", str(self.log), "--script", str(script), "--port-file", str(port_file)]
        command += ["--port", str(self.port)]
        for name in names:
            command += ["--secret", f"env:{name}"]
        environ = os.environ | dict(zip(names, self._secrets, strict=True))
        self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            command, env=environ, stdin=subprocess.PIPE
        )
        deadline = time.monotonic() + START_S
        while not port_file.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise RuntimeError("the receiver did not start")
            time.sleep(0.01)
        self.port = int(port_file.read_text())

    def url(self, path: str) -> str:
        """Where to send what is meant for a path of the script."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}{path}"

    def requests(self) -> list[Seen]:
        """Every request so far, in the order of the log."""
        return read_log(self.log)

    def stop(self) -> None:
        """Stop the process; what it answered is in the log."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdin is not None:
            process.stdin.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
        if self._own is not None:
            self._own.cleanup()


async def serve(
    plan: Plan,
    log_path: Path,
    port_file: Path,
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    secrets: Sequence[str] = (),
    until_eof: IO[bytes] | None = None,
) -> None:
    """Listen until SIGTERM or SIGINT, or until ``until_eof`` ends."""
    counts = Counter((seen["path"], seen["delivery"]) for seen in read_log(log_path))
    log = Log(_repaired(log_path))
    oracle = Oracle(plan, log, counts, secrets)
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if until_eof is not None:
        loop.add_reader(until_eof, lambda: None if os.read(until_eof.fileno(), 4096) else stop.set())
    server = await loop.create_server(lambda: Connection(oracle.receive), host, port, backlog=1024)
    temporary = port_file.with_name(port_file.name + ".new")
    temporary.write_text(f"{server.sockets[0].getsockname()[1]}\n")
    temporary.replace(port_file)
    await stop.wait()
    server.close()
    await log.close()


def _repaired(path: Path) -> Path:
    """Cut off an unfinished last line, which would spoil the next one."""
    if path.exists():
        whole = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, whole)
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """The process: see the module's docstring."""
    parser = argparse.ArgumentParser(prog="redrive.testing.receiver", description="record requests, then answer")
    parser.add_argument("--log", type=Path, required=True, help="where to append what was seen, as JSON lines")
    parser.add_argument("--script", type=Path, required=True, help="JSON: what to answer")
    parser.add_argument("--port-file", type=Path, required=True, help="written once it listens")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--secret", action="append", default=[], metavar="env:NAME", help="verify with it; repeatable")
    parser.add_argument("--until-eof", action="store_true", help="stop when standard input ends")
    options = parser.parse_args(arguments)
    secrets = []
    for ref in options.secret:
        value = os.environ.get(ref.removeprefix("env:")) if ref.startswith("env:") else None
        if not value:
            parser.error("--secret takes env:NAME of a variable that is set")
        secrets.append(value)
    try:
        plan = Plan(json.loads(options.script.read_text()))
    except (OSError, ValueError, TypeError, AttributeError) as exc:
        parser.error(f"--script: {exc}")
    until_eof = sys.stdin.buffer if options.until_eof else None
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(
            serve(
                plan,
                options.log,
                options.port_file,
                host=options.host,
                port=options.port,
                secrets=secrets,
                until_eof=until_eof,
            )
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
