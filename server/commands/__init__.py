"""The commands of ``jaxgen``."""
