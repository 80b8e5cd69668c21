"""View: what a tensor is, and taking parts of it. Nothing is read here."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any, Self

from .dtypes import numpy_dtype
from .enums import ON_CHIP, MemoryRegion
from .errors import fail
from .memory import Storage
from .registers import VirtualRegister

Shape = tuple[int, ...]

_ALL = slice(None)


@dataclass(frozen=True, slots=True)
class DynamicSlice:
    """``nl.ds(start, size)``: the elements from ``start`` on."""

    start: int
    size: int


@dataclass(frozen=True, slots=True)
class Indirection:
    """A run-time index into a tensor.

    The address of the view's elements moves by ``index * stride``. A vector has one index per row
    of the view, a scalar one for all of it. Indices outside 0..limit-1 are out of bounds, the
    negative ones too: nothing wraps.
    """

    index: View | VirtualRegister
    stride: int
    limit: int
    is_vector: bool


class View:
    """A strided, maybe indirect, window on storage.

    Attributes:
        shape, strides, offset: the view; element (i, j, ...) lies at offset + i * strides[0] + ...
        dtype: an NKI dtype.
        buffer: sbuf, psum, private_hbm or shared_hbm.
        name: of the storage.
        storage: shared by all views.
        indirection: the run-time index, None of a direct view.
    """

    __slots__ = ("buffer", "dtype", "indirection", "name", "offset", "shape", "storage", "strides")

    def __init__(
        self,
        shape: Shape,
        dtype: str,
        storage: Storage,
        buffer: MemoryRegion = MemoryRegion.sbuf,
        name: str = "",
    ) -> None:
        """View all of a storage, row-major."""
        self.shape = shape
        self.strides = row_major(shape)
        self.offset = 0
        self.dtype = dtype
        self.storage = storage
        self.buffer = buffer
        self.name = name
        self.indirection: Indirection | None = None

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return numpy_dtype(self.dtype).itemsize

    @property
    def is_on_chip(self) -> bool:
        """Whether dimension 0 is the partitions of SBUF or PSUM."""
        return self.buffer in ON_CHIP

    def __repr__(self) -> str:
        """Name the tensor as errors do."""
        return f"{self.name or 'tensor'} {self.shape} {self.dtype} in {self.buffer.value}"

    def __bool__(self) -> bool:
        """Refuse: a kernel cannot branch on what only the device knows."""
        fail(f"{self!r} has no truth value while a kernel is built")

    def __setitem__(self, key: object, value: object) -> None:
        """Refuse: only instructions write tensors."""
        fail("a tensor cannot be assigned to; write it with an nki.isa instruction")

    def like(self, shape: Shape, strides: Shape, offset: int, **changes: Any) -> Self:
        """Return another view of the same storage (internal)."""
        view = type(self).__new__(type(self))
        view.shape, view.strides, view.offset = shape, strides, offset
        view.dtype = changes.get("dtype", self.dtype)
        view.storage, view.buffer, view.name = self.storage, self.buffer, self.name
        view.indirection = changes.get("indirection", self.indirection)
        return view

    def is_contiguous(self) -> bool:
        """Return whether the view is dense and row-major; per partition on chip."""
        first = 1 if self.is_on_chip else 0
        expected = row_major(self.shape[first:])
        pairs = zip(self.shape[first:], self.strides[first:], expected, strict=True)
        return all(size == 1 or stride == dense for size, stride, dense in pairs)

    def get_pattern(self) -> list[list[int]]:
        """Return ``[[stride, count], ...]`` as ``ap`` takes it."""
        return [list(pair) for pair in zip(self.strides, self.shape, strict=True)]

    def is_indirect(self) -> bool:
        """Return whether a run-time index takes part in the address."""
        return self.indirection is not None

    def __getitem__(self, key: Any) -> Self:
        """Index by integers, slices, ``...`` and ``nl.ds``; negative integers count from the end.

        On chip an integer keeps partitions as a size-1 dimension, and the result has at least two
        dimensions; in HBM it removes its dimension, and the result has at least one.
        """
        keys = _expanded(key, self.ndim)
        view = self
        kept: list[int] = []
        for dim, item in enumerate(keys):
            if item == _ALL:
                kept.append(dim)
                continue
            start, stop, step = _bounds(item, self.shape[dim], dim)
            view = view.slice(dim, start, stop, step)
            if not isinstance(item, int) or (dim == 0 and self.is_on_chip):
                kept.append(dim)
        minimum = 2 if self.is_on_chip else 1
        dropped = [dim for dim in range(self.ndim) if dim not in kept]
        while len(kept) < minimum:
            kept.append(dropped.pop())
        kept.sort()
        shape = tuple(view.shape[dim] for dim in kept)
        return view.like(shape, tuple(view.strides[dim] for dim in kept), view.offset)

    def slice(self, dim: int, start: int, end: int, step: int = 1) -> Self:
        """Take ``start`` to ``end`` (exclusive) of one dimension."""
        dim = self.checked_dim(dim)
        if not 0 <= start < end <= self.shape[dim] or step < 1:
            fail(
                f"slice {start}:{end}:{step} of dimension {dim} leaves it or is empty; "
                f"the tensor is {self!r}"
            )
        if (start, end, step) == (0, self.shape[dim], 1):
            return self
        self.refuse_indirect(dim, "sliced")
        if dim == 0 and self.is_on_chip and step != 1 and -(-(end - start) // step) > 1:
            fail(f"partitions have no step, got {step}")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim] = -(-(end - start) // step)
        strides[dim] *= step
        return self.like(tuple(shape), tuple(strides), self.offset + start * self.strides[dim])

    def select(self, dim: int, index: int | View | VirtualRegister) -> Self:
        """Take one element of a dimension, at a static or a run-time index; drop the dimension."""
        dim = self.checked_dim(dim)
        if isinstance(index, int):
            if not 0 <= index < self.shape[dim]:
                fail(f"index {index} is outside dimension {dim} of {self!r}")
            if dim == 0 and self.is_on_chip:
                fail("dimension 0 on chip is the partitions, which cannot be dropped")
            self.refuse_indirect(dim, "selected")
            view = self.slice(dim, index, index + 1)
            return view.without(dim)
        if self.is_indirect():
            fail(f"{self!r} is indirect already; one run-time index per view")
        if dim == 0 and self.is_on_chip:
            fail("a run-time index cannot pick partitions (dimension 0 on chip)")
        found = Indirection(index, self.strides[dim], self.shape[dim], False)
        view = self.without(dim)
        return view.like(view.shape, view.strides, view.offset, indirection=found)

    def without(self, dim: int) -> Self:
        """Return the view without a dimension (internal)."""
        shape = self.shape[:dim] + self.shape[dim + 1 :]
        return self.like(shape, self.strides[:dim] + self.strides[dim + 1 :], self.offset)

    def checked_dim(self, dim: int) -> int:
        """Return a dimension's number (internal)."""
        if not isinstance(dim, int) or not 0 <= dim < self.ndim:
            fail(f"dimension {dim!r} is none of the {self.ndim} of {self!r}")
        return dim

    def refuse_indirect(self, dim: int, what: str) -> None:
        """Check that a dimension's rows are not picked by a vector of indices (internal)."""
        if self.indirection is not None and self.indirection.is_vector and dim == 0:
            fail(f"dimension 0 of {self!r} is indirect and cannot be {what}")


