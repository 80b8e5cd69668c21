"""What planners ask of costs, from a configuration and its model; reads and writes files of
measured costs.

Needs no torch: a plan is made on machines that have none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from json import JSONDecodeError
from pathlib import Path
from types import MappingProxyType

from ..bucketing.costs.model_shape import ModelShape
from ..bucketing.costs.reads import ContextReads, DecodeReads
from ..bucketing.costs.table import CostTable
from ..bucketing.costs.table_data import read_table, table_mapping
from .config import Config
from .errors import ConfigError, ModelError
from .json_text import parse_json
from .models.architecture import Architecture

DTYPE_BYTES: Mapping[str, int] = MappingProxyType(
    {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
)
KV_BYTES: Mapping[str, int] = MappingProxyType({"fp8_e4m3": 1})

_LIVE = ContextReads("exact", DecodeReads(num_bytes="live", flop="live"))
_NKI = ContextReads("exact", DecodeReads(num_bytes="live", flop="bucket"))
CONTEXT_READS: Mapping[str, ContextReads] = MappingProxyType(
    {
        "cpu": _LIVE,  # loops end at each request's own length
        "reference": _LIVE,  # columns of the table that no row sees are skipped
        # Prefill loops up to a register that holds the live length; decode gathers live blocks
        # only, and computes scores for the whole table: see docs/kernels.md.
        "neuron-sim": _NKI,
        "neuron": _NKI,
    }
)
"""What the attention of each backend pays for."""


def model_shape(config: Config, architecture: Architecture) -> ModelShape:
    """Return the sizes that decide what a step of this model costs, as it is configured.

    Raises:
        ModelError: its layers have experts of different sizes.
    """
    kinds = {kind.experts for kind in architecture.layers if kind.experts is not None}
    if len(kinds) > 1:
        raise ModelError("model: experts differ from layer to layer; costs know one kind only")
    experts = next(iter(kinds), None)
    return ModelShape(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_heads=architecture.num_heads,
        num_kv_heads=architecture.num_kv_heads,
        head_dim=architecture.head_dim,
        vocab_size=architecture.vocab_size,
        weight_bytes=DTYPE_BYTES[config.dtype],
        kv_bytes=KV_BYTES.get(config.kv_cache_dtype, DTYPE_BYTES[config.dtype]),
        num_expert_layers=sum(kind.experts is not None for kind in architecture.layers),
        num_experts=experts.num if experts else 0,
        num_experts_per_row=experts.num_per_token if experts else 0,
        expert_intermediate_size=experts.intermediate_size if experts else 0,
        windows=tuple(kind.window for kind in architecture.layers if kind.window is not None),
    )


def read_costs(path: str | Path) -> CostTable:
    """Read a file that ``noria bench shapes`` wrote.

    Raises:
        ConfigError: one line with the file, what is wrong in it and what would fit.
    """
    try:
        return read_table(parse_json(Path(path).read_text(encoding="utf-8")))
    except JSONDecodeError as error:
        place = f"{path}, line {error.lineno}, column {error.colno}"
        raise ConfigError(
            f"{place}: {_found(error)} that cannot be here; costs are the one JSON object that "
            "noria bench shapes writes"
        ) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: byte {error.start} is not UTF-8") from None
    except ValueError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None


def _found(error: JSONDecodeError) -> str:
    """Name what stands where a text stops being JSON."""
    rest = error.doc[error.pos :]
    return f"there is {rest[0]!r}" if rest else "the file ends, and"


def write_costs(table: CostTable, path: str | Path) -> None:
    """Write a table of costs as one JSON object. Raises OSError."""
    text = json.dumps(table_mapping(table), indent=1, ensure_ascii=False)
    Path(path).write_text(text + "\n", encoding="utf-8")
