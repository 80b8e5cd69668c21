"""Costs as plain data, so that a plan file can hold what it was planned with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .cost import GraphFees, StepCosts
from .devices import CPU_FEES, DeviceSheet, read_sheet, sheet_mapping
from .fit import FittedCosts
from .measured import MeasuredCosts
from .model_shape import ModelShape
from .reads import ALL_CONTEXT, DecodeReads
from .roofline import Roofline
from .table import CostTable
from .table_data import model_mapping, read_count, read_model, read_table, table_mapping


@dataclass(frozen=True, slots=True)
class SavedCosts:
    """Costs of steps and of graphs, and the plain data that they can be made from again."""

    steps: StepCosts
    fees: GraphFees
    data: Mapping[str, object]

    @classmethod
    def roofline(
        cls,
        model: ModelShape,
        sheet: DeviceSheet,
        dtype: str,
        *,
        num_logits_rows: int = 1,
        reads: DecodeReads = ALL_CONTEXT,
    ) -> SavedCosts:
        """Take the limits of a device.

        Raises:
            ValueError: see ``Roofline.of``.
        """
        steps = Roofline.of(model, sheet, dtype, num_logits_rows=num_logits_rows, reads=reads)
        data = {
            "kind": "roofline",
            "reads": reads.to_mapping(),
            "sheet": sheet_mapping(sheet),
            "model": model_mapping(model),
            "dtype": dtype,
            "num_logits_rows": num_logits_rows,
        }
        return cls(steps, sheet.fees, data)

    @classmethod
    def of_table(
        cls, table: CostTable, *, fitted: bool = False, reads: DecodeReads = ALL_CONTEXT
    ) -> SavedCosts:
        """Take what was measured, as curves through it or, ``fitted``, as a model's terms.

        Raises:
            ValueError: too little was measured for that.
        """
        steps = FittedCosts.fit(table, reads) if fitted else MeasuredCosts(table, reads)
        data = {
            "kind": "fitted" if fitted else "measured",
            "reads": reads.to_mapping(),
            "table": table_mapping(table),
        }
        return cls(steps, table.fees or CPU_FEES, data)

    @classmethod
    def read(cls, given: object) -> SavedCosts:
        """Make the costs that ``data`` was written for.

        Raises:
            ValueError: one line with the key, its value and what would fit.
        """
        if not isinstance(given, Mapping):
            raise ValueError(f"costs: is {given!r:.60}; it must be a mapping")
        kind = given.get("kind")
        reads = DecodeReads.read(given["reads"]) if "reads" in given else ALL_CONTEXT
        try:
            if kind == "roofline":
                return cls.roofline(
                    read_model(given["model"]),
                    read_sheet(given["sheet"]),
                    str(given["dtype"]),
                    num_logits_rows=read_count("costs", given, "num_logits_rows", 1),
                    reads=reads,
                )
            if kind in ("measured", "fitted"):
                return cls.of_table(
                    read_table(given["table"]), fitted=kind == "fitted", reads=reads
                )
        except KeyError as error:
            raise ValueError(f"costs: lacks {error.args[0]}") from None
        kinds = "roofline, measured or fitted"
        raise ValueError(f"costs.kind: is {kind!r:.60}; it must be {kinds}")