def row_major(shape: Shape) -> Shape:
    """Return the strides, in elements, of a dense tensor."""
    strides = [1] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return tuple(strides)


def _expanded(key: Any, ndim: int) -> list[Any]:
    """Return one item per dimension: ``...`` and missing dimensions become full slices."""
    keys = list(key) if isinstance(key, tuple) else [key]
    ellipses = [i for i, item in enumerate(keys) if item is Ellipsis]
    if len(ellipses) > 1 or len(keys) - len(ellipses) > ndim:
        fail(f"index {key!r} has too many parts for {ndim} dimensions")
    at = ellipses[0] if ellipses else len(keys)
    after = keys[at + 1 :]
    return keys[:at] + [_ALL] * (ndim - at - len(after)) + after


def _bounds(item: Any, size: int, dim: int) -> tuple[int, int, int]:
    """Return start, stop and step of one item of an index; nothing is clamped."""
    if isinstance(item, int) and not isinstance(item, bool):
        start = item + size if item < 0 else item
        if not 0 <= start < size:
            fail(f"index {item} is outside dimension {dim}, which has {size} elements")
        return start, start + 1, 1
    if isinstance(item, DynamicSlice):
        return item.start, item.start + item.size, 1
    if not isinstance(item, slice):
        fail(f"index {item!r} of dimension {dim} is no integer, slice, '...' or nl.ds")
    start = 0 if item.start is None else item.start
    stop = size if item.stop is None else item.stop
    return (
        start + size if start < 0 else start,
        stop + size if stop < 0 else stop,
        1 if item.step is None else item.step,
    )
