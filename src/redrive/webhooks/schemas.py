"""Optional JSON Schemas per event type: an invalid payload never leaves.

JSON Schema Draft 2020-12. References resolve inside the schema itself and nowhere else: nothing is ever
fetched. ``format`` is an annotation, as the draft has it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from referencing import Registry, Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT202012

from redrive.domain.values import check_event_type, parse_json_bytes
from redrive.errors import InvalidInput, PayloadInvalid

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA_BYTES = 262_144
"""Longest schema, in bytes of JSON."""
MAX_LOCATION = 200
"""Longest result of :meth:`Schemas.check`, in characters."""

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_NAMES = ("properties", "dependentSchemas", "dependentRequired")
_PROBES: tuple[object, ...] = (None, True, 0, "", [], {}, [[]], {"a": {}})
# What validation itself can run into: float(10**400), a schema that recurses, a pattern too large.
_UNCHECKABLE = (ArithmeticError, RecursionError, ValueError)


class Schemas:
    """The compiled schemas, by event type. An event type without one is not checked."""

    def __init__(self) -> None:
        self._compiled: dict[str, _Compiled] = {}

    def register(self, event_type: str, schema: Mapping[str, Any] | bool | str | bytes) -> None:
        """Compile a schema (a value, or its JSON text) for an event type, replacing an earlier one.

        Raises :class:`InvalidInput` for something that is not a Draft 2020-12 schema, a reference that leads
        outside or nowhere, a pattern that is not a regular expression, or a recursion without end.
        """
        name = check_event_type(event_type)
        self._compiled[name] = _Compiled(_load(schema))

    def __contains__(self, event_type: object) -> bool:
        return event_type in self._compiled

    def check(self, event_type: str, body: bytes) -> str | None:
        """None if the payload is what its schema allows or has no schema; else where it is not, and why.

        For example ``$.items[3].price: minimum``: a bounded path and the keyword that failed, never a value.
        Names of properties are shown where the schema itself names them, others as ``*``. A payload that
        is not strict JSON, or that has a key twice, fails as ``$: not JSON``. Never raises.
        """
        compiled = self._compiled.get(event_type)
        return None if compiled is None else compiled.check(body)


class _Compiled:
    __slots__ = ("_known", "_validator")

    def __init__(self, schema: Mapping[str, Any] | bool) -> None:
        if isinstance(schema, Mapping) and str(schema.get("$schema", DIALECT)).rstrip("#") != DIALECT:
            _refuse("the schema's $schema is not Draft 2020-12")
        try:
            Draft202012Validator.check_schema(schema)
        except SchemaError as error:
            where = "/".join(str(part) for part in list(error.absolute_path)[:12])
            _refuse(f"the schema is not a Draft 2020-12 schema, at /{where[:100]}: {error.validator}")
        except _UNCHECKABLE:
            _refuse("the schema cannot be checked")
        resource: Resource[Any] = DRAFT202012.create_resource(schema)
        registry: Registry[Any] = Registry()
        try:
            self._known = frozenset(_names(resource, registry))
        except Unresolvable:
            _refuse(
                "the schema refers to something outside itself or not there",
                "put what it needs under $defs: nothing is fetched",
            )
        except re.error:
            _refuse("a pattern of the schema is not a regular expression")
        except RecursionError:
            _refuse("the schema is nested too deeply")
        self._validator = Draft202012Validator(schema, registry=registry)
        for probe in _PROBES:
            try:
                self._validator.is_valid(probe)
            except Unresolvable:
                _refuse("the schema refers to something outside itself or not there")
            except _UNCHECKABLE:
                _refuse("the schema recurses without end")

    def check(self, body: bytes) -> str | None:
        try:
            value = parse_json_bytes(body, unique_keys=True)
        except PayloadInvalid:
            return "$: not JSON"
        try:
            error = best_match(self._validator.iter_errors(value))
        except _UNCHECKABLE:
            return "$: cannot be checked against its schema"
        if error is None:
            return None
        return self._location(error, value)

    def _location(self, error: ValidationError, value: object) -> str:
        shown = "$"
        for part in list(error.absolute_path)[:12]:
            shown += f"[{part}]" if isinstance(part, int) else self._key(part)
        text = f"{shown}: {error.validator}"
        if error.validator == "required" and isinstance(error.instance, dict):
            wanted: Any = error.validator_value
            missing = [name for name in wanted if name not in error.instance]
            text += f" ({missing[0]})" if missing and missing[0] in self._known else ""
        return text[:MAX_LOCATION]

    def _key(self, key: str) -> str:
        if key not in self._known:
            return ".*"
        return f".{key}" if _PLAIN.fullmatch(key) else f"[{json.dumps(key)}]"


def _load(schema: Mapping[str, Any] | bool | str | bytes) -> Mapping[str, Any] | bool:
    """A private copy of the schema as strict JSON: later changes to the caller's own change nothing here."""
    if isinstance(schema, (str, bytes)):
        raw = schema.encode("utf-8", "replace") if isinstance(schema, str) else schema
    else:
        try:
            raw = json.dumps(schema, allow_nan=False).encode()
        except (TypeError, ValueError, RecursionError):
            _refuse("the schema is not a JSON value")
    if len(raw) > MAX_SCHEMA_BYTES:
        _refuse(f"the schema is longer than {MAX_SCHEMA_BYTES} bytes")
    try:
        value = parse_json_bytes(raw, unique_keys=True)
    except PayloadInvalid:
        _refuse("the schema is not strict JSON")
    if not isinstance(value, (dict, bool)):
        _refuse("a schema is an object or a boolean")
    return value


def _names(resource: Resource[Any], registry: Registry[Any]) -> Iterator[str]:
    """Every property name the schema mentions; on the way references are resolved and patterns compiled."""
    resolver = registry.resolver_with_root(resource)
    pending = [(resource, resolver)]
    while pending:
        current, scope = pending.pop()
        contents = current.contents
        if isinstance(contents, Mapping):
            for keyword in ("$ref", "$dynamicRef"):
                if keyword in contents:
                    scope.lookup(contents[keyword])
            if "pattern" in contents:
                re.compile(contents["pattern"])
            for pattern in contents.get("patternProperties", ()):
                re.compile(pattern)
            yield from contents.get("required", ())
            for keyword in _NAMES:
                yield from contents.get(keyword, ())
            for needed in contents.get("dependentRequired", {}).values():
                yield from needed
        pending.extend((sub, scope.in_subresource(sub)) for sub in current.subresources())


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise InvalidInput(message, param="schema", hint=hint)
