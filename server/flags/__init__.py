"""The flags of ``jaxgen serve``: one file each for the engine's and the server's, and what they are parsed to."""
