"""Find schemas that no value fits, and say which part of them is why: a grammar of one has no text.

What is said is sure; what is not found, llguidance may still find.
"""

from collections.abc import Callable, Iterator, Mapping
from math import ceil, floor, inf
from typing import Any

from jaxgen.server.tool_calls.references import LISTS, pointed
from jaxgen.server.tool_calls.typed_values import KINDS, kinds_of_value

MAX_WORK = 200_000
"""Most schemas looked at; what is not found until then is left to llguidance."""

_NUMBERS = frozenset({"integer", "number"})
_WITHIN = ("properties", "patternProperties", "items", "additionalItems", "additionalProperties", *sorted(LISTS))
_COUNTS = (("minLength", "maxLength", "string"), ("minItems", "maxItems", "array"))


class _TooMuchWorkError(Exception):
    pass


def why_none_fits(schema: Any) -> str | None:
    """Return why no value fits a schema, or why it has a reference that says nothing; None: neither is so.

    The schema's references are plain paths that lead somewhere.
    """
    try:
        return _Values(schema).fault()
    except (_TooMuchWorkError, LookupError):
        return None


class _Values:
    """The kinds of values that fit each schema of a document: at first none, then all that others leave, until no
    schema gains one."""

    def __init__(self, root: Any) -> None:
        self._root = root
        self._all = self._reached()
        self._kinds: dict[int, frozenset[str]] = {}
        self._circular = {id(schema) for schema in self._all}
        """Schemas that say nothing but what they say themselves."""
        self._steps = 0

    def fault(self) -> str | None:
        self._until_nothing_changes(self._lead_out)
        for schema in self._all:
            if "$ref" in schema and id(schema) in self._circular:
                return f"the $ref {schema['$ref'][:100]!r} leads back to itself and to no other schema"
        self._until_nothing_changes(self._gain)
        return None if self._fitting(self._root) else f"no value fits the schema: {self._reason()}"

    def _reached(self) -> list[Mapping[str, Any]]:
        """Return each schema once, after those within it and its reference's target, unless these lead back to it."""
        waiting: list[tuple[Any, bool]] = [(self._root, False)]
        seen: set[int] = set()
        reached: list[Mapping[str, Any]] = []
        while waiting:
            schema, is_done = waiting.pop()
            if is_done:
                reached.append(schema)
            elif isinstance(schema, Mapping) and id(schema) not in seen:
                seen.add(id(schema))
                waiting.append((schema, True))
                waiting += ((part, False) for part in (*self._targets(schema), *_schemas_in(schema)))
        return reached

    def _until_nothing_changes(self, change: Callable[[Mapping[str, Any]], bool]) -> None:
        """Change what is known of each schema until nothing changes."""
        while sum(change(schema) for schema in self._all):
            pass

    def _spend(self) -> None:
        self._steps += 1
        if self._steps > MAX_WORK:
            raise _TooMuchWorkError

    def _lead_out(self, schema: Mapping[str, Any]) -> bool:
        """Whether it is new that a schema does not lead to itself alone."""
        self._spend()
        if id(schema) not in self._circular:
            return False
        all_of = [*self._targets(schema), *_listed(schema, "allOf")]
        some_of = [_listed(schema, word) for word in ("anyOf", "oneOf")]
        if any(map(self._leads_back, all_of)):
            return False
        for branches in some_of:
            back = [branch for branch in branches if branch is not False]
            if back and all(map(self._leads_back, back)):
                return False
        self._circular.discard(id(schema))
        return True

    def _leads_back(self, schema: Any) -> bool:
        return isinstance(schema, Mapping) and id(schema) in self._circular

    def _gain(self, schema: Mapping[str, Any]) -> bool:
        """Whether it is new that some kinds fit a schema."""
        self._spend()
        kinds = self._own(schema)
        for part in (*self._targets(schema), *_listed(schema, "allOf")):
            kinds &= self._fitting(part)
        for word in ("anyOf", "oneOf"):
            if branches := _listed(schema, word):
                kinds &= frozenset[str]().union(*map(self._fitting, branches))
        gained = kinds != self._kinds.get(id(schema), frozenset())
        self._kinds[id(schema)] = kinds
        return gained

    def _targets(self, schema: Mapping[str, Any]) -> list[Any]:
        return [pointed(self._root, schema["$ref"])] if "$ref" in schema else []

    def _fitting(self, schema: Any) -> frozenset[str]:
        if not isinstance(schema, Mapping):
            return frozenset() if schema is False else KINDS
        return self._kinds.get(id(schema), frozenset())

    def _own(self, schema: Mapping[str, Any]) -> frozenset[str]:
        """Return the kinds that fit what a schema says itself."""
        named = _named(schema)
        without = {kind for kind, _ in self._faults(schema)}
        return named - without - (_NUMBERS if "number" in without else frozenset())

    def _faults(self, schema: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Yield what no value can be, by its kind: that, and why."""
        for least, most, kind in _COUNTS:
            if _above(schema.get(least), schema.get(most)):
                yield kind, f"{least} {str(schema[least])[:40]} is above {most} {str(schema[most])[:40]}"
        yield from ((kind, "no number is within its bounds") for kind in _NUMBERS if not _has_number(schema, kind))
        for i in range(min(_count(schema.get("minItems")), len(_listed(schema, "prefixItems")) + 1)):
            if not self._fitting(_item(schema, i)):
                yield "array", f"minItems is {str(schema['minItems'])[:40]}, and nothing fits item {i}"
        for name in _required(schema):
            if not self._fitting(_member(schema, name)):
                yield "object", name

    def _reason(self) -> str:
        """Return why nothing fits the root, with the names of the required properties that lead to the cause."""
        schema, names, within = self._root, list[str](), set[int]()
        while True:
            where = f"the required property {'.'.join(names)[:200]!r}" if names else "it"
            if not isinstance(schema, Mapping):
                return f"{where} is false"
            if id(schema) in within:
                return f"{where} needs a value of its own schema within itself, without end"
            within.add(id(schema))
            cause = self._cause(schema)
            if isinstance(cause, str):
                return f"{where} contradicts itself: {cause}"
            name, schema = cause
            if name is not None:
                names.append(name[:100])

    def _cause(self, schema: Mapping[str, Any]) -> str | tuple[str | None, Any]:
        """Return why nothing fits a schema: words, or the schema of it that nothing fits, with a property's name."""
        named = _named(schema)
        if not named:
            return "its values are of none of its types"
        faults = list(self._faults(schema))
        for kind, why in faults:
            if named <= ({kind} | (_NUMBERS if kind == "number" else set())):
                return _told(schema, kind, why)
        for part in (*self._targets(schema), *_listed(schema, "allOf")):
            if not self._fitting(part):
                return None, part
        for word in ("anyOf", "oneOf"):
            if (branches := _listed(schema, word)) and not any(map(self._fitting, branches)):
                return None, branches[0]
        return _told(schema, *faults[0]) if faults else "its parts are of different types"


def _told(schema: Mapping[str, Any], kind: str, why: str) -> str | tuple[str, Any]:
    """Return what is told of a fault: words, or a property whose schema nothing fits."""
    if kind != "object":
        return why
    if why not in (schema.get("properties") or {}) and schema.get("additionalProperties") is False:
        return f"it requires {why[:100]!r}, which additionalProperties does not allow"
    return why, _member(schema, why)


def _schemas_in(schema: Mapping[str, Any]) -> Iterator[Any]:
    for keyword in _WITHIN:
        value = schema.get(keyword)
        if isinstance(value, list):
            yield from value
        elif isinstance(value, Mapping) and keyword in ("properties", "patternProperties"):
            yield from value.values()
        else:
            yield value


def _named(schema: Mapping[str, Any]) -> frozenset[str]:
    """Return the kinds that ``type``, ``enum`` and ``const`` allow."""
    types = schema.get("type")
    types = [types] if isinstance(types, str) else types
    result = KINDS
    if isinstance(types, list):
        result = frozenset(name for name in types if isinstance(name, str)) & KINDS or KINDS
        result |= {"integer"} if "number" in result else frozenset()
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return result & frozenset().union(*map(kinds_of_value, values)) if isinstance(values, list) else result


def _listed(schema: Mapping[str, Any], keyword: str) -> list[Any]:
    schemas = schema.get(keyword)
    return schemas if isinstance(schemas, list) else []


def _required(schema: Mapping[str, Any]) -> list[str]:
    return [name for name in _listed(schema, "required") if isinstance(name, str)]


def _member(schema: Mapping[str, Any], name: str) -> Any:
    properties = schema.get("properties")
    if isinstance(properties, Mapping) and name in properties:
        return properties[name]
    return True if schema.get("patternProperties") else schema.get("additionalProperties", True)


def _item(schema: Mapping[str, Any], index: int) -> Any:
    first = _listed(schema, "prefixItems")
    items = schema.get("items", True)
    return first[index] if index < len(first) else True if isinstance(items, list) else items


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) != inf


def _above(least: Any, most: Any) -> bool:
    return _is_number(least) and _is_number(most) and least > most


def _count(value: Any) -> int:
    return int(value) if _is_number(value) and 0 < value < 1e9 else 0


def _has_number(schema: Mapping[str, Any], kind: str) -> bool:
    """Whether a number of a kind is within the schema's bounds. Draft 4 has booleans for the exclusive ones."""
    names = (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum"))
    lows, highs = (
        [(schema[name], name.startswith("e")) for name in pair if _is_number(schema.get(name))] for pair in names
    )
    if not lows or not highs:
        return True
    if kind == "integer":
        low = max(floor(value) + 1 if excluded else ceil(value) for value, excluded in lows)
        return low <= min(ceil(value) - 1 if excluded else floor(value) for value, excluded in highs)
    (low, low_excluded), (high, high_included) = max(lows), min((value, not excluded) for value, excluded in highs)
    return bool(low < high or (low == high and not low_excluded and high_included))
