from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
import tokenizers

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
        ("hi", "messages is 'hi'; must be a list"),
        (None, "messages is None; must be a list"),
        ([{"role": "user", "content": None}], "content of message 0 must be a string"),
        ([USER, {"role": "user", "content": 7}], "content of message 1 must be a string"),
        ([USER, {"content": "hi"}], "message 1 must be an object with a role"),
        (["hi"], "message 0 must be an object with a role"),
        ([{"role": "user", "content": 10**5000}], "list of text parts, not a number of 16610 bits"),
        ([{"role": "user", "content": ["a", 10**5000]}], "not text: a number of 16610 bits"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "a part that is not text"),
    ],
)
def test_malformed_messages_are_refused(messages: Any, shown: str) -> None:
    """H03, H09."""
    assert shown in refusal(NO_SYSTEM, messages)


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        },
    }
]
CALLING = """{{ bos_token }}
{%- if tools is not none and tools | length > 0 %}
    {{- '<tools>\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson(indent=2) }}{{ '\\n' if not loop.last }}
    {%- endfor %}
    {{- '</tools>' }}
{%- endif %}
{%- for m in messages %}
<{{ m.role }}>
    {%- if m.tool_calls %}
        {%- for call in m.tool_calls %}
            {%- set called = call.function %}
            {{- called.name + '(' + (called.arguments | tojson) + ')' }}
        {%- endfor %}
    {%- else %}
        {{- m['content'] | trim }}
    {%- endif %}
</{{ m.role }}>
{% endfor %}
{%- if add_generation_prompt %}<assistant>{% endif %}"""
WITH_TOOLS = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m | tojson }}\n{% endfor %}"
)


def test_tools_and_their_messages_reach_the_template_unharmed() -> None:
    """H03: also a null content beside tool calls, and keys that are not known here."""
    call = {"name": "weather", "arguments": {"city": "Zürich", "days": [1, None]}}
    messages = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": call}]},
        {"role": "tool", "content": "sunny", "tool_call_id": "1", "name": "weather"},
        {"role": "assistant", "content": "Sunny.", "reasoning_content": "..."},
    ]

    lines = ChatTemplate(WITH_TOOLS).render(messages, TOOLS).splitlines()

    assert [json.loads(line) for line in lines] == [TOOLS, *messages]
    assert ChatTemplate(WITH_TOOLS).render([USER]).splitlines() == [json.dumps(USER)]


def test_a_chat_with_tools_has_the_text_of_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    backend = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0}, []))
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
    call = {"function": {"name": "weather", "arguments": {"city": "Z\u00fcrich"}}}
    messages = [
        SYSTEM,
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny & <b>warm</b>"},
    ]

    for tools in (TOOLS, []):
        text = theirs.apply_chat_template(
            messages,
            tools=tools or None,
            chat_template=CALLING,
            tokenize=False,
            add_generation_prompt=True,
        )
        assert ChatTemplate(CALLING, {"bos_token": "<s>"}).render(messages, tools) == text


@pytest.mark.parametrize("test", ["tools is none", "tools is defined", "documents is none"])
def test_without_tools_the_names_stand_for_none(test: str) -> None:
    """As in transformers, which some templates rely on."""
    template = "{{ 'yes' if " + test + " }}"

    assert ChatTemplate(template).render([USER]) == "yes"


@pytest.mark.parametrize(
    ("tools", "shown"),
    [
        ("weather", "tools is 'weather'; must be a list"),
        ({"name": "f"}, "tools is {'name': 'f'}; must be a list"),
        (["weather"], "tool 0 must be an object like"),
        ([TOOLS[0], {"type": "function"}], "tool 1 must be an object like"),
        ([{"function": {"parameters": {}}}], "tool 0 must be an object like"),
        ([{"name": 7}], "tool 0 must be an object like"),
    ],
)
def test_malformed_tools_are_refused(tools: Any, shown: str) -> None:
    """H03."""
    with pytest.raises(RequestError) as caught:
        ChatTemplate(WITH_TOOLS).render([USER], tools)

    assert str(caught.value).startswith("chat template: ")
    assert shown in str(caught.value)


def test_a_template_that_has_no_place_for_tools_refuses_them() -> None:
    """H03: the model would never hear of them."""
    with pytest.raises(RequestError, match="chat template: the model's has no place for tools"):
        ChatTemplate(CHATML).render([USER], TOOLS)


def test_a_template_of_its_own_takes_the_tools() -> None:
    template = ChatTemplate(CHATML, tool_source="{{ tools[0].function.name }}")

    assert template.render([USER], TOOLS) == "weather"
    assert "weather" not in template.render([USER])


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


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% for i in [1, 1] recursive %}{{ loop([1, 1]) if loop.depth < 100 }}{% endfor %}",
    ],
    ids=["loops", "recursive calls"],
)
def test_a_template_that_would_run_for_ever_is_stopped(template: str) -> None:
    assert (
        refusal(template, [USER])
        == "chat template: takes more than 1000000 steps; is a loop endless?"
    )


def test_every_rendering_has_steps_of_its_own() -> None:
    template = ChatTemplate(
        "{% for i in range(99999) %}{% for j in [1] * 5 %}{% endfor %}{% endfor %}"
    )

    assert template.render([USER]) == template.render([USER]) == ""


def test_counted_loops_are_loops_like_others() -> None:
    template = ChatTemplate(
        "{% for m in messages if m.content != 'no' %}"
        "{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}{{ loop.previtem is defined }} "
        "{% else %}none{% endfor %}"
        "{% for k, v in {'a': 1}.items() %}{{ k }}{{ v }}{% endfor %}"
        "{% for x in nothing %}{% else %} else{% endfor %}"
    )
    no = {"role": "user", "content": "no"}

    assert template.render([USER, no, USER]) == "1/2False 2/2.True a1 else"
    assert template.render([no]) == "nonea1 else"
