"""``jaxgen benchmark``: a client that measures any OpenAI-compatible server. It does not depend on this server."""
