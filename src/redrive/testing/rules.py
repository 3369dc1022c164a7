"""The checker's rules about one delivery: its entries, its state row and what the oracle saw of it, held together."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import Final

from redrive.testing.evidence import Case, Ledger, Row, Sighting

WORDS: Final = ("waiting", "leased", "delivered", "no_op", "dead", "cancelled")
"""Dispositions by their stored number."""

_ENDS: Final = {"late_delivered": 2, "late_no_op": 3, "expired": 4, "cancelled": 5}
_SUCCESS: Final = {"delivered": 2, "no_op": 3}
_DEAD: Final = 4
_LATE, _CONFIRMED = 1, 8
_DEFERRAL_US: Final = 1_000_000
_JITTER: Final = {"full": Fraction(0), "equal": Fraction(1, 2), "none": Fraction(1)}
"""The least part of the backoff that a delay may be."""

Found = Iterator[tuple[str, str]]


class Rules:
    """The rules about one delivery. All but ``fold`` and ``overdue`` judge by entries, not by the state row."""

    def __init__(self, case: Case, ledger: Ledger, *, oracle: bool) -> None:
        self.case, self.facts = case, case.facts
        self.ledger = ledger
        self.oracle = oracle
        self.seen = case.sightings if oracle else []
        self.grants: dict[int, tuple[int, int, int, int]] = {
            0: (
                self.facts["max_attempts"],
                self.facts["deadline_at"],
                self.facts["policy_version"],
                self.facts["first_due_at"],
            )
        }
        for row in case.generations:
            self.grants[row["generation"]] = (
                row["max_attempts"],
                row["deadline_at"],
                row["policy_version"],
                row["opened_at"],
            )
        self.latest = max(self.grants)
        self.by_fence = sorted(case.attempts, key=lambda attempt: attempt["fence"])

    def broken(self, now: int, drained: bool, grace_us: int) -> Found:
        for rule in ("write_ahead", "over_budget", "gaps", "fence", "terminal", "early", "untrue", "unexplained"):
            for message in getattr(self, rule)():
                yield rule, message
        for rule in ("altered", "dead_letter", "fold"):
            for message in getattr(self, rule)():
                yield rule, message
        for message in self.overdue(now, drained, grace_us):
            yield "overdue", message

    def counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        counts["attempts"] = len(self.case.attempts) + (self.facts["leased_by"] is not None)
        counts[WORDS[self.facts["disposition"]]] = 1
        counts["held"] = int(self.facts["disposition"] == 0 and self.facts["hold"] != 0)
        unknown = [attempt for attempt in self.case.attempts if attempt["outcome"] == "unknown"]
        counts["unknown"] = len(unknown)
        counts["late"] = sum(bool(attempt["flags"] & _LATE) for attempt in self.case.attempts)
        counts["recovered"] = int(bool(unknown) and self.facts["disposition"] in (2, 3))
        for generation in self.grants:
            counts["duplicates_explained"] += max(0, min(self._successes(generation), self._allowed(generation)) - 1)
        return counts

    # What the oracle saw, against the reservations.

    def _started(self, fence: int) -> tuple[int, int, int] | None:
        """When a reservation was made, its generation and number; None when nothing says that it started."""
        for attempt in self.case.attempts:
            if attempt["fence"] == fence:
                return attempt["started_at"], attempt["generation"], attempt["number"]
        if self.facts["leased_by"] is not None and fence == self.facts["fence"]:
            return self.facts["started_at"], self.facts["generation"], self.facts["attempt"]
        return None

    def write_ahead(self) -> Iterator[str]:
        again: Counter[tuple[int, bool]] = Counter()
        for sighting in self.seen:
            start = self._started(sighting.fence)
            if start is None:
                yield f"attempt {sighting.attempt} was seen, and has no reservation that was charged"
            elif start[0] > sighting.at_us:
                yield f"attempt {sighting.attempt} was seen {start[0] - sighting.at_us} us before its reservation"
            again[sighting.fence, sighting.began] += 1
        for (fence, _), times in again.items():
            if times > 1 and self._started(fence) is not None:
                yield f"fence {fence} was seen {times} times"

    def over_budget(self) -> Iterator[str]:
        for generation, (most, deadline, _, _) in self.grants.items():
            attempts = self.case.of(generation)
            starts = [attempt["started_at"] for attempt in attempts]
            if generation == self.latest and self.facts["leased_by"] is not None:
                starts.append(self.facts["started_at"])
            if len(starts) > most:
                yield f"{len(starts)} attempts in generation {generation}, {most} granted"
            if any(start >= deadline for start in starts):
                yield f"an attempt of generation {generation} started at or after the deadline"
        policy = self.ledger.policies.get(self.facts["policy_version"], {})
        born = max(self.facts["first_due_at"], self.facts["first_queued_at"])
        grant = (policy.get("max_attempts"), born + policy.get("max_age", 0))
        if grant != (self.facts["max_attempts"], self.facts["deadline_at"]):
            yield "the first budget is not the policy's"

    def gaps(self) -> Iterator[str]:
        for generation in {attempt["generation"] for attempt in self.case.attempts}:
            numbers = [attempt["number"] for attempt in self.case.of(generation)]
            if numbers != list(range(1, len(numbers) + 1)):
                yield f"attempts of generation {generation} are numbered {numbers}"
        for sighting in self.seen:
            start = self._started(sighting.fence)
            if start is not None and sighting.attempt != f"{start[1]}.{start[2]}":
                yield f"it was seen as attempt {sighting.attempt}, and is {start[1]}.{start[2]}"

    def fence(self) -> Iterator[str]:
        fences = [attempt["fence"] for attempt in self.case.attempts]
        if any(later <= earlier for earlier, later in pairwise(fences)):
            yield f"attempts in order have the fences {fences}"
        if fences and max(fences) + (self.facts["leased_by"] is not None) > self.facts["fence"]:
            yield f"fence {max(fences)} was used, and {self.facts['fence']} is the newest given out"
        spans = [(attempt["started_at"], attempt["ended_at"]) for attempt in self.by_fence]
        if self.facts["leased_by"] is not None:
            spans.append((self.facts["started_at"], self.facts["leased_until"]))
        for (_, ended), (started, _) in pairwise(spans):
            if started < ended:
                yield "an attempt started while another one was open"
        newest = 0
        for sighting in self.seen:
            if sighting.began and 0 < sighting.fence < newest:
                yield f"fence {sighting.fence} was used after fence {newest} had been"
            newest = max(newest, sighting.fence if sighting.began else 0)

    # What the entries say among themselves.

    def _end(self, generation: int) -> int | None:
        """The disposition in which a generation ended, by its entries; None while it goes on."""
        for transition in self.case.transitions:
            if transition["generation"] == generation and transition["kind"] in _ENDS:
                return _ENDS[transition["kind"]]
        attempts = self.case.of(generation)
        if attempts and (attempts[-1]["outcome"] in _SUCCESS or attempts[-1]["next_at"] is None):
            return _SUCCESS.get(attempts[-1]["outcome"], _DEAD)
        aged = any(row["generation"] == generation and row["cause"] == "age_exhausted" for row in self.case.dead)
        # A wait after a deferral that would have outlasted the age budget leaves no attempt and no transition.
        return _DEAD if aged and self.facts["deferrals"] else None

    def terminal(self) -> Iterator[str]:
        for generation in self.grants:
            attempts = self.case.of(generation)
            for attempt in attempts[:-1]:
                if attempt["next_at"] is None:
                    yield f"attempt {attempt['number']} of generation {generation} was the last, and others followed"
            if generation < self.latest and self._end(generation) != _DEAD:
                yield f"generation {generation} is not dead, and another one was opened"
            ends = [t["fence"] for t in self.case.transitions if t["generation"] == generation and t["kind"] in _ENDS]
            if len(ends) > 1 or any(attempt["fence"] > end for attempt in attempts for end in ends):
                yield f"something followed the end of generation {generation}"

    def early(self) -> Iterator[str]:
        starts = [(row["fence"], row["generation"], row["started_at"], row["next_at"]) for row in self.by_fence]
        if self.facts["leased_by"] is not None:
            starts.append((self.facts["fence"], self.facts["generation"], self.facts["started_at"], None))
        before: tuple[int, int | None] | None = None
        for fence, generation, start, next_at in starts:
            same = before is not None and before[0] == generation
            due = [before[1] or 0 if before is not None and same else self.grants[generation][3]]
            due += [
                transition["at"] + _DEFERRAL_US
                for transition in self.case.transitions
                if transition["kind"] in ("deferred", "interrupted") and transition["fence"] < fence
            ]
            if start < max(due):
                yield f"the attempt with fence {fence} started {max(due) - start} us before it was due"
            before = generation, next_at
        for attempt in self.case.attempts:
            if attempt["next_at"] is not None:
                yield from self._delay(attempt)

    def _delay(self, attempt: Row) -> Iterator[str]:
        policy = self.ledger.policies[self.grants[attempt["generation"]][2]]
        grown = policy["base"] * Fraction(round(policy["factor"] * 1000), 1000) ** (attempt["number"] - 1)
        ceiling = int(min(grown, policy["cap"]))
        least, most = max(int(ceiling * _JITTER[policy["jitter"]]), policy["floor"]), max(ceiling, policy["floor"])
        if attempt["retry_after"] is not None:
            asked = min(attempt["retry_after"], policy["retry_after_cap"])
            spread = 0 if policy["jitter"] == "none" else ceiling
            least, most = max(least, asked), max(most, asked + spread)
        delay = attempt["next_at"] - attempt["ended_at"]
        if not least <= delay <= most:
            yield f"attempt {attempt['number']} is followed by a wait of {delay} us, not {least} to {most}"

    # What is claimed, against what the oracle saw.

    def _hits(self, fence: int) -> list[Sighting]:
        return [sighting for sighting in self.seen if sighting.fence == fence and sighting.success]

    def untrue(self) -> Iterator[str]:
        if not self.oracle:
            return
        for attempt in self.case.attempts:
            if attempt["outcome"] != "delivered":
                continue
            if attempt["flags"] & _CONFIRMED:
                if not any(sighting.effect for sighting in self.seen):
                    yield f"attempt {attempt['number']} says that the effect was confirmed, and there is none"
            elif not self._hits(attempt["fence"]):
                yield f"attempt {attempt['number']} is recorded as delivered, and was never answered so"
        for transition in self.case.transitions:
            if transition["kind"] == "late_delivered" and not self._hits(transition["fence"]):
                yield f"fence {transition['fence']} was delivered late, and was never answered so"
        plain = self.ledger.destinations.get(self.facts["destination"], {})
        if plain.get("overrides") or plain.get("acknowledge", "2xx") != "2xx":
            return
        for attempt in self.case.attempts:
            failed = attempt["outcome"] in ("retryable", "permanent") and self._end(attempt["generation"]) == _DEAD
            if failed and self._hits(attempt["fence"]) and not self._allowed(attempt["generation"]) > 1:
                yield f"attempt {attempt['number']} succeeded, and is recorded as {attempt['outcome']}"

    def _successes(self, generation: int) -> int:
        return sum(s.success for s in self.seen if s.attempt.partition(".")[0] == str(generation))

    def _allowed(self, generation: int) -> int:
        """1 + distinct attempts recorded unknown or late (contract 2.3)."""
        doubtful = {
            attempt["fence"]
            for attempt in self.case.of(generation)
            if attempt["outcome"] == "unknown" or attempt["flags"] & _LATE
        }
        doubtful |= {
            transition["fence"]
            for transition in self.case.transitions
            if transition["generation"] == generation and transition["kind"].startswith(("late_", "evidence_"))
        }
        return 1 + len(doubtful)

    def unexplained(self) -> Iterator[str]:
        for generation in self.grants:
            successes, allowed = self._successes(generation), self._allowed(generation)
            if successes > allowed:
                yield f"{successes} successes in generation {generation}, {allowed} are explained"

    def altered(self) -> Iterator[str]:
        bodies = {sighting.body_sha256 for sighting in self.seen if sighting.body_sha256 is not None}
        if bodies - {hashlib.sha256(self.facts["payload"]).hexdigest()}:
            yield "a body was seen that is not the stored payload"
        signed = bool(self.ledger.destinations.get(self.facts["destination"], {}).get("secrets"))
        for sighting in self.seen:
            if sighting.signature == "bad" or (sighting.signature == "missing" and signed):
                yield f"the signature of attempt {sighting.attempt} is {sighting.signature}"

    def dead_letter(self) -> Iterator[str]:
        for generation in self.grants:
            letters = [row for row in self.case.dead if row["generation"] == generation]
            want = int(self._end(generation) == _DEAD)
            attempts = self.case.of(generation)
            if len(letters) != want:
                yield f"generation {generation} has {len(letters)} dead letters, not {want}"
            elif letters and letters[0]["attempts"] != len(attempts):
                yield f"its dead letter counts {letters[0]['attempts']} attempts, there were {len(attempts)}"
            elif letters and not self._cause(letters[0]["cause"], attempts, self.grants[generation][0]):
                yield f"its dead letter says {letters[0]['cause']}, and its attempts do not"

    def _cause(self, cause: str, attempts: list[Row], most: int) -> bool:
        last = attempts[-1] if attempts else None
        if cause == "age_exhausted":
            return len(attempts) < most and (last is None or last["outcome"] != "permanent")
        if last is None:
            return False
        if cause == "permanent":
            return bool(last["outcome"] == "permanent")
        if cause == "ambiguous":
            return any(attempt["outcome"] == "unknown" for attempt in attempts)
        return len(attempts) >= most and (cause == "worker_lost") == (last["category"] == "worker_lost")

    def fold(self) -> Iterator[str]:
        leased = self.facts["leased_by"] is not None
        most, deadline, _, _ = self.grants[self.latest]
        end = self._end(self.latest)
        attempts = self.case.of(self.latest)
        want = {
            "disposition": 1 if leased else 0 if end is None else end,
            "generation": self.latest,
            "attempt": len(attempts) + leased,
            "state_max": most,
            "state_deadline": deadline,
        }
        if want["disposition"] == 0 and not self.facts["deferrals"]:
            want["available_at"] = attempts[-1]["next_at"] if attempts else self.grants[self.latest][3]
        for column, value in want.items():
            if self.facts[column] != value:
                yield f"{column.removeprefix('state_')} is {self.facts[column]}, the entries add up to {value}"

    def overdue(self, now: int, drained: bool, grace_us: int) -> Iterator[str]:
        word = WORDS[self.facts["disposition"]]
        held = self.facts["hold"] != 0
        if drained and word in ("waiting", "leased") and not held:
            yield f"it is still {word} after the drain"
        elif word == "leased" and self.facts["leased_until"] + grace_us < now:
            yield f"its lease ran out {now - self.facts['leased_until']} us ago"
        elif word == "waiting" and self.facts["deadline_at"] + grace_us < now and self.latest == 0:
            yield "its age budget has run out, and it is still waiting"
        elif word == "waiting" and not held and self.facts["available_at"] + grace_us < now:
            yield f"it was due {now - self.facts['available_at']} us ago"
