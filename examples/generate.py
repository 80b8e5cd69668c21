"""Answer a few questions with a small model: ``noria fetch smollm2-135m`` first."""

from importlib.resources import as_file, files

from noria.runtime import LLM, SamplingParams

QUESTIONS = ["What is the capital of France?", "Name three fruits that are red."]

with as_file(files("noria.configs") / "smollm2-135m-cpu.yaml") as config:
    llm = LLM(config)
chats = [[{"role": "user", "content": question}] for question in QUESTIONS]
for question, output in zip(
    QUESTIONS, llm.chat(chats, SamplingParams(temperature=0, max_tokens=64)), strict=True
):
    print(f"{question}\n{output.text}\n")
