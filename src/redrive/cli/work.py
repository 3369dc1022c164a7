"""``up`` and ``worker``: the processes that deliver."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from redrive.cli.command import command, default
from redrive.cli.output import ago, plural, utc, when
from redrive.cli.session import Session
from redrive.config import flag_of
from redrive.domain.values import duration_us
from redrive.errors import InvalidInput
from redrive.ledger import opening

if TYPE_CHECKING:
    from redrive.app import Redrive
    from redrive.running import Rest

_WORKER: Final = (
    "slots",
    "lease",
    "reap",
    "poll",
    "drain",
    "threads",
    "max_payload",
    "allowed_private",
    "allowed_ports",
    "allow_http",
    "retention",
)
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop when nothing is left to do")]
Burst = Annotated[bool, typer.Option("--burst", help="Stop when nothing is due, and say when the next is")]
Linger = Annotated[
    str | None, typer.Option("--linger", help="How long a burst stays without work, for example 30s", metavar="TIME")
]
ParentPipe = Annotated[int | None, typer.Option("--parent-pipe", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "up", settings=_WORKER)(up)
    group = typer.Typer()
    default(group, settings=(*_WORKER, "processes"))(worker)
    command(group, "list")(list_)
    app.add_typer(group, name="worker")


def up(session: Session, until_idle: UntilIdle = False) -> int | None:
    """Run everything in this process: the worker and the reaper. Ctrl-C drains and stops.

    Each attempt that does not simply succeed is told on stderr, and in the end how all of them ended.
    """
    with session.out.attempts_told():
        return _work(session, "up", until_idle)


def worker(
    session: Session,
    until_idle: UntilIdle = False,
    burst: Burst = False,
    linger: Linger = None,
    parent_pipe: ParentPipe = None,
) -> int | None:
    """Run a worker, or with --processes several under a supervisor.

    The first SIGTERM or SIGINT drains: nothing new is claimed, and what is in flight gets the drain time.
    The second stops at once; leases that are held then expire and are reaped.

    With --burst it ends with status 0 once nothing is due and nothing runs in it, and that for --linger; what waits for
    a later time does not keep it. The workers there are: redrive worker list
    """
    if until_idle and burst:
        raise InvalidInput("--until-idle waits for what is due later, and --burst does not: give one", param="burst")
    if linger is not None and not burst:
        raise InvalidInput("--linger is how long a burst stays without work", param="linger", hint="give --burst too")
    stays = None if not burst else duration_us("0" if linger is None else linger, "linger") / 1e6
    if parent_pipe is not None:
        from redrive.worker.processes import stop_with_parent

        # Watched from here on, though the application, which may say how long a drain is, is imported later.
        stop_with_parent(parent_pipe, lambda: session.drain_s)
        return _work(session, "worker", until_idle, stays, announce=False)
    if session.settings.processes == 1:
        return _work(session, "worker", until_idle, stays)
    return _supervise(session, until_idle, stays)


def _work(
    session: Session, what: str, until_idle: bool, linger_s: float | None = None, *, announce: bool = True
) -> int:
    app = session.app(handlers=True)
    app.ledger  # noqa: B018 - opens it: an error now, not after the announcement
    if announce:
        session.out.note(f"redrive {what}: {_summary(session, app)}")
    rest = app.run(until_idle=until_idle, burst=linger_s is not None, linger=linger_s or 0.0)
    if announce:
        session.out.note(_ended(session, app, rest, until_idle))
        if linger_s is not None:
            _tell(session, rest)
    return 0


def _tell(session: Session, rest: Rest | None) -> None:
    """How a burst ended, and when there is more to do; None: it was stopped."""
    if not session.out.is_table:
        shown = {"next_due_at": None, "next_due_us": None, "due_elsewhere": None} if rest is None else rest.as_dict()
        session.out.raw(json.dumps({"spent": rest is not None, **shown}))
    elif rest is not None:
        nothing = "nothing waits for the handlers of this worker" if rest.due_elsewhere.count else "nothing waits"
        session.out.line(next_due(rest.next_due_at, rest.next_due_us, nothing))


def _ended(session: Session, app: Redrive, rest: Rest | None, until_idle: bool) -> str:
    """Why it ended, and whether that leaves something due that only another worker can do."""
    if rest is None and not until_idle:
        return "drained and stopped"
    from redrive.running import due_elsewhere

    elsewhere = due_elsewhere(app) if rest is None else rest.due_elsewhere
    if elsewhere.count:
        return (
            f"nothing that this worker executes is {'left to do' if until_idle else 'due'} ({elsewhere} due for "
            "handlers that it does not have: redrive envelope list)"
        )
    return "nothing is left to do" if until_idle else "nothing is due"


def next_due(at: int | None, us: int | None, nothing: str = "nothing waits") -> str:
    """``next due at 10:07:31Z, in 3 min``; with the date where that is another day's."""
    if at is None or us is None:
        return nothing
    now = at - us
    day, clock = utc(at).split(" ")
    shown = clock if day == utc(now).split(" ")[0] else f"{day} {clock}"
    return f"next due at {shown}, {ago(at, now)}"


