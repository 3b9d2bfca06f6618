"""Reasoning and tool calls in a model's text: formats, an incremental parser for each, and grammars."""
