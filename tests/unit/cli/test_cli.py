"""The command as a user runs it: its own process, against a scripted gateway."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from protos.gateway.v1 import gateway_pb2_grpc
from services import cli
from services.chassis.errors import ErrorInterceptor
from services.chassis.grpc import bind, create_server
from services.domain.errors import ErrorDetail, QueueFull
from tests.conftest import free_port
from tests.fakes.generate_service import (
    SCRIPT_TEXT,
    FakeGenerateService,
    delta,
    echo,
    finished,
    receipt,
    started,
    whole_answer,
)


@dataclass(frozen=True, slots=True)
class Ran:
    """What one command line did."""

    code: int
    out: str
    err: str

    def json_lines(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.splitlines()]


@dataclass(slots=True)
class Shell:
    """Runs `quire` against one fake gateway."""

    service: FakeGenerateService
    environment: dict[str, str] = field(default_factory=dict)

    async def start(self, *words: str) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "services.cli", *words),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, **self.environment},
        )

    async def run(self, *words: str, stdin: str = "") -> Ran:
        process = await self.start(*words)
        out, err = await asyncio.wait_for(process.communicate(stdin.encode()), 60)
        assert process.returncode is not None
        return Ran(process.returncode, out.decode(), err.decode())


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    service = FakeGenerateService()
    server = create_server(interceptors=[ErrorInterceptor()])
    gateway_pb2_grpc.add_GenerateServiceServicer_to_server(service, server)
    target = f"127.0.0.1:{bind(server, '127.0.0.1:0')}"
    await server.start()
    yield Shell(service, {"QUIRE_TARGET": target, "QUIRE_CACHE": str(tmp_path)})
    await server.stop(None)


async def test_generate_prints_the_answer_alone_and_the_receipt_beside(shell: Shell) -> None:
    ran = await shell.run("generate", "--seed", "3", "--max-tokens", "9", "--stop", "END", "Hello")
    assert (ran.code, ran.out) == (0, SCRIPT_TEXT + "\n")
    assert "20 prompt tokens (16 cached; from token 16 on: not seen before)" in ran.err
    assert "waiting: 2 before this one" in ran.err
    [request] = shell.service.requests
    assert (request.model, request.prompt, request.sampling.seed, list(request.stop)) == (
        "m",
        "Hello",
        3,
        ["END"],
    )
    assert request.max_output_tokens == 9
    assert not request.sampling.HasField("temperature")


async def test_generate_reads_stdin_and_speaks_chat(shell: Shell) -> None:
    await shell.run("generate", "--system", "Be brief.", "-", stdin="a question")
    messages = [(m.role, m.content) for m in shell.service.requests[0].chat.messages]
    assert messages == [("system", "Be brief."), ("user", "a question")]


async def test_generate_as_json_is_one_event_a_line(shell: Shell) -> None:
    ran = await shell.run("generate", "--json", "Hello")
    assert [line["event"] for line in ran.json_lines()] == [
        *("queued", "stillwaiting", "started", "delta", "delta", "finished", "receipt"),
    ]


async def test_generate_gives_the_prompt_back_in_front_of_its_answer(shell: Shell) -> None:
    shell.service.script = [started(), echo(), delta("Hello"), finished(), receipt()]
    ran = await shell.run("generate", "--echo", "ab")
    assert (ran.code, ran.out) == (0, "abHello\n")
    ran = await shell.run("generate", "--echo", "--logprobs", "1", "--max-tokens", "0", "--json", "ab")
    [event] = [line for line in ran.json_lines() if line["event"] == "echo"]
    assert event["text"] == "ab"
    assert event["logprobs"] == [
        {"token_id": 97, "token": "a", "logprob": 0.0, "top": []},
        {
            "token_id": 98,
            "token": "b",
            "logprob": -0.5,
            "top": [{"token_id": 99, "token": "c", "logprob": -0.25}],
        },
    ]
    plain, scored = shell.service.requests
    assert (plain.echo, plain.HasField("logprobs")) == (True, False)
    assert (scored.echo, scored.logprobs, scored.max_output_tokens) == (True, 1, 0)
    assert scored.HasField("max_output_tokens")


async def test_a_refusal_is_one_line_with_its_reason(shell: Shell) -> None:
    shell.service.script, shell.service.error = [], QueueFull("too many wait", ErrorDetail(retry_after_s=2.0))
    ran = await shell.run("generate", "Hello")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err == "error: too many wait (QUEUE_FULL, try again in 2.0 s)\n"


async def test_no_gateway_is_one_line_with_what_to_do(shell: Shell) -> None:
    target = f"127.0.0.1:{free_port()}"
    ran = await shell.run("generate", "--target", target, "--timeout", "5", "Hello")
    assert ran.code == 1
    assert ran.err == (
        f"error: no gateway answers at {target}: start one with `quire up`, or give --target "
        "(and --ca-cert where it serves by TLS)\n"
    )


async def test_ctrl_c_cancels_a_generation(shell: Shell) -> None:
    shell.service.script, shell.service.hold = [started(), delta("Hel")], True
    process = await shell.start("generate", "Hello")
    assert process.stdout is not None
    assert await asyncio.wait_for(process.stdout.read(3), 60) == b"Hel"
    process.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(process.wait(), 60) == 130
    await asyncio.wait_for(shell.service.left.wait(), 60)


async def test_chat_sends_the_whole_conversation_each_turn(shell: Shell) -> None:
    ran = await shell.run("chat", "--system", "Be kind.", stdin="one\n/history\ntwo\n/reset\nthree\n")
    assert ran.out == (SCRIPT_TEXT + "\n") * 3
    turns = [[(m.role, m.content) for m in r.chat.messages] for r in shell.service.requests]
    system, answer = ("system", "Be kind."), ("assistant", SCRIPT_TEXT)
    assert turns == [
        [system, ("user", "one")],
        [system, ("user", "one"), answer, ("user", "two")],
        [system, ("user", "three")],
    ]


async def test_ctrl_c_in_a_chat_cancels_the_answer_and_not_the_program(shell: Shell) -> None:
    shell.service.script, shell.service.hold = [started(), delta("Hel")], True
    process = await shell.start("chat")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    assert await asyncio.wait_for(process.stdout.read(3), 60) == b"Hel"
    process.send_signal(signal.SIGINT)
    await asyncio.wait_for(shell.service.left.wait(), 60)
    shell.service.script, shell.service.hold = whole_answer(), False
    out, err = await asyncio.wait_for(process.communicate(b"two\n"), 60)
    assert process.returncode == 0
    assert SCRIPT_TEXT in out.decode()
    assert "(cancelled)" in err.decode()
    spoken = [(m.role, m.content) for m in shell.service.requests[1].chat.messages]
    assert spoken == [("user", "one"), ("assistant", "Hel"), ("user", "two")]


async def test_a_failed_turn_is_told_and_forgotten(shell: Shell) -> None:
    shell.service.script, shell.service.error = [], QueueFull("too many wait")
    ran = await shell.run("chat", stdin="one\ntwo\n")
    assert ran.err.count("too many wait (QUEUE_FULL)") == 2
    assert [len(r.chat.messages) for r in shell.service.requests] == [1, 1]


async def test_the_key_travels_as_a_header(shell: Shell) -> None:
    await shell.run("models", "--api-key", "k1")
    assert shell.service.metadata["authorization"] == "Bearer k1"


async def test_models_lists_what_is_served_and_what_can_be_fetched(shell: Shell) -> None:
    ran = await shell.run("models", "--json")
    by_name = {line["name"]: line for line in ran.json_lines()}
    assert by_name["m"]["num_workers"] == 1
    assert by_name["smollm2-135m-instruct"]["path"] is None
    plain = await shell.run("models")
    assert "smollm2-135m-instruct" in plain.out
    assert "\x1b" not in plain.out


async def test_pull_of_a_path_gives_it_back_and_of_nothing_says_so(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"x")
    assert (await shell.run("pull", str(tmp_path / "model.gguf"))).out == f"{tmp_path}/model.gguf\n"
    ran = await shell.run("pull", "no-such-model")
    assert ran.code == 1
    assert ran.err.startswith("error: no-such-model: no such model or path")
    assert ran.err.count("\n") == 1


async def test_tokenize_shows_ids_and_pieces(shell: Shell) -> None:
    ran = await shell.run("tokenize", "ab")
    assert ran.out == "      97  'a'\n      98  'b'\n"
    [tokens] = (await shell.run("tokenize", "--json", "ab")).json_lines()
    assert tokens["ids"] == [97, 98]


async def test_status_of_nothing_says_what_does_not_answer(shell: Shell) -> None:
    nowhere = f"127.0.0.1:{free_port()}"
    flags = [f"--{name}={nowhere}" for name in ("gateway", "scheduler", "kvmanager")]
    ran = await shell.run("status", "--json", *flags)
    assert ran.code == 1
    [status] = ran.json_lines()
    assert status["up"] == {"gateway": False, "scheduler": False, "kvmanager": False}


async def test_the_program_has_help_with_examples(shell: Shell) -> None:
    ran = await shell.run("--help")
    assert ran.code == 0
    assert "examples:\n" in ran.out


@pytest.mark.parametrize("name", [*cli.COMMANDS, *cli.SERVICES])
def test_every_command_and_service_has_help_with_examples(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["quire"])  # A service reads its own, which the command sets.
    with pytest.raises(SystemExit) as ended:
        cli.main([name, "--help"])
    assert ended.value.code == 0
    text, _, examples = capsys.readouterr().out.partition("examples:\n")
    assert f"quire {name}" in examples
    if name in cli.SERVICES:
        assert {word for word in examples.split() if word.startswith("--")} <= set(text.split())


async def test_an_unknown_command_names_the_nearest(shell: Shell) -> None:
    ran = await shell.run("genrate")
    assert (ran.code, ran.err) == (
        2,
        "error: unknown command genrate; did you mean generate? (quire --help lists them)\n",
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--sim", "--prot-offset", "1"], "did you mean --port-offset?"),
        (["--sim", "--workers", "0"], "workers must be 1 to 40, got 0"),
        (["--sim", "--model", "a=x", "--model", "b=y", "--workers", "1"], "workers must be at least 2"),
        (["--sim", "--host", "0.0.0.0"], "--insecure"),
    ],
)
def test_up_refuses_what_it_cannot_do_in_one_line(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["up", *words]) == 2
    said = capsys.readouterr().err
    assert text in said
    assert said.count("\n") == 1
