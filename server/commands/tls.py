"""Check the files of ``--ssl-certfile`` and the other TLS flags before the server starts, and read them again."""

import logging
import ssl
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError
from jaxgen.server.connections.config import ConnectionConfig

logger = logging.getLogger(__name__)


def tls_options(certfile: Path | None, keyfile: Path | None, ca_certs: Path | None) -> dict[str, Any]:
    """Return TLS options for ``uvicorn.Config``; empty without TLS. Raises ConfigError that names the flag.

    With ``ca_certs`` a caller must present a certificate that one of these authorities signed.
    """
    if certfile is None:
        for flag, file in (("--ssl-keyfile", keyfile), ("--ssl-ca-certs", ca_certs)):
            if file is not None:
                raise ConfigError(f"{flag} needs --ssl-certfile")
        return {}
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    key = certfile if keyfile is None else keyfile
    for flag, file in (("--ssl-certfile", certfile), ("--ssl-keyfile", key), ("--ssl-ca-certs", ca_certs)):
        if file is not None:
            _read(flag, file)
    try:
        # Without a password argument OpenSSL would ask for one at the terminal.
        context.load_cert_chain(certfile, key, password="")
    except ssl.SSLError as error:
        raise ConfigError(
            f"--ssl-certfile {certfile} and --ssl-keyfile {key} must be a PEM certificate and its key, without a "
            f"password: {error.reason or error}"
        ) from error
    if ca_certs is not None:
        try:
            context.load_verify_locations(ca_certs)
        except ssl.SSLError as error:
            raise ConfigError(f"--ssl-ca-certs {ca_certs} has no PEM certificates: {error.reason or error}") from error
    return {
        "ssl_certfile": certfile,
        "ssl_keyfile": key,
        "ssl_ca_certs": ca_certs,
        "ssl_cert_reqs": ssl.CERT_NONE if ca_certs is None else ssl.CERT_REQUIRED,
    }


def reload_certificate(config: ConnectionConfig) -> bool:
    """Read the certificate and its key again, for further connections; if they are not valid, the old ones stay.

    Return False where there is no TLS.
    """
    if config.ssl_certfile is None or config.ssl_keyfile is None:
        return False
    context = config.bounds.tls
    if context is None:
        return True  # they have not been read yet
    certfile, keyfile = Path(config.ssl_certfile), Path(config.ssl_keyfile)
    try:
        # In a context of its own first: files that do not match would spoil the one in use.
        tls_options(certfile, keyfile, None)
        context.load_cert_chain(certfile, keyfile, password="")
    except (ConfigError, OSError) as error:
        logger.error("the certificate stays as it was: %s", error)
    else:
        logger.info("the certificate in %s is read again, for further connections", certfile)
    return True


def _read(flag: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {file} cannot be read: {error.strerror}") from error
