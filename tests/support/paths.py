"""Where the repository's files are, for tests in any folder."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The top of the repository."""
