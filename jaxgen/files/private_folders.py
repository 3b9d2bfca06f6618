"""Find out who else could put files into a folder. Host only, no jax."""

import os
import stat
from pathlib import Path


def trusted_users() -> set[int]:
    """Return the users whose files this process believes: its own user and root."""
    return {0, os.geteuid()}


def open_to_others(folder: Path) -> str | None:
    """Return how other users could put files into an existing folder, or put another folder in its place; None: not.

    A closed folder belongs to this user or to root, and nobody else may write it. The same holds for all folders above
    it, with two exceptions. A group that this user is in may write them. Everyone may write them if only owners may
    rename entries (the sticky bit, as of /tmp). Raises OSError.
    """
    folder = folder.resolve()
    trusted, groups = trusted_users(), {os.getegid(), *os.getgroups()}
    for place in (folder, *folder.parents):
        status = place.stat()
        if status.st_uid not in trusted:
            return f"{place} belongs to the user {status.st_uid}"
        others = status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
        if place != folder:
            if status.st_mode & stat.S_ISVTX:
                others = 0
            elif status.st_gid in groups:
                others &= ~stat.S_IWGRP
        if others:
            return f"{place} can be written by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return None
