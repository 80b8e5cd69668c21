"""What ``noria doctor`` says of a machine, as text or as JSON."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict

from ...kernels.neuron.packages import TORCH, VENDOR_PACKAGES, Kind, Lack, Package
from ..machine.facts import MachineFacts
from ..machine.neuron_devices import RUNTIME_FOLDER, NeuronDevices
from ..machine.variables import PREFIXES
from ..machine.verdicts import Verdict
from .tables import format_table, size_text

KINDS = {Kind.REAL: "", Kind.EMPTY: "empty: not AWS's", Kind.XLA: "XLA-based: not usable"}


def report_text(
    facts: MachineFacts, verdicts: Mapping[str, Verdict], detailed: Collection[str]
) -> str:
    """Return tables of facts, packages and backends, and what is missing for some of these."""
    packages = [_package_row(name, facts.packages.get(name)) for name in (TORCH, *VENDOR_PACKAGES)]
    backends = [_backend_row(name, one) for name, one in verdicts.items()]
    parts = [
        format_table(("machine", ""), _fact_rows(facts), num_left=2),
        format_table(("package", "installed", ""), packages, num_left=3),
        format_table(("backend", "runs here", ""), backends, num_left=3),
        *(text for name in detailed for text in _details(name, verdicts[name])),
    ]
    return "\n\n".join(parts)


def report_data(facts: MachineFacts, verdicts: Mapping[str, Verdict]) -> dict[str, object]:
    """Return the same as plain data."""
    backends = {name: {"runs": one.runs, **asdict(one)} for name, one in verdicts.items()}
    return {"machine": asdict(facts), "backends": backends}


def _fact_rows(facts: MachineFacts) -> list[tuple[str, str]]:
    vectors = facts.instruction_set or "instruction set not known"
    free, total = size_text(facts.free_bytes), size_text(facts.total_bytes)
    name = facts.distribution.name or "distribution not known"
    return [
        ("processor", f"{facts.processor}, {vectors}"),
        ("CPUs", f"{facts.num_cpus} usable"),
        ("memory", f"{free} free of {total}"),
        ("system", f"{name}, {facts.system} on {facts.architecture}"),
        ("container", facts.container or "no sign of one"),
        ("EC2 instance", facts.instance or "none, as far as known"),
        ("Python", ".".join(map(str, facts.python))),
        ("C++ compiler", facts.compiler or "none on PATH"),
        ("neuronx-cc", facts.neuronx_cc or "not on PATH"),
        ("Neuron driver", _driver(facts.devices)),
        ("Neuron runtime", facts.devices.runtime or f"not in /{RUNTIME_FOLDER}"),
        ("Neuron devices", _devices(facts.devices)),
        *_variable_rows(facts.variables),
    ]


def _driver(devices: NeuronDevices) -> str:
    if devices.has_driver is None:
        return "not known: the kernel's modules are hidden"
    if not devices.has_driver:
        return "installed, not loaded" if devices.has_driver_files else "not loaded"
    return f"loaded, {devices.driver_version or 'version not told'}"


def _devices(devices: NeuronDevices) -> str:
    if not devices.files:
        hidden = devices.num_known
        return f"none visible, the driver has {hidden}" if hidden else "none"
    files = devices.files
    span = files[0] if len(files) == 1 else f"{files[0]} to {files[-1]}"
    cores = f", {devices.cores} cores each" if devices.cores else ""
    return f"{len(files)}: {span}{cores}"


def _variable_rows(variables: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    if not variables:
        yield "variables", f"none of {', '.join(f'{prefix}*' for prefix in PREFIXES)}"
    for name, value in variables.items():
        yield "variable", f"{name}={value}"


def _package_row(name: str, package: Package | None) -> tuple[str, str, str]:
    return (name, "-", "") if package is None else (name, package.version, KINDS[package.kind])


def _backend_row(name: str, verdict: Verdict) -> tuple[str, str, str]:
    if verdict.runs:
        return name, "yes", verdict.how
    more = len(verdict.lacks) - 1
    return name, "no", f"{verdict.lacks[0].text}{f' (and {more} more)' if more else ''}"


def _details(name: str, verdict: Verdict) -> Iterator[str]:
    if verdict.lacks:
        yield f"Missing for backend: {name}, in this order:\n{_steps(verdict.lacks)}"
    if verdict.advice:
        yield f"Better for backend: {name}:\n{_steps(verdict.advice)}"


def _steps(lacks: Sequence[Lack]) -> str:
    lines = []
    for number, lack in enumerate(lacks, start=1):
        lines.append(f"  {number}. {lack.text}")
        lines += [f"       {line}" for line in lack.lines]
    return "\n".join(lines)
