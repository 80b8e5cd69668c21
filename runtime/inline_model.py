"""Checks of an architecture that is written into a configuration, in ``config.json`` keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from .errors import ConfigError, ModelError
from .models.architecture import Architecture
from .sampling_params import MAX_SEED
from .schema import entries
from .settings import Config
from .typed_reader import nearest, refuse, shown

UNUSED_KEYS = frozenset(
    {
        "_name_or_path",
        "attention_dropout",
        "dtype",
        "initializer_range",
        "pad_token_id",
        "pretraining_tp",
        "torch_dtype",
        "transformers_version",
        "use_cache",
    }
)
"""Keys of config.json that cannot change what a model computes here: training and bookkeeping."""


class _ReadKeys(Mapping[str, object]):
    """A mapping that notes which keys were asked for, whether they are there or not."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values_by_key = values
        self.asked: dict[str, None] = {}

    def __getitem__(self, key: str) -> object:
        self.asked[key] = None
        return self.values_by_key[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_key)

    def __len__(self) -> int:
        return len(self.values_by_key)


def check_inline_model(model: Mapping[str, object], max_model_len: int) -> None:
    """Refuse keys that nothing reads, what is no model, and too few positions.

    Raises:
        ConfigError: without the name of the file.
    """
    seed = model.get("seed", 0)
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed <= MAX_SEED:
        refuse("model.seed", shown(seed), f"must be an integer from 0 to {MAX_SEED}")
    if "text_config" in model:
        refuse("model.text_config", "is for config.json", "write its keys directly under model")
    keys = _ReadKeys({key: value for key, value in model.items() if key != "seed"})
    try:
        architecture = Architecture.from_config(keys, source="model")
    except ModelError as error:
        _refuse_unread(keys, only_slips=True)
        raise ConfigError(str(error)) from None
    _refuse_unread(keys, only_slips=False)
    positions = architecture.max_position_embeddings
    if max_model_len > positions:
        fits = f"must be at most max_position_embeddings of the model = {positions}"
        refuse("max_model_len", f"is {max_model_len}", fits)


def _refuse_unread(keys: _ReadKeys, *, only_slips: bool) -> None:
    """Refuse keys that were not read; ``only_slips``: those near a key that was missed."""
    missing = [key for key in keys.asked if key not in keys.values_by_key]
    for key in keys:
        if key in keys.asked or key in UNUSED_KEYS:
            continue
        near = nearest(str(key), missing)
        if near:
            refuse(f"model.{key}", "unknown key of an architecture", f"did you mean {near}?")
        if only_slips:
            continue
        if key in entries(Config):
            refuse(f"model.{key}", "unknown key of an architecture", "it belongs at the top level")
        fits = "leave it out: no supported model has it"
        refuse(f"model.{key}", "unknown key of an architecture", fits)
