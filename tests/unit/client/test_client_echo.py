"""The prompt that is given back: as the client hands it out, and in the whole answer."""

from services.client.convert import event_from_pb
from services.client.request import generate_request
from services.client.transcript import Transcript
from services.client.values import Echo, TokenLogprob, TopLogprob
from tests.fakes.generate_service import delta, echo, finished, receipt, started


def test_the_prompt_comes_back_as_an_event_of_its_own_and_in_the_completion() -> None:
    transcript = Transcript()
    for message in (started(), echo(), delta("!"), finished(), receipt()):
        event = event_from_pb(message)
        assert event is not None
        transcript.add(event)
    completion = transcript.completion()
    assert completion.text == "!"
    assert completion.echo == Echo(
        text="ab",
        token_ids=(97, 98),
        logprobs=(
            TokenLogprob(97, b"a", 0.0, ()),
            TokenLogprob(98, b"b", -0.5, (TopLogprob(99, b"c", -0.25),)),
        ),
    )


def test_an_answer_without_it_says_so() -> None:
    transcript = Transcript()
    for message in (started(), delta("!"), finished(), receipt()):
        event = event_from_pb(message)
        assert event is not None
        transcript.add(event)
    assert transcript.completion().echo is None


def test_it_is_asked_for_with_no_output_at_all() -> None:
    request = generate_request("m", [97, 98], echo=True, logprobs=0, max_output_tokens=0)
    assert request.echo
    assert request.HasField("logprobs")
    assert request.HasField("max_output_tokens")
    assert not generate_request("m", "x", echo=False).echo
