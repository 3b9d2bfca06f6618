"""The OpenAI-compatible HTTP server around an engine. It never imports jax."""

if __name__ != "jaxgen.server":
    raise ImportError("import jaxgen.server: its folder stands beside jaxgen/, and is reached by the link in there")
