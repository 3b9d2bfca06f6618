"""Fetch files of a hub id into the hub's cache. Host only, no jax."""

import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import huggingface_hub

from jaxgen.core.config import HubOptions
from jaxgen.core.errors import ConfigError, check_path

SECONDS = 10.0
"""Until the hub is taken to be out of reach."""

Fetch = Callable[[str, HubOptions], Path]
"""A function that returns a directory with the files of a hub id. It may raise any error."""


def download(
    name: str, hub: HubOptions, wanted: Sequence[str], unwanted: Sequence[str] = (), *, cached: bool = False
) -> Path:
    """Return the directory of a hub id in the hub's cache, with the files of these patterns.

    ``cached``: what is not in the cache is not fetched. Raises the errors of the hub's client.
    """
    return Path(
        huggingface_hub.snapshot_download(
            name,
            revision=hub.revision,
            cache_dir=hub.download_dir and hub.download_dir.expanduser(),
            allow_patterns=list(wanted),
            ignore_patterns=list(unwanted) or None,
            local_files_only=cached,
        )
    )


def files_of(name: str, hub: HubOptions) -> list[str]:
    """Return the names of a hub id's files, by the hub. Raises the errors of the hub's client."""
    siblings = huggingface_hub.HfApi().model_info(name, revision=hub.revision, timeout=SECONDS).siblings or ()
    return sorted(file.rfilename for file in siblings)


def fetched(flag: str, name: str, hub: HubOptions, fetch: Fetch) -> Path:
    """Return what ``fetch`` does. Raises ConfigError with the flag if an id is not valid or cannot be fetched."""
    if name.startswith((".", "/", "~")) or name.count("/") > 1:
        raise ConfigError(f"{flag} {name}: there is no such directory")
    if hub.download_dir is not None:
        check_path("--download-dir", hub.download_dir)
    try:
        return fetch(name, hub)
    except ConfigError:
        raise
    # the hub's client raises errors of its HTTP library, which depends on the client's version
    except Exception as error:
        reason = textwrap.shorten(str(error) or type(error).__name__, 400, placeholder=" ...")
        raise ConfigError(
            f"{flag} {name}{_at(hub)}: there is no such directory, and it cannot be fetched from the hub: {reason}"
        ) from error


def _at(hub: HubOptions) -> str:
    return "" if hub.revision is None else f" --revision {hub.revision}"
