"""A hub on this machine: the answers of the Hugging Face hub that its own library needs to push and to load."""

from __future__ import annotations

import base64
import hashlib
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeHub(ThreadingHTTPServer):
    """Repositories in memory: their files, whether they are private, and the last commit. One token may write."""

    token = "hf_write"

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answers)
        self.daemon_threads = True
        self.repos: dict[str, dict[str, Any]] = {}
        self.seen: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def put(self, name: str, files: dict[str, bytes], private: bool) -> None:
        text = json.dumps({k: hashlib.sha1(v).hexdigest() for k, v in files.items()} | {"": name})
        self.repos[name] = {"files": files, "private": private, "sha": hashlib.sha1(text.encode()).hexdigest()}


class Answers(BaseHTTPRequestHandler):
    """One request."""

    server: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def say(self, code: int, body: object = b"", **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(code)
        for key, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(key.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def missing(self) -> None:
        self.say(404, {"error": "Repository not found"}, X_Error_Code="RepoNotFound")

    def may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.server.seen.append(f"{self.command} {path}")
        parts = path.split("/")
        name = "/".join(parts[2:4] if parts[0] == "api" else parts[:2])
        repo = self.server.repos.get(name)
        if repo is None or (repo["private"] and not self.may_write()):
            return self.missing()
        files, sha = repo["files"], repo["sha"]
        if parts[2] == "resolve":
            data = files["/".join(parts[4:])]
            return self.say(200, data, ETag=f'"{hashlib.sha1(data).hexdigest()}"', X_Repo_Commit=sha)
        if parts[4:5] == ["tree"]:
            rows = [{"type": "file", "path": k, "size": len(v), "oid": blob(v)} for k, v in files.items()]
            return self.say(200, rows)
        if parts[4:5] == ["revision"] and parts[5] not in ("main", sha):
            return self.say(404, {"error": "Invalid rev id"}, X_Error_Code="RevisionNotFound")
        siblings = [{"rfilename": k} for k in files]
        return self.say(200, {"id": name, "sha": sha, "private": repo["private"], "siblings": siblings})

    def do_POST(self) -> None:
        path = self.path.partition("?")[0].strip("/")
        self.server.seen.append(f"POST {path}")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if path == "api/validate-yaml":
            bad = b"license: no-such" in json.loads(body)["content"].encode()
            return self.say(
                400 if bad else 200, {"errors": [{"message": "license must be known"}] * bad, "warnings": []}
            )
        if not self.may_write():
            return self.say(403, {"error": "You don't have the rights"})
        if path == "api/repos/create":
            asked = json.loads(body)
            name = "/".join(filter(None, (asked.get("organization") or "me", asked["name"])))
            self.server.put(name, {".gitattributes": b""}, asked.get("private") or asked.get("visibility") == "private")
            return self.say(200, {"url": f"{self.server.url}/{name}", "name": name})
        name = "/".join(path.split("/")[2:4])
        if (repo := self.server.repos.get(name)) is None:
            return self.missing()
        if "/preupload/" in path:
            rows = json.loads(body)["files"]
            return self.say(
                200, {"files": [{"path": r["path"], "uploadMode": "regular", "shouldIgnore": False} for r in rows]}
            )
        assert "/commit/" in path
        rows = [json.loads(line) for line in body.splitlines()]
        new = {r["value"]["path"]: base64.b64decode(r["value"]["content"]) for r in rows if r["key"] == "file"}
        assert rows[0]["value"].get("parentCommit") in (None, repo["sha"])
        self.server.put(name, {**repo["files"], **new}, repo["private"])
        sha = self.server.repos[name]["sha"]
        return self.say(200, {"commitUrl": f"{self.server.url}/{name}/commit/{sha}", "commitOid": sha})


def blob(data: bytes) -> str:
    """Git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
