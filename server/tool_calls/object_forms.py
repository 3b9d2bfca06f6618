"""Find the arguments that a JSON schema of an object allows, for formats that write each argument by itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from typing import Any

from jaxgen.server.tool_calls.typed_values import Schemas

_MOST = 32
"""Most forms of one object; further ones are left out, which allows fewer objects and no wrong one."""
_DEEPEST = 64
MAX_STEPS = 100_000
"""Most schemas looked at and members copied for one object; a tool of 100 arguments takes some 100."""


class TooManyFormsError(ValueError):
    """The alternatives of a schema combine in too many ways."""


@dataclass(frozen=True, slots=True)
class ObjectForm:
    """One form of an object. ``members``: by key, the schemas that all hold of its value. ``more``: those of keys that
    are not named; None: there are no such keys."""

    members: Mapping[str, tuple[Any, ...]]
    required: frozenset[str]
    more: tuple[Any, ...] | None


ANY_OBJECT = ObjectForm({}, frozenset(), ())


def object_forms(schemas: Schemas, schema: Any) -> list[ObjectForm]:
    """Return the forms of a schema's object: one for each combination of alternatives, each of which can be.

    Raises TooManyFormsError.
    """
    forms = _Forms(schemas).of(schema, frozenset())
    return [form for form in forms if form.required <= form.members.keys()]


class _Forms:
    """Finds forms in a bounded number of steps: a schema may be reached by many ways, and each has other forms."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._steps = 0

    def of(self, schema: Any, seen: frozenset[int]) -> list[ObjectForm]:
        """Return the forms of a schema that is not in one of those ``seen``, by their ids."""
        self._spend(1)
        if not isinstance(schema, Mapping):
            return [] if schema is False else [ANY_OBJECT]
        if id(schema) in seen or len(seen) > _DEEPEST:
            return [ANY_OBJECT]
        if "object" not in self._schemas.kinds(schema):
            return []
        seen |= {id(schema)}
        together = [[_own(schema)]]
        if "$ref" in schema:
            together.append(self.of(self._schemas.follow(schema["$ref"]), seen))
        for word in ("allOf", "anyOf", "oneOf"):
            branches = schema.get(word)
            if isinstance(branches, list) and branches:
                of_branches = [self.of(branch, seen) for branch in islice(branches, _MOST)]
                together += (
                    of_branches if word == "allOf" else [[form for forms in of_branches for form in forms][:_MOST]]
                )
        return reduce(self._both, together)

    def _both(self, ones: list[ObjectForm], others: list[ObjectForm]) -> list[ObjectForm]:
        """Return the forms of objects that have a form of each list."""
        pairs = [*islice(((form, other) for form in ones for other in others), _MOST)]
        self._spend(sum(len(form.members) + len(other.members) for form, other in pairs))
        return [_joined(form, other) for form, other in pairs]

    def _spend(self, steps: int) -> None:
        self._steps += steps
        if self._steps > MAX_STEPS:
            raise TooManyFormsError("the alternatives of a schema combine in too many ways")


def _own(schema: Mapping[str, Any]) -> ObjectForm:
    """Return what a schema says itself. Keys by patterns are not allowed: no grammar here tells them apart."""
    properties, required = schema.get("properties"), schema.get("required")
    more = schema.get("additionalProperties", True)
    members = {key: (member,) for key, member in properties.items()} if isinstance(properties, Mapping) else {}
    names = frozenset(name for name in required if isinstance(name, str)) if isinstance(required, list) else frozenset()
    if schema.get("patternProperties"):
        more = False
    extra: tuple[Any, ...] | None = None if more is False else (more,) if isinstance(more, Mapping) else ()
    if extra is not None:
        members |= dict.fromkeys(sorted(names - members.keys()), extra)
    return ObjectForm(members, names, extra)


def _joined(first: ObjectForm, other: ObjectForm) -> ObjectForm:
    members: dict[str, tuple[Any, ...]] = {}
    for key in (*first.members, *(key for key in other.members if key not in first.members)):
        claims = [form.members.get(key, form.more) for form in (first, other)]
        if None not in claims:
            members[key] = tuple(schema for schemas in claims for schema in schemas or ())
    more = None if first.more is None or other.more is None else first.more + other.more
    return ObjectForm(members, first.required | other.required, more)
