"""JSON schemas of errors, for /openapi.json: OpenAI's and Anthropic's."""

from typing import Any


def _nullable(kind: str) -> dict[str, Any]:
    return {"anyOf": [{"type": kind}, {"type": "null"}]}


ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": _nullable("string"),
                "code": _nullable("string"),
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}

MESSAGES_ERROR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "properties": {
                "type": {"type": "string"},
                "message": {"type": "string"},
                "details": {"type": "object", "properties": {"error_code": {"type": "string"}}},
            },
            "required": ["type", "message"],
        },
        "request_id": _nullable("string"),
    },
    "required": ["type", "error", "request_id"],
}
