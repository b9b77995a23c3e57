"""A local HTTP endpoint that speaks enough of W&B's protocol to take whole runs, workspaces and reports from the real client."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

API_KEY = "c0ffee" * 6 + "beef"
PAGE = {"__typename": "PageInfo", "endCursor": None, "hasNextPage": False}


class WandbEndpoint(ThreadingHTTPServer):
    """What arrived: `runs` by id, `artifacts` by name, `views` (workspaces and reports) and `uploads` by path."""

    daemon_threads = True

    def __init__(self, refuses_keys: bool = False, silent_after: str = "") -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.refuses_keys, self.silent_after = refuses_keys, silent_after
        self.silent, self.stopped, self.lock = threading.Event(), threading.Event(), threading.Lock()
        self.runs: dict[str, dict[str, Any]] = {}
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.views: list[dict[str, Any]] = []
        self.uploads: dict[str, bytes] = {}
        self.unknown: list[str] = []  # operations and paths that it does not know, and answers with nothing
        self.gaps: list[str] = []  # lines of a history that are missing or were sent twice
        self.elsewhere: list[str] = []  # requests to other hosts, for which it is the proxy

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def environment(self) -> dict[str, str]:
        """For a child process: its W&B is this endpoint, and what it would send to another host arrives here too."""
        proxies = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.url)
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": API_KEY, "NO_PROXY": "127.0.0.1", **proxies}

    def answer(self, operation: str, variables: dict[str, Any]) -> dict[str, Any]:
        """The data of a GraphQL operation."""
        answers = {
            "Viewer": self.viewer,
            "ServerFeaturesQuery": lambda _: {"serverInfo": {"features": []}},
            "RunResumeStatus": lambda _: {"model": None},
            "UpsertBucket": self.upsert_run,
            "CreateRunFiles": self.create_run_files,
            "CreateArtifact": self.create_artifact,
            "CreateArtifactManifest": self.create_manifest,
            "CreateArtifactFiles": self.create_artifact_files,
            "CommitArtifact": self.commit_artifact,
            "ArtifactType": lambda _: {"project": None},
            "GetProjects": lambda _: {"models": {"pageInfo": PAGE, "edges": []}},
            "CreateProject": lambda _: {"result": {"inserted": True}},
            "upsertView": self.upsert_view,
            "UpsertView2": self.upsert_view,
        }
        if operation not in answers:
            self.unknown.append(operation)
            return {}
        with self.lock:
            return answers[operation](variables)

    def viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        person = {"id": "V", "entity": "me", "username": "me", "email": "", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": person}

    def upsert_run(self, variables: dict[str, Any]) -> dict[str, Any]:
        name = variables["name"]
        inserted = name not in self.runs
        run = self.runs.setdefault(name, {"history": [], "summary": {}, "exit_code": None, "complete": False})
        run |= {key: value for key, value in variables.items() if value is not None}
        project = {"id": "P", "name": variables["project"], "entity": {"id": "E", "name": "me"}}
        bucket = {"id": f"run-{name}", "name": name, "displayName": run.get("displayName"), "project": project}
        return {"upsertBucket": {"inserted": inserted, "bucket": {**bucket, "historyLineCount": 0}}}

    def stream(self, run: str, body: dict[str, Any]) -> None:
        """A request of the file stream: lines of the history, the summary, and at the end the exit code."""
        with self.lock:
            received = self.runs[run]
            for name, chunk in (body.get("files") or {}).items():
                if name == "wandb-history.jsonl":
                    if chunk["offset"] != len(received["history"]):
                        self.gaps.append(f"line {chunk['offset']} of {run} after {len(received['history'])}")
                    received["history"] += map(json.loads, chunk["content"])
                elif name == "wandb-summary.json":
                    received["summary"] = json.loads(chunk["content"][-1])
            if body.get("complete"):
                received |= {"complete": True, "exit_code": body.get("exitcode")}

    def create_run_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        urls = {name: f"{self.url}/upload/run/{variables['run']}/{name}" for name in variables["files"]}
        files = [{"name": name, "uploadUrl": url} for name, url in urls.items()]
        return {"createRunFiles": {"runID": f"run-{variables['run']}", "uploadHeaders": [], "files": files}}

    def create_artifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        made, number = variables["input"], str(len(self.artifacts))
        self.artifacts[made["artifactCollectionName"]] = {
            "id": number,
            "type": made["artifactTypeName"],
            "run": made["runName"],
            "committed": False,
        }
        return {"createArtifact": {"artifact": {"id": number, "state": "PENDING", "artifactSequence": {}}}}

    def create_manifest(self, variables: dict[str, Any]) -> dict[str, Any]:
        number = variables["artifactID"]
        file = {
            "id": number,
            "uploadUrl": f"{self.url}/upload/artifact/{number}/{variables['name']}",
            "uploadHeaders": [],
        }
        return {"createArtifactManifest": {"artifactManifest": {"id": number, "file": file}}}

    def create_artifact_files(self, variables: dict[str, Any]) -> dict[str, Any]:
        edges = []
        for file in variables["input"]["artifactFiles"]:
            path = f"upload/artifact/{file['artifactID']}/files/{file['name']}"
            node = {"storagePath": path, "uploadUrl": f"{self.url}/{path}", "uploadHeaders": []}
            edges.append({"node": {**node, "artifact": {"id": file["artifactID"]}}})
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def commit_artifact(self, variables: dict[str, Any]) -> dict[str, Any]:
        (artifact,) = [made for made in self.artifacts.values() if made["id"] == variables["artifactID"]]
        artifact["committed"] = True
        return {"commitArtifact": {"artifact": {"id": artifact["id"], "digest": ""}}}

    def artifact_files(self, name: str) -> dict[str, bytes]:
        """What was uploaded for an artifact: its files, by their names."""
        prefix = f"/upload/artifact/{self.artifacts[name]['id']}/files/"
        return {path.removeprefix(prefix): data for path, data in self.uploads.items() if path.startswith(prefix)}

    def upsert_view(self, variables: dict[str, Any]) -> dict[str, Any]:
        self.views.append({**variables, "spec": json.loads(variables["spec"])})
        project = {"id": "P", "name": variables["projectName"], "entityName": variables["entityName"]}
        view = {key: variables.get(key) or "" for key in ("name", "displayName", "description", "type", "spec")}
        return {"upsertView": {"inserted": True, "view": {**view, "id": f"View{len(self.views)}", "project": project}}}


class Handler(BaseHTTPRequestHandler):
    server: WandbEndpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.server.silent.is_set():
            self.server.stopped.wait(60)
            return
        key = base64.b64encode(f"api:{API_KEY}".encode()).decode()
        if self.server.refuses_keys or self.headers.get("Authorization") != f"Basic {key}":
            self.reply(401, {"errors": [{"message": "invalid key"}]})
        elif self.path == "/graphql":
            asked = json.loads(body)
            operation = asked.get("operationName") or asked["query"].split("(")[0].split("{")[0].split()[1]
            answer = self.server.answer(operation, asked.get("variables") or {})
            if operation == self.server.silent_after:
                self.server.silent.set()
            self.reply(200, {"data": answer})
        elif self.path.startswith("/files/") and self.path.endswith("/file_stream"):
            self.server.stream(self.path.split("/")[-2], json.loads(body))
            self.reply(200, {})
        else:
            self.unexpected()

    def do_PUT(self) -> None:
        self.server.uploads[self.path] = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(200, {})

    def unexpected(self) -> None:
        """A path that it does not know; as a proxy it is asked for whole addresses, or with CONNECT for a host."""
        here = self.command != "CONNECT" and self.path.startswith("/")
        (self.server.unknown if here else self.server.elsewhere).append(f"{self.command} {self.path}")
        self.reply(404, {})

    do_GET = do_CONNECT = unexpected

    def reply(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(**settings: Any) -> Iterator[WandbEndpoint]:
    """The endpoint, answering in threads of its own until the block ends."""
    with WandbEndpoint(**settings) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield server
        finally:
            server.stopped.set()
            server.shutdown()
