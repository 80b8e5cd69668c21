"""From a configuration to its compiled set in a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ...kernels.kernel_set import KernelSet
from ..assembly import kv_groups
from ..backends import load_kernels
from ..block_counts import resolve_cache_size
from ..config import Config
from ..errors import DamagedFile
from ..kv_cache import CacheSize, sized
from ..kv_cache_dtype import cache_scales
from ..model_checks import check_model_len
from ..models.architecture import Architecture
from ..models.sources import open_model
from .description import description
from .folder import SetFolder
from .graph_states import GraphState, Report, State
from .identity import set_identity, set_key
from .key import Key
from .native_library import LIBRARY
from .tracing import Recipe
from .worker import Worker
from .worker_count import WorkerCount, count_workers
from .workers import SetCompiler, StartWorker


@dataclass(frozen=True, slots=True)
class CompiledSet:
    """A set after it was compiled.

    Attributes:
        folder: where it is.
        graphs: of the configuration, in the order of work.
        workers: how many processes there were.
    """

    folder: SetFolder
    graphs: tuple[GraphState, ...]
    workers: WorkerCount

    @property
    def failed(self) -> tuple[GraphState, ...]:
        """The graphs that are not in the set."""
        return tuple(graph for graph in self.graphs if graph.state is State.FAILED)


def compile_set(
    config: Config,
    path: Path,
    *,
    workers: int | None = None,
    report: Report = lambda graphs, num_workers: None,
    start: StartWorker = Worker,
) -> CompiledSet:
    """Compile what the set in ``path`` lacks for a configuration; reads no weights.

    May be interrupted or killed at any time and called again. Several processes may do this at
    once.

    Args:
        config: whose graphs the set has.
        path: of the folder, made if it is not there.
        workers: processes at most; see ``count_workers`` for what else bounds them.
        report: is told of every change.
        start: makes a worker.

    Raises:
        NoriaError: the configuration does not fit the model or this machine, the set there is for
            another one, or it cannot be written.
    """
    kernels = load_kernels(config.backend, config.target)
    recipe = _recipe(config, path)
    folder = SetFolder.prepare(path, key=_key(recipe, kernels), num_blocks=recipe.num_blocks)
    # The key says which sources and instruction set it is built of: any that is there fits.
    if kernels.library is not None and not folder.has_file(LIBRARY):
        folder.publish_file(LIBRARY, kernels.library.read_bytes())
    for file, data in description(config, kernels).items():
        folder.publish_file(file, data)
    count = count_workers(workers)
    compiler = SetCompiler(folder, recipe, report, start)
    compiler.run(count.num)
    if compiler.num_workers < count.num:
        count = WorkerCount(compiler.num_workers, "no more were needed")
    return CompiledSet(folder, tuple(compiler.graphs), count)


def _recipe(config: Config, path: Path) -> Recipe:
    source = open_model(config.model, tokenizer=config.tokenizer)
    architecture = source.architecture
    check_model_len(config, architecture)
    scales = cache_scales(config, source)
    return Recipe(config, architecture, scales, _num_blocks(config, architecture, path))


def _num_blocks(config: Config, architecture: Architecture, path: Path) -> tuple[int, ...]:
    """Return the blocks of each group; ``auto`` is what it was when the set was begun."""
    num_groups = len(kv_groups(config, architecture))
    if config.num_blocks == "auto":
        try:
            begun = SetFolder.open(path).manifest.num_blocks
        except DamagedFile:
            begun = ()
        if len(begun) == num_groups:
            return begun
    return resolve_cache_size(config, architecture).num_blocks


def _key(recipe: Recipe, kernels: KernelSet) -> Key:
    groups = sized(
        kv_groups(recipe.config, recipe.architecture), CacheSize(recipe.num_blocks, "of the set")
    )
    identity = set_identity(
        recipe.config,
        kernels,
        architecture=recipe.architecture,
        groups=groups,
        kv_scales=recipe.kv_scales,
    )
    return set_key(identity, kernels)
