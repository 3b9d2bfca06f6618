"""OpenAI's SDK through nginx, which gives up silent responses and keeps its connections."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest

from .conftest import SCRIPTED, script

pytestmark = pytest.mark.clients

NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIG = """
daemon off;
master_process off;
pid nginx.pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    upstream jaxgen {{
        server {target};
        keepalive 8;
    }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://jaxgen;
            proxy_set_header Host $host;
            proxy_http_version 1.1;
            proxy_set_header Connection "";
            proxy_read_timeout 6s;
        }}
    }}
}}
"""
HI: Any = [{"role": "user", "content": script("Hello from behind a proxy.")}]


@contextmanager
def nginx(target: str, folder: Path) -> Iterator[str]:
    """The base URL, with /v1, of an nginx in front of the server at ``target``."""
    if NGINX is None:
        pytest.skip("nginx is missing: install it (apt-get install nginx-light)")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(target=target.removeprefix("http://"), port=port))
    with subprocess.Popen([NGINX, "-p", f"{folder}/", "-e", "stderr", "-c", str(config)]) as process:
        try:
            deadline = time.monotonic() + 120
            while True:
                assert process.poll() is None, "nginx has ended"
                try:
                    socket.create_connection(("127.0.0.1", port)).close()
                    break
                except ConnectionRefusedError:
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.kill()


def connections_to(target: str) -> set[int]:
    """The local ports of established connections to the server."""
    port = int(target.rpartition(":")[2])
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {
        int(local.rpartition(":")[2], 16)
        for _, local, remote, state, *_ in lines
        if state == "01" and int(remote.rpartition(":")[2], 16) == port
    }


def test_a_silent_stream_outlives_the_limit_of_the_proxy(silent: str, tmp_path: Path) -> None:
    """It is silent for 8 s, and nginx gives up after 6. The process that renders templates is there before."""
    with openai.OpenAI(base_url=f"{silent}/v1", api_key="x") as direct:
        body = {"model": SCRIPTED, "messages": HI}
        direct.post("/chat/completions/render", cast_to=object, body=body)
    with nginx(silent, tmp_path) as base, openai.OpenAI(base_url=base, api_key="x", max_retries=0) as client:
        for ids in (False, True):
            stream = client.chat.completions.create(
                model=SCRIPTED, messages=HI, stream=True, extra_body={"return_event_ids": ids}
            )
            said = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
            assert said == "Hello from behind a proxy."
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model=SCRIPTED, messages=HI)
        assert caught.value.status_code == 504, "what is not streamed shows that nginx has the limit"


def test_nginx_keeps_its_connection_for_later_requests(scripted: str, tmp_path: Path) -> None:
    with nginx(scripted, tmp_path) as base, openai.OpenAI(base_url=base, api_key="x", max_retries=0) as client:
        others = connections_to(scripted)
        client.models.list()
        kept = connections_to(scripted) - others
        assert len(kept) == 1
        time.sleep(6)  # uvicorn's own limit is 5 s
        assert connections_to(scripted) - others == kept
        client.models.list()
        assert connections_to(scripted) - others == kept
