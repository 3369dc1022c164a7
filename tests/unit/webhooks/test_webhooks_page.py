"""docs/webhooks.md says what the code does: every row of its tables, its headers, its way to verify."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from redrive.domain.outcome import Outcome
from redrive.errors import InvalidInput
from redrive.webhooks.catalog import SIGNATURE, VARYING
from redrive.webhooks.observation import NO_SLOT, Failure, Fault, Observation, Phase, Response
from redrive.webhooks.outcomes import OutcomeTable
from redrive.webhooks.signing import Signer, generate_secret

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()
TABLE = OutcomeTable()


def rows(first_column: str) -> list[list[str]]:
    """The cells of the table that begins with this column."""
    (body,) = re.findall(rf"^\| {first_column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body.splitlines()]


def named(cell: str, value: object) -> bool:
    return cell == "any" or str(value) in cell.split(", ")


def covers(cell: str, status: int) -> bool:
    if cell == "any other":
        return True
    spans = [part.partition("-") for part in cell.split(", ")]
    return any(int(low) <= status <= int(high or low) for low, _, high in spans)


def check(table: list[list[str]], seen: dict[str, Observation], matches: Callable[[list[str], str], bool]) -> None:
    """Each observation is what the first row that covers it says, and every row is the first for something."""
    used = set()
    for name, observation in seen.items():
        number, row = next((n, row) for n, row in enumerate(table) if matches(row, name))
        used.add(number)
        assert says(row) == meaning(TABLE.classify(observation, 0)), (name, row)
    assert used == set(range(len(table))), "a row that never applies"


def says(row: list[str]) -> tuple[str, str]:
    found = [cell for cell in row if re.fullmatch("delivered|retryable|permanent|unknown|deferred", cell)]
    assert len(found) == 1, row
    return found[0], row[row.index(found[0]) + 1]


def meaning(outcome: Outcome) -> tuple[str, str]:
    return str(outcome.kind), str(outcome.category)


def test_every_status_means_what_the_page_says() -> None:
    table = rows("status")
    seen: dict[str, Observation] = {str(status): Response(status) for status in range(1000)}
    check(table, seen, lambda row, name: covers(row[0], int(name)))
    disabling = [row[0] for row in table if "disabled" in row[3]]
    assert disabling == [str(s) for s in range(1000) if TABLE.classify(Response(s), 0).disable_destination] == ["410"]


def test_every_failure_means_what_the_page_says() -> None:
    seen: dict[str, Observation] = {}
    for phase, fault, sent in product(Phase, Fault, (False, True)):
        seen[f"{'yes' if sent else 'no'} {phase} {fault}"] = Failure(phase, fault, sent)
    # No connection was free: whatever else is known, the row of `pool` is meant.
    seen[f"no {Phase.CONNECT} {NO_SLOT}"] = Failure(Phase.CONNECT, Fault.TIMEOUT, False, NO_SLOT)
    table = rows("write called")
    check(table, seen, lambda row, name: all(named(cell, word) for cell, word in zip(row, name.split(), strict=False)))


def test_the_headers_are_those_of_the_request() -> None:
    listed = [row[0].strip("`").lower() for row in rows("header")]
    assert listed == [name.decode().lower() for name in (*VARYING, SIGNATURE)]


def test_what_else_the_page_says_of_answers() -> None:
    table = OutcomeTable.build("200-204", 208, {"404": "retryable", "410": "retryable", "4xx": "unknown"})
    assert meaning(table.classify(Response(226), 0)) == ("unknown", "bad_response")
    assert meaning(table.classify(Response(208), 0)) == ("delivered", "receiver_duplicate")
    assert meaning(table.classify(Response(404), 0))[0] == "retryable", "the narrower of two wins"
    assert meaning(table.classify(Response(403), 0))[0] == "unknown"
    assert not table.classify(Response(410), 0).disable_destination
    said = Response(200, ((b"webhook-duplicate", b"true"),))
    assert meaning(TABLE.classify(said, 0)) == ("delivered", "receiver_duplicate")
    with pytest.raises(InvalidInput):
        OutcomeTable.build(overrides={"4xx": "deferred"})


def test_the_way_to_verify_verifies() -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    scope: dict[str, Callable[..., bool]] = {}
    exec(code, scope)
    old, new, other = generate_secret(), generate_secret(), generate_secret()
    signature = Signer([new, old]).sign("dlv_1", 1_000, b'{"n": 1}')
    headers = {"webhook-id": "dlv_1", "webhook-timestamp": "1000", "webhook-signature": signature}
    verified = scope["verified"]
    assert verified(old, headers, b'{"n": 1}', 1_300.0)
    assert verified(new, headers, b'{"n": 1}', 700.0)
    assert not verified(other, headers, b'{"n": 1}', 1_000.0)
    assert not verified(new, headers, b'{"n":1}', 1_000.0)
    assert not verified(new, headers, b'{"n": 1}', 1_301.0)
