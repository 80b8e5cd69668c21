"""Samples, logprobs, streams, structured output and tools: ``noria fetch smollm2-135m`` first.

Structured output needs llguidance: ``pip install -e '.[grammar]'``.
"""

import json
from importlib.resources import as_file, files

from noria.runtime import LLM, SamplingParams

ARGUMENTS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "unit": {"enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city", "unit"],
    "additionalProperties": False,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": ARGUMENTS,
    },
}
CALL = {
    "type": "object",
    "properties": {"name": {"const": "weather"}, "arguments": ARGUMENTS},
    "required": ["name", "arguments"],
    "additionalProperties": False,
}


def show_samples(llm: LLM) -> None:
    """Draw three answers to one prompt, whose blocks they share, with logprobs."""
    params = SamplingParams(n=3, temperature=0.8, seed=7, max_tokens=10, logprobs=0)
    (output,) = llm.generate("The sea is", params)
    for completion in output.completions:
        assert completion.logprobs is not None
        total = sum(token.logprob for token in completion.logprobs)
        print(f"{total:7.2f} {completion.text!r}")


def show_stream(llm: LLM) -> None:
    """Print the text in the pieces in which it comes; the "t" of "ten" is held back."""
    params = SamplingParams(temperature=0, max_tokens=40, stop=("ten",))
    print("|".join(llm.stream("Count: one, two, three, four, five,", params)))


def show_structured_output(llm: LLM) -> None:
    """Keep an answer to one of two words."""
    params = SamplingParams(temperature=0, structured_output={"choice": ["yes", "no"]})
    (output,) = llm.chat([user("Is Paris the capital of France? Answer yes or no.")], params)
    print(output.text)


def show_tool_call(llm: LLM) -> None:
    """Let the model call a function, with arguments that fit its schema."""
    question = user("What is the weather in Paris, in celsius?")
    params = SamplingParams(temperature=0, max_tokens=64, structured_output={"json": CALL})
    (output,) = llm.chat([question], params, tools=[WEATHER])
    if output.error is not None:  # the template of this model has no place for tools
        print(output.error)
        system = {"role": "system", "content": f"You can call: {json.dumps(WEATHER)}"}
        (output,) = llm.chat([system, question], params)
    assert output.text is not None
    print(json.loads(output.text))


def user(text: str) -> dict[str, str]:
    """Return a message of the user."""
    return {"role": "user", "content": text}


def main() -> None:
    """Show all of it on one engine."""
    with as_file(files("noria.configs") / "smollm2-135m-sampling.yaml") as config:
        llm = LLM(config)
    show_samples(llm)
    show_stream(llm)
    show_structured_output(llm)
    show_tool_call(llm)


if __name__ == "__main__":
    main()
