"""Capacity of SBUF and PSUM, by liveness, and overlaps of tensors that a kernel places itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NoReturn

from .enums import ON_CHIP, MemoryRegion
from .errors import SimulationError, fail
from .generation import NUM_PARTITIONS, PSUM_BANK_BYTES, PSUM_BANKS, Generation
from .memory import Life


def check_alone(life: Life, generation: Generation) -> None:
    """Check that one tensor alone fits, at its address if it has one.

    Raises:
        SimulationError: it does not.
    """
    limit = capacity(life.buffer, generation)
    if life.bytes > limit:
        fail(
            f"{life.bytes} bytes per partition exceed the {limit} bytes that a partition of "
            f"{life.buffer.value} has on {generation.name}"
        )
    if life.address is None:
        return
    row, byte = life.address
    if not 0 <= row <= NUM_PARTITIONS - life.rows or not 0 <= byte <= limit - life.bytes:
        fail(
            f"address {life.address} puts {life.rows} partitions of {life.bytes} bytes outside "
            f"{life.buffer.value}, which has {NUM_PARTITIONS} of {limit}"
        )
    if life.buffer is MemoryRegion.psum and byte % PSUM_BANK_BYTES:
        fail(f"address {life.address} in psum is not the start of a bank of {PSUM_BANK_BYTES}")


def capacity(buffer: MemoryRegion, generation: Generation) -> int:
    """Return the bytes per partition of SBUF or PSUM."""
    return generation.sbuf_bytes if buffer is MemoryRegion.sbuf else PSUM_BANKS * PSUM_BANK_BYTES


def check_capacity(lives: Iterable[Life], generation: Generation) -> None:
    """Check that the tensors in use at any one time fit into SBUF and into the banks of PSUM.

    A tensor occupies memory from the instruction that writes it first to the one that uses it
    last, as under a compiler that allocates by liveness. Every tensor starts at partition 0, so
    narrow tensors do not share the bytes of a partition. In PSUM a tensor of up to one bank lies
    within one bank, and a larger one takes whole neighbouring banks. Tensors with an address of
    their own must not overlap while both are live.

    Raises:
        SimulationError: naming the instruction at which memory runs out, and the largest tensors.
    """
    used = sorted((life for life in lives if life.first >= 0), key=lambda life: life.first)
    for buffer in ON_CHIP:
        in_buffer = [life for life in used if life.buffer is buffer]
        _check_overlaps([life for life in in_buffer if life.address is not None])
        if buffer is MemoryRegion.sbuf:
            _check_sbuf(in_buffer, generation)
        else:
            _check_psum([life for life in in_buffer if life.address is None], generation)


def _check_sbuf(used: list[Life], generation: Generation) -> None:
    live: list[Life] = []
    total = 0
    for life in used:
        total += life.bytes - sum(old.bytes for old in live if old.last < life.first)
        live = [old for old in live if old.last >= life.first] + [life]
        if total > generation.sbuf_bytes:
            _raise_full(life, live, generation)


def _check_psum(used: list[Life], generation: Generation) -> None:
    live: list[Life] = []
    banks = [PSUM_BANK_BYTES] * PSUM_BANKS
    held: dict[int, list[tuple[int, int]]] = {}
    for life in used:
        for gone in (old for old in live if old.last < life.first):
            for bank, size in held.pop(id(gone)):
                banks[bank] += size
        live = [old for old in live if old.last >= life.first] + [life]
        held[id(life)] = place(life.bytes, banks)
        if not held[id(life)]:
            _raise_full(life, live, generation)


def _check_overlaps(used: list[Life]) -> None:
    live: list[Life] = []
    for life in used:
        live = [old for old in live if old.last >= life.first]
        for old in live:
            if _overlap(old, life):
                where, _, instruction = life.first_use.rpartition(": ")
                raise SimulationError(
                    where,
                    instruction,
                    f"overwrites {old.name or 'a tensor'} ({old.where}) while it is live: both "
                    f"are placed at {life.address} and {old.address} of {life.buffer.value}",
                )
        live.append(life)


def _overlap(one: Life, other: Life) -> bool:
    assert one.address is not None
    assert other.address is not None
    (row1, byte1), (row2, byte2) = one.address, other.address
    return (
        row1 < row2 + other.rows
        and row2 < row1 + one.rows
        and byte1 < byte2 + other.bytes
        and byte2 < byte1 + one.bytes
    )


def place(size: int, banks: list[int]) -> list[tuple[int, int]]:
    """Take ``size`` bytes from the free bytes of the banks; return (bank, bytes), [] if full."""
    if size <= PSUM_BANK_BYTES:
        runs = [[bank] for bank in range(PSUM_BANKS) if banks[bank] >= size]
    else:
        count = -(-size // PSUM_BANK_BYTES)
        windows = [list(range(start, start + count)) for start in range(PSUM_BANKS - count + 1)]
        runs = [run for run in windows if all(banks[bank] == PSUM_BANK_BYTES for bank in run)]
    if not runs:
        return []
    share = min(size, PSUM_BANK_BYTES)
    for bank in runs[0]:
        banks[bank] -= share
    return [(bank, share) for bank in runs[0]]


def _raise_full(life: Life, live: list[Life], generation: Generation) -> NoReturn:
    where, _, instruction = life.first_use.rpartition(": ")
    largest = sorted(live, key=lambda old: -old.bytes)[:4]
    names = ", ".join(f"{old.name or 'tensor'} ({old.bytes} bytes, {old.where})" for old in largest)
    unit = "in 8 banks of 2048" if life.buffer is MemoryRegion.psum else "in all"
    raise SimulationError(
        where,
        instruction,
        f"{life.buffer.value} is full: {sum(old.bytes for old in live)} bytes per partition are "
        f"live in {len(live)} tensors, {generation.name} has "
        f"{capacity(life.buffer, generation)} {unit}; the largest: {names}",
    )
