"""A worker with an engine that only counts; the model's name tells what goes wrong with it."""

from __future__ import annotations

import os
import sys
import time

from noria.runtime.bench.peer_worker import Load, TokenIds, claim_stdout, serve


class CountingEngine:
    """Continues a prompt by counting up from its last id."""

    version = "7"

    def __init__(self, load: Load) -> None:
        self._behaviour = load.model
        self._num_runs = 0
        if self._behaviour == "refuses":
            raise ValueError("no such\nmodel")
        if self._behaviour == "chatters":
            print("loading ...")

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        self._num_runs += 1
        if self._behaviour == "crashes" and self._num_runs == 2:
            print("first line\nout of memory", file=sys.stderr, flush=True)
            os._exit(9)
        if self._behaviour == "hangs":
            time.sleep(60)
        if self._behaviour == "stops early":
            new_tokens -= 1
        return [[prompt[-1] + i for i in range(1, new_tokens + 1)] for prompt in prompts]


if __name__ == "__main__":
    replies = claim_stdout()
    serve(CountingEngine, sys.stdin, replies=replies)
