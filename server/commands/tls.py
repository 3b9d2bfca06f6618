"""Check the files of ``--ssl-certfile`` and the other TLS flags before the server starts."""

import ssl
from pathlib import Path
from typing import Any

from jaxgen.core.errors import ConfigError


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


def _read(flag: str, file: Path) -> None:
    try:
        file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{flag} {file} cannot be read: {error.strerror}") from error
