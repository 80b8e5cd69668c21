"""Virtual registers: scalars that exist only at run time."""

from __future__ import annotations

from typing import NoReturn

from .errors import fail


class VirtualRegister:
    """A 32-bit scalar on the device; ``state`` is None until something is moved into it."""

    def __init__(self, state: int | None = None, frozen: bool = False) -> None:
        """Hold an initial value; a frozen register is a loop's counter and cannot be written."""
        self.state = state
        self.frozen = frozen

    @property
    def value(self) -> int:
        """The current value, for the simulator.

        Raises:
            SimulationError: nothing was moved into the register.
        """
        if self.state is None:
            fail("read of an uninitialised register")
        return self.state

    def assign(self, value: int) -> None:
        """Move a value in, as an instruction does.

        Raises:
            SimulationError: the register is a loop's counter, or the value has more than 32 bits.
        """
        if self.frozen:
            fail("the counter of a loop cannot be written")
        if not -(2**31) <= value < 2**32:
            fail(f"{value} does not fit into a 32-bit register")
        self.state = value

    def __bool__(self) -> bool:
        """Let ``while register:`` loop, as the parser front end does."""
        return self.value != 0

    def __index__(self) -> NoReturn:
        """Refuse: the value is not known while a kernel is built."""
        raise TypeError("a VirtualRegister has no integer value while a kernel is built")

    __int__ = __index__
