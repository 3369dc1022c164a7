"""The command ``redrive``.

Exit codes: 0 done (an empty answer included), 1 failed, 2 wrong usage or settings, 3 declined, 4 the ledger is of
another environment, 6 a conflict with what is recorded, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from redrive import __version__
from redrive.cli import accept, dead, delivery, destination, envelope, purge, schema, setup, status, verify, work
from redrive.cli.command import INTERRUPTED, root, silence_stdout, unexpected
from redrive.cli.output import Mode, Output

TEXT = """Background delivery that gives up on purpose and comes back under control.

Start with: redrive init, then redrive destination add, redrive publish and redrive up."""


class Root(TyperGroup):
    """Ends every way a command line can go wrong with a status and a sentence, and never with a traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **extra: Any) -> Any:
        """As Click's own, with our exit codes; in the JSON modes a wrong usage is one document too."""
        argv = list(sys.argv[1:] if args is None else args)
        extra["standalone_mode"] = False
        out = Output(_mode(argv), verbosity=_verbosity(argv))
        try:
            result = super().main(argv, *rest, **extra)
            sys.stdout.flush()
            status = result if isinstance(result, int) else 0
        except BrokenPipeError:
            silence_stdout()
            status = 0
        except (KeyboardInterrupt, typer.Abort):
            status = INTERRUPTED
        except Exception as exc:
            status = _usage(out, exc) if hasattr(exc, "format_message") else unexpected(out, exc)
        sys.exit(status)


def _usage(out: Output, exc: Any) -> int:
    message = str(exc.format_message()).rstrip(".")
    context = getattr(exc, "ctx", None)
    hint = f"see: {context.command_path} --help" if context is not None else None
    param = getattr(getattr(exc, "param", None), "name", None)
    if type(exc).__name__ == "NoArgsIsHelpError":
        out.err.print(message, soft_wrap=True)
    else:
        out.failure({"code": "usage", "message": message.replace("\n\t", " "), "param": param, "hint": hint})
    return 2


def _mode(argv: Sequence[str]) -> Mode:
    """The output mode of a command line that may be wrong otherwise."""
    chosen = Mode.TABLE
    for before, word in zip(("", *argv), argv, strict=False):
        value = None
        if before in ("-o", "--output"):
            value = word
        elif word.startswith("--output="):
            value = word.partition("=")[2]
        elif word.startswith("-o") and len(word) > 2:
            value = word[2:].removeprefix("=")
        with contextlib.suppress(ValueError):
            chosen = Mode(value) if value is not None else chosen
    return chosen


def _verbosity(argv: Sequence[str]) -> int:
    return sum(word in ("-v", "-vv", "--verbose") for word in argv)


def _print_version(value: bool) -> None:
    if value:
        sys.stdout.write(f"redrive {__version__}\n")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit", is_eager=True, callback=_print_version)
]

app = typer.Typer(
    name="redrive",
    cls=Root,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
root(app, Version, TEXT)
setup.register(app)
work.register(app)
accept.register(app)
app.add_typer(destination.group, name="destination")
app.add_typer(schema.group, name="schema")
app.add_typer(delivery.group, name="delivery")
app.add_typer(dead.group, name="dead")
app.add_typer(envelope.group, name="envelope")
status.register(app)
verify.register(app)
purge.register(app)


def main() -> None:
    """The console script."""
    app(prog_name="redrive")
