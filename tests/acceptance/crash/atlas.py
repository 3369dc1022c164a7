"""Writes ``docs/crash-atlas.md`` from recorded runs: ``python -m tests.acceptance.crash.atlas``."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.acceptance.crash.conftest import databases
from tests.acceptance.crash.rig import ROOT
from tests.acceptance.crash.story import JOB, RUNS, WEBHOOK, Stories, Story, tell_all
from tests.services.postgres import PostgresServer

from redrive.failpoint import NAMES

PAGE: Final = ROOT / "docs" / "crash-atlas.md"

WHERE: Final = {
    "enqueue.before_commit": "in the producer, with everything written and COMMIT not yet called",
    "enqueue.after_commit": "in the producer, after its COMMIT, before the caller has an answer",
    "reserve.before_commit": "in the worker, with the attempt charged and leased and COMMIT not yet called",
    "reserve.after_commit": "in the worker, after the COMMIT of a reservation, before its own loop knows of the lease",
    "execute.before": "before the handler is called",
    "connect.before": "with the request built and signed, before a connection is looked for",
    "send.before": "on an open connection, immediately before the request is written",
    "send.after": "after the sender has returned the whole answer",
    "receive.head": "with the answer's head parsed, before its body is read",
    "execute.after": "after the handler has returned its outcome, before the outcome goes to the ledger",
    "close.before_commit": "with the outcome written and COMMIT not yet called",
    "close.after_commit": "after the COMMIT of the outcome, before the worker knows that it is durable",
    "close_in.before_commit": "in a handler's own transaction on the ledger's file, with its effect and its outcome "
    "written and COMMIT not yet called",
    "extend.before_commit": "in the heartbeat, with a lease extended and COMMIT not yet called",
    "reap.before_commit": "in the reaper, with another worker's expired lease ended and COMMIT not yet called",
    "reap.after_commit": "in the reaper, after the COMMIT that ended another worker's expired lease",
}
"""Where each failpoint is."""

_INTRO: Final = """# Crash atlas

What becomes of a delivery when the process that works on it is killed: SIGKILL, no warning, no cleanup. Each section
is one recorded run at one place in the code. A receiver in a process of its own wrote down every request before it
answered it; the ledger was read right after the kill and again when a healthy worker had finished.

