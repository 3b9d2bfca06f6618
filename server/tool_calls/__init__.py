"""Calls of tools in what a model writes: formats, an incremental parser for each, and grammars that ask for calls."""
