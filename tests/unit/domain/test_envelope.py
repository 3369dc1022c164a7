"""Envelopes: an old and a new decoder side by side, corruption, and what an error may not say."""

from __future__ import annotations

import hashlib
import json
import traceback
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from redrive.domain import envelope
from redrive.domain.envelope import Decoders, Undecodable, payload_hash
from redrive.domain.identity import route_of
from redrive.errors import ConfigError

JSON = "application/json"
SECRET = "hunter2-4111111111111111"


def decode_v2(body: bytes) -> Any:
    """A newer release's format: a two-byte magic ahead of the JSON."""
    if body[:2] != b"v2":
        raise ValueError(f"no magic in {body!r}")
    return {"v2": json.loads(body[2:])}


OLD = Decoders({1: envelope.decode_json})
NEW = Decoders({1: envelope.decode_json, 2: decode_v2})
V1, V2 = b'{"order": 7}', b'v2{"order": 7}'


def read(decoders: Decoders, version: int, body: bytes, content_type: str = JSON) -> Any:
    return decoders.decode(version, content_type, body, payload_hash(content_type, body))


# ---- a rolling deploy -------------------------------------------------------------------------


def test_both_releases_read_what_the_old_one_wrote() -> None:
    assert read(OLD, 1, V1) == read(NEW, 1, V1) == {"order": 7}


def test_only_the_new_release_reads_version_2() -> None:
    assert read(NEW, 2, V2) == {"v2": {"order": 7}}
    with pytest.raises(Undecodable, match="version 2 is not known"):
        read(OLD, 2, V2)


def test_an_unknown_version_is_said_before_the_bytes_are_looked_at() -> None:
    """Work for a newer release must not be called corrupt by an older one."""
    for body, digest in ((V2, b"wrong"), (b"\xff", payload_hash(JSON, b"\xff"))):
        with pytest.raises(Undecodable, match="not known"):
            OLD.decode(2, JSON, body, digest)


def test_the_versions_make_the_routes_that_each_worker_claims() -> None:
    assert OLD.versions == {1}
    assert NEW.versions == {1, 2}
    old, new = ({route_of("invoice", version) for version in d.versions} for d in (OLD, NEW))
    assert old < new
    assert route_of("invoice", 2) in new - old


def test_the_default_reads_what_this_release_writes() -> None:
    assert Decoders().versions == {envelope.CURRENT} == {1}
    assert read(Decoders(), envelope.CURRENT, V1) == {"order": 7}


def test_decoders_do_not_change_with_the_mapping_they_were_made_from() -> None:
    mapping: dict[int, Callable[[bytes], Any]] = {1: envelope.decode_json}
    decoders = Decoders(mapping)
    mapping[2] = decode_v2
    assert decoders.versions == {1}


@pytest.mark.parametrize("version", [0, -1, 32768, True, "1", 1.0, None])
def test_a_version_is_a_small_positive_integer(version: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        Decoders({version: envelope.decode_json})
    assert caught.value.param == "decoders"
    assert Decoders({1: envelope.decode_json, 32767: decode_v2}).versions == {1, 32767}


# ---- corruption -------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.binary(min_size=1, max_size=64), st.data())
def test_any_changed_bit_is_seen_before_the_decoder_is_called(body: bytes, data: st.DataObject) -> None:
    called: list[bytes] = []
    decoders = Decoders({1: called.append})
    digest = payload_hash(JSON, body)
    bit = data.draw(st.integers(0, len(body) * 8 - 1))
    changed = bytearray(body)
    changed[bit // 8] ^= 1 << bit % 8
    for stored in (bytes(changed), body[:-1], body + b"\x00"):
        with pytest.raises(Undecodable, match="does not match its hash"):
            decoders.decode(1, JSON, stored, digest)
    assert called == []
    decoders.decode(1, JSON, body, digest)
    assert called == [body]


def test_a_changed_content_type_is_seen() -> None:
    with pytest.raises(Undecodable, match="hash"):
        OLD.decode(1, "text/plain", V1, payload_hash(JSON, V1))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b'{"order": 7}}',
        b"\xff\xfe",
        b'{"a": NaN}',
        b"[Infinity]",
        b"-Infinity",
        '{"order": 7}'.encode("utf-16"),
        b"\xef\xbb\xbf{}",
        b'"\xed\xa0\x80"',
        b"[" * 100_000,
    ],
)
def test_bytes_that_are_no_version_1_envelope(body: bytes) -> None:
    with pytest.raises(Undecodable, match="not a valid version 1 envelope"):
        read(OLD, 1, body)


def leaky(body: bytes) -> Any:
    raise RuntimeError(f"cannot read {body!r}")


@pytest.mark.parametrize(
    ("decoder", "body"),
    [
        (envelope.decode_json, b'{"card": "' + SECRET.encode()),
        (envelope.decode_json, SECRET.encode() + b"\xff"),
        (decode_v2, SECRET.encode()),
        (leaky, SECRET.encode()),
    ],
)
def test_no_byte_of_the_payload_is_in_the_error(decoder: Callable[[bytes], Any], body: bytes) -> None:
    decoders = Decoders({1: decoder})
    for digest in (payload_hash(JSON, body), payload_hash(JSON, b"other")):
        with pytest.raises(Undecodable) as caught:
            decoders.decode(1, JSON, body, digest)
        said = "".join(traceback.format_exception(caught.value)) + repr(caught.value.args)
        assert SECRET not in said
        assert "hunter2" not in said
        assert caught.value.__cause__ is None


def test_our_own_memory_running_out_is_not_the_payloads_fault() -> None:
    def starved(body: bytes) -> Any:
        raise MemoryError

    with pytest.raises(MemoryError):
        read(Decoders({1: starved}), 1, V1)


def test_an_interrupted_decoder_is_not_corruption() -> None:
    def interrupted(body: bytes) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read(Decoders({1: interrupted}), 1, V1)


# ---- hash and built-in decoders ---------------------------------------------------------------


def test_golden_payload_hash() -> None:
    """Frozen: it is kept with every identity, and decides between duplicate and conflict."""
    assert payload_hash(JSON, V1) == hashlib.sha256(b'application/json\x00{"order": 7}').digest()
    golden = "2f899668f4040d7b8822b5019944efd8e5de14a26495801223cd103135c2e9bc"
    assert payload_hash(JSON, b"{}").hex() == golden


def test_the_hash_tells_type_and_bytes_apart() -> None:
    hashes = {
        payload_hash("text/plain", b""),
        payload_hash("", b"text/plain"),
        payload_hash(JSON, b"{}"),
        payload_hash(JSON, b"{} "),
        payload_hash(JSON, b'{"a":1,"b":2}'),
        payload_hash(JSON, b'{"b":2,"a":1}'),
        payload_hash(JSON + "; charset=utf-8", b"{}"),
    }
    assert len(hashes) == 7


@pytest.mark.parametrize("body", [b"", b"\x00\xff", V1, b'{ "a" :1.0,"\\u001b":"\\u001B"}\n'])
def test_o65_an_opaque_payload_keeps_every_byte(body: bytes) -> None:
    assert read(Decoders({1: envelope.decode_opaque}), 1, body, "text/plain") == body


def test_o24_nul_inside_json_is_a_value_like_any_other() -> None:
    assert read(OLD, 1, b'{"a": "x\\u0000y"}') == {"a": "x\x00y"}
