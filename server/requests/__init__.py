"""Turn the fields of a body into requests to the engine: prompts, parameters, tools."""
