"""``up`` and ``worker``: the processes that deliver."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated, Final

import typer

from redrive.cli.command import command
from redrive.cli.output import plural
from redrive.cli.session import Session
from redrive.config import flag_of
from redrive.errors import InvalidInput

if TYPE_CHECKING:
    from redrive.app import Redrive

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
)
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="Stop when nothing is left to do")]
ParentPipe = Annotated[int | None, typer.Option("--parent-pipe", hidden=True)]


def register(app: typer.Typer) -> None:
    """Add the commands to the root."""
    command(app, "up", settings=_WORKER)(up)
    command(app, "worker", settings=(*_WORKER, "processes"))(worker)


def up(session: Session, until_idle: UntilIdle = False) -> int | None:
    """Run everything in this process: the worker and the reaper. Ctrl-C drains and stops.

    Each attempt that does not simply succeed is told on stderr, and in the end how all of them ended.
    """
    with session.out.attempts_told():
        return _work(session, "up", until_idle)


def worker(session: Session, until_idle: UntilIdle = False, parent_pipe: ParentPipe = None) -> int | None:
    """Run a worker, or with --processes several under a supervisor.

    The first SIGTERM or SIGINT drains: nothing new is claimed, and what is in flight gets the drain time.
    The second stops at once; leases that are held then expire and are reaped.
    """
    if parent_pipe is not None:
        from redrive.worker.processes import stop_with_parent

        # Watched from here on, though the application, which may say how long a drain is, is imported later.
        stop_with_parent(parent_pipe, lambda: session.drain_s)
        return _work(session, "worker", until_idle, announce=False)
    if session.settings.processes == 1:
        return _work(session, "worker", until_idle)
    return _supervise(session, until_idle)


def _work(session: Session, what: str, until_idle: bool, *, announce: bool = True) -> int:
    app = session.app(handlers=True)
    app.ledger  # noqa: B018 - opens it: an error now, not after the announcement
    if announce:
        session.out.note(f"redrive {what}: {_summary(session, app)}")
    app.run(until_idle=until_idle)
    if announce:
        session.out.note("nothing is left to do" if until_idle else "drained and stopped")
    return 0


def _summary(session: Session, app: Redrive) -> str:
    settings = app.worker_settings
    handlers = ", ".join(app.handlers)
    destinations = app.destinations.list()
    held = sum(not found.enabled for found in destinations)
    places = plural(len(destinations), "destination") + (f" ({held} disabled)" if held else "")
    return (
        f"{app.url} ({app.environment}), handlers {handlers}, {places}, "
        f"{plural(settings.slots, 'slot')}, lease {settings.lease_s:g} s; Ctrl-C drains"
    )


def _supervise(session: Session, until_idle: bool) -> int:
    from redrive.worker.processes import Supervisor

    app = session.app(handlers=True)
    app.ledger  # noqa: B018 - an error here is said once, and not by every child
    count = session.settings.processes
    session.out.note(f"redrive worker: {count} processes, each: {_summary(session, app)}")
    drain = app.worker_settings.drain_s
    app.close()
    arguments = child_arguments(session, until_idle)
    supervisor = Supervisor(
        lambda fd: [*arguments, "--parent-pipe", str(fd)],
        count,
        drain_s=drain,
        until_idle=until_idle,
        report=session.out.tell,
    )
    return supervisor.run()


def child_arguments(session: Session, until_idle: bool) -> list[str]:
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
    verbosity = session.out.verbosity
    arguments += ["-q"] if verbosity < 0 else ["-v"] * verbosity
    return [os.fspath(argument) for argument in arguments]
