"""How the demo looks: plain words and a few tables, 100 columns, with or without a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from evidence import ENVIRONMENT, LEDGER, CrossCheck, Evidence, Kill, Row
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from redrive import Redrive

console = Console(width=100, highlight=False)
_step = 0
REDRIVE = ".venv/bin/redrive"


def step(title: str, *said: str) -> None:
    """A numbered heading, and what is done and why."""
    global _step
    _step += 1
    console.print()
    console.print(Text.assemble((f" {_step} ", "bold reverse"), (f" {title}", "bold")))
    for paragraph in said:
        say(paragraph)


def say(text: str) -> None:
    console.print(Padding(text, (0, 0, 0, 4)))


def table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    made = Table(box=box.SIMPLE_HEAD, show_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", no_wrap=column != "")
    return made


def put(made: Table) -> None:
    console.print(Padding(made, (1, 0, 1, 4)))


def zero(count: int, style: str) -> Text:
    """A count that is worth a look only if it is not zero."""
    return Text(f"{count:,}", style=style if count else "dim")


@contextmanager
def working(text: str) -> Iterator[None]:
    """Something that moves while we wait; only where somebody can see it."""
    if not console.is_terminal:
        yield
        return
    with console.status(text):
        yield


def setting(port: int) -> None:
    step(
        "One ledger, one receiver, three destinations",
        f"The ledger is one SQLite file. The receiver is another process, on port {port}. It writes every request "
        "to disk before it answers, and it never sees the ledger: two independent accounts of what happened.",
    )
    made = table("destination", "")
    made.add_row("orders", "answers 200")
    made.add_row("flaky", "answers 503, or 429 with Retry-After, or acts on the request and never answers")
    made.add_row("broken", "answers 400; and every third payload for it violates its JSON Schema")
    put(made)


def published(events: int, deliveries: int, took: float, repeated: int, refused: int) -> None:
    step(
        "Publish",
        f"{events} events became {deliveries} deliveries in one durable transaction ({took * 1000:.0f} ms). "
        f"A producer that is not sure publishes again: {repeated} repeats made no new delivery. "
        f"The same event ID with another payload is a mistake, and is refused: {refused} conflict.",
    )


def crashed(kill: Kill) -> None:
    leased = len(kill.leased)
    step(
        "Kill the worker",
        f"Worker {kill.pid} got SIGKILL after {kill.requests} requests, with {leased} attempts open. Each was charged "
        f"on the ledger before its request left. The receiver has seen {kill.received} of them and acted on "
        f"{kill.acted}, but no sender can know which: they will be recorded as unknown, and none is a free retry.",
    )


def recovered(pid: int, took: float) -> None:
    step(
        "Recover",
        f"Worker {pid} took over and worked for {took:.1f} s, until nothing was left: retries when they were due, "
        "and the dead worker's deliveries once their leases had run out. Budgets went on where they stood.",
    )


def outcomes(evidence: Evidence) -> None:
    step("What happened, by destination")
    figures = ("deliveries", "delivered", "dead", "attempts", "retryable", "unknown", "permanent", "requests")
    made = table("destination", *figures, right=figures)
    for name, row in evidence.rows.items():
        made.add_row(name, *_figures(row))
    put(made)
    say(
        "[dim]Attempts are the ledger's account, requests the receiver's. A payload that violates its schema is an "
        "attempt without a request, and so is an attempt whose worker died before it sent anything."
    )


def _figures(row: Row) -> list[Text]:
    outcomes = row.outcomes
    return [
        Text(f"{row.deliveries:,}"),
        zero(row.dispositions["delivered"], "green"),
        zero(row.dispositions["dead"], "red"),
        Text(f"{sum(outcomes.values()):,}"),
        zero(outcomes["retryable"], "yellow"),
        zero(outcomes["unknown"], "magenta"),
        zero(outcomes["permanent"], "red"),
        Text(f"{row.requests:,}"),
    ]


def timeline(app: Redrive, evidence: Evidence) -> str:
    """The longest story of a lost worker; returns its delivery ID."""
    delivery = evidence.lost_worker()
    if delivery is None:
        raise SystemExit("demo: no attempt was lost with its worker; the kill missed its moment")
    step("One delivery, from both sides")
    say(f"{delivery} to {evidence.destination[delivery]}: its worker was killed during an attempt.")
    entries = app.operations.timeline(delivery)
    first = entries[0].at
    lines = [(entry.at, "ledger", entry.text) for entry in entries]
    for request in evidence.requests[delivery]:
        answer = request["answer"]
        what = f"answered {answer}" if isinstance(answer, int) else f"did not answer ({answer})"
        acted = ", and acted on it" if request["effect"] else ""
        text = f"request {request['attempt']}, signature {request['signature']}: {what}{acted}"
        lines.append((request["at_us"], "receiver", text))
    made = table("seconds", "account", "", right=("seconds",))
    for at, whose, text in sorted(lines, key=lambda line: line[0]):
        style = "cyan" if whose == "receiver" else ""
        made.add_row(f"{(at - first) / 1e6:+.3f}", whose, relative(text, first), style=style)
    put(made)
    return delivery


def relative(text: str, first: int) -> str:
    """Instants as seconds since the delivery was accepted."""

    def seconds(match: re.Match[str]) -> str:
        return f"{datetime.fromisoformat(match[0]).timestamp() - first / 1e6:+.3f}"

    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", seconds, text)


def dead_letters(app: Redrive, names: dict[str, str]) -> None:
    step("Dead letters: where it gave up, and why")
    made = table("destination", "cause", "last category", "count", "", right=("count",))
    meaning = {
        "attempts_exhausted": "it failed until its budget was spent",
        "payload_invalid": "violates its schema; never sent",
        "http_4xx": "refused; a repeat would be too",
    }
    for count in app.operations.dead_counts():
        why = meaning.get(count.category) or meaning.get(count.cause, "")
        made.add_row(names[count.destination], count.cause, count.category, f"{count.count}", f"[dim]{why}")
    put(made)


def cross_check(check: CrossCheck, took: float | None) -> None:
    step(
        "Do the accounts agree?",
        f"The producer's log, the ledger ({check.attempts} attempts) and the receiver's log ({check.requests} "
        "requests), joined by a checker whose reading and rules are its own.",
    )
    made = table("broken promises", "found", "what one would mean", right=("found",))
    for line in check.lines:
        style = "bold red" if line.found else "bold green"
        made.add_row(line.name, Text(str(line.found), style=style), Text(line.meaning, style="dim"))
    put(made)
    for problem in check.problems[:10]:
        say(f"[red]{escape(problem)}[/]")
    say(
        f"{check.unknown} attempts ended unknown, and the receiver acted again on {check.repeated} deliveries that it "
        "had acted on. That is at-least-once: bounded, on record, and recognisable by a webhook-id that never changes."
    )
    console.print()
    verdict = "[bold green]Every promise held.[/]" if check.ok else "[bold red]A promise was broken.[/]"
    say(verdict + ("" if took is None else f" [dim]{took:.1f} s[/]"))


def look_further(folder: Path, example: str) -> None:
    """What to type next."""
    console.print()
    console.print(f"    Kept in {folder}. To look further:", soft_wrap=True)
    console.print()
    lines = [
        f"export REDRIVE_LEDGER=sqlite:///{folder / LEDGER} REDRIVE_ENVIRONMENT={ENVIRONMENT}",
        *(
            f"{REDRIVE} {command}"
            for command in ("status", "dead count", "delivery list", f"delivery timeline {example}")
        ),
    ]
    for line in lines:
        # Never wrapped: it is to be copied.
        console.print(f"    {line}", soft_wrap=True, markup=False)
