"""The commands of ``jaxgen``, and the options of ``serve``."""
