"""JSON Schemas per event type: clear at registration, bounded and valueless at check, never a fetch."""

from __future__ import annotations

import json
import socket
import urllib.request
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.webhooks.schemas import MAX_LOCATION, MAX_SCHEMA_BYTES, Schemas

ORDER: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["items", "currency"],
    "properties": {
        "currency": {"enum": ["EUR", "USD"]},
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}, "maxItems": 5},
        "note": {"type": "string", "pattern": "^[a-z ]*$", "maxLength": 10},
        "odd key": {"type": "integer"},
        "when": {"format": "date-time"},
    },
    "additionalProperties": False,
    "$defs": {
        "item": {
            "type": "object",
            "required": ["price"],
            "properties": {"price": {"type": "number", "minimum": 0}},
        }
    },
}


@pytest.fixture
def schemas() -> Schemas:
    made = Schemas()
    made.register("order.paid", ORDER)
    return made


def body(**change: Any) -> bytes:
    return json.dumps({"currency": "EUR", "items": [{"price": 1}]} | change).encode()


@pytest.mark.parametrize(
    ("payload", "want"),
    [
        (body(), None),
        (body(items=[]), None),
        (body(when="not a date"), None),
        (body(items=[{"price": 1}, {"price": 1}, {"price": 1}, {"price": -5}]), "$.items[3].price: minimum"),
        (body(items=[{"price": "secret"}]), "$.items[0].price: type"),
        (body(items=[{}]), "$.items[0]: required (price)"),
        (body(items=[{"price": 1}] * 6), "$.items: maxItems"),
        (body(currency="GBP"), "$.currency: enum"),
        (body(note="SECRET"), "$.note: pattern"),
        (body(extra="secret"), "$: additionalProperties"),
        (body(**{"odd key": "x"}), '$["odd key"]: type'),
        (b'{"items":[]}', "$: required (currency)"),
        (b"[]", "$: type"),
        (b"null", "$: type"),
        (b"", "$: not JSON"),
        (b"{", "$: not JSON"),
        (b"\xff", "$: not JSON"),
        (b'{"currency":"EUR","items":[{"price":NaN}]}', "$: not JSON"),
        (b'{"currency":"EUR","items":[{"price":1e999}]}', "$: not JSON"),
        # A receiver may read the first of two keys: it must not have passed the check as the second.
        (b'{"currency":"GBP","currency":"EUR","items":[]}', "$: not JSON"),
        (b"[" * 100_000, "$: not JSON"),
    ],
)
def test_check(schemas: Schemas, payload: bytes, want: str | None) -> None:
    assert schemas.check("order.paid", payload) == want


def test_event_types_without_a_schema_are_not_checked(schemas: Schemas) -> None:
    assert schemas.check("order.lost", b"\xff not json") is None
    assert "order.paid" in schemas
    assert "order.lost" not in schemas


def test_true_and_false_are_schemas(schemas: Schemas) -> None:
    schemas.register("a", True)
    schemas.register("b", "false")
    assert schemas.check("a", b"1") is None
    assert (schemas.check("b", b"1") or "").startswith("$")
    schemas.register("b", b"{}")
    assert schemas.check("b", b"1") is None


def test_names_from_the_payload_are_not_shown(schemas: Schemas) -> None:
    schemas.register("map", {"additionalProperties": {"properties": {"n": {"type": "integer"}}}})
    assert schemas.check("map", b'{"bob@example.com": {"n": "x"}}') == "$.*.n: type"


def test_the_result_is_bounded(schemas: Schemas) -> None:
    name = "k" * 150
    schemas.register("deep", {"properties": {name: {"properties": {name: {"type": "null"}}}}})
    got = schemas.check("deep", json.dumps({name: {name: 1}}).encode())
    assert got is not None
    assert len(got) == MAX_LOCATION
    schemas.register("tree", {"type": "array", "items": {"$ref": "#"}})
    got = schemas.check("tree", b"[" * 60 + b"1" + b"]" * 60)
    assert got == "$" + "[0]" * 12 + ": type"


def test_numbers_that_break_the_checker_are_refused_and_not_raised(schemas: Schemas) -> None:
    schemas.register("money", {"multipleOf": 0.01})
    assert schemas.check("money", b"1" + b"0" * 400) == "$: cannot be checked against its schema"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "wat"},
        {"type": 3},
        {"minimum": "1"},
        {"required": "a"},
        {"properties": []},
        {"pattern": "("},
        {"patternProperties": {"(": {}}},
        {"properties": {"a": {"pattern": "["}}},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"$schema": "https://example.com/mine"},
        {"$schema": 7},
        {"$ref": "#/$defs/missing"},
        {"$ref": "#missing"},
        {"$ref": "other.json"},
        {"$ref": "https://example.com/schema.json"},
        {"$ref": "http://169.254.169.254/latest"},
        {"$ref": "file:///etc/passwd"},
        {"$ref": "https://json-schema.org/draft/2020-12/schema"},
        {"$dynamicRef": "https://example.com/x#y"},
        {"properties": {"a": {"items": {"anyOf": [{"$ref": "urn:x"}]}}}},
        {"$defs": {"never used": {"$ref": "urn:x"}}},
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}]},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        {"not": {"$ref": "#"}},
        {"minimum": float("nan")},
        {"const": {1, 2}},
        [],
        "",
        "{",
        "[]",
        "nonsense",
        '{"type":"object","type":"array"}',
        b"\xff",
        "{}" + " " * MAX_SCHEMA_BYTES,
        None,
        3,
    ],
)
def test_refused_at_registration(schemas: Schemas, schema: Any) -> None:
    with pytest.raises(InvalidInput) as caught:
        schemas.register("order.paid", schema)
    assert caught.value.param == "schema"
    # The earlier schema stays.
    assert schemas.check("order.paid", body(currency="GBP")) == "$.currency: enum"


@pytest.mark.parametrize(
    "schema",
    [
        {"const": {"$ref": "https://example.com/x"}},
        {"enum": [{"$ref": "urn:x"}]},
        {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}}},
        {"$id": "https://example.com/a", "$defs": {"n": {"$id": "n", "type": "string"}}, "$ref": "n"},
        {"$anchor": "top", "properties": {"child": {"$ref": "#top"}}},
        {"$dynamicAnchor": "node", "items": {"$dynamicRef": "#node"}},
        {"properties": {"next": {"$ref": "#"}}},
    ],
)
def test_accepted_at_registration(schemas: Schemas, schema: Any) -> None:
    schemas.register("x", schema)
    assert "x" in schemas


def test_bad_event_types(schemas: Schemas) -> None:
    with pytest.raises(InvalidInput):
        schemas.register("order.*", {})


def test_a_schema_is_its_own(schemas: Schemas) -> None:
    mine: dict[str, Any] = {"properties": {"a": {"type": "integer"}}}
    schemas.register("x", mine)
    mine["properties"]["a"]["type"] = "string"
    assert schemas.check("x", b'{"a":1}') is None


def test_nothing_is_ever_fetched(schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    for ref in ("http://127.0.0.1:9/x", "https://example.com/x", "ftp://example.com/x"):
        with pytest.raises(InvalidInput):
            schemas.register("x", {"properties": {"a": {"$ref": ref}}})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(st.one_of(json_values.map(lambda value: json.dumps(value).encode()), st.binary(max_size=60)))
def test_check_never_raises(payload: bytes) -> None:
    schemas = _SHARED
    got = schemas.check("order.paid", payload)
    assert got is None or (got.startswith("$") and len(got) <= MAX_LOCATION)


_SHARED = Schemas()
_SHARED.register("order.paid", ORDER)
