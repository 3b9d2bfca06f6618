"""What the engine does, for who watches: a feed of its steps, and the last hour."""
