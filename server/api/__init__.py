"""The endpoints of OpenAI's API: each reads a body, runs the engine and builds the response."""
