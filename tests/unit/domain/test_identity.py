"""Derived identities: the frozen vectors, the encoding, and the text form.

``tests/data/identity_vectors.json`` is compared with the package and with the independent implementation in
``identity_reference.py``, which also says how a vector is added.
"""

from __future__ import annotations

import enum
import hashlib
import unicodedata
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.domain.identity_reference import (
    CASES,
    EVENT,
    NFC,
    NFD,
    SAMPLE_UUID,
    from_json,
    frozen,
    reference_base32,
    reference_id,
    reference_item,
    reference_parse,
    reference_vector,
    typed,
)

from redrive.domain import identity
from redrive.errors import InvalidInput

# ---- the golden file --------------------------------------------------------------------------


def test_the_file_holds_every_case_and_no_other() -> None:
    assert sorted(frozen()) == sorted(CASES)


@pytest.mark.parametrize("name", CASES)
def test_frozen_vector_by_the_reference(name: str) -> None:
    vector = frozen()[name]
    assert vector == reference_vector(name)
    assert typed(tuple(map(from_json, vector["parts"]))) == typed(CASES[name][1])


@pytest.mark.parametrize("name", CASES)
def test_frozen_vector_by_the_package(name: str) -> None:
    vector = frozen()[name]
    parts = tuple(map(from_json, vector["parts"]))
    raw = bytes.fromhex(vector["id_hex"])
    assert identity.derive(vector["kind"], *parts) == raw
    assert identity.to_text("dlv", raw) == "dlv_" + vector["base32"]
    number = int(vector["number"])
    match vector["kind"], parts:
        case "delivery", ("webhook", tenant, (bytes() as event, destination)):
            assert identity.webhook_delivery_id(tenant, event, destination) == raw
            assert identity.delivery_id("webhook", tenant, (event, destination)) == raw
        case "delivery", (handler, tenant, key):
            assert identity.delivery_id(handler, tenant, key) == raw
        case "event", (tenant, key):
            assert identity.event_id(tenant, key) == raw
        case "generation", (delivery, generation):
            assert identity.replay_id(delivery, generation) == raw
        case "attempt", (delivery, fence):
            assert identity.attempt_id(delivery, fence) == raw
        case "route", (handler, version):
            assert identity.route_of(handler, version) == number
        case "flow", (handler, version, destination, tenant):
            assert identity.flow_of(handler, version, destination, tenant) == number
        case _:
            pytest.fail(f"no function derives {vector['kind']}")


def test_one_vector_written_out_by_hand() -> None:
    """So that the reference, the package and the file cannot all be wrong together."""
    item = b"s\x00\x00\x00\x00\x00\x00\x00"
    document = (
        b"redrive\x01" + item + b"\x08delivery" + item + b"\x07invoice" + item + b"\x04acme"
        b"l\x00\x00\x00\x00\x00\x00\x00\x0a" + b"i\x00\x00\x00\x00\x00\x00\x00\x011"
    )  # fmt: skip
    assert frozen()["delivery: integer 1"]["document_hex"] == document.hex()
    assert identity.delivery_id("invoice", "acme", 1) == hashlib.sha256(document).digest()[:16]


def test_every_vector_is_another_id() -> None:
    assert len({vector["id_hex"] for vector in frozen().values()}) == len(CASES)


# ---- the encoding -----------------------------------------------------------------------------

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**256) + 1, 2**256 - 1)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.binary(max_size=8)
    | st.uuids()
)
PARTS = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=8)


@settings(deadline=None)
@given(PARTS)
def test_package_and_reference_agree_and_can_be_read_back(part: Any) -> None:
    encoded = identity.encode_part(part)
    assert encoded == reference_item(part)
    assert typed(tuple(reference_parse(encoded))) == typed((part,))


@settings(deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=3), st.lists(PARTS, min_size=1, max_size=3))
def test_ids_are_equal_exactly_when_typed_parts_are(one: list[Any], other: list[Any]) -> None:
    same = typed(one) == typed(other)
    assert (identity.derive("delivery", *one) == identity.derive("delivery", *other)) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        (1, True),
        ("1", True),
        (0, False),
        ("True", True),
        (b"1", "1"),
        ("b'1'", b"1"),
        (SAMPLE_UUID, str(SAMPLE_UUID)),
        (SAMPLE_UUID, SAMPLE_UUID.bytes),
        (("ab", "c"), ("a", "bc")),
        (("a", "b"), "ab"),
        (("a", "b", "c"), (("a", "b"), "c")),
        ((("a", "b"), "c"), ("a", ("b", "c"))),
        (("a", None), ("a",)),
        (("a", None), ("a", "")),
        (("a", ()), ("a", "")),
        (("a",), (("a",),)),
        (NFC, NFD),
        ("a", "A"),
        ("a", " a"),
        ("\u212b", "\u00c5"),
        # A part that spells the encoding of two others.
        (("a" + "s\x00\x00\x00\x00\x00\x00\x00\x01b",), ("a", "b")),
    ],
)
def test_different_keys(one: Any, other: Any) -> None:
    assert identity.delivery_id("h", "t", one) != identity.delivery_id("h", "t", other)
    assert identity.event_id("t", one) != identity.event_id("t", other)


