"""The endpoints: each reads a body, runs the engine and builds OpenAI's answer."""
