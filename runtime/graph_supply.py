"""Where the graphs of an engine come from: a set that is named, the local set, or the compiler."""

from __future__ import annotations

from pathlib import Path

from ..kernels.contract import KVGroup
from ..kernels.kernel_set import KernelSet
from .compiled_set.description import description
from .compiled_set.folder import SetFolder
from .compiled_set.identity import set_identity, set_key
from .compiled_set.key import Key, key_digest
from .compiled_set.local_cache import sets_folder
from .compiled_set.local_set import LocalSet
from .compiled_set.native_library import LIBRARY
from .compiled_set.set_source import FromLocalSet, choose_source
from .compiled_set.tracing import Recipe
from .config import Config
from .errors import SetError
from .graph_source import CompileHere
from .graph_start import REMEDY, FillingStart, FinishedStart, GraphStart
from .models.architecture import Architecture
from .models.kv_scales import KVScales


def choose_start(
    config: Config,
    architecture: Architecture,
    kernels: KernelSet,
    *,
    groups: tuple[KVGroup, ...],
    kv_scales: tuple[KVScales, ...] | None,
    folder: SetFolder | None,
) -> GraphStart:
    """Return where an engine's graphs come from, and which there are when it begins to serve.

    Without ``folder``, the set that the configuration names, they come from the local set, where
    there are local sets and these kernels make what can be kept.

    Raises:
        SetError: nothing may be compiled, and there is no set for this engine.
    """
    identity = set_identity(
        config, kernels, architecture=architecture, groups=groups, kv_scales=kv_scales
    )
    key = set_key(identity, kernels)
    may_compile = config.compile == "auto"
    if folder is not None:
        return GraphStart(choose_source(folder, key, kernels, may_compile=may_compile))
    root = sets_folder()
    if not may_compile:
        return FinishedStart(FromLocalSet(_finished_set(root, key, kernels), kernels))
    if root is None or not kernels.makes_traces:
        return GraphStart(CompileHere(kernels))
    # A set whose graphs are for any number of blocks lists none.
    num_blocks = [group.num_blocks for group in groups if kernels.fixes_num_blocks]
    store = LocalSet(root / key_digest(key), key=key, num_blocks=num_blocks)
    for path, data in description(config, kernels).items():
        store.keep_file(path, data)
    if kernels.library is not None:
        store.keep_file(LIBRARY, kernels.library.read_bytes())
    recipe = Recipe(config, architecture, kv_scales, tuple(group.num_blocks for group in groups))
    return FillingStart(FromLocalSet(store, kernels), store, recipe)


def _finished_set(root: Path | None, key: Key, kernels: KernelSet) -> SetFolder:
    """Return the local set that somebody has filled.

    Raises:
        SetError: there is none.
    """
    start = "compile is never, compiled names no set, and"
    if root is None:
        raise SetError(f"{start} there are no local sets: NORIA_SETS is empty, or there is no home")
    if not kernels.makes_traces:
        raise SetError(f"{start} backend {kernels.name} compiles nothing that a local set keeps")
    try:
        return SetFolder.open(root / key_digest(key))
    except SetError as error:
        raise SetError(f"{start} the local set is not there: {error}; {REMEDY}") from error
