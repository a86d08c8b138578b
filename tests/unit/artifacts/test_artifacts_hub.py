"""Fetching from a hub on loopback: no pickles, nothing outside its folder, all as announced."""

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from services.artifacts import fetch
from services.artifacts.errors import ArtifactError
from services.artifacts.fetch import list_models, pull

CONTENT = b"weights" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, where no model is known by name."""
    monkeypatch.setattr(fetch, "known_models", dict)
    return tmp_path / "cache"


class Hub:
    """A hub on loopback with one repository."""

    def __init__(self) -> None:
        self.files = {"config.json": b"{}", "model.safetensors": CONTENT, "pytorch_model.bin": b"pickle"}
        self.listing_extra: list[dict[str, object]] = []
        self.requested: list[str] = []
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requested.append(self.path)
                body = hub.answer(self.path.split("?")[0])
                self.send_response(200 if body is not None else 404)
                self.end_headers()
                self.wfile.write(body or b"")

            def log_message(self, *_: object) -> None:
                """Be quiet."""

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, path: str) -> bytes | None:
        if path == "/api/models/org/name":
            siblings: list[dict[str, object]] = [
                {"rfilename": name, "size": len(data)} for name, data in self.files.items()
            ]
            siblings[1]["lfs"] = {"sha256": hashlib.sha256(CONTENT).hexdigest()}
            return json.dumps({"sha": "abc", "siblings": [*siblings, *self.listing_extra]}).encode()
        return self.files.get(path.removeprefix("/org/name/resolve/abc/"))


@pytest.fixture
def hub() -> Iterator[Hub]:
    hub = Hub()
    thread = threading.Thread(target=hub.server.serve_forever)
    thread.start()
    yield hub
    hub.server.shutdown()
    thread.join()
    hub.server.server_close()


def pull_from(hub: Hub, cache: Path) -> Path:
    return pull("hf:org/name", cache, environment={"HF_ENDPOINT": hub.endpoint})


@pytest.mark.failure("B176")
def test_a_hub_model_comes_without_its_pickles_and_stays_inside_its_folder(hub: Hub, cache: Path) -> None:
    hub.listing_extra = [{"rfilename": "../../evil.safetensors"}, {"rfilename": "sub/x.safetensors"}]

    folder = pull_from(hub, cache)

    assert folder == cache / "models" / "hf--org--name"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "verified.json",
    ]
    assert (folder / "model.safetensors").read_bytes() == CONTENT
    assert [listed.name for listed in list_models(cache)] == ["hf:org/name"]
    num_requests = len(hub.requested)
    assert pull_from(hub, cache) == folder
    assert len(hub.requested) == num_requests


@pytest.mark.parametrize("content", [CONTENT[:-1], CONTENT[:-1] + b"?"])
def test_a_hub_file_that_is_not_as_announced_is_refused(hub: Hub, cache: Path, content: bytes) -> None:
    announced = hub.answer("/api/models/org/name")
    hub.files["model.safetensors"] = content
    answer = hub.answer
    hub.answer = lambda path: announced if path.startswith("/api") else answer(path)  # type: ignore[method-assign]

    with pytest.raises(ArtifactError, match=r"model\.safetensors of org/name: came damaged"):
        pull_from(hub, cache)

    assert not (cache / "models" / "hf--org--name").exists()


@pytest.mark.failure("B176")
def test_a_hub_model_with_pickles_only_is_refused(hub: Hub, cache: Path) -> None:
    hub.files = {"config.json": b"{}", "pytorch_model.bin": b"x"}

    with pytest.raises(ArtifactError, match="has no safetensors weights"):
        pull_from(hub, cache)


def test_an_unknown_hub_model_is_said(hub: Hub, cache: Path) -> None:
    with pytest.raises(ArtifactError, match="answered 404"):
        pull("hf:org/other", cache, environment={"HF_ENDPOINT": hub.endpoint})


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://hub.invalid", "file:///etc"])
def test_an_unreachable_hub_is_said(cache: Path, endpoint: str) -> None:
    with pytest.raises(ArtifactError, match="HF_ENDPOINT") as caught:
        pull("hf:org/name", cache, environment={"HF_ENDPOINT": endpoint})

    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["hf:name", "hf:../x", "hf:a/b/c", "hf:a/.b", "hf:"])
def test_a_malformed_hub_name_is_refused(cache: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="not of the form hf:organisation/model"):
        pull(name, cache)
