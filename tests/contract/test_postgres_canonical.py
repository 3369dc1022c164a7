"""Canonical JSON in SQL is Python's, byte for byte: the payload's hash decides between a duplicate and a conflict.

The generated cases are compared in batches, one query each. They come from a fixed seed, so that a failure repeats.
"""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from tests.contract.sql_support import Sql, each, one, refusal, session, some_json, some_text
from tests.services.postgres import PostgresServer

from redrive.domain import values


@pytest.fixture(scope="module")
def sql(postgres: PostgresServer) -> Iterator[Sql]:
    with session(postgres) as conn:
        yield conn


def some_float(rng: random.Random) -> float:
    while not math.isfinite(number := struct.unpack("<d", rng.randbytes(8))[0]):
        pass
    return float(
        rng.choice((number, rng.uniform(-1e6, 1e6), round(rng.uniform(-100, 100), 2), float(rng.randrange(9))))
    )


def some_value(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(10 if depth < 4 else 6):
        case 0:
            return rng.choice((None, True, False))
        case 1:
            return rng.choice((1, -1)) * rng.getrandbits(rng.choice((1, 8, 63, 64, 300)))
        case 2:
            return some_float(rng)
        case 3 | 4 | 5:
            return some_text(rng)
        case 6 | 7:
            return [some_value(rng, depth + 1) for _ in range(rng.randrange(5))]
        case _:
            return {some_text(rng): some_value(rng, depth + 1) for _ in range(rng.randrange(6))}


def test_canonical_json(sql: Sql) -> None:
    rng = random.Random(3)
    texts = [some_json(rng, some_value(rng)) for _ in range(2000)]
    expected = [values.canonical_json(json.loads(text)).decode() for text in texts]
    assert len(set(expected)) > 1000
    assert each(sql, "@canonical_json(v::json)", texts) == expected


def halfway(rng: random.Random) -> str:
    """A decimal exactly between two doubles: Python prints it where it is the shortest, PostgreSQL never does."""
    exponent = rng.randrange(1, 60)
    return f"{(2 * (rng.getrandbits(52) | 1 << 52) + 1) << exponent}.0"


def test_floats(sql: Sql) -> None:
    rng = random.Random(4)
    texts = [repr(some_float(rng)) for _ in range(3000)] + [halfway(rng) for _ in range(3000)]
    for exponent in range(-1074, 1024):
        power = math.ldexp(1.0, exponent)
        texts += [repr(near) for near in (math.nextafter(power, 0), power, math.nextafter(power, math.inf))]
    texts += [
        f"{digit}{fraction}e{power}" for digit in (1, 2, 5, 9) for fraction in ("", ".5") for power in range(-330, 308)
    ]
    for _ in range(2000):
        number, places = rng.uniform(-1, 1) * 10 ** rng.randrange(-20, 20), rng.randrange(1, 25)
        texts.append(rng.choice((f"{number:.{places}e}", f"{number:.{places}f}")))
    texts += ["-0.0", "-0e7", "1E5", "1e+5", "0.1e-400", "1e-99999", f"0.{'0' * 400}1e5", f"1{'0' * 400}e-405"]
    texts += [
        "2.4703282292062327e-324",
        "2.4703282292062329e-324",
        "1.7976931348623158e308",
        "100000.0",
        "1e16",
        "1e15",
    ]
    texts = [text for text in texts if math.isfinite(float(text))]
    expected = [values.canonical_json(json.loads(text)).decode() for text in texts]
    assert each(sql, "@canonical_json(v::json)", texts) == expected


def test_keys_of_objects_are_ordered_by_code_point(sql: Sql) -> None:
    keys = [
        "\x00",
        "\x00\x00",
        "\x01",
        "",
        "Z",
        "a",
        "B",
        "aa",
        "\u00e9",
        "e\u0301",
        "\uffff",
        "\U00010000",
        "\ue000",
        "\\",
    ]
    value = dict.fromkeys(keys, 0)
    assert one(sql, "@canonical_json(%s)", json.dumps(value)) == values.canonical_json(value).decode()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{"a": 1, "a": 1}', "a key twice"),
        ('{"a": 1, "\\u0061": 1}', "a key twice"),
        ('[[{"b": [], "b": {}}]]', "a key twice"),
        ("1e309", "not finite"),
        ("[-1e400]", "not finite"),
        ("1" + "0" * 310 + ".0", "not finite"),
        ('"\\ud800"', "lone surrogate"),
        ('{"\\udc00": 1}', "lone surrogate"),
        ('["\\\\\\ud83d\\u0000\\udce6"]', "lone surrogate"),
        ("9" * 2467, "too many digits"),
        ("[" * 65 + "]" * 65, "deeper than 64"),
        ('{"a":' * 65 + "1" + "}" * 65, "deeper than 64"),
    ],
)
def test_payloads_that_are_refused(sql: Sql, text: str, says: str) -> None:
    assert says in refusal(sql, "@canonical_json(%s)", text)


def test_payloads_at_the_limits(sql: Sql) -> None:
    for text in ("[" * 64 + "]" * 64, "9" * 2466, '"\\\\ud800"', '"\\ud83d\\udce6"', '"\\\\\\ud83d\\udce6"'):
        assert one(sql, "@canonical_json(%s)", text) == values.canonical_json(json.loads(text)).decode()
    assert one(sql, "@canonical_json(NULL)") == "null"
