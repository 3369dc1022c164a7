"""A second implementation of derived identities, and the cases whose IDs are frozen.

``reference_item`` and ``reference_id`` are written from the encoding table in the docstring of
``redrive.domain.identity`` alone, and share no code with it. Both must agree with
``tests/data/identity_vectors.json``.

Adding a vector: put it into ``CASES`` and run ``python tests/unit/domain/identity_reference.py`` from the
repository's root. It appends what the file does not have, from this implementation, and refuses to touch what
is there: a changed ID would make every delivery already on a ledger a different one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

VECTORS = Path(__file__).parents[2] / "data" / "identity_vectors.json"
NFC = "caf\u00e9"
NFD = "cafe\u0301"
EVENT = bytes(range(16))
SAMPLE_UUID = UUID("01890a5d-ac96-774b-bcce-b302099a8057")

# name -> (kind, parts). A delivery's or an event's key is its last part, always a tuple.
CASES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "delivery: text key": ("delivery", ("invoice", "acme", ("order-1001",))),
    "delivery: integer 1": ("delivery", ("invoice", "acme", (1,))),
    "delivery: text 1": ("delivery", ("invoice", "acme", ("1",))),
    "delivery: bytes 1": ("delivery", ("invoice", "acme", (b"1",))),
    "delivery: true": ("delivery", ("invoice", "acme", (True,))),
    "delivery: false": ("delivery", ("invoice", "acme", (False,))),
    "delivery: zero": ("delivery", ("invoice", "acme", (0,))),
    "delivery: negative": ("delivery", ("invoice", "acme", (-42,))),
    "delivery: 63 bits and more": ("delivery", ("invoice", "acme", (2**63 - 1, 2**63, -(2**63), 2**255))),
    "delivery: UUID": ("delivery", ("invoice", "acme", (SAMPLE_UUID,))),
    "delivery: UUID as text": ("delivery", ("invoice", "acme", (str(SAMPLE_UUID),))),
    "delivery: UUID as bytes": ("delivery", ("invoice", "acme", (SAMPLE_UUID.bytes,))),
    "delivery: composed e acute (NFC)": ("delivery", ("invoice", "acme", (NFC,))),
    "delivery: decomposed e acute (NFD)": ("delivery", ("invoice", "acme", (NFD,))),
    "delivery: beyond the basic plane": ("delivery", ("invoice", "acme", ("\U0001f4e6",))),
    "delivery: NUL and newline": ("delivery", ("invoice", "acme", ("a\x00b\n",))),
    "delivery: ab, c": ("delivery", ("invoice", "acme", ("ab", "c"))),
    "delivery: a, bc": ("delivery", ("invoice", "acme", ("a", "bc"))),
    "delivery: abc": ("delivery", ("invoice", "acme", ("abc",))),
    "delivery: (a, b), c": ("delivery", ("invoice", "acme", (("a", "b"), "c"))),
    "delivery: a, (b, c)": ("delivery", ("invoice", "acme", ("a", ("b", "c")))),
    "delivery: a, b, c": ("delivery", ("invoice", "acme", ("a", "b", "c"))),
    "delivery: text and None": ("delivery", ("invoice", "acme", ("order", None))),
    "delivery: text and empty text": ("delivery", ("invoice", "acme", ("order", ""))),
    "delivery: deep": ("delivery", ("invoice", "acme", ((((b"x",), 1), None), (), True))),
    "delivery: other handler": ("delivery", ("invoice2", "acme", ("order-1001",))),
    "delivery: other tenant": ("delivery", ("invoice", "acme2", ("order-1001",))),
    "delivery: empty tenant": ("delivery", ("invoice", "", ("order-1001",))),
    "delivery: of a webhook": ("delivery", ("webhook", "acme", (EVENT, "dst_1"))),
    "delivery: of a sweep": ("delivery", ("cleanup", "acme", ("cleanup:2026-08-21T02:00Z", 7))),
    "event: text key": ("event", ("acme", ("evt-1",))),
    "event: of another tenant": ("event", ("acme2", ("evt-1",))),
    "generation: 1": ("generation", (EVENT, 1)),
    "generation: 2": ("generation", (EVENT, 2)),
    "attempt: fence 1": ("attempt", (EVENT, 1)),
    "attempt: fence 2": ("attempt", (EVENT, 2)),
    "route: webhook, version 1": ("route", ("webhook", 1)),
    "route: webhook, version 2": ("route", ("webhook", 2)),
    "flow: webhook, version 1": ("flow", ("webhook", 1, "dst_1", "acme")),
    "flow: of another tenant": ("flow", ("webhook", 1, "dst_1", "acme2")),
}


# ---- the second implementation ----------------------------------------------------------------


def reference_item(value: Any) -> bytes:
    kinds = {type(None): b"n", bool: b"o", int: b"i", str: b"s", bytes: b"b", UUID: b"u", tuple: b"l"}
    tag = kinds[type(value)]
    if tag == b"n":
        content = b""
    elif tag == b"o":
        content = bytes([int(value)])
    elif tag == b"i":
        content = str(value).encode("ascii")
    elif tag == b"s":
        content = value.encode("utf-8")
    elif tag == b"b":
        content = value
    elif tag == b"u":
        content = bytes.fromhex(value.hex)
    else:
        content = b"".join(reference_item(item) for item in value)
    return tag + bytes((len(content) >> shift) & 0xFF for shift in range(56, -8, -8)) + content


def reference_document(kind: str, parts: tuple[Any, ...]) -> bytes:
    return b"redrive\x01" + b"".join(reference_item(item) for item in (kind, *parts))


def reference_id(kind: str, parts: tuple[Any, ...]) -> bytes:
    return hashlib.sha256(reference_document(kind, parts)).digest()[:16]


def reference_base32(raw: bytes) -> str:
    """Crockford's alphabet, most significant digit first, two zero bits ahead of the 128."""
    bits = f"{int(raw.hex(), 16):0130b}"
    return "".join("0123456789abcdefghjkmnpqrstvwxyz"[int(bits[i : i + 5], 2)] for i in range(0, 130, 5))


