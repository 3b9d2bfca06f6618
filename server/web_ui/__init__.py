"""The page at ``/``: files of ``site/``, what a browser may do with them, and ``/docs``."""
