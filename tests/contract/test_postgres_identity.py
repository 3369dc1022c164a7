"""What SQL derives is what Python derives: the frozen vectors, and thousands of generated values.

The generated cases are compared in batches, one query each. They come from a fixed seed, so that a failure repeats.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import pytest
from tests.contract.sql_support import SCHEMA, Sql, each, one, refusal, session, some_json, some_text
from tests.services.postgres import PostgresServer
from tests.unit.domain.identity_reference import CASES, from_json, frozen, reference_item

from redrive.domain import identity, values
from redrive.domain.envelope import payload_hash
from redrive.domain.event_filter import EventFilter
from redrive.domain.policy import JOBS, WEBHOOKS, Jitter, OnUnknown, Policy
from redrive.errors import InvalidInput


@pytest.fixture(scope="module")
def sql(postgres: PostgresServer) -> Iterator[Sql]:
    with session(postgres) as conn:
        yield conn


# ---- the frozen vectors -----------------------------------------------------------------------


def sql_part(part: Any) -> tuple[str, list[Any]]:
    """The expression that encodes a part, and its parameters. Text with NUL is beyond SQL's text: given as bytes."""
    match part:
        case None:
            return "@part(NULL::text)", []
        case bool():
            return "@part(%s::boolean)", [part]
        case int():
            return "@part(%s::numeric)", [str(part)]
        case str() if "\x00" in part:
            return "@item('s', %s::bytea)", [part.encode()]
        case str():
            return "@part(%s::text)", [part]
        case bytes():
            return "@part(%s::bytea)", [part]
        case UUID():
            return "@part(%s::uuid)", [str(part)]
        case ():
            return "@tuple(VARIADIC '{}')", []
        case tuple():
            inner = [sql_part(item) for item in part]
            return f"@tuple({', '.join(text for text, _ in inner)})", [param for _, own in inner for param in own]
    raise AssertionError(part)


@pytest.mark.parametrize("name", CASES)
def test_frozen_vector(sql: Sql, name: str) -> None:
    vector = frozen()[name]
    parts = tuple(map(from_json, vector["parts"]))
    raw, number = bytes.fromhex(vector["id_hex"]), int(vector["number"])
    encoded = [sql_part(part) for part in parts]
    assert one(sql, encoded[-1][0], *encoded[-1][1]) == reference_item(parts[-1])
    text, params = "||".join(t for t, _ in encoded), [param for _, own in encoded for param in own]
    assert one(sql, f"@derive(%s, {text})", vector["kind"], *params) == raw
    assert one(sql, "@number_of(%s::bytea)", raw) == number
    assert one(sql, "@to_text('dlv', %s::bytea)", raw) == f"dlv_{vector['base32']}"
    assert one(sql, "@from_text('dlv', %s)", f"dlv_{vector['base32']}") == raw
    match vector["kind"], parts:
        case "delivery", ("webhook", tenant, (bytes() as event, destination)):
            assert one(sql, "@webhook_delivery_id(%s, %s::bytea, %s)", tenant, event, destination) == raw
        case "delivery", (handler, tenant, _):
            key, params = encoded[-1]
            assert one(sql, f"@delivery_id(%s, %s, {key})", handler, tenant, *params) == raw
        case "event", (tenant, _):
            key, params = encoded[-1]
            assert one(sql, f"@event_id(%s, {key})", tenant, *params) == raw
        case "generation", (delivery, generation):
            assert one(sql, "@replay_id(%s::bytea, %s)", delivery, generation) == raw
        case "attempt", (delivery, fence):
            assert one(sql, "@attempt_id(%s::bytea, %s)", delivery, fence) == raw
        case "route", (handler, version):
            assert one(sql, "@route_of(%s, %s::int)", handler, version) == number
        case "flow", (handler, version, destination, tenant):
            assert one(sql, "@flow_of(%s, %s::int, %s, %s)", handler, version, destination, tenant) == number
        case _:
            pytest.fail(f"no function derives {vector['kind']}")


def test_names_with_backslashes_and_other_scripts(sql: Sql) -> None:
    for name in ("a\\b", "\\x41", "\\\\101", "caf\u00e9", "\U0001f4e6", "tab\there"):
        assert one(sql, "@delivery_id(%s, %s, @key_of('1'))", name, name) == identity.delivery_id(name, name, 1)
        assert one(sql, "@flow_of(%s, 3, %s, %s)", name, name, name) == identity.flow_of(name, 3, name, name)
        assert one(sql, "@payload_hash(%s, %s::bytea)", name, name.encode()) == payload_hash(name, name.encode())