def test_the_normalisation_pair_is_one() -> None:
    assert unicodedata.normalize("NFC", NFD) == NFC != NFD


@pytest.mark.parametrize("value", ["order-1", 7, 0, True, False, b"x", SAMPLE_UUID])
def test_a_key_of_one_part_is_its_bare_value(value: Any) -> None:
    bare = identity.delivery_id("h", "t", value)
    assert bare == identity.delivery_id("h", "t", (value,)) == identity.delivery_id("h", "t", [value])
    assert identity.encode_key(value) == identity.encode_part((value,))


def test_lists_are_tuples_and_enums_are_their_values() -> None:
    class Number(enum.IntEnum):
        SEVEN = 7

    class Word(enum.StrEnum):
        SEVEN = "seven"

    assert identity.encode_part(("a", ["b", [1]])) == identity.encode_part(("a", ("b", (1,))))  # type: ignore[arg-type]
    assert identity.encode_part(Number.SEVEN) == identity.encode_part(7)
    assert identity.encode_part(Word.SEVEN) == identity.encode_part("seven")


def test_boundaries_between_handler_tenant_and_key_hold() -> None:
    ids = {
        identity.delivery_id("ab", "c", "d"),
        identity.delivery_id("a", "bc", "d"),
        identity.delivery_id("a", "b", "cd"),
        identity.delivery_id("abc", "", "d"),
        identity.delivery_id("", "abc", "d"),
    }
    assert len(ids) == 5


def test_kinds_do_not_meet() -> None:
    delivery = identity.delivery_id("h", "t", "k")
    assert identity.replay_id(delivery, 1) != identity.attempt_id(delivery, 1)
    assert identity.derive("delivery", "t", ("k",)) != identity.event_id("t", "k")


def test_generations_attempts_and_destinations_count_apart() -> None:
    delivery = identity.delivery_id("h", "t", "k")
    other = identity.delivery_id("h", "t", "k2")
    ids = {identity.replay_id(d, n) for d in (delivery, other) for n in range(50)}
    ids |= {identity.attempt_id(d, n) for d in (delivery, other) for n in range(50)}
    assert len(ids) == 200
    event = identity.event_id("t", "e")
    hooks = [(t, e, d) for t in ("t", "t2") for e in (event, delivery) for d in ("dst_1", "dst_2")]
    assert len({identity.webhook_delivery_id(*hook) for hook in hooks}) == 8


@pytest.mark.parametrize("key", [None, "", b"", (), [], (None,), ("",), (None, None), ("", None), ((),)])
def test_a_missing_key_is_an_error(key: Any) -> None:
    derivations: list[Callable[[], bytes]] = [
        lambda: identity.delivery_id("h", "t", key),
        lambda: identity.event_id("t", key),
    ]
    for derive in derivations:
        with pytest.raises(InvalidInput, match="missing") as caught:
            derive()
        assert caught.value.param == "key"
        assert "UNIQUE" in (caught.value.hint or "")


@pytest.mark.parametrize("key", [0, False, ("", 0), ("a", None), ("a", ""), b"\x00", " "])
def test_a_falsy_or_partly_empty_key_is_a_key(key: Any) -> None:
    assert len(identity.delivery_id("h", "t", key)) == 16


@pytest.mark.parametrize("text", [chr(0xD800), f"a{chr(0xDFFF)}b", chr(0xDCFF)])
def test_a_lone_surrogate_is_refused_wherever_it_stands(text: str) -> None:
    for derive in (
        lambda: identity.delivery_id("h", "t", text),
        lambda: identity.delivery_id("h", "t", ("a", ("b", text))),
        lambda: identity.delivery_id("h", text, "k"),
        lambda: identity.delivery_id(text, "t", "k"),
        lambda: identity.webhook_delivery_id("t", EVENT, text),
        lambda: identity.flow_of("h", 1, text, "t"),
    ):
        with pytest.raises(InvalidInput, match="surrogate"):
            derive()


