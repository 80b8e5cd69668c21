"""Devices as a planner sees them: what they read and multiply per second, and what graphs cost.

A sheet is of a whole chip whose cores share every layer evenly, that of the cpu of one thread.
Shares of peaks, launches and fees are guesses wherever a comment says so: measure
(``noria bench shapes``) before trusting them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from .cost import GraphFees
from .numbers import finite_number


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSheet:
    """Limits of one device.

    Attributes:
        bytes_s: peak bytes per second from memory.
        flop_s: peak operations per second of dense products, by dtype.
        launch_s: seconds of a step that does nothing.
        bytes_share: share of the peak that kernels reach, 0 to 1; ``flop_share`` alike.
        fees: what it costs to have a graph.
    """

    name: str
    bytes_s: float
    flop_s: Mapping[str, float]
    launch_s: float
    bytes_share: float = 1.0
    flop_share: float = 1.0
    fees: GraphFees

    def __post_init__(self) -> None:
        """Refuse what is not a rate, a share or a time."""
        rates = {"bytes_s": self.bytes_s}
        rates |= {f"flop_s.{dtype}": rate for dtype, rate in self.flop_s.items()}
        for name, rate in rates.items():
            _check(f"device.{name}", rate, lambda value: value > 0, "a number above 0")
        if not self.flop_s:
            raise ValueError("device.flop_s: names no dtype")
        for name in ("bytes_share", "flop_share"):
            share = getattr(self, name)
            _check(f"device.{name}", share, lambda value: 0 < value <= 1, "above 0, at most 1")
        _check("device.launch_s", self.launch_s, lambda value: value >= 0, "0 or more seconds")

    @property
    def effective_bytes_s(self) -> float:
        """Bytes per second that kernels reach."""
        return self.bytes_s * self.bytes_share

    def effective_flop_s(self, dtype: str) -> float:
        """Return the operations per second that kernels reach in a dtype.

        Raises:
            ValueError: the sheet does not say.
        """
        if dtype not in self.flop_s:
            known = ", ".join(self.flop_s)
            raise ValueError(f"device {self.name} has no rate for {dtype} (it has {known})")
        return self.flop_s[dtype] * self.flop_share


def _check(name: str, value: object, fits: Callable[[float], bool], text: str) -> None:
    number = finite_number(value)
    if number is None or not fits(number):
        raise ValueError(f"{name}: {value!r:.60} is not {text}")


CPU_FEES = GraphFees(
    base_compile_s=0.3,  # measured: a graph of 30 layers, on one core
    row_compile_s=0.0,  # graphs are lists of commands, as long for any number of rows
    base_bytes=150_000.0,  # measured: the same graph's commands
    row_bytes=0.0,
)
NEURON_FEES = GraphFees(
    # A guess. Users report minutes per graph, more for large ones (issues aws-neuron-sdk#825: a
    # set takes an hour; transformers-neuronx#48: three).
    base_compile_s=120.0,
    row_compile_s=0.02,  # a guess: instructions grow with unrolled tiles of rows
    base_bytes=64 * 2.0**20,  # a guess: instructions and descriptors stay on the device
    row_bytes=0.0,  # activations share a pool: the largest graph counts, not the sum
)
GPU_FEES = GraphFees(
    base_compile_s=1.0,  # reported: 67 captures take 65 s (issue vllm#16716)
    row_compile_s=0.0,
    base_bytes=100e6,  # reported: 7 more captures take about 700 MB (mini-sglang#56)
    row_bytes=0.0,
)

CPU_THREADS = 2
"""Threads of a cpu where nobody says how many: those of the machine that its sheet is from."""
CPU_THREAD = DeviceSheet(
    name="cpu",
    # Measured by noria bench shapes, whose own kernels read one row's weights and multiply 512
    # rows: one of two threads of an Intel Xeon with AVX-512 BF16, a virtual machine.
    bytes_s=10e9,
    flop_s={
        "bfloat16": 110e9,
        "float32": 190e9,
        "float64": 95e9,  # not measured: half as many fit a register
    },
    launch_s=1e-3,  # a guess: the host's work around a step, and some hundred commands
    flop_share=0.85,  # measured: 128 rows of SmolLM2-135M take 146 ms with two threads
    fees=CPU_FEES,
)

STUDY_BYTES_SHARE, STUDY_FLOP_SHARE, STUDY_LAUNCH_S = 0.8, 0.5, 0.5e-3
"""Guesses, the same for every accelerator: good kernels read at 80 % and multiply at half."""

SHEETS: Mapping[str, DeviceSheet] = MappingProxyType(
    {
        "cpu": CPU_THREAD,
        "trn1": DeviceSheet(  # inf2 has the same cores, memory and engines
            name="trn1",
            # 2 cores, each with 16 DMA engines of 17 B/ns in practice; less than the memory's
            # 820 GB/s (Neuron architecture guide).
            bytes_s=2 * 16 * 17e9,
            # Chip: 190 TFLOP/s; fp32: 2 cores of 23 (Neuron architecture guide).
            flop_s={
                "bfloat16": 190e12,
                "float16": 190e12,
                "float8_e4m3fn": 190e12,
                "float32": 46e12,
            },
            launch_s=STUDY_LAUNCH_S,
            bytes_share=STUDY_BYTES_SHARE,
            flop_share=STUDY_FLOP_SHARE,
            fees=NEURON_FEES,
        ),
        "trn2": DeviceSheet(
            name="trn2",
            # Memory of the chip; DMA engines could do 8 * 16 * 23 B/ns = 2.94 TB/s (Neuron
            # architecture guide).
            bytes_s=2.9e12,
            # Chip: 667 and 1299 TFLOP/s; fp32: 8 cores of 20 (Neuron architecture guide).
            flop_s={
                "bfloat16": 667e12,
                "float16": 667e12,
                "float8_e4m3fn": 1299e12,
                "float32": 160e12,
            },
            launch_s=STUDY_LAUNCH_S,
            bytes_share=STUDY_BYTES_SHARE,
            flop_share=STUDY_FLOP_SHARE,
            fees=NEURON_FEES,
        ),
        "trn3": DeviceSheet(
            name="trn3",
            # 8 cores of 16 DMA engines of 33 B/ns in practice; less than the memory's 4.9 TB/s
            # (4.7 on another page of the Neuron architecture guide).
            bytes_s=8 * 16 * 33e9,
            # Chip: 671 TFLOP/s, 2517 with MX scales; fp32: 8 cores of 20 (the same guide).
            flop_s={
                "bfloat16": 671e12,
                "float16": 671e12,
                "float8_e4m3fn": 2517e12,
                "float32": 160e12,
            },
            launch_s=STUDY_LAUNCH_S,
            bytes_share=STUDY_BYTES_SHARE,
            flop_share=STUDY_FLOP_SHARE,
            fees=NEURON_FEES,
        ),
        "h200": DeviceSheet(
            name="h200",
            bytes_s=4.8e12,  # NVIDIA H200 SXM data sheet
            # The data sheet's rates are with sparsity: half of 1,979 and 3,958 TFLOP/s.
            flop_s={
                "bfloat16": 989e12,
                "float16": 989e12,
                "float8_e4m3fn": 1979e12,
                "float32": 67e12,
            },
            launch_s=STUDY_LAUNCH_S,
            bytes_share=STUDY_BYTES_SHARE,
            flop_share=STUDY_FLOP_SHARE,
            fees=GPU_FEES,
        ),
    }
)


def device_sheet(name: str, *, num_threads: int | None = None) -> DeviceSheet:
    """Return the sheet of a device.

    Args:
        name: of the device.
        num_threads: of a cpu; None: ``CPU_THREADS``, whatever this machine has, so that the same
            question has the same answer everywhere. Not read for others.

    Raises:
        ValueError: there is none.

    >>> f"{device_sheet('trn2').effective_flop_s('bfloat16') / 1e12:.1f} TFLOP/s"
    '333.5 TFLOP/s'
    >>> device_sheet("cpu", num_threads=8).name
    'cpu, 8 threads'
    """
    name = {"inf2": "trn1"}.get(name, name)
    if name not in SHEETS:
        raise ValueError(f"device {name!r} is not known (known: {', '.join(SHEETS)})")
    return _cpu_sheet(num_threads or CPU_THREADS) if name == "cpu" else SHEETS[name]


def _cpu_sheet(num_threads: int) -> DeviceSheet:
    """Return the sheet of so many threads, as if memory kept up with all of them."""
    return replace(
        CPU_THREAD,
        name=f"cpu, {num_threads} thread{'s' * (num_threads > 1)}",
        bytes_s=CPU_THREAD.bytes_s * num_threads,
        flop_s={dtype: rate * num_threads for dtype, rate in CPU_THREAD.flop_s.items()},
    )


def read_sheet(given: object) -> DeviceSheet:
    """Return a sheet given as plain data.

    Args:
        given: name, bytes_s, flop_s by dtype, launch_s; and, unless they are to be 1, bytes_share
            and flop_share; and fees, those of a CPU unless given.

    Raises:
        ValueError: names the key, its value and what would fit.
    """
    if not isinstance(given, Mapping):
        raise ValueError("device: must be a mapping of bytes_s, flop_s and launch_s")
    values = dict(given)
    keys = ("name", "bytes_s", "flop_s", "launch_s")
    known = {*keys, "bytes_share", "flop_share", "fees"}
    if unknown := sorted(str(key) for key in values if key not in known):
        raise ValueError(f"device.{unknown[0]}: is not known (known: {', '.join(sorted(known))})")
    values.setdefault("name", "given")
    if missing := [key for key in keys if key not in values]:
        raise ValueError(f"device.{missing[0]}: is missing")
    if not isinstance(values["flop_s"], Mapping):
        raise ValueError("device.flop_s: must name operations per second of each dtype")
    values["fees"] = read_fees(values["fees"]) if "fees" in values else CPU_FEES
    return DeviceSheet(**values)


def sheet_mapping(sheet: DeviceSheet) -> dict[str, object]:
    """Return a sheet as plain data, which ``read_sheet`` reads back."""
    return {
        "name": sheet.name,
        "bytes_s": sheet.bytes_s,
        "flop_s": dict(sheet.flop_s),
        "launch_s": sheet.launch_s,
        "bytes_share": sheet.bytes_share,
        "flop_share": sheet.flop_share,
        "fees": fees_mapping(sheet.fees),
    }


_FEES = ("base_compile_s", "row_compile_s", "base_bytes", "row_bytes")


def fees_mapping(fees: GraphFees) -> dict[str, object]:
    """Return fees as plain data, which ``read_fees`` reads back."""
    return {key: getattr(fees, key) for key in _FEES}


def read_fees(given: object) -> GraphFees:
    """Return fees from plain data.

    Raises:
        ValueError: names the key, its value and what would fit.
    """
    if not isinstance(given, Mapping) or sorted(given) != sorted(_FEES):
        raise ValueError(f"device.fees: must hold {', '.join(_FEES)}")
    for key, value in given.items():
        _check(f"device.fees.{key}", value, lambda number: number >= 0, "0 or more")
    return GraphFees(**given)
