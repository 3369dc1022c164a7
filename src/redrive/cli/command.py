"""How a function becomes a command: the options every command takes, and how every command ends."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final

import typer

from redrive.cli.output import Mode, Output
from redrive.cli.session import Session
from redrive.errors import InvalidInput, RedriveError

INTERRUPTED: Final = 130
_GLOBAL: Final = "Everywhere"
_LAYERS: Final = "Settings (also in REDRIVE_* variables and redrive.toml)"


def _setting(annotation: Any, *flags: str, text: str, metavar: str | None = None) -> Any:
    return Annotated[annotation, typer.Option(*flags, help=text, metavar=metavar, rich_help_panel=_LAYERS)]


def _everywhere(annotation: Any, *flags: str, text: str, **more: Any) -> Any:
    return Annotated[annotation, typer.Option(*flags, help=text, rich_help_panel=_GLOBAL, **more)]


SETTINGS: Final[Mapping[str, Any]] = {
    "ledger": _setting(
        str | None, "--ledger", text="The ledger: sqlite:///redrive.db, postgresql://user@host/db", metavar="URL"
    ),
    "environment": _setting(str | None, "--environment", text="The name stamped on the ledger", metavar="NAME"),
    "app": _setting(str | None, "--app", text="Your Redrive object, for example shop.tasks:app", metavar="MODULE:ATTR"),
    "slots": _setting(str | None, "--slots", text="Attempts at once, in each process", metavar="N"),
    "lease": _setting(str | None, "--lease", text="How long an attempt is held without a heartbeat", metavar="TIME"),
    "reap": _setting(str | None, "--reap", text="How often expired leases are looked for", metavar="TIME"),
    "poll": _setting(str | None, "--poll", text="Longest wait before the ledger is asked again", metavar="TIME"),
    "drain": _setting(str | None, "--drain", text="How long a stopping worker waits for its attempts", metavar="TIME"),
    "threads": _setting(
        str | None, "--threads", text="Threads for handlers that are not async (one for each slot)", metavar="N"
    ),
    "processes": _setting(str | None, "--processes", text="Worker processes", metavar="N"),
    "max_payload": _setting(str | None, "--max-payload", text="Largest payload, for example 1MiB", metavar="SIZE"),
    "allowed_private": _setting(
        list[str] | None, "--allowed-private", text="A private network webhooks may reach; repeatable", metavar="CIDR"
    ),
    "allowed_ports": _setting(
        list[str] | None, "--allowed-ports", text="A port webhooks may reach (443 if none is given)", metavar="PORT"
    ),
    "allow_http": _setting(bool | None, "--allow-http/--no-allow-http", text="Let destinations opt in to plain HTTP"),
    "retention": _setting(
        str | None, "--retention", text="How long what ended is kept: delivered=90d, no_op=7d", metavar="RULES"
    ),
    "tenant": _setting(str | None, "--tenant", text="Who the work belongs to", metavar="NAME"),
    "actor": _setting(str | None, "--actor", text="Who is on record for this (user@host)", metavar="NAME"),
}
GLOBAL: Final[Mapping[str, Any]] = {
    "config": _everywhere(str | None, "--config", text="Read this file instead of redrive.toml", metavar="FILE"),
    "profile": _everywhere(str | None, "--profile", text="Lay the file's table profile.NAME over it", metavar="NAME"),
    "output": _everywhere(Mode | None, "--output", "-o", text="How data is printed"),
    "quiet": _everywhere(bool, "--quiet", "-q", text="Errors only"),
    "verbose": _everywhere(int, "--verbose", "-v", text="More of the log on stderr; -vv all of it", count=True),
    "no_input": _everywhere(bool, "--no-input", text="Never ask a question"),
}
_FALSY: Final = {"quiet": False, "verbose": 0, "no_input": False}
ALWAYS: Final = ("ledger", "environment", "app")

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking")]
Reason = Annotated[str, typer.Option("--reason", help="Why; it is kept on the ledger", metavar="TEXT")]


def command(
    group: typer.Typer,
    name: str,
    *,
    settings: Sequence[str] = (),
    options: Mapping[str, Any] | None = None,
    hidden: bool = False,
) -> Callable[[Callable[..., int | None]], Callable[..., None]]:
    """Make ``function(session, ...)`` a command of ``group``; what it returns is the exit status.

    Beside its own parameters it takes the options of :data:`GLOBAL`, and flags for the settings in
    :data:`ALWAYS` and ``settings``, which reach it through ``session.settings``. ``options`` (name to
    annotation) are handed to it as one dictionary ``options``.
    """

    def attach(function: Callable[..., int | None]) -> Callable[..., None]:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        own.pop("session")
        own.pop("options", None)
        flags = {name: SETTINGS[name] for name in (*ALWAYS, *settings)}

        @functools.wraps(function)
        def run(ctx: typer.Context, **given: Any) -> None:
            session = _session(ctx, given, flags)
            if options is not None:
                given["options"] = {name: given.pop(name) for name in options}
            raise typer.Exit(_run(session, lambda: function(session, **given)))

        _take(run, list(own.values()), {**(options or {}), **flags, **GLOBAL})
        group.command(name, help=_help(function), hidden=hidden)(run)
        return run

    return attach


def default(group: typer.Typer, *, settings: Sequence[str] = ()) -> Callable[[Callable[..., int | None]], None]:
    """Make ``function(session, ...)`` what ``group`` itself does where none of its commands is named.

    As :func:`command`. Where one is named, the options of every command that stand before it are that command's.
    """

    def attach(function: Callable[..., int | None]) -> None:
        own = dict(inspect.signature(function, eval_str=True).parameters)
        own.pop("session")
        flags = {name: SETTINGS[name] for name in (*ALWAYS, *settings)}

        def run(ctx: typer.Context, **given: Any) -> None:
            if ctx.invoked_subcommand is None:
                session = _session(ctx, given, flags)
                raise typer.Exit(_run(session, lambda: function(session, **given)))
            for name, value in given.items():
                if value in (None, False, 0, []):
                    continue
                if name not in ALWAYS and name not in GLOBAL:
                    ctx.fail(f"{ctx.invoked_subcommand} takes no --{name.replace('_', '-')}")
                ctx.obj = {**(ctx.obj or {}), name: value}

        _take(run, list(own.values()), {**flags, **GLOBAL})
        group.callback(invoke_without_command=True, help=_help(function))(run)

    return attach


def check_reason(reason: str) -> None:
    """Raises :class:`InvalidInput` for a reason that says nothing."""
    if not reason.strip():
        raise InvalidInput(
            "a reason is required", param="reason", hint="it is kept on the ledger, for whoever asks why"
        )


def _help(function: Callable[..., Any]) -> str:
    """The docstring with each paragraph on one line: the terminal wraps it."""
    paragraphs = (inspect.getdoc(function) or "").split("\n\n")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)


def root(group: typer.Typer, version: Any, text: str) -> None:
    """Let the options of every command stand before the command's name too; the nearer one wins."""
    flags = {name: SETTINGS[name] for name in ALWAYS}

    def callback(ctx: typer.Context, **given: Any) -> None:
        given.pop("version")
        ctx.obj = {name: value for name, value in given.items() if value != _FALSY.get(name)}

    own = inspect.Parameter("version", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=version)
    _take(callback, [own], {**flags, **GLOBAL})
    group.callback(help=text)(callback)


