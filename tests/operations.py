"""Counts what a program asks of a device."""

from collections import Counter
from contextlib import ExitStack
from typing import Any, Self
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What makes the program wait on a GPU: to read a number, to count what a mask selects or how many
# values differ, and to copy numbers of Python's there.
READS = ("tolist", "cpu", "numpy")  # methods of a tensor
WAITS = (*READS, "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "lift_fresh")
NONE = ("empty", "promote_types", "profiler")


class Operations(TorchDispatchMode):
    """Counts operations by name; views, fresh memory and questions about types are none."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        reads = [a.alias_info for a in func._schema.arguments if a.alias_info is not None]
        made = all(alias.is_write for alias in reads) and not name.startswith(NONE)
        if made or name == "lift_fresh":  # an alias by its schema
            self.counts[name] += 1
        if name == "index" and any(i is not None and i.dtype == torch.bool for i in args[1]):
            self.counts["nonzero"] += 1
        return out

    def __enter__(self) -> Self:
        self.patches = ExitStack()
        for name in READS:
            method = getattr(torch.Tensor, name)
            self.patches.enter_context(mock.patch.object(torch.Tensor, name, self._read(method)))
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self.patches.close()

    def _read(self, method: Any) -> Any:
        def counted(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.counts[method.__name__] += 1
            return method(tensor, *args, **kwargs)

        return counted
