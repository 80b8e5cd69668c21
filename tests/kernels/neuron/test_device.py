"""Compiled steps on a Neuron device: what to run first there, cheapest first.

pytest -m neuron tests/kernels/neuron/test_device.py
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from device_steps import STEPS, problems_of

from noria.kernels.neuron.device_kernels import DeviceKernels
from noria.kernels.neuron.packages import refusal
from noria.runtime import LLM, SamplingParams

LACKING = refusal()
CONFIG = Path(__file__).parents[3] / "configs" / "tiny-neuron-sim.yaml"
pytestmark = [
    pytest.mark.neuron,
    pytest.mark.skipif(LACKING is not None, reason=str(LACKING)),
]


@pytest.mark.parametrize("name", STEPS)
def test_one_layer_writes_and_attends(name: str) -> None:
    assert problems_of(STEPS[name], DeviceKernels.of_this_machine("trn2")) == []


def test_a_tiny_model_gives_the_tokens_of_the_cpu() -> None:
    settings = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))
    params = SamplingParams(temperature=0, max_tokens=4)
    prompts = [[1, 2, 3], [7] * 20]
    here = {name: value for name, value in settings.items() if name != "target"}

    tokens = [
        [list(one.token_ids) for one in LLM(given).generate(prompts, params)]
        for given in (settings | {"backend": "neuron"}, here | {"backend": "cpu"})
    ]

    assert tokens[0] == tokens[1]
