"""What fits: memory, token budget, widths of programs."""
