"""Checkpoint folders: ``config.json`` with safetensors, in one file or sharded by an index.

A folder is checked whole, from the headers, before anything is read: every tensor of the
architecture is there exactly once, with its shape and a float dtype, and nothing is left over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..errors import ModelError
from .architecture import Architecture, expected_tensors
from .families import read_architecture
from .json_files import read_json
from .kv_scales import scale_names
from .tensor_files import TensorFiles

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOAT_DTYPES = ("F64", "F32", "F16", "BF16")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt")
NUM_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """An opened folder; ``tensors`` holds exactly what ``architecture`` needs."""

    architecture: Architecture
    tensors: TensorFiles


def open_checkpoint(folder: Path) -> Checkpoint:
    """Open and check a checkpoint folder; tensor data stays on disk until it is asked for.

    A tied model may hold an equal ``lm_head.weight``; one that differs is refused, because
    either reading of it would be a guess. Rotary ``inv_freq`` buffers are skipped, and scales of an
    FP8 KV cache stay where they are, for those who ask for one.

    Raises:
        ModelError: one line that names the files and the first few tensors that do not fit.
    """
    config = read_json(folder / "config.json")
    architecture = read_architecture(config, source=str(folder / "config.json"))
    paths = _weight_files(folder)
    tensors = TensorFiles([path for path in paths if path.is_file()])
    problems = [*_file_problems(paths, tensors), *_tensor_problems(architecture, tensors)]
    if problems:
        raise ModelError(f"{folder}: {'; '.join(problems)}")
    if architecture.tie_word_embeddings and _head(architecture) in tensors:
        _require_equal_head(folder, architecture, tensors)
    return Checkpoint(architecture, tensors)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / SINGLE_FILE).is_file():
        return [folder / SINGLE_FILE]
    index = folder / INDEX_FILE
    if not index.is_file():
        raise ModelError(_no_weights(folder))
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: weight_map must map tensor names to files")
    for name in weight_map.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise ModelError(f"{index}: weight_map names {name!r}, which is no file of the folder")
    return [folder / name for name in sorted(set(weight_map.values()))]


def _no_weights(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    pickles = [name for name in names if name.endswith(PICKLE_SUFFIXES)]
    ggufs = [name for name in names if name.endswith(".gguf")]
    if pickles:
        return (
            f"{folder}: {pickles[0]} is a pickle, which can run code when it is loaded; convert "
            "the model to safetensors (save_pretrained of transformers writes it)"
        )
    if ggufs:
        return f"{folder}: no {SINGLE_FILE}; to load {ggufs[0]}, give the path of that file"
    return f"{folder}: neither {SINGLE_FILE} nor {INDEX_FILE} is there"


def _file_problems(paths: Sequence[Path], tensors: TensorFiles) -> list[str]:
    missing = [path.name for path in paths if not path.is_file()]
    damaged = [f"{path.name}: {reason}" for path, reason in tensors.damaged.items()]
    return [
        *_problem(missing, f"of {len(paths)} weight files missing"),
        *_problem(damaged, "weight files damaged"),
        *_problem(tensors.duplicates, "tensors in more than one file"),
    ]


def _tensor_problems(architecture: Architecture, tensors: TensorFiles) -> list[str]:
    expected = expected_tensors(architecture)
    if architecture.tie_word_embeddings and _head(architecture) in tensors:
        expected[_head(architecture)] = expected[_embedding(architecture)]
    shared = [(name, tensors.headers[name]) for name in expected if name in tensors]
    misshapen = [
        f"{name} is {list(header.shape)}, expected {list(expected[name])}"
        for name, header in shared
        if header.shape != expected[name]
    ]
    other = [f"{name} is {header.dtype}" for name, header in shared if _is_not_float(header.dtype)]
    allowed = scale_names(architecture)
    unused = [
        name
        for name in tensors
        if name not in expected and name not in allowed and not _is_rotary_buffer(name)
    ]
    return [
        *_problem([n for n in expected if n not in tensors], f"of {len(expected)} tensors missing"),
        *_problem(misshapen, "tensors misshapen"),
        *_problem(other, f"tensors of no supported dtype ({', '.join(FLOAT_DTYPES)})"),
        *_problem(sorted(unused), "tensors that the model does not use"),
    ]


def _problem(names: Iterable[str], what: str) -> list[str]:
    listed = list(names)
    shown = ", ".join(listed[:NUM_SHOWN]) + (", ..." if len(listed) > NUM_SHOWN else "")
    return [f"{len(listed)} {what} ({shown})"] if listed else []


def _is_not_float(dtype: str) -> bool:
    return dtype not in FLOAT_DTYPES


def _is_rotary_buffer(name: str) -> bool:
    return name.endswith("rotary_emb.inv_freq")


def _embedding(architecture: Architecture) -> str:
    return f"{architecture.names.embedding}.weight"


def _head(architecture: Architecture) -> str:
    return f"{architecture.names.head}.weight"


def _require_equal_head(folder: Path, architecture: Architecture, tensors: TensorFiles) -> None:
    names = _embedding(architecture), _head(architecture)
    embedding, head = (tensors[name] for name in names)
    dtype = torch.promote_types(embedding.dtype, head.dtype)
    if not torch.equal(embedding.to(dtype), head.to(dtype)):
        raise ModelError(
            f"{folder}: tie_word_embeddings is true, but {names[1]} differs from {names[0]}; set "
            f"it to false in config.json to use {names[1]}, or drop that tensor to tie"
        )
