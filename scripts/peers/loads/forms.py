"""JSON schemas that loads ask answers for, and the same as regular expressions. Standard library only."""

import re
from typing import Any


def one_of(*names: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(names)}


def record(**fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": fields, "required": list(fields), "additionalProperties": False}


def whole(least: int, most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def text(most: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": most}


TICKET = record(
    category=one_of("billing", "delivery", "technical_problem", "account_access", "other"),
    sentiment=one_of("positive", "neutral", "negative"),
    priority=one_of("low", "normal", "high", "urgent"),
    customer_identifier=whole(1000, 99999),
    needs_human_review={"type": "boolean"},
    requested_refund={"type": "boolean"},
    order=record(
        order_number=whole(1, 999999),
        number_of_items=whole(1, 99),
        shipping_method=one_of("standard", "express", "pickup"),
    ),
    languages={
        "type": "array",
        "items": one_of("english", "german", "french", "spanish"),
        "minItems": 1,
        "maxItems": 2,
    },
    follow_up_date={"type": "string", "pattern": "^2026-(0[1-9]|1[0-2])-[0-3][0-9]$"},
    short_summary=text(40),
)
"""What an assistant of a help desk fills in: most of its tokens are names that may be no others."""
ORDER = record(
    customer=text(40),
    address=text(100),
    items={
        "type": "array",
        "items": record(product=text(40), quantity=whole(1, 99), wishes=text(60)),
        "minItems": 1,
        "maxItems": 3,
    },
    remarks=text(160),
)
"""What is mostly free text: few of its tokens are forced."""
FORMS = {"ticket": TICKET, "order": ORDER}


def expression(schema: dict[str, Any]) -> str:
    """Return a regular expression of a form's JSON, without white space and without escapes in strings.

    Integers are from a power of ten to one less than another. Raises ValueError for other schemas.
    """
    match schema:
        case {"enum": list(names)}:
            return "(" + "|".join(f'"{re.escape(name)}"' for name in names) + ")"
        case {"pattern": str(pattern)}:
            return f'"{pattern.removeprefix("^").removesuffix("$")}"'
        case {"type": "string", "maxLength": int(most)}:
            return rf'"[^"\\\x00-\x1f]{{0,{most}}}"'
        case {"type": "boolean"}:
            return "(true|false)"
        case {"type": "integer", "minimum": int(least), "maximum": int(most)}:
            digits = len(str(least)), len(str(most))
            if (least, most) == (10 ** (digits[0] - 1), 10 ** digits[1] - 1):
                return f"[1-9][0-9]{{{digits[0] - 1},{digits[1] - 1}}}"
        case {"type": "array", "items": items, "minItems": 1, "maxItems": int(most)}:
            one = expression(items)
            return rf"\[{one}(,{one}){{0,{most - 1}}}\]"
        case {"type": "object", "properties": fields}:
            members = ",".join(f'"{name}":{expression(value)}' for name, value in fields.items())
            return rf"\{{{members}\}}"
    raise ValueError(f"no form: {schema}")
