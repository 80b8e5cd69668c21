"""Tiny engines for runtime tests, and what they run on."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from dense_model import DenseModel
from tiny_engine import TINY, EngineShape, TinyEngine, build_engine, random_tensors

from noria.runtime.models.architecture import Architecture


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """Run tiny models on one thread: two that wait for each other are slow on a busy machine."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def make_engine() -> Callable[..., TinyEngine]:
    """Builder of tiny engines."""
    return build_engine


@pytest.fixture(scope="session")
def make_shape() -> Callable[..., EngineShape]:
    """Builder of tiny engines' settings."""
    return EngineShape


@pytest.fixture(scope="session")
def dense() -> DenseModel:
    """The dense model with the weights of tiny engines."""
    return DenseModel(TINY, random_tensors(TINY))


@pytest.fixture(scope="session")
def make_dense() -> Callable[..., DenseModel]:
    """Builder of dense models of other architectures."""
    return lambda architecture: DenseModel(architecture, random_tensors(architecture))


@pytest.fixture(scope="session")
def tiny_architecture() -> Architecture:
    """The architecture of tiny engines."""
    return TINY


@pytest.fixture
def tiny() -> TinyEngine:
    """A fresh tiny engine with `reference` kernels in fp64."""
    return build_engine()


@pytest.fixture(scope="session")
def twins(tmp_path_factory: pytest.TempPathFactory) -> object:
    """Tiny models of transformers, and checkpoints of them."""
    from hugging_face import Twins

    return Twins(tmp_path_factory.mktemp("twins"))
