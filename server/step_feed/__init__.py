"""Show the engine's work to watchers: a feed of its steps, and the last hour."""
