"""Turn a request's constraints on the text of its answer into one grammar for the engine."""

import json
from typing import Any

from llguidance import regex_to_lark

from jaxgen.core.sampling_params import Grammar
from jaxgen.server.config import Answers
from jaxgen.server.errors import bad_request
from jaxgen.server.requests.closed_schema import closed_schema
from jaxgen.server.requests.grammar_schemas import for_grammar
from jaxgen.server.requests.schema_facts import TooMuchWorkError
from jaxgen.server.requests.schema_values import why_none_fits
from jaxgen.server.schema.base import ResponseFormat, SamplingFields, StructuredOutputs
from jaxgen.server.tool_calls.references import UnresolvedReferenceError

COMPACT = {"whitespace_flexible": False}
"""No white space between the parts of a JSON text, so that a small model cannot fill its answer with it."""

KINDS = ("json", "json_object", "regex", "choice", "grammar")


def resolve_grammar(
    wanted: ResponseFormat | None, structured: StructuredOutputs | None, *, closed: bool
) -> Grammar | None:
    """Return the grammar of ``response_format`` or ``structured_outputs``; None: any text. Raises ApiError 400.

    ``closed``: objects have only the keys that their schemas name.
    """
    asked = None if wanted is None else _of_format(wanted, closed)
    if structured is None:
        return asked
    if structured.disable_additional_properties is not None and not _kinds(structured):
        _require_no_spacing(structured)
        return asked
    if asked is not None:
        raise bad_request(
            "structured_outputs cannot be combined with response_format: send one of them.", "structured_outputs"
        )
    return Grammar(_of_structured(structured, closed), "structured_outputs")


def closes_objects(body: SamplingFields, settings: Answers) -> bool:
    """Whether objects of this request's schemas have only the keys that these name."""
    asked = None if body.structured_outputs is None else body.structured_outputs.disable_additional_properties
    return not settings.structured_additional_properties if asked is None else asked


def usable_schema(schema: Any, field: str, *, closed: bool, lenient: bool = False, what: str = "") -> Any:
    """Return the schema as grammars take it, its objects ``closed`` if asked; see ``for_grammar``.

    ``lenient``: of a tool's arguments, which are an object. Raises ApiError 400 that names the ``field``, and ``what``
    in it, for a reference that leads nowhere, and a schema that no value fits.
    """
    where = f"{field}: {what and f'{what}: '}"
    try:
        usable = for_grammar(schema, lenient=lenient)
    except UnresolvedReferenceError as error:
        raise bad_request(f"{where}{error}.", field) from error
    if why := why_none_fits({**usable, "type": "object"} if lenient and isinstance(usable, dict) else usable):
        raise bad_request(f"{where}{why}.", field)
    return without_other_keys(usable, field) if closed and isinstance(usable, dict) else usable


def without_other_keys(schema: dict[str, Any], field: str) -> dict[str, Any]:
    """Return the schema with its objects closed. Raises ApiError 400 that names ``field``."""
    try:
        result: dict[str, Any] = json.loads(closed_schema(json.dumps(schema)))
    except TooMuchWorkError as error:
        raise bad_request(
            f"{field}: the schema is too complex to allow only the keys that it names; "
            "structured_outputs with disable_additional_properties false allows them, as does the server's flag "
            "--structured-additional-properties.",
            field,
        ) from error
    return result


def json_grammar(schema: dict[str, Any] | bool, **options: Any) -> str:
    """Return a grammar of the schema's JSON texts, in llguidance's Lark.

    ``options``: defaults for ``x-guidance``, which the schema's own ``x-guidance`` overrides.
    """
    if schema is True:
        schema = {}
    if isinstance(schema, dict) and isinstance(own := schema.get("x-guidance", {}), dict):
        schema = {**schema, "x-guidance": COMPACT | options | own}
    return f"start: %json {json.dumps(schema)}"


def _of_format(asked: ResponseFormat, closed: bool) -> Grammar | None:
    if asked.type == "json_schema":
        if asked.json_schema is None or asked.json_schema.schema_ is None:
            raise bad_request(
                'response_format: type "json_schema" needs json_schema with a schema.', "response_format.json_schema"
            )
        schema = usable_schema(asked.json_schema.schema_, "response_format", closed=closed)
        return Grammar(json_grammar(schema), "response_format")
    if asked.json_schema is not None:
        raise bad_request(
            f'response_format: with json_schema, type must be "json_schema", not {asked.type!r}.',
            "response_format.json_schema",
        )
    return Grammar(json_grammar({"type": "object"}), "response_format") if asked.type == "json_object" else None


def _kinds(asked: StructuredOutputs) -> list[str]:
    return [name for name in KINDS if getattr(asked, "schema_" if name == "json" else name) not in (None, False)]


def _of_structured(asked: StructuredOutputs, closed: bool) -> str:
    given = _kinds(asked)
    if len(given) != 1:
        raise bad_request(
            f"structured_outputs takes one of {', '.join(KINDS)}; this has {' and '.join(given) or 'none'}.",
            "structured_outputs",
        )
    if asked.schema_ is not None or asked.json_object:
        return _json(asked, closed)
    _require_no_spacing(asked)
    if asked.disable_additional_properties is not None:
        raise bad_request(
            "structured_outputs: disable_additional_properties works only with json.", "structured_outputs"
        )
    if asked.regex is not None:
        return f"start: /{regex_to_lark(asked.regex, 'dws')}/"
    if asked.choice is not None:
        if not asked.choice:
            raise bad_request("structured_outputs.choice must have at least one text.", "structured_outputs.choice")
        # One terminal, which the lexer matches: as alternatives of a rule, each text would be an item of the parser's
        # rows, of which llguidance allows 2,000.
        texts = "|".join(map(_quoted, asked.choice))
        return f"start: CHOICE\nCHOICE: {texts}"
    assert asked.grammar is not None
    return asked.grammar


def _require_no_spacing(asked: StructuredOutputs) -> None:
    if asked.whitespace_pattern is not None or asked.disable_any_whitespace is not None:
        raise bad_request(
            "structured_outputs: options for white space work only with json in structured_outputs.",
            "structured_outputs",
        )


def _quoted(text: str) -> str:
    """Return a text as Lark writes it, in which U+007F stands for itself in JSON alone."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _json(asked: StructuredOutputs, closed: bool) -> str:
    options: dict[str, Any] = {}
    if asked.whitespace_pattern is not None:
        options["whitespace_pattern"] = asked.whitespace_pattern
    if asked.disable_any_whitespace is False:
        options["whitespace_flexible"] = True
    schema = {"type": "object"} if asked.json_object else asked.schema_
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise bad_request(
                f"structured_outputs.json is not valid JSON: {error}.", "structured_outputs.json"
            ) from error
        except RecursionError as error:
            raise bad_request("structured_outputs.json is nested too deep.", "structured_outputs.json") from error
    if not isinstance(schema, dict | bool):
        raise bad_request("structured_outputs.json must be a JSON schema: an object.", "structured_outputs.json")
    schema = usable_schema(schema, "structured_outputs", closed=closed)
    return json_grammar(schema, **options)
