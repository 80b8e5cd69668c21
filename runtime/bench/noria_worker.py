"""The process in which Noria runs beside other engines: ``peer_worker`` with Noria in it."""

from __future__ import annotations

import sys

from ..llm import LLM
from ..sampling_params import SamplingParams
from .peer_worker import Load, TokenIds, claim_stdout, serve


class NoriaEngine:
    """Noria with the configuration that ``load.settings`` holds."""

    def __init__(self, load: Load) -> None:
        """Load the model, compile and warm every graph."""
        from .. import __version__

        self.version = __version__
        self._llm = LLM(load.settings)
        self._llm.wait_for_graphs()

    def generate(self, prompts: TokenIds, new_tokens: int) -> TokenIds:
        """Return ``new_tokens`` ids for each prompt.

        Raises:
            RuntimeError: a prompt was refused.
        """
        params = SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True)
        outputs = self._llm.generate(prompts, params)
        for output in outputs:
            if output.error is not None:
                raise RuntimeError(output.error)
        return [list(output.token_ids) for output in outputs]


if __name__ == "__main__":
    replies = claim_stdout()
    serve(NoriaEngine, sys.stdin, replies=replies)