@pytest.mark.parametrize("part", [1.0, float("nan"), {}, {"a": 1}, {1}, bytearray(b"x"), object(), identity.UNIQUE])
def test_other_types_are_refused(part: Any) -> None:
    for key in (part, ("a", part), ("a", ("b", part))):
        with pytest.raises(InvalidInput, match="cannot be a"):
            identity.delivery_id("h", "t", key)


def test_a_key_has_limits() -> None:
    overhead = 9 + 9  # the tuple's head and the text's
    longest = "k" * (identity.MAX_KEY_BYTES - overhead)
    assert len(identity.delivery_id("h", "t", longest)) == 16
    with pytest.raises(InvalidInput, match="4096"):
        identity.delivery_id("h", "t", longest + "k")
    with pytest.raises(InvalidInput, match="256 bits"):
        identity.delivery_id("h", "t", 2**256)
    nested: list[Any] = []
    nested.append(nested)
    with pytest.raises(InvalidInput, match="nested"):
        identity.delivery_id("h", "t", nested)


def test_unique_says_what_it_is() -> None:
    assert repr(identity.UNIQUE) == "UNIQUE"
    assert isinstance(identity.UNIQUE, identity.Unique)


# ---- the text form ----------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(min_size=16, max_size=16), st.data())
def test_text_round_trip_in_either_case_and_with_look_alikes(raw: bytes, data: st.DataObject) -> None:
    text = identity.to_text("dlv", raw)
    assert text == "dlv_" + reference_base32(raw)
    assert identity.from_text("dlv", text) == raw
    assert identity.from_text("dlv", text.upper()) == raw
    alike = {"0": "0oO", "1": "1iIlL"}
    tail = "".join(data.draw(st.sampled_from(alike.get(c, c + c.upper()))) for c in text[4:])
    assert identity.from_text("dlv", "dlv_" + tail) == raw


def test_text_keeps_the_order_of_the_bytes() -> None:
    ids = sorted(identity.delivery_id("h", "t", n) for n in range(1, 200))
    texts = [identity.to_text("dlv", raw) for raw in ids]
    assert texts == sorted(texts)


def test_text_extremes() -> None:
    assert identity.to_text("dlv", bytes(16)) == "dlv_" + "0" * 26
    assert identity.to_text("dlv", b"\xff" * 16) == "dlv_7" + "z" * 25
    assert identity.from_text("dlv", "dlv_7" + "z" * 25) == b"\xff" * 16


@pytest.mark.parametrize(
    "text",
    [
        "dlv_8" + "0" * 25,
        "dlv_" + "z" * 26,
        "dlv_" + "0" * 25,
        "dlv_" + "0" * 27,
        "dlv_" + "0" * 25 + "u",
        "dlv_" + "0" * 25 + "-",
        "dlv_" + "0" * 25 + " ",
        "dlv_" + "0" * 25 + "\u0661",
        " dlv_" + "0" * 26,
        "dlv_" + "0" * 26 + "\n",
        "evt_" + "0" * 26,
        "dlv-" + "0" * 26,
        "0" * 26,
        "dlv_",
        "_" + "0" * 26,
        "",
    ],
)
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        identity.from_text("dlv", text)
    assert caught.value.param == "id"


# ---- routes and flows -------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


@settings(deadline=None)
@given(NAMES, st.integers(1, 32767), NAMES, NAMES)
def test_routes_and_flows_are_63_bit_numbers(handler: str, version: int, destination: str, tenant: str) -> None:
    route = identity.route_of(handler, version)
    flow = identity.flow_of(handler, version, destination, tenant)
    assert 0 <= route < 2**63
    assert 0 <= flow < 2**63
    assert route == int.from_bytes(reference_id("route", (handler, version))[:8], "big") // 2
    assert flow == int.from_bytes(reference_id("flow", (handler, version, destination, tenant))[:8], "big") // 2


def test_a_flow_is_told_apart_by_each_of_its_parts() -> None:
    base = ("webhook", 1, "dst_1", "acme")
    others = [("webhook2", 1, "dst_1", "acme"), ("webhook", 2, "dst_1", "acme")]
    others += [
        ("webhook", 1, "dst_2", "acme"),
        ("webhook", 1, "dst_1", "acme2"),
        ("webhook", 1, "acme", "dst_1"),
    ]
    assert len({identity.flow_of(*flow) for flow in (base, *others)}) == 6