def _take(function: Callable[..., Any], own: list[inspect.Parameter], options: Mapping[str, Any]) -> None:
    """Give ``function`` the signature that Typer reads."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [inspect.Parameter("ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)]
    parameters += [parameter.replace(kind=keyword) for parameter in own]
    parameters += [
        inspect.Parameter(name, keyword, default=_FALSY.get(name), annotation=annotation)
        for name, annotation in options.items()
    ]
    if hasattr(function, "__wrapped__"):
        del function.__wrapped__
    function.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    function.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}


def _session(ctx: typer.Context, given: dict[str, Any], flags: Mapping[str, Any]) -> Session:
    outer: dict[str, Any] = ctx.obj or {}
    chosen = {name: given.pop(name) for name in (*flags, *GLOBAL)}
    for name, value in outer.items():
        if chosen.get(name) in (None, False, 0, []):
            chosen[name] = value
    return Session(
        {name: chosen[name] for name in flags if chosen[name] != []},
        config=chosen["config"],
        profile=chosen["profile"],
        mode=chosen["output"] or Mode.TABLE,
        verbosity=-1 if chosen["quiet"] else min(chosen["verbose"], 2),
        no_input=chosen["no_input"],
    )


def _run(session: Session, function: Callable[[], int | None]) -> int:
    out = session.out
    out.set_up_logging()
    try:
        try:
            status = function() or 0
        finally:
            session.close()
        sys.stdout.flush()
    except RedriveError as exc:
        out.error(exc)
        if out.verbosity > 0 and exc.__cause__ is not None and out.is_table:
            traceback.print_exception(exc.__cause__)
        return exc.exit_status
    except KeyboardInterrupt:
        out.failure({"code": "interrupted", "message": "interrupted", "param": None, "hint": None})
        return INTERRUPTED
    except BrokenPipeError:
        silence_stdout()
        return session.status
    except Exception as exc:
        return unexpected(out, exc)
    return status


def silence_stdout() -> None:
    """The reader went away: nothing more is written, and nothing is said about it."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def unexpected(out: Output, exc: Exception) -> int:
    """An error that redrive did not raise on purpose: one sentence, and the traceback where it was asked for."""
    place = traceback.extract_tb(exc.__traceback__)[-1] if exc.__traceback__ else None
    at = f" at {os.path.basename(place.filename)}:{place.lineno}" if place else ""  # noqa: PTH119 - a name to show
    out.failure(
        {
            "code": "internal",
            "message": f"unexpected {type(exc).__name__}{at}",
            "param": None,
            "hint": "this is a defect: -v shows the traceback" if out.verbosity < 1 else None,
        }
    )
    if out.verbosity > 0 and out.is_table:
        traceback.print_exception(exc)
    logging.getLogger("redrive.cli").debug("unexpected", exc_info=exc)
    return 1
