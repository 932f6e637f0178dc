"""A server on this machine that answers like the Hugging Face hub, and a client that asks it."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import close_session, constants

COMMIT = "0123456789" * 4


@contextmanager
def serve(
    repo: str, files: Mapping[str, bytes], broken: str | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The server's address and the paths that it was asked for.

    `repo` is the path of a repository in addresses, such as "datasets/IWSLT/iwslt2017"; a path with
    `broken` in it is forbidden.
    """
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            name = path.removeprefix(f"/{repo.removeprefix('models/')}/resolve/{COMMIT}/")
            sha = {name: hashlib.sha1(raw).hexdigest() for name, raw in files.items()}
            if broken is not None and broken in path:
                self.send(403, b"")
            elif path == f"/api/{repo}/tree/{COMMIT}":
                tree = [
                    {"type": "file", "path": name, "size": len(raw), "oid": sha[name]}
                    for name, raw in files.items()
                ]
                self.send_json(tree)
            elif path.startswith(f"/api/{repo}"):
                siblings = [{"rfilename": name} for name in files]
                self.send_json({"id": repo, "sha": COMMIT, "siblings": siblings, "private": False})
            elif name in files:
                self.send(200, files[name], ETag=f'"{sha[name]}"', X_Repo_Commit=COMMIT)
            else:
                self.send(404, b"", X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def send_json(self, answer: Any) -> None:
            self.send(200, json.dumps(answer).encode(), Content_Type="application/json")

        def send(self, status: int, body: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def ask(
    monkeypatch: pytest.MonkeyPatch, endpoint: str, cache: Path, *, offline: bool = False
) -> None:
    """From here on the hub is at `endpoint` and its cache in `cache`, as by the environment."""
    settings = {
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_OFFLINE": offline,
    }
    for name, value in settings.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    close_session()  # the client reads its proxies when it is made
