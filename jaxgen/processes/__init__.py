"""Processes that do work for the server which may take too much time or memory, and can be ended."""
