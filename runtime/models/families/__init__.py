"""Model families: what each makes of ``config.json``, and the names of its tensors.

Whatever would change the result and is not built is refused by name; nothing of the kind is
skipped. Imports no torch.
"""

from .table import FAMILIES, read_architecture

__all__ = ["FAMILIES", "read_architecture"]
