"""Choose sizes that fit: memory, token budget, widths of programs."""
