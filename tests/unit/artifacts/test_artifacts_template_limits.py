"""Chat templates that refuse, break, run away or do not compile: each ends in its own typed error."""

import time
from datetime import datetime

import pytest
from artifact_builders import Message
from template_builders import CHATML, LLAMA2, THINKING

from services.artifacts.chat_template import ChatTemplate, TemplateRefused, TemplateTooCostly
from services.artifacts.errors import ArtifactError
from services.artifacts.template_budget import TemplateLimits
from services.artifacts.tokenizer import ModelTokenizer
from services.domain.errors import InvalidField


@pytest.mark.failure("B100")
def test_a_refusal_carries_the_templates_words(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(LLAMA2, tiny)

    with pytest.raises(TemplateRefused, match="Conversation roles must alternate") as caught:
        template.encode([Message("user", "a"), Message("user", "b")])

    assert caught.value.code.name == "INVALID_ARGUMENT"
    assert caught.value.detail.field == "messages"


@pytest.mark.failure("B100")
@pytest.mark.parametrize(
    "source",
    ["{{ messages[0].none.at_all }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ ''.__class__.__mro__ }}",
     "{{ messages.append(1) }}",
     "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "{% include 'x' %}"],
)  # fmt: skip
def test_a_template_that_breaks_on_its_input_is_a_refusal(tiny: ModelTokenizer, source: str) -> None:
    with pytest.raises(TemplateRefused):
        ChatTemplate(source, tiny).encode([Message("user", "a")])


@pytest.mark.failure("B098")
@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([], "chat.messages"),
        ([Message("user", "")], "chat.messages"),
        ([Message("user", "  "), Message("user", "\n")], "chat.messages"),
        ([Message("user", "a"), Message("robot", "a")], "chat.messages[1].role"),
        ([Message("user", None)], "chat.messages[0].content"),  # type: ignore[arg-type]
        ([Message("user", ["a"])], "chat.messages[0].content"),  # type: ignore[arg-type]
        ([Message("user", "a", name=3)], "chat.messages[0].name"),  # type: ignore[arg-type]
    ],
)
def test_bad_messages_are_refused_by_field(tiny: ModelTokenizer, messages: list[Message], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        ChatTemplate(CHATML, tiny).encode(messages)

    assert caught.value.detail.field == field


def test_messages_without_text_are_counted(tiny: ModelTokenizer) -> None:
    with pytest.raises(InvalidField, match="must not all be empty, got 2 without text"):
        ChatTemplate(CHATML, tiny).encode([Message("user", " "), Message("user", "")])


COSTLY = [
    "{% for i in range(10**9) %}{% endfor %}",
    "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "{% set x = range(9999) | list %}{% for i in x %}{% for j in x if j == -1 %}{% endfor %}{% endfor %}",
    "{% set n = namespace(x='a' * 999) %}{% for i in range(999) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "{% set n = namespace(x='a' * 999) %}{% for i in range(999) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set n = namespace(x='aa') %}{% for i in range(9) %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "{% set n = namespace(x=[1]) %}{% for i in range(999) %}{% set n.x = n.x + n.x %}{% endfor %}",
    "{% set x %}{% for i in range(9999) %}{{ 'a' * 99999 }}{% endfor %}{% endset %}",
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(40) }}",
    "{{ 'a' * 10**9 }}",
    "{{ [1] * 10**9 }}",
    "{{ 2 ** 99999 }}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ '%999999999d' % 1 }}",
    "{{ '{:999999999}'.format(1) }}",
    "{{ ([[1] * 9999] * 9999) | string | length }}",
    "{{ 'x' ~ [[1] * 9999] * 9999 }}",
    "{{ ([[[1] * 9999] * 9999]) | map('string') | list | length }}",
    "{{ ['a' * 9999] * 9999 | join('a' * 9999) }}",
    "{{ messages | tojson(indent=999999999) }}",
]


@pytest.mark.parametrize("source", COSTLY)
def test_a_runaway_template_ends_within_a_second(tiny: ModelTokenizer, source: str) -> None:
    template = ChatTemplate(source, tiny)
    start = time.thread_time()

    with pytest.raises((TemplateTooCostly, TemplateRefused)):
        template.encode([Message("user", "hi")])

    assert time.thread_time() - start < 1.0


def test_long_conversations_stay_within_the_limits(tiny: ModelTokenizer) -> None:
    chat = [Message("user" if index % 2 == 0 else "assistant", "word " * 50) for index in range(1000)]

    for source in (CHATML, LLAMA2, THINKING):
        assert len(ChatTemplate(source, tiny).encode(chat)) > 1000


def test_output_beyond_the_limit_is_refused(tiny: ModelTokenizer) -> None:
    template = ChatTemplate(CHATML, tiny, limits=TemplateLimits(max_chars=100))

    with pytest.raises(TemplateTooCostly, match="more than 100 characters"):
        template.encode([Message("user", "a" * 101)])


@pytest.mark.parametrize(
    "source", ["{% for %}", "{{ 'a' | center(99) }}", "{{ " + "(" * 5000 + "}}", "x" * (1 << 21)]
)
def test_a_template_that_does_not_compile_is_an_artifact_error(tiny: ModelTokenizer, source: str) -> None:
    with pytest.raises(ArtifactError, match="chat template"):
        ChatTemplate(source, tiny)


def test_the_date_comes_from_the_given_clock(tiny: ModelTokenizer) -> None:
    template = ChatTemplate("{{ strftime_now('%d %b %Y') }}", tiny, now=lambda: datetime(2024, 7, 26))

    assert tiny.decode(template.encode([Message("user", "a")])) == "26 Jul 2024"


def test_generation_blocks_are_rendered(tiny: ModelTokenizer) -> None:
    template = ChatTemplate("{% generation %}{{ messages[0].content }}{% endgeneration %}", tiny)

    assert tiny.decode(template.encode([Message("user", "a")])) == "a"
