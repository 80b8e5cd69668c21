"""``noria kernels``: what the NKI kernels of a step would move and take, from the simulator."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

import click

from .failures import UserMistake
from .tables import format_table, percent, size_text

if TYPE_CHECKING:
    from ...kernels.nki.decode_trace import DecodeStep, PathwayCost

TARGETS = ("trn1", "inf2", "trn2", "trn3")
BYTES_HEADER = ("pathway", "needed", "moved", "skipped", "moved/needed", "descriptors", "other")
TIMES_HEADER = ("pathway", "engine", "instructions", "work us", "fixed us")
COUNT = click.IntRange(min=1)


@click.group()
def kernels() -> None:
    """Look into the kernels of a target."""


@kernels.command()
@click.option("--target", type=click.Choice(TARGETS), default="trn2", show_default=True)
@click.option("--batch", type=COUNT, required=True, help="Requests, one new token each.")
@click.option("--context", type=COUNT, required=True, help="Tokens of the context bucket.")
@click.option(
    "--fill",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Share of the context that each request uses.",
)
@click.option("--block-size", type=COUNT, default=32, show_default=True, help="Tokens of a block.")
@click.option("--heads", type=COUNT, default=4, show_default=True, help="Query heads of one core.")
@click.option("--kv-heads", type=COUNT, default=1, show_default=True, help="KV heads of one core.")
@click.option("--head-dim", type=COUNT, default=128, show_default=True)
def trace(target: str, **shape: int | float) -> None:
    """Trace decode attention in bfloat16 on one NeuronCore, by both pathways.

    Bytes are those of keys and values; other is what else moved. Needed are the live blocks.
    Times are estimates from published hardware numbers, not measurements.
    """
    step = _step(**shape)
    costs, refusals = _costs(step, target)
    if not costs:
        raise UserMistake("; ".join(refusals))
    click.echo(f"decode attention on {target}: {_described(step)}\n")
    click.echo(format_table(BYTES_HEADER, _bytes_rows(step, costs)) + "\n")
    click.echo(format_table(TIMES_HEADER, _times_rows(costs)) + "\n")
    for pathway, cost in costs.items():
        click.echo(f"{pathway}: {_bounds(cost)}")
    for refusal in refusals:
        click.echo(refusal)


def _step(**shape: int | float) -> DecodeStep:
    try:
        from ...kernels.nki.decode_trace import DecodeStep
    except ModuleNotFoundError as error:
        raise UserMistake(f"the simulator needs {error.name}: install noria[nki]") from error
    heads, kv_heads = int(shape.pop("heads")), int(shape.pop("kv_heads"))
    if heads % kv_heads:
        raise UserMistake(f"--heads {heads} is no multiple of --kv-heads {kv_heads}")
    return DecodeStep(num_heads=heads, num_kv_heads=kv_heads, **shape)  # type: ignore[arg-type]


def _costs(step: DecodeStep, target: str) -> tuple[dict[str, PathwayCost], list[str]]:
    """Return the costs of the pathways that can be had, and why others cannot."""
    from ...kernels.nki.decode_trace import PATHWAYS, decode_cost
    from ...kernels.nki.simulator import SimulationError

    costs, refusals = {}, []
    for pathway in PATHWAYS:
        try:
            costs[pathway] = decode_cost(step, pathway, target)
        except SimulationError as error:
            refusals.append(f"{pathway}: not for this step on {target}: {error}")
        except AssertionError as error:
            refusals.append(f"{pathway}: not for this step: {_asserted(error)}")
    return costs, refusals


def _asserted(error: AssertionError) -> str:
    """Return what a kernel asserts of its inputs: its source says it best."""
    return traceback.extract_tb(error.__traceback__)[-1].line or str(error)


def _described(step: DecodeStep) -> str:
    return (
        f"batch {step.batch}, {step.live_tokens} of {step.context} tokens per request, "
        f"{step.live_blocks} of {step.table_width} blocks of {step.block_size}, "
        f"{step.num_heads} heads over {step.num_kv_heads} of {step.head_dim}"
    )


def _bytes_rows(step: DecodeStep, costs: dict[str, PathwayCost]) -> list[list[str]]:
    needed = step.needed_bytes
    return [
        [
            pathway,
            size_text(needed),
            size_text(cost.cache.moved_bytes),
            size_text(cost.cache.skipped_bytes),
            f"{cost.cache.moved_bytes / needed:.2f}",
            str(cost.cache.descriptors),
            size_text(cost.other_bytes),
        ]
        for pathway, cost in costs.items()
    ]


def _times_rows(costs: dict[str, PathwayCost]) -> list[list[str]]:
    return [
        [
            pathway,
            engine.engine,
            str(engine.num_instructions),
            f"{engine.work_s * 1e6:.1f}",
            f"{engine.fixed_s * 1e6:.1f}",
        ]
        for pathway, cost in costs.items()
        for engine in cost.cost.engines
    ]


def _bounds(cost: PathwayCost) -> str:
    busiest = max(cost.cost.engines, key=lambda engine: engine.work_s)
    share = percent(busiest.work_s / cost.cost.most_s)
    return (
        f"at least {cost.cost.least_s * 1e6:.1f} us, the work of {busiest.engine} "
        f"({share} of {cost.cost.most_s * 1e6:.1f} us, in which nothing overlaps)"
    )
