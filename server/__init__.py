"""The OpenAI-compatible HTTP server around an engine. It never imports jax."""

if __name__ != "jaxgen.server":
    raise ImportError(
        "import jaxgen.server: jaxgen/server is a symlink to server/. On Windows clone with core.symlinks=true"
    )
