"""NkiTensor: the views that change a tensor's pattern: reshape, permute, ap and the like."""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import Self

from .dtypes import numpy_dtype
from .enums import ON_CHIP, MemoryRegion
from .errors import fail
from .registers import VirtualRegister
from .view import Indirection, Shape, View, row_major

MAX_DIMS = 5  # of an access pattern


class NkiTensor(View):
    """A tensor as kernels see it."""

    __slots__ = ()

    def vector_select(self, dim: int, vector_offset: NkiTensor) -> Self:
        """Let each row of the result be the row that its entry of an SBUF ``(P, 1)`` tile names."""
        if dim != 0:
            fail(f"only dimension 0 takes a vector of indices, got dim={dim}")
        count = check_indices(self, vector_offset)
        found = Indirection(vector_offset, self.strides[0], self.shape[0], True)
        return self.like((count, *self.shape[1:]), self.strides, self.offset, indirection=found)

    def ap(
        self,
        pattern: list[list[int]],
        offset: int | None = None,
        scalar_offset: NkiTensor | VirtualRegister | None = None,
        vector_offset: NkiTensor | None = None,
        indirect_dim: int = 0,
        dtype: str | None = None,
    ) -> Self:
        """Address the storage by ``[[step, count], ...]``, ignoring this view's own pattern.

        ``offset`` is from the storage's start. A run-time index moves the address by itself times
        the product of this tensor's dimensions after ``indirect_dim``; with ``vector_offset`` it
        replaces the pattern's first step.
        """
        found = self._indirection(scalar_offset, vector_offset, indirect_dim)
        if self.offset != 0:
            # The reference and the language guide disagree on what offset then means.
            fail(f"ap of a view that starts at element {self.offset}; call it on the whole tensor")
        if not 1 <= len(pattern) <= MAX_DIMS or any(len(pair) != 2 for pair in pattern):
            fail(f"pattern {pattern} is no list of 1 to {MAX_DIMS} [step, count] pairs")
        if any(count < 1 or step < 0 for step, count in pattern):
            fail(f"pattern {pattern} has a count below 1 or a negative step")
        steps = tuple(step for step, _ in pattern)
        if found is not None and found.is_vector:
            steps = (found.stride, *steps[1:])
        shape = tuple(count for _, count in pattern)
        view = self.like(shape, steps, offset or 0, dtype=dtype or self.dtype, indirection=found)
        check_pattern(view)
        return view

    def _indirection(
        self,
        scalar: NkiTensor | VirtualRegister | None,
        vector: NkiTensor | None,
        dim: int,
    ) -> Indirection | None:
        if scalar is None and vector is None:
            return None
        if scalar is not None and vector is not None:
            fail("scalar_offset and vector_offset exclude each other")
        stride = prod(self.shape[self.checked_dim(dim) + 1 :])
        if self.strides[dim] != stride:
            fail(
                f"{self!r} has stride {self.strides[dim]} in dimension {dim}, not {stride}: "
                "a run-time index into it is ambiguous; call ap on the whole tensor"
            )
        if vector is not None:
            if dim != 0:
                fail(f"only indirect_dim=0 takes a vector_offset, got {dim}")
            check_indices(self, vector)
            return Indirection(vector, stride, self.shape[0], True)
        assert scalar is not None
        if dim == 0 and self.is_on_chip:
            fail("a run-time index cannot move across partitions (indirect_dim=0 on chip)")
        return Indirection(scalar, stride, self.shape[dim], False)

    def permute(self, dims: tuple[int, ...]) -> Self:
        """Reorder the dimensions."""
        if sorted(dims) != list(range(self.ndim)):
            fail(f"{dims} is no permutation of the {self.ndim} dimensions")
        if dims[0] != 0:
            self._refuse_first("moved")
        shape = tuple(self.shape[dim] for dim in dims)
        return self.like(shape, tuple(self.strides[dim] for dim in dims), self.offset)

    def broadcast(self, dim: int, size: int) -> Self:
        """Repeat a dimension of size 1."""
        if self.shape[self.checked_dim(dim)] != 1:
            fail(f"dimension {dim} of {self!r} has size {self.shape[dim]}, not 1")
        if dim == 0:
            self._refuse_first("broadcast")
        shape, strides = list(self.shape), list(self.strides)
        shape[dim], strides[dim] = size, 0
        return self.like(tuple(shape), tuple(strides), self.offset)

    def expand_dim(self, dim: int) -> Self:
        """Insert a dimension of size 1."""
        if not 0 <= dim <= self.ndim:
            fail(f"dimension {dim} cannot be inserted into {self.ndim} dimensions")
        if dim == 0:
            self._refuse_first("preceded by another")
        stride = self.strides[dim] * self.shape[dim] if dim < self.ndim else 1
        shape = (*self.shape[:dim], 1, *self.shape[dim:])
        return self.like(shape, (*self.strides[:dim], stride, *self.strides[dim:]), self.offset)

    def squeeze_dim(self, dim: int) -> Self:
        """Remove a dimension of size 1."""
        if self.shape[self.checked_dim(dim)] != 1:
            fail(f"dimension {dim} of {self!r} has size {self.shape[dim]}, not 1")
        if dim == 0:
            self._refuse_first("removed")
        return self.without(dim)

    def reshape_dim(self, dim: int, shape: tuple[int, ...]) -> Self:
        """Split a dimension; one size may be -1."""
        size = self.shape[self.checked_dim(dim)]
        known = prod(n for n in shape if n != -1)
        sizes = tuple(size // known if n == -1 else n for n in shape) if known else shape
        if prod(sizes) != size or shape.count(-1) > 1:
            fail(f"dimension {dim} of {self!r} cannot be split into {shape}")
        if dim == 0 and len(shape) > 1:
            self._refuse_first("split")
        inner = tuple(self.strides[dim] * step for step in row_major(sizes))
        return self.like(
            (*self.shape[:dim], *sizes, *self.shape[dim + 1 :]),
            (*self.strides[:dim], *inner, *self.strides[dim + 1 :]),
            self.offset,
        )

    def flatten_dims(self, start_dim: int, end_dim: int) -> Self:
        """Merge neighbouring dimensions, both ends included, that are dense among themselves."""
        start, end = self.checked_dim(start_dim), self.checked_dim(end_dim)
        if start == 0 and end > 0:
            self._refuse_first("merged")
        strides = _merged(self.shape[start : end + 1], self.strides[start : end + 1])
        if strides is None:
            fail(f"dimensions {start} to {end} of {self!r} are not contiguous")
        size = prod(self.shape[start : end + 1])
        return self.like(
            (*self.shape[:start], size, *self.shape[end + 1 :]),
            (*self.strides[:start], strides, *self.strides[end + 1 :]),
            self.offset,
        )

    def reshape(self, shape: tuple[int, ...]) -> Self:
        """View the same elements, in the same order, in another shape."""
        shape = tuple(shape)
        if prod(shape) != self.size or any(n < 1 for n in shape):
            fail(f"{self!r} has {self.size} elements and cannot be reshaped to {shape}")
        first = 1 if self.is_on_chip or self._is_vector() else 0
        if first and shape[0] != self.shape[0]:
            fail(f"reshape to {shape} changes the {self.shape[0]} partitions of {self!r}")
        inner = _merged(self.shape[first:], self.strides[first:])
        if inner is None:
            fail(f"{self!r} is not contiguous (strides {self.strides}) and cannot be reshaped")
        steps = tuple(inner * step for step in row_major(shape[first:]))
        return self.like(shape, (*self.strides[:first], *steps), self.offset)

    def view(self, dtype: str) -> Self:
        """Reinterpret the bits as another dtype; the last dimension is scaled."""
        old, new = self.itemsize, numpy_dtype(dtype).itemsize
        if self.is_indirect() or self.strides[-1] != 1 or self.ndim < (2 if self.is_on_chip else 1):
            fail(f"{self!r} is indirect or not contiguous in its last dimension")
        if any((n * old) % new for n in (self.shape[-1], self.offset, *self.strides[:-1])):
            fail(f"the last dimension of {self!r} is no whole number of {dtype} elements")
        scaled = tuple(step * old // new for step in self.strides[:-1])
        shape = (*self.shape[:-1], self.shape[-1] * old // new)
        return self.like(shape, (*scaled, 1), self.offset * old // new, dtype=dtype)

    reinterpret_cast = view

    def _is_vector(self) -> bool:
        return self.indirection is not None and self.indirection.is_vector

    def _refuse_first(self, what: str) -> None:
        if self.is_on_chip or self._is_vector():
            fail(f"dimension 0 of {self!r} is its partitions or indirect and cannot be {what}")


def _merged(shape: Shape, strides: Shape) -> int | None:
    """Return the stride of dimensions taken as one, None if they do not run on."""
    dims = [(n, step) for n, step in zip(shape, strides, strict=True) if n > 1]
    for (_, outer), (size, inner) in pairwise(dims):
        if outer != size * inner:
            return None
    return dims[-1][1] if dims else 1


def check_indices(base: NkiTensor, index: NkiTensor) -> int:
    """Check a vector of indices into a tensor; return how many rows it picks."""
    if base.is_on_chip:
        fail(f"{base!r} takes no vector of indices; only a tensor in HBM does")
    if base.is_indirect():
        fail(f"{base!r} is indirect already; one run-time index per view")
    if not isinstance(index, NkiTensor) or index.buffer is not MemoryRegion.sbuf:
        fail(f"indices must be a tile in SBUF, got {index!r}")
    if index.dtype not in ("int32", "uint32") or index.ndim != 2:
        fail(f"indices must be a 2-d int32 or uint32 tile, got {index!r}")
    return index.shape[0]


def check_pattern(view: View) -> None:
    """Check that no element of a view lies outside its tensor; run-time indices counted as 0.

    Raises:
        SimulationError: it does, or on chip it leaves its partition or strides over partitions.
    """
    itemsize = view.itemsize
    first = 1 if view.buffer in ON_CHIP else 0
    steps = list(zip(view.strides, view.shape, strict=True))
    vector = view.indirection is not None and view.indirection.is_vector
    reach = sum(step * (count - 1) for step, count in steps[1 if first or vector else 0 :])
    if not first:
        size = view.storage.data.size // itemsize
        if view.offset < 0 or view.offset + reach >= size:
            fail(
                f"pattern {view.get_pattern()} at offset {view.offset} leaves {view.name or 'the'} "
                f"tensor: its last element is {view.offset + reach}, the tensor has {size}"
            )
        return
    row = view.storage.row_bytes // itemsize
    if view.ndim < 2:
        fail(f"pattern {view.get_pattern()} on chip needs a partition pair and a free pair")
    if view.shape[0] > 1 and view.strides[0] != row:
        fail(f"the partition step must be the {row} elements of a partition, got {view.strides[0]}")
    column, num_rows = view.offset % row, view.storage.data.size // view.storage.row_bytes
    if view.offset // row + view.shape[0] > num_rows or column + reach >= row:
        fail(
            f"pattern {view.get_pattern()} at offset {view.offset} leaves its tensor of "
            f"{num_rows} partitions with {row} elements each"
        )
