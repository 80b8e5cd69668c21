"""The processor: its name, and the instruction set that kernels in C++ are built for."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from .sources import Sources

_AVX512 = {"avx512vl", "avx512bw", "avx512dq", "fma"}
_AVX2 = {"avx2", "fma"}


def processor_name(sources: Sources) -> str:
    """Return the processor's own name, or that of its architecture."""
    return _fields(sources).get("model name", "") or sources.architecture


def instruction_set(sources: Sources) -> str | None:
    """Return the name of the instruction set; None: not known.

    It is what ``kernels/cpu/build.py`` finds with torch, which is not imported here.
    """
    fields = _fields(sources)
    if not fields:
        return None
    return _widest(fields.get("flags", "").split(), sources.environ.get("ATEN_CPU_CAPABILITY"))


def _widest(flags: Collection[str], capability: str | None) -> str:
    has = set(flags)
    if has >= _AVX512 and capability not in ("avx2", "default"):
        return "avx512_bf16" if "avx512_bf16" in has else "avx512"
    return "avx2" if has >= _AVX2 and capability != "default" else "generic"


def _fields(sources: Sources) -> Mapping[str, str]:
    """Return what /proc/cpuinfo says of the first processor."""
    first, _, _ = (sources.text("proc/cpuinfo") or "").partition("\n\n")
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