**The question most people come with:** a worker has sent the POST, the receiver has acted on it and answered 200, and
the worker dies before it could write that down. See [close.before_commit](#close-before-commit): the attempt was
charged before anything was sent, so the ledger still knows that it began. When the lease runs out, the reaper records
it as `unknown` (it may have taken effect) with the category `worker_lost`, and the delivery is sent again, with the
same delivery ID, so that the receiver can tell that it has seen it. Nothing is lost, and what came twice is explained.

How to read it: *leased* means that an attempt is charged and open; a lease of {lease:g} s that nobody extends is ended
by the next worker's reaper. In each run the process was killed the first time it passed the failpoint, with nothing but
webhooks or nothing but jobs to do; then the rest of {events} events and {jobs} Python jobs was handed over, and one
healthy worker ran until nothing was left. The offline checker and `redrive verify` were clean after every run. One
event is refused with 400 and one job refuses itself: these two dead letters belong to every run, and so does one
attempt recorded unknown, for a request that is never answered. Times run from the kill and include handing over the
rest and starting the Python process that works.

Every run was made twice: with the ledger in a SQLite file, which is what is told, and on a PostgreSQL server. What was
different there is said beside it.

Written by `python -m tests.acceptance.crash.atlas`; `make test` repeats the runs and compares.

"""


Runs = Mapping[tuple[str, str], Story]


def render(stories: Runs, on_postgres: Runs) -> str:
    """The page."""
    from tests.acceptance.crash.scenario import Scenario

    scenario = Scenario(0, "")
    events, jobs = sum(scenario.events.values()), sum(scenario.jobs.values())
    parts = [_INTRO.format(lease=scenario.lease, events=events, jobs=jobs)]
    parts.append("| killed at | the outside has seen | the ledger says right after | on PostgreSQL | ")
    parts.append("what happens next |\n|---|---|---|---|---|\n")
    parts += [f"{row(stories[run], on_postgres[run])}\n" for run in RUNS]
    for name in NAMES:
        parts.append(f'\n<a id="{_anchor(name)}"></a>\n\n## {name}\n\nThe process died {WHERE[name]}.\n')
        kinds = [kind for kind in (WEBHOOK, JOB) if (name, kind) in stories]
        parts += [_section(stories[name, kind], on_postgres[name, kind]) for kind in kinds]
    return "".join(parts)


def row(story: Story, on_postgres: Story) -> str:
    """The failpoint's line of the table."""
    cells = [
        f"{story.kind} at [{story.failpoint}](#{_anchor(story.failpoint)})",
        seen(story),
        ledger(story),
        difference(story, on_postgres),
        following(story),
    ]
    return f"| {' | '.join(cells)} |"


def _anchor(name: str) -> str:
    return name.replace(".", "-").replace("_", "-")


def _requests(story: Story, items: tuple[tuple[str, str], ...]) -> str:
    if story.kind == WEBHOOK:
        return "; ".join(f"request {attempt}, answered {answer}" for attempt, answer in items)
    words = {"start": "handler called", "effect": "effect made"}
    return "; ".join(f"{words[step]} in attempt {attempt}" for attempt, step in items)


def seen(story: Story) -> str:
    """What had reached the outside when the process died."""
    return _requests(story, story.at_kill.seen) or "nothing"


def ledger(story: Story) -> str:
    """The delivery on the ledger as the kill left it."""
    standing = story.at_kill
    closed = ", ".join(f"attempt {n} `{outcome}`/`{category}`" for n, outcome, category in standing.attempts)
    if standing.disposition == "absent":
        return "nothing: no such delivery"
    if standing.disposition == "leased":
        return f"leased: attempt {standing.attempt} is charged and open (fence {standing.fence})"
    if closed:
        return f"{standing.disposition}: {closed}"
    return f"{standing.disposition}: nothing charged"


def following(story: Story) -> str:
    """What came of it."""
    known = len(story.at_kill.attempts)
    parts = [
        f"attempt {n} is recorded `{outcome}`/`{category}`" for n, outcome, category in story.at_end.attempts[known:]
    ]
    if story.at_kill.disposition == "absent":
        parts.insert(0, "the producer, which has no answer, hands it over again, and it is accepted")
    elif story.failpoint.startswith("enqueue."):
        parts.insert(0, "the producer, which has no answer, hands it over again, and gets the first delivery back")
    if not parts:
        return "nothing more: it had ended"
    return f"{'; '.join(parts)}; it ends as {story.at_end.disposition}"


def difference(story: Story, other: Story) -> str:
    """What the same kill left elsewhere, if it is not the same."""
    told = [(seen(each), ledger(each)) for each in (story, other)]
    return "the same" if told[0] == told[1] else "; ".join(told[1])


def _elsewhere(story: Story, other: Story) -> str:
    parts = [difference(story, other)]
    if following(other) != following(story):
        parts.append(f"then {following(other)}")
    if other.next_start_ms is not None:
        parts.append(f"its next attempt started {other.next_start_ms} ms after the kill")
    s = other.summary
    parts.append(
        f"in the whole run lost {s['lost']}, duplicates unexplained {s['unexplained']}, over budget "
        f"{s['over_budget']}, early {s['early']}"
    )
    return "; ".join(parts)


def _section(story: Story, on_postgres: Story) -> str:
    name = story.failpoint
    subject = (
        f"a webhook to the destination `{story.subject}`" if story.kind == WEBHOOK else f"a job for `{story.subject}`"
    )
    totals = ", ".join(f"{count} {word}" for word, count in sorted(story.totals_at_kill.items())) or "none"
    s = story.summary
    lines = [
        f"\n### {name}: {story.kind}\n\nIt was busy with {subject}.\n",
        f"- **The outside had seen:** {seen(story)}.",
        f"- **The ledger said right after:** {ledger(story)}. All deliveries: {totals}.",
        f"- **What happened next:** {following(story)}.",
    ]
    if story.next_start_ms is not None:
        lines.append(f"- **How long it took:** its next attempt started {story.next_start_ms} ms after the kill.")
    both = _requests(story, story.at_end.seen)
    lines.append(f"- **All that the outside saw of it:** {both or 'nothing'}.{_duplicate(story)}")
    lines.append(
        f"- **The whole run:** deliveries {s['deliveries']}, attempts {s['attempts']}, requests {s['requests']}, "
        f"delivered {s['delivered']}, dead letters {s['dead']}, attempts recorded unknown {s['unknown']}, deliveries "
        f"recovered from one {s['recovered']}, duplicates explained {s['duplicates_explained']}; lost {s['lost']}, "
        f"duplicates unexplained {s['unexplained']}, over budget {s['over_budget']}, early {s['early']}."
    )
    lines.append(f"- **On PostgreSQL:** {_elsewhere(story, on_postgres)}.")
    return "\n".join(lines) + "\n"


def _duplicate(story: Story) -> str:
    done = [answer for _, answer in story.at_end.seen if answer == "effect" or answer.startswith("2")]
    if len(done) < 2:
        return ""
    return f" It succeeded {len(done)} times, under one delivery ID; the attempt recorded `unknown` explains it."


def structure(text: str) -> list[str]:
    """What two runs must agree on: the headings, and of the table what holds whatever the timing."""
    lines = []
    for line in text.splitlines():
        if line.startswith("| "):
            lines.append("|".join(line.split("|")[:5]))
        elif line.startswith(("#", "The process died")):
            lines.append(line)
    return lines


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, PostgresServer.start(durable=False) as server:
        on_sqlite = _told(tell_all(Path(folder, "sqlite")))
        with databases(server) as new:
            on_postgres = _told(tell_all(Path(folder, "postgres"), new))
    PAGE.write_text(render(on_sqlite, on_postgres), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}: {len(NAMES)} failpoints, {len(on_sqlite) + len(on_postgres)} runs")


def _told(stories: Stories) -> dict[tuple[str, str], Story]:
    told: dict[tuple[str, str], Story] = {}
    for run, story in stories.items():
        if isinstance(story, BaseException):
            raise story
        told[run] = story
    return told


if __name__ == "__main__":
    main()
