import subprocess
import sys

import pytest

import noria.runtime as runtime


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600
    )
    return done.stdout.strip()


def test_every_public_name_exists() -> None:
    assert all(getattr(runtime, name) is not None for name in runtime.__all__)
    assert set(runtime.__all__) <= set(dir(runtime))


def test_the_public_names_are_these() -> None:
    assert runtime.__all__ == [
        "LLM",
        "BackendError",
        "Config",
        "ConfigError",
        "Conversation",
        "ModelError",
        "NoBucketError",
        "NoriaError",
        "RequestError",
        "RequestOutput",
        "SamplingParams",
        "__version__",
        "load_config",
    ]


def test_public_names_are_those_of_their_modules() -> None:
    from noria.bucketing import NoBucketError
    from noria.runtime.errors import NoriaError
    from noria.runtime.llm import LLM

    assert runtime.LLM is LLM
    assert runtime.NoriaError is NoriaError
    assert runtime.NoBucketError is NoBucketError


def test_every_error_of_a_user_is_a_noria_error() -> None:
    errors = (runtime.BackendError, runtime.ConfigError, runtime.ModelError, runtime.RequestError)

    assert all(issubclass(error, runtime.NoriaError) for error in errors)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        runtime.Engine  # noqa: B018 - the access is what is tested


def test_configurations_and_sampling_settings_need_no_torch() -> None:
    loaded = run_python(
        "import sys; from noria.runtime import Config, SamplingParams, load_config, __version__;"
        "print({'torch', 'tokenizers', 'numpy'} & set(sys.modules))"
    )

    assert loaded == "set()"


def test_the_version_is_the_installed_one() -> None:
    from importlib.metadata import version

    assert runtime.__version__ == version("noria")
