"""From the fields of a body to what the engine is asked: prompts, parameters, tools."""
