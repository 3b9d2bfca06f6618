"""``jaxgen benchmark``: a client that measures any server. It knows nothing of this one."""
