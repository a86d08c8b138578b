"""What the client puts on the wire, and what it refuses to."""

import subprocess
import sys

import pytest

from protos.gateway.v1 import gateway_pb2
from protos.types.v1 import types_pb2
from services.client import Message
from services.client.request import generate_request, tokenize_request
from services.domain.errors import InvalidField
from services.domain.generation import RequestClass


def test_text_ids_and_chat_each_take_their_field() -> None:
    assert generate_request("m", "hello").prompt == "hello"
    assert list(generate_request("m", [1, 2]).token_ids.ids) == [1, 2]
    chat = generate_request("m", [Message("user", "hi", name="ann")]).chat.messages[0]
    assert (chat.role, chat.content, chat.name) == ("user", "hi", "ann")


def test_no_token_ids_are_sent_as_such_for_the_gateway_to_refuse() -> None:
    assert generate_request("m", []).WhichOneof("input") == "token_ids"


def test_options_land_in_their_messages() -> None:
    request = generate_request(
        "m",
        "x",
        temperature=0.0,
        top_k=5,
        logit_bias={7: -1.5},
        seed=2**64 - 1,
        n=2,
        stop=["a", "b"],
        stop_token_ids=(3,),
        logprobs=0,
        ignore_eos=True,
        band="batch",
        request_class=RequestClass.LONG,
        queue_limit_s=1.5,
        total_limit_s=60,
        cut_long_prompt=True,
        client_label="team",
        cache_opt_out=True,
    )
    assert request.sampling.HasField("temperature")
    assert request.sampling.top_k == 5
    assert request.sampling.seed == 2**64 - 1
    assert dict(request.sampling.logit_bias) == {7: -1.5}
    assert request.n == 2
    assert list(request.stop) == ["a", "b"]
    assert list(request.stop_token_ids) == [3]
    assert request.HasField("logprobs")
    assert request.ignore_eos
    assert request.cache_opt_out
    assert request.band_name == "batch"
    assert request.request_class == types_pb2.REQUEST_CLASS_LONG
    assert (request.limits.queue_ms, request.limits.total_ms) == (1500, 60_000)
    assert not request.limits.HasField("first_token_ms")
    assert request.long_prompt == gateway_pb2.LONG_PROMPT_CUT_LEFT
    assert request.client_label == "team"


def test_absent_and_none_options_are_not_sent() -> None:
    assert generate_request("m", "x", temperature=None, n=None) == generate_request("m", "x")
    assert not generate_request("m", "x").HasField("sampling")


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"top_k": -1}, "sampling.top_k"),
        ({"stop": "end"}, "stop"),
        ({"logit_bias": {-1: 1.0}}, "sampling.logit_bias"),
    ],
)
def test_a_value_the_wire_cannot_carry_is_refused_by_name(options: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        generate_request("m", "x", **options)  # type: ignore[arg-type]
    assert caught.value.detail.field == field


def test_an_unknown_option_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        generate_request("m", "x", temprature=1)  # type: ignore[call-arg]


def test_mixed_input_is_refused() -> None:
    with pytest.raises(InvalidField, match="input"):
        generate_request("m", [1, Message("user", "x")])  # type: ignore[list-item]


def test_token_ids_cannot_be_tokenized() -> None:
    with pytest.raises(InvalidField):
        tokenize_request("m", [1, 2], False)  # type: ignore[list-item]


def test_the_client_imports_no_torch_and_no_service() -> None:
    code = (
        "import sys, services.client\n"
        "heavy = {'torch', 'worker', 'gateway', 'scheduler', 'kvmanager', 'redis'} & set(sys.modules)\n"
        "sys.exit(' '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
