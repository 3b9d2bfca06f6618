"""What a request would be, and when it would be answered: nothing is computed for it."""
