"""What the oracle receiver answers: a script, checked when it is read. Its form is on the receiver's page."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

Answer = Mapping[str, Any]
Script = Mapping[str, Mapping[str, Any]]
OK: Final[Answer] = {"status": 200}


class Plan:
    """A checked script. Raises :class:`ValueError` for one that cannot work."""

    def __init__(self, script: Script) -> None:
        self._paths = {path: _shares(path, entry) for path, entry in script.items()}

    def answer(self, path: str, delivery: str, n: int) -> Answer:
        """What the ``n``-th request (from 1) of a delivery to a path gets."""
        shares = self._paths.get(path) or self._paths.get("*")
        if shares is None:
            return OK
        digest = hashlib.sha256(delivery.encode("latin-1", "replace")).digest()
        place = int.from_bytes(digest[:6], "big") / 2**48
        answers = next(answers for limit, answers in shares if place < limit)
        return answers[min(n, len(answers)) - 1]


def _shares(path: str, entry: Mapping[str, Any]) -> list[tuple[float, Sequence[Answer]]]:
    if set(entry) == {"answers"}:
        return [(2.0, _answers(path, entry["answers"]))]
    if set(entry) != {"share"}:
        raise ValueError(f"{path}: give answers or share")
    shares: list[tuple[float, Sequence[Answer]]] = []
    limit = 0.0
    for part, answers in entry["share"].items():
        if part != "default":
            if not 0 <= float(part) <= 1:
                raise ValueError(f"{path}: a share is 0 to 1, not {part}")
            limit += float(part)
            shares.append((limit, _answers(path, answers)))
    if limit > 1 + 1e-9:
        raise ValueError(f"{path}: the shares are more than 1 together")
    return [*shares, (2.0, _answers(path, entry["share"].get("default", [OK])))]


def _answers(path: str, answers: Sequence[Answer]) -> Sequence[Answer]:
    if not answers:
        raise ValueError(f"{path}: no answers")
    for answer in answers:
        kinds = {"status", "hang_s", "rst", "close"} & set(answer)
        others = set(answer) - kinds - {"effect"}
        allowed = {"headers", "delay_s", "body"} if kinds == {"status"} else set()
        if len(kinds) != 1 or not others <= allowed:
            raise ValueError(f"{path}: not an answer: {answer!r}")
        if "status" in kinds and not 200 <= answer["status"] <= 599:
            raise ValueError(f"{path}: not a status: {answer['status']}")
    return answers