def _summary(session: Session, app: Redrive) -> str:
    settings = app.worker_settings
    handlers = ", ".join(app.handlers)
    destinations = app.destinations.list()
    held = sum(not found.enabled for found in destinations)
    places = plural(len(destinations), "destination") + (f" ({held} disabled)" if held else "")
    return (
        f"{opening.where(app.url)} ({app.environment}), handlers {handlers}, {places}, "
        f"{plural(settings.slots, 'slot')}, lease {settings.lease_s:g} s; Ctrl-C drains"
    )


def _supervise(session: Session, until_idle: bool, linger_s: float | None) -> int:
    from redrive.worker.processes import Supervisor

    app = session.app(handlers=True)
    app.ledger  # noqa: B018 - an error here is said once, and not by every child
    count = session.settings.processes
    session.out.note(f"redrive worker: {count} processes, each: {_summary(session, app)}")
    drain = app.worker_settings.drain_s
    app.close()
    arguments = child_arguments(session, until_idle, linger_s)
    supervisor = Supervisor(
        lambda fd: [*arguments, "--parent-pipe", str(fd)],
        count,
        drain_s=drain,
        until_idle=until_idle or linger_s is not None,
        report=session.out.tell,
    )
    status = supervisor.run()
    if linger_s is not None and status == 0:
        from redrive.running import next_due as ask

        _tell(session, None if supervisor.was_stopped else ask(app))
    return status


def child_arguments(session: Session, until_idle: bool, linger_s: float | None = None) -> list[str]:
    """The same command with the same settings, for one process."""
    if not sys.executable:
        raise InvalidInput("--processes needs to know the Python that it runs on", param="processes")
    # -P: the working directory must not decide which package is called redrive.
    arguments = [sys.executable, "-P", "-m", "redrive", "worker", "--processes", "1"]
    for name, value in session.flags.items():
        if name == "processes":
            continue
        if isinstance(value, bool):
            arguments.append(flag_of(name) if value else "--no-" + name.replace("_", "-"))
            continue
        for item in value if isinstance(value, list | tuple) else [value]:
            arguments += [flag_of(name), str(item)]
    if session.config is not None:
        arguments += ["--config", session.config]
    if session.profile is not None:
        arguments += ["--profile", session.profile]
    if until_idle:
        arguments.append("--until-idle")
    if linger_s is not None:
        arguments += ["--burst", "--linger", f"{linger_s:.6f}"]
    verbosity = session.out.verbosity
    arguments += ["-q"] if verbosity < 0 else ["-v"] * verbosity
    return [os.fspath(argument) for argument in arguments]


def list_(session: Session) -> int | None:
    """List the workers that have not said that they stopped.

    A silent one has missed three heartbeats, a stale one has not been seen for two minutes.
    """
    found = session.operations.workers()
    if not session.out.is_table:
        session.out.records(worker.as_dict() for worker in found)
        return 0
    if not found:
        session.out.note("no worker is running; start one: redrive worker")
        return 0
    now = session.now()
    rows: list[tuple[Any, ...]] = [
        (
            worker.name,
            "stale" if worker.stale else "silent" if worker.silent else "running",
            f"{worker.host}:{worker.pid}",
            worker.version,
            decoding(worker.routes),
            when(worker.started_at, now),
            when(worker.seen_at, now),
            f"{worker.leases:,}",
        )
        for worker in found
    ]
    head = ("WORKER", "STATE", "WHERE", "VERSION", "HANDLERS", "STARTED", "SEEN", "LEASES")
    session.out.table(head, rows, right=("LEASES",))
    return 0


def decoding(routes: Iterable[tuple[str, int]]) -> str:
    """``job v1 v2, webhook v1``: the envelope versions of each handler."""
    by_handler: dict[str, list[int]] = {}
    for handler, version in routes:
        by_handler.setdefault(handler, []).append(version)
    return ", ".join(f"{name} {' '.join(f'v{v}' for v in sorted(by_handler[name]))}" for name in sorted(by_handler))
