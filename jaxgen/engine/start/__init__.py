"""Everything that happens once, before the first request: compile, check, measure, and join the engine's parts."""