READ: dict[bytes, Callable[[bytes], Any]] = {
    b"n": lambda content: None,
    b"o": lambda content: content == b"\x01",
    b"i": int,
    b"s": lambda content: content.decode("utf-8"),
    b"b": bytes,
    b"u": lambda content: UUID(bytes=content),
}


def reference_parse(data: bytes) -> list[Any]:
    """The inverse of the encoding: that it exists is what makes two different keys two documents."""
    values: list[Any] = []
    while data:
        tag, length = data[:1], int.from_bytes(data[1:9], "big")
        content, data = data[9 : 9 + length], data[9 + length :]
        assert len(content) == length
        if tag == b"l":
            values.append(tuple(reference_parse(content)))
        else:
            values.append(READ[tag](content))
    return values


def typed(value: Any) -> Any:
    """``value`` with its type beside it, since Python says ``1 == True``."""
    if isinstance(value, tuple | list):
        return ("tuple", *map(typed, value))
    return (type(value).__name__, value)


# ---- parts as JSON, for implementations in any language ---------------------------------------


def to_json(value: Any) -> dict[str, Any]:
    if value is None:
        return {"none": None}
    if isinstance(value, bool):
        return {"bool": value}
    if isinstance(value, int):
        return {"int": str(value)}
    if isinstance(value, str):
        return {"str": value}
    if isinstance(value, bytes):
        return {"bytes_hex": value.hex()}
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    return {"tuple": [to_json(item) for item in value]}


def from_json(tagged: dict[str, Any]) -> Any:
    ((kind, value),) = tagged.items()
    if kind == "tuple":
        return tuple(map(from_json, value))
    if kind == "int":
        return int(value)
    if kind == "bytes_hex":
        return bytes.fromhex(value)
    return UUID(value) if kind == "uuid" else value


def reference_vector(name: str) -> dict[str, Any]:
    kind, parts = CASES[name]
    raw = reference_id(kind, parts)
    return {
        "name": name,
        "kind": kind,
        "parts": [to_json(part) for part in parts],
        "document_hex": reference_document(kind, parts).hex(),
        "id_hex": raw.hex(),
        "base32": reference_base32(raw),
        # Text: a 63-bit number does not survive every JSON reader.
        "number": str(int(raw.hex()[:16], 16) // 2),
    }


def frozen() -> dict[str, dict[str, Any]]:
    stored = json.loads(VECTORS.read_text(encoding="ascii"))
    assert stored["encoding"] == 1
    return {vector["name"]: vector for vector in stored["vectors"]}


def _append_missing_vectors() -> None:
    have = frozen() if VECTORS.exists() else {}
    for name in CASES:
        if have.setdefault(name, reference_vector(name)) != reference_vector(name):
            raise SystemExit(f"refusing to change the frozen vector {name!r}")
    document = {
        "encoding": 1,
        "about": "Frozen: append, never change. See redrive/domain/identity.py for the encoding.",
        "vectors": list(have.values()),
    }
    VECTORS.write_text(json.dumps(document, indent=1, ensure_ascii=True) + "\n", encoding="ascii")


if __name__ == "__main__":
    _append_missing_vectors()
