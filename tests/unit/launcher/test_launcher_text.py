import dataclasses
import json
import shlex
from pathlib import Path

import pytest

from services.artifacts.artifact import open_artifact
from services.chassis.fatal import ConfigError
from services.client.values import Receipt
from services.domain.generation import Usage
from services.domain.miss_reason import MissReason
from services.launcher.calls import endpoint_lines, example_calls, receipt_lines
from services.launcher.child_log import how_far, what_it_does, why_it_ended
from services.launcher.models import names, serve_name
from services.launcher.ports import Ports
from services.launcher.sim_model import write_sim_model

RECEIPT = Receipt(
    request_id="r1",
    usage=Usage(prompt_tokens=1024, cached_tokens=992, output_tokens=7),
    computed_tokens=38,
    queue_ms=1,
    prefill_ms=20,
    decode_ms=70,
    ttft_ms=21,
    tpot_ms=10,
    preemptions=2,
    page_seconds=1.25,
    worker="worker-1",
    attempts=2,
    miss_reason=MissReason.NONE,
    first_miss_token=0,
    client_label="",
    exact=True,
)


def log(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "child.log"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_childs_own_fatal_line_is_what_is_told(tmp_path: Path) -> None:
    path = log(tmp_path, '{"event": "loading"}', "error: model.gguf is cut short: fetch it again", "noise")
    assert why_it_ended(path, 1) == "model.gguf is cut short: fetch it again"


@pytest.mark.parametrize(
    ("lines", "code", "text"),
    [
        ((), -9, "was killed by signal 9"),
        ((), 3, "exited with code 3"),
        (("ModuleNotFoundError: No module named 'x'",), 1, "exited with code 1: ModuleNotFoundError"),
        (('{"event": "died", "level": "error", "exception": "KeyError in a b:1"}',), 1, "code 1: KeyError"),
        (('{"event": "step_failed", "level": "error"}', '{"event": "x"}'), 1, "code 1: step_failed"),
    ],
)
def test_without_one_the_exit_is_told(tmp_path: Path, lines: tuple[str, ...], code: int, text: str) -> None:
    assert text in why_it_ended(log(tmp_path, *lines), code)


def test_a_missing_log_is_no_trouble(tmp_path: Path) -> None:
    assert why_it_ended(tmp_path / "none", 1) == "exited with code 1"
    assert what_it_does(tmp_path / "none") == ""


def test_the_last_event_says_what_a_child_does(tmp_path: Path) -> None:
    assert what_it_does(log(tmp_path, '{"event": "weights_loading"}', "{broken", "text")) == "weights loading"
    counted = log(tmp_path, '{"event": "warming_up", "done": 3, "of": 17}')
    assert what_it_does(counted) == "warming up 3 of 17"
    assert how_far(counted) == 3
    later = log(tmp_path, '{"event": "warming_up", "done": 4, "of": 17}', '{"event": "kv_pool_sized"}')
    assert how_far(later) == 4
    assert how_far(log(tmp_path, '{"event": "weights_loading"}')) is None


@pytest.mark.parametrize(
    ("given", "name", "what"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("mine=/models/x", "mine", "/models/x"),
        ("/models/Tiny-Llama.Q4.gguf", "tiny-llama.q4", "/models/Tiny-Llama.Q4.gguf"),
        ("hf:org/Name", "name", "hf:org/Name"),
        ("folder/model", "model", "folder/model"),
    ],
)
def test_models_get_a_name_to_be_called_by(given: str, name: str, what: str) -> None:
    assert serve_name(given) == (name, what)


def test_two_models_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="twice"):
        names(["a=/x", "a=/y"])


def test_example_calls_are_valid_shell_with_valid_json() -> None:
    calls = [line for _, text in example_calls("quire", "m", Ports(7)) for line in text.split("\n")]
    assert [shlex.split(call)[0] for call in calls] == ["quire", "grpcurl", "buf", "curl"]
    bodies = [json.loads(w) for call in calls for w in shlex.split(call) if w.startswith("{")]
    assert {body["model"] for body in bodies} == {"m"}
    assert all("50058" in call or "8007" in call for call in calls)


def test_with_tls_example_calls_trust_the_authority() -> None:
    calls = example_calls("quire", "m", Ports(7), ca="/a folder/ca.pem")
    for line in (line for _, text in calls for line in text.split("\n")):
        words = shlex.split(line)
        assert words[words.index("/a folder/ca.pem") - 1] in ("--ca-cert", "-cacert", "--cacert")
        assert not any(word.startswith("http://") or "plaintext" in word for word in words)
    lines = endpoint_lines("127.0.0.1", Ports(7), 1, redis="redis", has_tls=True)
    assert "https://127.0.0.1:8007/v1   gRPC by certificate 127.0.0.1:50062" in lines[0]


def test_endpoints_name_every_door() -> None:
    text = "\n".join(endpoint_lines("127.0.0.1", Ports(), 2, redis="redis 127.0.0.1:6390"))
    for port in ("50051", "8000", "50054", "50052", "50053", "50060-50061", "6390", "9100", "9110"):
        assert port in text


@pytest.mark.parametrize("reason", [reason for reason in MissReason if reason is not MissReason.NONE])
def test_every_reason_of_a_miss_is_told_in_words_with_its_place(reason: MissReason) -> None:
    first, *_ = receipt_lines(dataclasses.replace(RECEIPT, miss_reason=reason, first_miss_token=992))
    assert "(992 cached; from token 992 on: " in first
    assert reason.value not in first


def test_a_receipt_is_told_in_words() -> None:
    text = "\n".join(receipt_lines(RECEIPT))
    for part in (
        "1024 prompt tokens (992 cached)",
        "100 tokens/s",
        "worker-1, 2 attempts, preempted 2 times",
    ):
        assert part in text


def test_the_stand_in_model_reads_any_text_and_has_whole_words(tmp_path: Path) -> None:
    artifact = open_artifact(write_sim_model(tmp_path / "sim"))
    ids = artifact.tokenizer.encode_text("hello 世界 of the world", add_bos=False)
    assert b"".join(artifact.tokenizer.token_bytes(i) for i in ids).decode() == "hello 世界 of the world"
    assert artifact.config["vocab_size"] == artifact.tokenizer.vocab_size
    assert len(artifact.eos_ids) == 1
    assert (
        sum(artifact.tokenizer.token_bytes(i) == b" people" for i in range(artifact.tokenizer.vocab_size))
        == 1
    )
    assert artifact.template is not None