def test_the_session_s_settings_do_not_matter(sql: Sql) -> None:
    expected = identity.delivery_id("a\\b", "t", "\x00\\"), values.canonical_json({"k": [0.1, 1e23, "\\\x00"]}).decode()
    text = json.dumps({"k": [0.1, 1e23, "\\\x00"]})
    with sql.transaction():
        sql.execute("SET LOCAL standard_conforming_strings = off")
        sql.execute("SET LOCAL extra_float_digits = -5")
        sql.execute("SET LOCAL bytea_output = escape")
        sql.execute("SET LOCAL search_path = pg_temp")
        key = json.dumps("\x00\\")
        assert one(sql, "encode(@delivery_id(%s, 't', @key_of(%s)), 'hex')", "a\\b", key) == expected[0].hex()
        assert one(sql, "@canonical_json(%s)", text) == expected[1]


# ---- IDs as text ------------------------------------------------------------------------------


def test_ids_as_text(sql: Sql) -> None:
    rng = random.Random(1)
    ids = [bytes(16), b"\xff" * 16, *(rng.randbytes(16) for _ in range(500))]
    texts = [identity.to_text("evt", raw) for raw in ids]
    assert each(sql, "@to_text('evt', v)", ids, "bytea") == texts
    assert each(sql, "@from_text('evt', v)", texts) == ids
    alike = [text.upper().replace("0", "O").replace("1", rng.choice("iIlL")) for text in texts]
    assert each(sql, "@from_text('evt', v)", alike) == ids


@pytest.mark.parametrize(
    "text",
    ["", "dlv_", "evt_" + "0" * 26, "dlv_" + "0" * 25, "dlv_" + "0" * 27, "dlv_" + "u" * 26, "dlv_8" + "0" * 25, "dlv"],
)
def test_what_is_no_id(sql: Sql, text: str) -> None:
    with pytest.raises(InvalidInput):
        identity.from_text("dlv", text)
    assert "not a dlv_ ID" in refusal(sql, "@from_text('dlv', %s)", text)


# ---- keys -------------------------------------------------------------------------------------


