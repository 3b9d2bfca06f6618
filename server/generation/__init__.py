"""Follow a request through the engine: choices and the queue limit."""
