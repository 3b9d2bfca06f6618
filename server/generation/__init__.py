"""One request on its way through the engine: choices, deadlines, the limit of the queue."""
