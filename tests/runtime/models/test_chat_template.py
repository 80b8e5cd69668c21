from __future__ import annotations

import datetime
from typing import Any

import pytest

from noria.runtime.errors import RequestError
from noria.runtime.models.chat_template import ChatTemplate

CHATML = (
    "{% for message in messages %}\n"
    "    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}"
    "{% for m in messages %}{{ m.content }};{% endfor %}"
)
SYSTEM, USER = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}


def refusal(template: str, messages: Any) -> str:
    with pytest.raises(RequestError) as caught:
        ChatTemplate(template).render(messages)
    message = str(caught.value)
    assert message.startswith("chat template: ")
    assert "\n" not in message
    return message


def test_blocks_leave_no_blank_lines() -> None:
    text = ChatTemplate(CHATML).render([SYSTEM, USER])

    assert text == (
        "    <|im_start|>system\nBe brief.<|im_end|>\n\n"
        "    <|im_start|>user\nhi<|im_end|>\n\n"
        "<|im_start|>assistant\n"
    )


def test_a_refusal_of_the_template_is_quoted_and_harms_one_request() -> None:
    """H03: the same template goes on answering others."""
    assert refusal(NO_SYSTEM, [SYSTEM, USER]) == "chat template: no system role here"
    assert ChatTemplate(NO_SYSTEM).render([USER, USER]) == "hi;hi;"


def test_text_parts_are_joined_by_newlines() -> None:
    """H03."""
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]

    assert ChatTemplate(NO_SYSTEM).render([{"role": "user", "content": parts}]) == "one\ntwo;"


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ([], "messages is empty"),
        ([{"role": "user", "content": None}], "content of message 0 must be a string"),
        ([USER, {"role": "user", "content": 7}], "content of message 1 must be a string"),
        ([USER, {"content": "hi"}], "message 1 must be an object with a role"),
        (["hi"], "message 0 must be an object with a role"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part that is not text"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, shown: str) -> None:
    """H03, H09."""
    assert shown in refusal(NO_SYSTEM, messages)


def test_a_null_content_is_fine_beside_tool_calls() -> None:
    calls = {"role": "assistant", "content": None, "tool_calls": [{"name": "f"}]}
    template = "{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}"

    assert ChatTemplate(template).render([calls]) == '[{"name": "f"}]'


@pytest.mark.parametrize(
    "template",
    ["{% if %}", "{{ messages[0].missing.deeper }}", "{{ 1 / 0 }}", "{{ nothing() }}"],
)
def test_a_broken_template_is_an_error_of_the_request(template: str) -> None:
    """H03: also one that does not parse, for raw prompts work without it."""
    refusal(template, [USER])


@pytest.mark.parametrize(
    "template",
    ["{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ messages.clear() }}"],
)
def test_a_template_cannot_leave_its_sandbox(template: str) -> None:
    refusal(template, [USER])


def test_the_functions_of_hugging_face_templates_are_there() -> None:
    template = ChatTemplate(
        "{% set tools = ['<é>'] %}"
        "{{ bos_token }}{{ tools | tojson }}{{ tools | tojson(indent=1) }}{{ strftime_now('%Y') }}"
        "{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{% generation %}said{% endgeneration %}",
        {"bos_token": "<s>"},
    )

    year = datetime.datetime.now().strftime("%Y")
    assert template.render([USER]) == f'<s>["<é>"][\n "<é>"\n]{year}1said'
