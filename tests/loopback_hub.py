"""A Hugging Face Hub on loopback: one data set repository with commits, tags and stored objects."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit


class LoopbackHub(http.server.ThreadingHTTPServer):
    """The state of the repository; `refuses_uploads` makes the next stored objects fail."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.repository = ""
        self.is_private = False
        self.files: dict[str, dict[str, Any]] = {}
        self.objects: dict[str, bytes] = {}
        self.commits: list[str] = []
        self.tags: dict[str, int] = {}
        self.uploaded: list[str] = []
        self.refuses_uploads = False


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LoopbackHub

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if not self.server.repository or self.server.repository not in path:
            self._answer({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
        elif path.endswith("/refs"):
            tags = [{"name": tag, "ref": f"refs/tags/{tag}", "targetCommit": "0" * 40} for tag in self.server.tags]
            self._answer({"branches": [], "converts": [], "tags": tags})
        elif "/tree/" in path:
            self._answer([{"type": "file", "path": name, **file} for name, file in self.server.files.items()])
        else:
            siblings = [{"rfilename": name} for name in self.server.files]
            self._answer(
                {"id": self.server.repository, "sha": "0" * 40, "private": True, "siblings": siblings, "tags": []}
            )

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        hub, path = self.server, urlsplit(self.path).path
        if path == "/api/repos/create":
            value = json.loads(body)
            exists = bool(hub.repository)
            if not exists:
                hub.repository = f"{value['organization']}/{value['name']}"
                hub.is_private = value["visibility"] == "private" if "visibility" in value else value["private"]
            self._answer({"url": f"{hub.address}/datasets/{hub.repository}"}, 409 if exists else 200)
        elif path == "/api/validate-yaml":
            self._answer({"errors": [], "warnings": []})
        elif "/preupload/" in path:
            names = [file["path"] for file in json.loads(body)["files"]]
            modes = {name: "lfs" if name.endswith(".parquet") else "regular" for name in names}
            self._answer(
                {"files": [{"path": name, "uploadMode": mode, "shouldIgnore": False} for name, mode in modes.items()]}
            )
        elif path.endswith("/info/lfs/objects/batch"):
            self._answer({"transfer": "basic", "objects": [self._batch(item) for item in json.loads(body)["objects"]]})
        elif "/commit/" in path:
            self._commit([json.loads(line) for line in body.splitlines()])
        elif "/tag/" in path:
            exists = (tag := json.loads(body)["tag"]) in hub.tags
            hub.tags.setdefault(tag, len(hub.commits))
            self._answer({}, 409 if exists else 200)
        else:
            self._answer({"error": path}, 404)

    def do_PUT(self) -> None:
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refuses_uploads:
            self._answer({"error": "broken"}, 400)
            return
        checksum = hashlib.sha256(data).hexdigest()
        self.server.objects[checksum] = data
        self.server.uploaded.append(checksum)
        self._answer({})

    def _batch(self, item: dict[str, Any]) -> dict[str, Any]:
        upload = {"upload": {"href": f"{self.server.address}/upload/{item['oid']}", "header": {}}}
        return item if item["oid"] in self.server.objects else {**item, "actions": upload}

    def _commit(self, lines: list[dict[str, Any]]) -> None:
        for line in lines:
            value = line["value"]
            if line["key"] == "header":
                self.server.commits.append(value["summary"])
            elif line["key"] == "deletedFile":
                del self.server.files[value["path"]]
            elif line["key"] == "lfsFile":
                data = self.server.objects[value["oid"]]
                lfs = {"oid": value["oid"], "size": len(data), "pointerSize": 130}
                self.server.files[value["path"]] = {"oid": "0" * 40, "size": len(data), "lfs": lfs}
            else:
                data = base64.b64decode(value["content"])
                name = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
                self.server.files[value["path"]] = {"oid": name, "size": len(data)}
        url = f"{self.server.address}/datasets/{self.server.repository}/commit/{'0' * 40}"
        self._answer({"commitUrl": url, "commitOid": "0" * 40, "pullRequestUrl": None})

    def _answer(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        body = json.dumps(value).encode()
        self.send_response(status)
        for name, text in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def running_hub() -> Iterator[LoopbackHub]:
    """Run an empty hub."""
    hub = LoopbackHub()
    thread = threading.Thread(target=hub.serve_forever)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()
