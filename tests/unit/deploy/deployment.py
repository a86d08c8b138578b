"""Reads docker-compose.yml and deploy/Dockerfile as the engine would: merges, variables, image defaults."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
WORKERS = ("worker-0", "worker-gpu-0")
SERVICES = ("kvmanager", "scheduler", *WORKERS, "gateway")
ONCE = ("models", "first-start")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}")


def compose(**variables: str) -> dict[str, Any]:
    """Return the document with merge keys applied and every other variable at its default."""
    text = _VARIABLE.sub(lambda match: variables.get(match[1]) or match[2] or "", COMPOSE.read_text("utf-8"))
    document: dict[str, Any] = yaml.safe_load(text)
    return document


def service(name: str, **variables: str) -> dict[str, Any]:
    found: dict[str, Any] = compose(**variables)["services"][name]
    return found


def command_of(name: str) -> list[str]:
    command = service(name)["command"]
    return shlex.split(command) if isinstance(command, str) else list(command)


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of the Dockerfile, continued lines joined."""

    word: str
    rest: str


def dockerfile() -> list[Instruction]:
    lines = [line for line in DOCKERFILE.read_text("utf-8").splitlines() if not line.startswith("#")]
    joined = "\n".join(lines).replace("\\\n", " ")
    return [Instruction(*line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def image_environment() -> dict[str, str]:
    """Return what the image sets, but for PATH."""
    words = [word for one in dockerfile() if one.word == "ENV" for word in shlex.split(one.rest)]
    pairs = dict(word.split("=", 1) for word in words)
    del pairs["PATH"]
    return pairs


def environment_of(name: str, **variables: str) -> dict[str, str]:
    """Return a container's variables; those passed on from the host are absent there."""
    own = service(name, **variables).get("environment") or {}
    return image_environment() | {key: value for key, value in own.items() if value is not None}


def copied_sources() -> list[str]:
    """Return what the Dockerfile copies out of this repository."""
    copies = [one.rest.split() for one in dockerfile() if one.word == "COPY"]
    return [source for words in copies if not words[0].startswith("--from") for source in words[:-1]]
