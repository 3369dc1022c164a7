"""What ``redrive check`` finds: one line for each thing looked at, and what to do where it is not as it should be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from redrive.errors import RedriveError
from redrive.ledger.migrate import FINISH, Migration, plan
from redrive.ledger.retention import RetentionRules

CLOCK_ALARM_US: Final = 1_000_000
"""A host whose clock is this far from ledger time is worth a warning: it dates what it logs, and files, wrongly."""


class Finding(NamedTuple):
    """One thing that was looked at. A ``warning`` works, but not as well as it could; what ``failed`` does not."""

    check: str
    value: str
    state: Literal["ok", "warning", "failed"]
    advice: str | None


def ok(check: str, value: object) -> Finding:
    """Nothing to do."""
    return Finding(check, str(value), "ok", None)


def warning(check: str, value: object, advice: str) -> Finding:
    """It works; ``advice`` says how it would work better."""
    return Finding(check, str(value), "warning", advice)


def failed(check: str, value: object, advice: str | None) -> Finding:
    """It does not work; ``advice`` says what to do."""
    return Finding(check, str(value), "failed", advice)


def refused(check: str, error: RedriveError) -> Finding:
    """An error as a finding."""
    return failed(check, error.message, error.hint)


def schema(known: Sequence[Migration], version: int) -> Iterator[Finding]:
    """What is to be said of a ledger's schema ``version``."""
    if version == 0:
        yield failed("schema", "there is no ledger yet", "run: redrive init")
        return
    todo, held = plan(known, version)
    newest = known[-1].version
    shown = f"{version}, this release's newest is {newest}"
    if todo:
        yield failed("schema", shown, f"run: redrive migrate (pending: {', '.join(step.label for step in todo)})")
    elif version > newest:
        yield warning("schema", shown, "a newer release is in use on this ledger; upgrade redrive on this host")
    else:
        yield ok("schema", version)
    if held:
        names = ", ".join(step.label for step in held)
        yield warning("second phase", f"pending: {names}", f"once every worker runs this release: {FINISH}")


def retention(rules: RetentionRules | None) -> Finding:
    """How long what has ended is kept, and the deduplication window that follows."""
    if rules is None or rules.shortest is None:
        return ok("retention", f"off: nothing is taken; {RetentionRules().window}")
    return ok("retention", f"{rules}; {rules.window}")


def clock(difference_us: int, margin_us: int, which: str) -> Finding:
    """How far this host's clock is ahead of ``which`` (negative: behind), known to ``margin_us``."""
    value = f"{difference_us / 1e6:+.3f} s against {which} (±{margin_us / 1e6:.3f} s)"
    if abs(difference_us) - margin_us <= CLOCK_ALARM_US:
        return ok("clock", value)
    return warning("clock", value, "let NTP set the clocks; leases and due times go by the ledger's, logs by this one")