def some_key(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(8 if depth < 4 else 5):
        case 0:
            return None
        case 1:
            return rng.random() < 0.5
        case 2:
            return rng.choice((0, 1, -1, rng.randrange(-(10**6), 10**6)))
        case 3:
            return rng.choice((1, -1)) * rng.getrandbits(rng.choice((63, 64, 128, 256)))
        case 4:
            return some_text(rng)
        case _:
            return [some_key(rng, depth + 1) for _ in range(rng.randrange(4))]


def test_keys_given_as_json(sql: Sql) -> None:
    rng = random.Random(2)
    texts = [some_json(rng, some_key(rng)) for _ in range(3000)]
    accepted: dict[str, bytes] = {}
    for text in texts:
        try:
            accepted[text] = identity.encode_key(json.loads(text))
        except InvalidInput:
            pass
    assert len(accepted) > 1000
    refused = each(sql, f"pg_temp.refused('SELECT {SCHEMA}.key_of($1::json)', v)", texts)
    assert [text not in accepted for text in texts] == refused
    assert True in refused
    assert each(sql, "@key_of(v::json)", list(accepted)) == list(accepted.values())
    assert each(sql, "@delivery_id('h', 't', @key_of(v::json))", list(accepted)) == [
        identity.delivery_id("h", "t", json.loads(text)) for text in accepted
    ]


@pytest.mark.parametrize(
    ("key", "says"),
    [
        (None, "key is missing"),
        ("null", "key is missing"),
        ('""', "key is missing"),
        ("[]", "key is missing"),
        ('[null, "", [ ]]', "key is missing"),
        ("1.0", "must be an integer"),
        ("1e2", "must be an integer"),
        ('["a", 0.5]', "must be an integer"),
        (str(2**256), "256 bits"),
        (f"-{2**256}", "256 bits"),
        ("9" * 100_000, "256 bits"),
        ("{}", "cannot be an object"),
        ('["a", {"b": 1}]', "cannot be an object"),
        ('"\\ud800"', "lone surrogate"),
        ('"\\udc00\\ud800"', "lone surrogate"),
        (json.dumps("x" * 4079), "longer than 4096"),
        ("[" * 200 + "1" + "]" * 200, "nested too deeply"),
    ],
)
def test_keys_that_are_refused(sql: Sql, key: str | None, says: str) -> None:
    assert says in refusal(sql, "@key_of(%s)", key)


def test_the_longest_key(sql: Sql) -> None:
    assert len(one(sql, "@key_of(%s)", json.dumps("x" * 4078))) == identity.MAX_KEY_BYTES
    assert one(sql, "@key_of(%s)", str(2**256 - 1)) == identity.encode_key(2**256 - 1)
    deep = "[" * 100 + "1" + "]" * 100
    assert one(sql, "@key_of(%s)", deep) == identity.encode_key(json.loads(deep))


def test_keys_as_people_see_them(sql: Sql) -> None:
    keys: list[Any] = [
        "order-1",
        7,
        -0,
        True,
        ["order", 7, None, False, ""],
        "x" * 300,
        ["a" * 150, "b" * 150],
        "\\u0000 \\",
    ]
    assert each(sql, "@key_text(v::json)", list(map(json.dumps, keys))) == [identity.key_text(key) for key in keys]


# ---- filters, names, policies -----------------------------------------------------------------


def test_event_filters(sql: Sql) -> None:
    rng = random.Random(5)
    segments = ["a", "b", "A", "a_b", "axb", "-", "aa"]
    cases = []
    for _ in range(3000):
        wanted = [rng.choice((*segments, "*", "*")) for _ in range(rng.randrange(1, 5))]
        text = rng.choice((".".join(wanted), ".".join(wanted), ".".join([*wanted, "**"]), "*", "**"))
        have = [rng.choice(segments) if item == "*" or rng.random() < 0.1 else item for item in wanted]
        have = have[: rng.choice((9, 9, 1, 2))] + rng.choice(([], [], ["a"], ["a", "b"]))
        cases.append((text, ".".join(have)))
    expected = [EventFilter.parse(text).matches(event_type) for text, event_type in cases]
    assert 500 < sum(expected) < 2500
    pairs = [json.dumps(case) for case in cases]
    assert each(sql, "@filter_matches(v::json->>0, v::json->>1)", pairs) == expected


def python_refuses(check: Callable[[object, str], object], value: str) -> bool:
    try:
        check(value, "name")
    except InvalidInput:
        return True
    return False


@pytest.mark.parametrize(
    ("function", "check"),
    [
        ("check_label", values.check_label),
        ("check_slug", values.check_slug),
        ("check_event_type", values.check_event_type),
    ],
)
def test_names(sql: Sql, function: str, check: Callable[[object, str], object]) -> None:
    points = [*range(1, 0x3100), 0xE000, 0xFEFF, 0xFFFF, 0x10000, 0x10FFFF]
    names = [form.format(chr(point)) for point in points for form in ("{}", "a{}b", "{}b", "b{}")]
    names += [
        "",
        "a" * 200,
        "a" * 201,
        "\u00e9" * 200,
        "\u00e9" * 201,
        "a..b",
        ".a",
        "a.",
        "a.b-c_d.E9",
        "-a",
        "a\n",
        "a:b",
    ]
    expected = [python_refuses(check, name) for name in names]
    assert True in expected
    assert False in expected
    got = each(sql, f"pg_temp.refused('SELECT {SCHEMA}.{function}($1, ''name'')', v)", names)
    assert [repr(name) for name, a, b in zip(names, got, expected, strict=True) if a is not b] == []


def some_policy(rng: random.Random) -> Policy:
    floor, cap = sorted((rng.randrange(10**9), rng.randrange(10**9)))
    return Policy(
        max_attempts=rng.randrange(1, 1001),
        max_age=rng.randrange(1, 10**13),
        base=rng.randrange(10**9),
        factor=rng.choice((1, 2, 1.5, 1.1, 1000, rng.uniform(1, 1000))),
        cap=cap,
        floor=floor,
        jitter=rng.choice(list(Jitter)),
        retry_after_cap=rng.randrange(10**12),
        on_unknown=rng.choice(list(OnUnknown)),
    )


def test_policies(sql: Sql) -> None:
    rng = random.Random(6)
    policies = [JOBS, WEBHOOKS, *(some_policy(rng) for _ in range(300))]
    found = each(sql, "to_json(@policy_of(v::json, 'policy'))", [policy.spec() for policy in policies])
    assert found == [
        {"spec": p.spec(), "version": p.version, "max_attempts": p.max_attempts, "max_age": p.max_age} for p in policies
    ]
    for given in ("{}", '{"max_attempts": 3, "factor": 2}', '{"factor": 1e1, "jitter": "none"}'):
        assert one(sql, "(@policy_of(%s, 'policy')).version", given) == Policy.from_spec(given).version


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("[]", "must be an object"),
        ('{"max_attempt": 3}', "no policy has"),
        ('{"max_attempts": 0}', "max_attempts is out of range"),
        ('{"max_attempts": 1001}', "max_attempts is out of range"),
        ('{"max_attempts": 3.0}', "max_attempts must be an integer"),
        ('{"max_attempts": "3"}', "max_attempts must be an integer"),
        ('{"max_age": 0}', "max_age is out of range"),
        ('{"base": -1}', "base is out of range"),
        ('{"floor": 900000001}', "floor must not be more than cap"),
        ('{"factor": 0.5}', "factor must be 1 to 1000"),
        ('{"factor": "2"}', "factor must be 1 to 1000"),
        ('{"jitter": "some"}', "jitter must be"),
        ('{"jitter": null}', "jitter must be"),
        ('{"on_unknown": "ask"}', "on_unknown must be"),
    ],
)
def test_policies_that_are_refused(sql: Sql, given: str, says: str) -> None:
    assert says in refusal(sql, "@policy_of(%s, 'policy')", given)
