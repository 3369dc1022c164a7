"""What commands print: data on stdout as a table, one JSON document or JSON lines; everything else on stderr."""

from __future__ import annotations

import contextlib
import enum
import json
import logging
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from redrive.errors import RedriveError
from redrive.ledger.records import Count, iso, span

_UNPRINTABLE: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_STYLES: Final = {
    "delivered": ("●", "green"),
    "no_op": ("●", "green"),
    "waiting": ("○", "cyan"),
    "leased": ("◐", "blue"),
    "held": ("‖", "yellow"),
    "dead": ("✗", "red"),
    "cancelled": ("⊘", "bright_black"),
    "enabled": ("●", "green"),
    "disabled": ("‖", "yellow"),
    "open": ("✗", "red"),
    "unknown": ("?", "yellow"),
    "retryable": ("↻", "yellow"),
    "permanent": ("✗", "red"),
}
Cell = str | Text


class Mode(enum.StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class NotConfirmed(RedriveError):
    """A destructive command was not confirmed; nothing was changed."""

    code = "not_confirmed"
    exit_status = 3


def safe(text: object) -> str:
    """Text from the ledger for a terminal: controls and bidirectional overrides become visible escapes."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode("ascii"), str(text))


def utc(us: int, *, digits: int = 0) -> str:
    """An instant for people: ``2026-08-21 02:00:00Z``, with ``digits`` of its fraction."""
    whole, _, fraction = iso(us).replace("T", " ").rstrip("Z").partition(".")
    return whole + (f".{fraction[:digits]}" if digits else "") + "Z"


def ago(us: int, now: int) -> str:
    """How far an instant is from ``now``: ``3 min ago``, ``in 12 s``, ``now``."""
    distance = abs(us - now)
    if distance < 1_000_000:
        return "now"
    distance -= distance % 1_000_000
    shown = span(distance).split(" ")
    text = " ".join(shown[:2] if distance >= 600_000_000 else shown)
    return f"in {text}" if us > now else f"{text} ago"


def when(us: int, now: int) -> str:
    """Both: ``3 min ago (2026-08-21 02:00:00Z)``."""
    return f"{ago(us, now)} ({utc(us)})"


def plural(count: int, noun: str) -> str:
    """``1 attempt``, ``2 deliveries``."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"


def counted(count: Count, noun: str) -> str:
    """As :func:`plural`, of a count that may have stopped at its cap: ``100,000+ deliveries``."""
    many = plural(2, noun).partition(" ")[2]
    return plural(1, noun) if count == Count(1) else f"{count} {many}"


class Output:
    """One command's output. ``verbosity`` is -1 (quiet), 0, 1 (-v) or 2 (-vv)."""

    def __init__(self, mode: Mode = Mode.TABLE, *, verbosity: int = 0, no_input: bool = False) -> None:
        self.mode = mode
        self.verbosity = verbosity
        self.no_input = no_input
        self.out = Console(file=sys.stdout, highlight=False, emoji=False, markup=False)
        self.err = Console(file=sys.stderr, highlight=False, emoji=False, markup=False)

    @property
    def is_table(self) -> bool:
        """Whether a person reads stdout."""
        return self.mode is Mode.TABLE

    # --- data ---------------------------------------------------------------------------------------

    def document(self, data: Any) -> None:
        """One JSON document; in ``jsonl`` on one line."""
        indent = 2 if self.mode is Mode.JSON else None
        self._write(json.dumps(data, indent=indent, allow_nan=False) + "\n")

    def records(self, items: Iterable[Mapping[str, Any]], after: Mapping[str, Any] | None = None) -> None:
        """A list: ``{"items": [...], ...after}``, written as it comes, or one line for each item."""
        if self.mode is Mode.JSONL:
            for item in items:
                self._write(json.dumps(item, allow_nan=False) + "\n")
            return
        self._write('{"items": [')
        first = True
        for item in items:
            self._write(("\n  " if first else ",\n  ") + json.dumps(item, allow_nan=False))
            first = False
        rest = "".join(f", {json.dumps(key)}: {json.dumps(value)}" for key, value in (after or {}).items())
        self._write(("" if first else "\n") + f"]{rest}}}\n")

    def table(self, head: Sequence[str], rows: Iterable[Sequence[Cell]], *, right: Sequence[str] = ()) -> None:
        """Rows for people. Not on a terminal: one line a row, nothing cut, no colour."""
        if not self.out.is_terminal:
            self._plain([list(head), *([_flat(cell) for cell in row] for row in rows)])
            return
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in head:
            shown.add_column(name, justify="right" if name in right else "left", overflow="fold")
        for row in rows:
            shown.add_row(*(cell if isinstance(cell, Text) else Text(safe(cell)) for cell in row))
        self.out.print(shown)

    def facts(self, pairs: Iterable[tuple[str, Cell]]) -> None:
        """A small two-column table without a head."""
        if not self.out.is_terminal:
            self._plain([[name, _flat(value)] for name, value in pairs])
            return
        shown = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
        shown.add_column(style="bold", no_wrap=True)
        shown.add_column(overflow="fold")
        for name, value in pairs:
            shown.add_row(name, value if isinstance(value, Text) else Text(safe(value)))
        self.out.print(shown)

    def line(self, text: Cell, style: str = "") -> None:
        """One line of data for people."""
        if not self.out.is_terminal:
            self._write(_flat(text) + "\n")
            return
        self.out.print(text if isinstance(text, Text) else Text(safe(text), style=style), soft_wrap=False)

    def raw(self, text: str) -> None:
        """Text as it is: SQL, a payload that a person asked for."""
        self._write(text if text.endswith("\n") or not text else text + "\n")

    def mark(self, word: str, shown: str | None = None) -> Text:
        """A state with its icon and colour; the word says the same without them."""
        icon, style = _STYLES.get(word, ("·", ""))
        if not (self.out.encoding or "").lower().startswith("utf"):
            icon = "*"
        text = safe(shown if shown is not None else word)
        return Text(f"{icon} {text}" if self.out.is_terminal else text, style=style)

    def _plain(self, rows: list[list[str]]) -> None:
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))] if rows else []
        for row in rows:
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            self._write("  ".join(cells).rstrip() + "\n")

    def _write(self, text: str) -> None:
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding))

    # --- everything else ----------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """What just happened or what to do next, on stderr. Not with -q, and not beside JSON."""
        if self.verbosity >= 0 and self.is_table:
            self.tell(text)

    def tell(self, text: str) -> None:
        """A line on stderr that is always shown."""
        self.err.print(Text(safe(text)), soft_wrap=not self.err.is_terminal)

    def warn(self, text: str) -> None:
        """Something a person should look at, on stderr; not beside JSON, where stderr is for one error document."""
        if self.is_table:
            self.err.print(
                Text("warning: ", style="bold yellow").append(safe(text), style="not bold"),
                soft_wrap=not self.err.is_terminal,
            )

    def error(self, error: RedriveError) -> None:
        """What went wrong, and what to do about it; in the JSON modes one document."""
        self.failure(error.as_dict())

    def failure(self, shown: Mapping[str, str | None]) -> None:
        """As :meth:`error`, from its JSON shape."""
        if not self.is_table:
            sys.stderr.write(json.dumps({"error": dict(shown)}) + "\n")
            return
        self.err.print(
            Text("error: ", style="bold red").append(safe(shown["message"]), style="not bold"),
            soft_wrap=not self.err.is_terminal,
        )
        if shown.get("hint"):
            self.err.print(
                Text("hint: ", style="bold").append(safe(shown["hint"]), style="not bold"),
                soft_wrap=not self.err.is_terminal,
            )

    def confirm(self, question: str, *, yes: bool) -> None:
        """Return if a person agrees. Raises :class:`NotConfirmed`, also where nobody can be asked."""
        if yes:
            return
        if not self.is_table or self.no_input or not sys.stdin.isatty() or not self.err.is_terminal:
            raise NotConfirmed(
                f"this needs a confirmation: {question}",
                param="yes",
                hint="give --yes; nothing was changed",
            )
        self.err.print(Text(f"{safe(question)} [y/N] ", style="bold"), end="")
        sys.stderr.flush()
        answer = sys.stdin.readline().strip().lower()
        if answer not in ("y", "yes"):
            raise NotConfirmed("not confirmed", param="yes", hint="nothing was changed")

    def progress(self, what: str) -> Progress:
        """Shows how far a long piece of work is: a bar on a terminal, a line every ten seconds elsewhere."""
        return Progress(self, what)

    def set_up_logging(self) -> None:
        """The engine's log, on stderr: warnings; with -v what it does; with -vv everything. Not beside JSON."""
        level = {-1: logging.ERROR, 0: logging.WARNING, 1: logging.INFO}.get(self.verbosity, logging.DEBUG)
        if not self.is_table and self.verbosity < 1:
            level = logging.CRITICAL
        handler = logging.StreamHandler(sys.stderr)
        formatter = logging.Formatter(
            "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"
        )
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        log = logging.getLogger("redrive")
        log.handlers[:] = [handler]
        log.setLevel(level)
        log.propagate = False

    @contextlib.contextmanager
    def attempts_told(self) -> Iterator[None]:
        """Meanwhile show the attempts that did not simply succeed without -v, too; not with -q or beside JSON."""
        if self.verbosity != 0 or not self.is_table:
            yield
            return
        log = logging.getLogger("redrive.worker.attempts")
        handler = logging.StreamHandler(sys.stderr)
        formatter = logging.Formatter("%(asctime)sZ %(message)s", "%H:%M:%S")
        formatter.converter = time.gmtime
        handler.setFormatter(formatter)
        level, propagate = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


class Progress:
    """Call it with (done, total); ``total`` 0 means unknown. Use as a context manager."""

    EVERY_S: Final = 10.0

    def __init__(self, output: Output, what: str) -> None:
        self._output = output
        self._what = what
        self._shown_at = time.monotonic()
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Progress:
        shown = self._output.is_table and self._output.verbosity >= 0
        if shown and self._output.err.is_terminal:
            from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=self._output.err, transient=True)
            self._task = self._bar.add_task(self._what, total=None)
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def __call__(self, done: int, total: int = 0) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=done, total=total or None)
        elif time.monotonic() - self._shown_at >= self.EVERY_S:
            self._shown_at = time.monotonic()
            self._output.note(f"{self._what}: {done:,}" + (f" of {total:,}" if total else ""))


def _flat(cell: Cell) -> str:
    """A cell as one line."""
    text = cell.plain if isinstance(cell, Text) else str(cell)
    return safe(text.replace("\n", " ")) if "\n" in text else safe(text)


def paged(pages: Iterator[Sequence[Any]]) -> Iterator[Any]:
    """The items of pages, one after the other."""
    for page in pages:
        yield from page
