"""TLS with certificates made here, and what is said of files that are no good."""

import shutil
import ssl
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
import trustme

from jaxgen.core.errors import ConfigError
from jaxgen.server.app import create_app
from jaxgen.server.cli import main
from jaxgen.server.commands.tls import reload_certificate, tls_options
from tests.support.live_server import configured, serve
from tests.support.server_app import body, fake_engine


@dataclass(frozen=True)
class Files:
    authority: trustme.CA
    cert: Path
    key: Path
    ca: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    folder, authority = tmp_path_factory.mktemp("tls"), trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.cert_chain_pems[0].write_to_path(str(folder / "cert.pem"))
    made.private_key_pem.write_to_path(str(folder / "key.pem"))
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    return Files(authority, folder / "cert.pem", folder / "key.pem", folder / "ca.pem")


def trusting(files: Files) -> ssl.SSLContext:
    context = ssl.create_default_context()
    files.authority.configure_trust(context)
    return context


def test_answers_come_over_tls(files: Files) -> None:
    with serve(create_app(fake_engine()), **tls_options(files.cert, files.key, None)) as url:
        assert url.startswith("https://")
        with httpx2.Client(verify=trusting(files), base_url=url) as client:
            assert client.post("/v1/completions", json=body()).status_code == 200
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{url}/health")  # nobody it knows has signed the certificate
        with pytest.raises(httpx2.RemoteProtocolError):
            httpx2.get(f"{url.replace('https', 'http')}/health")


def test_with_authorities_a_caller_must_show_a_certificate(files: Files) -> None:
    with serve(create_app(fake_engine()), **tls_options(files.cert, files.key, files.ca)) as url:
        known, stranger = trusting(files), trusting(files)
        files.authority.issue_cert("caller").configure_cert(known)
        trustme.CA().issue_cert("caller").configure_cert(stranger)
        with httpx2.Client(verify=known) as client:
            assert client.get(f"{url}/health").status_code == 200
        for context in (trusting(files), stranger):
            with httpx2.Client(verify=context) as client, pytest.raises(httpx2.TransportError):
                client.get(f"{url}/health")


def test_a_key_may_be_in_the_certificates_file(files: Files, tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
    assert tls_options(both, None, None)["ssl_keyfile"] == both
    assert tls_options(None, None, None) == {}


def test_files_that_are_no_good_are_named(files: Files, tmp_path: Path) -> None:
    other, text, locked = tmp_path / "other.pem", tmp_path / "text.pem", tmp_path / "locked.pem"
    trustme.CA().issue_cert("x").private_key_pem.write_to_path(str(other))
    text.write_text("no certificate")
    locked.write_text(
        files.key.read_text().replace(
            "KEY-----\n",
            "KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00112233445566778899AABBCCDDEEFF\n\n",
            1,
        )
    )
    missing = tmp_path / "none.pem"
    for arguments, said in (
        ((None, files.key, None), "--ssl-keyfile needs --ssl-certfile"),
        ((None, None, files.ca), "--ssl-ca-certs needs --ssl-certfile"),
        ((missing, files.key, None), f"--ssl-certfile {missing} cannot be read"),
        ((files.cert, missing, None), f"--ssl-keyfile {missing} cannot be read"),
        ((files.cert, files.key, missing), f"--ssl-ca-certs {missing} cannot be read"),
        ((files.cert, other, None), f"--ssl-keyfile {other} must be"),
        ((text, files.key, None), f"--ssl-certfile {text} and"),
        ((files.cert, locked, None), f"--ssl-keyfile {locked} must be"),
        ((files.cert, None, None), f"--ssl-keyfile {files.cert} must be"),
        ((files.cert, files.key, text), f"--ssl-ca-certs {text} has no"),
    ):
        with pytest.raises(ConfigError) as refused:
            tls_options(*arguments)
        assert said in str(refused.value)


def test_a_new_certificate_is_used_for_further_connections(
    files: Files, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One that is no good is not: the old one stays, also where only the key does not match."""
    caplog.set_level("INFO", "jaxgen")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    for name in (cert, key):
        shutil.copy(files.cert.parent / name.name, name)
    config = configured(create_app(fake_engine()), **tls_options(cert, key, None))
    assert reload_certificate(config), "before the server has read it"
    with serve(config) as url:
        address = ("127.0.0.1", int(url.rpartition(":")[2]))
        first = ssl.get_server_certificate(address)
        assert first == files.cert.read_text()
        made = files.authority.issue_cert("127.0.0.1")
        made.cert_chain_pems[0].write_to_path(str(cert))
        assert reload_certificate(config)
        assert ssl.get_server_certificate(address) == first
        made.private_key_pem.write_to_path(str(key))
        assert reload_certificate(config)
        assert ssl.get_server_certificate(address) == cert.read_text() != first
        cert.unlink()
        assert reload_certificate(config)
        with httpx2.Client(verify=trusting(files), base_url=url) as client:
            assert client.get("/health").status_code == 200
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "certificate" in record.msg]
    assert [level for level, _ in said] == ["ERROR", "INFO", "ERROR"]
    assert f"--ssl-certfile {cert} cannot be read" in said[2][1]
    assert not reload_certificate(configured(create_app(fake_engine())))


def test_serve_names_the_flag_before_it_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--ssl-certfile", "/nonexistent/cert.pem"]) == 2
    assert capsys.readouterr().err == (
        "jaxgen serve: --ssl-certfile /nonexistent/cert.pem cannot be read: No such file or directory\n"
    )
