"""Follow a request through the engine: choices, deadlines, the queue limit."""
