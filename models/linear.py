"""Linear maps, also for a search, which uses the same weights again and again."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.products import FASTER, affine, onednn
from utils.machine import computes_bf16, is_intel

_LARGE = 1_000_000  # numbers in a large weight: the output projection
_SOME: float = 256  # the most rows for a large weight
_FEW: float = 64  # the most rows for any other
# Below _WORTH multiplications torch has finished before oneDNN begins, unless the weight has
# _FETCHED numbers, which take long to fetch.
_WORTH, _FETCHED = 2_000_000, 2_000_000
# Below so many numbers, torch multiplies a single row by the weight laid out by columns.
_BY_COLUMNS = math.inf
_AVX512 = torch.backends.cpu.get_cpu_capability() == "AVX512"
# MKL, torch's own library, is faster in float32 on Intel's processors: for any few rows with the
# weight by columns, and for up to three rows with a larger weight as it is. bfloat16 is oneDNN's.
_BY_MKL, _AS_IT_IS = _AVX512 and is_intel(), 3
if _AVX512:
    _FEW, _WORTH, _FETCHED, _BY_COLUMNS = _SOME, 500_000, 100_000, 200_000
if _BY_MKL:
    _FETCHED, _BY_COLUMNS = 50_000, 500_000
if FASTER:
    _FEW = _SOME = math.inf

Activation = Callable[[Tensor], Tensor]

# Within `weights_fixed`: each weight met, and its laid-out copy, by id and whether by columns.
_laid_out: ContextVar[dict[tuple[int, bool], tuple[Tensor, Tensor]] | None] = ContextVar(
    "laid_out", default=None
)
# Within `weights_fixed`: the ids of the weights that `linear` has met.
_met: ContextVar[set[int]] = ContextVar("met")
# Within `weights_cast`: the cast weight, and bias if any, of each map by its id.
_cast: ContextVar[dict[int, list[Tensor]] | None] = ContextVar("cast", default=None)


@contextmanager
def weights_fixed() -> Iterator[None]:
    """A scope in which no weight changes, so that `linear` may keep copies laid out for it.

    It may be nested, or decorate a function. A scope is needed since nothing tells reliably that a
    weight has changed: torch's fused optimizers do not count versions.
    """
    if _laid_out.get() is not None:
        yield
        return
    token, met = _laid_out.set({}), _met.set(set())
    try:
        yield
    finally:
        _met.reset(met)
        _laid_out.reset(token)


def unpacked(module: nn.Linear, activation: Activation | None = None) -> Activation:
    """`linear` with a module's weights, for x [B,T,I] within `weights_fixed`, without module calls.

    The activation, if there is one, follows.
    """
    weight, bias = module.weight, module.bias
    by_rows: dict[int, Tensor | None] = {}

    def apply(x: Tensor) -> Tensor:
        n_rows = x.shape[0] * x.shape[1]
        if n_rows not in by_rows:
            # With AVX-512 a search that began with more rows keeps their layout of the weights.
            alone = not by_rows or math.isinf(_BY_COLUMNS)
            by_rows[n_rows] = _for_rows(weight, n_rows, by_columns=alone)
        laid_out = by_rows[n_rows]
        if activation is F.relu and laid_out is not None and laid_out.is_mkldnn:
            return onednn(x, laid_out, bias, then="relu")
        out = _product(x, weight, laid_out, bias)
        return out if activation is None else activation(out)

    return apply


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, at_once: bool = False
) -> Tensor:
    """x [...,I] -> x weight^T + bias, [...,O], for weight [O,I] and bias [O].

    A search multiplies few rows by weights that are cold in the cache. On a CPU, torch's product
    then spends most of its time fetching them. oneDNN's, with the weight laid out for it once,
    takes two thirds of the time. So does torch's product of one row with the weight laid out by
    columns, unless the weight is large and there is AVX-512. On Intel's processors with AVX-512
    that holds for any few rows. Both serve float32, and oneDNN also bfloat16 where the processor
    computes in it, on a CPU without gradients, within `weights_fixed`. A weight is laid out when it
    is met for the second time, since that takes longer than a product, or `at_once`.
    """
    laid_out = None
    if x.dtype == weight.dtype and (at_once or _is_met(weight)):
        laid_out = _for_rows(weight, x.shape[:-1].numel())
    return _product(x, weight, laid_out, bias)


def _is_met(weight: Tensor) -> bool:
    """Whether this is not the first time within `weights_fixed`."""
    if torch.compiler.is_compiling() or _laid_out.get() is None:
        return False
    met, own = _met.get(), id(weight)
    known = own in met
    met.add(own)
    return known


def _product(x: Tensor, weight: Tensor, laid_out: Tensor | None, bias: Tensor | None) -> Tensor:
    if laid_out is None or not laid_out.is_mkldnn:
        return affine(x, weight if laid_out is None else laid_out, bias)
    return onednn(x, laid_out, bias)


def _for_rows(weight: Tensor, n_rows: int, *, by_columns: bool = True) -> Tensor | None:
    """The weight laid out for n_rows rows, for oneDNN or by columns; None where neither serves."""
    if torch.compiler.is_compiling() or (held := _laid_out.get()) is None:
        return None
    size, exact = weight.numel(), weight.dtype == torch.float32
    small = exact and size < _BY_COLUMNS
    if _BY_MKL and exact:
        by_columns, worth, most = small, small or n_rows > _AS_IT_IS, _SOME
    else:
        by_columns &= small and n_rows == 1
        worth = by_columns or size >= _FETCHED or n_rows * size >= _WORTH
        most = _SOME if size >= _LARGE else _FEW
    if not (0 < n_rows <= most and worth and _serves(weight)):
        return None
    key = id(weight), by_columns
    if key not in held:
        own, reorder = weight.detach(), torch.ops.mkldnn._reorder_linear_weight
        held[key] = weight, own.t().contiguous().t() if by_columns else reorder(own, 32)
    return held[key][1]


def _serves(weight: Tensor) -> bool:
    bf16 = weight.dtype == torch.bfloat16
    return (
        isinstance(weight, nn.Parameter)  # a tensor made for one call is not worth keeping
        and weight.device.type == "cpu"
        and (weight.dtype == torch.float32 or (bf16 and computes_bf16(weight.device)))
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()
    )


class Linear(nn.Linear):
    """nn.Linear, computed by `linear`."""

    def forward(self, input: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and id(self) in (cast := _cast.get() or {}):
            return F.linear(input, *cast[id(self)])
        return linear(input, self.weight, self.bias)


def side_by_side(maps: Sequence[Linear], x: Tensor) -> Sequence[Tensor]:
    """x [...,I] through several maps of the same size -> the output of each.

    On a GPU in one product, for fewer operations; on a CPU that is slower (benchmarks/README.md).
    """
    if not _few_operations(x):
        return [each(x) for each in maps]
    cast = {} if torch.compiler.is_compiling() else _cast.get() or {}
    parts = [cast.get(id(each), [each.weight, each.bias]) for each in maps]
    weight, *bias = (torch.cat(of_all) for of_all in zip(*parts) if of_all[0] is not None)
    return F.linear(x, weight, *bias).chunk(len(maps), dim=-1)


def _few_operations(x: Tensor) -> bool:
    return x.device.type == "cuda"


def weights_cast(module: nn.Module) -> AbstractContextManager[None]:
    """In training, a scope in which the maps of `module` have their weights in autocast's type.

    One operation casts them all, and one their gradients. Autocast itself takes two a weight.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return nullcontext()
    return _weights_cast(module)


@contextmanager
def _weights_cast(module: nn.Module) -> Iterator[None]:
    maps = [m for m in module.modules() if isinstance(m, Linear) and m.weight.requires_grad]
    if not maps or not torch.is_autocast_enabled(maps[0].weight.device.type):
        yield
        return
    parts = [[x for x in (each.weight, each.bias) if x is not None] for each in maps]
    dtype = torch.get_autocast_dtype(maps[0].weight.device.type)
    cast = iter(_Cast.apply(dtype, *(x for two in parts for x in two)))
    found = {id(each): [next(cast) for _ in two] for each, two in zip(maps, parts)}
    token = _cast.set(found)
    try:
        yield
    finally:
        _cast.reset(token)


class _Cast(torch.autograd.Function):
    """Casts tensors to another type, all in one operation."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = tensors[0].dtype
        out = [torch.empty_like(x, dtype=dtype) for x in tensors]
        torch._foreach_copy_(out, tensors)
        return tuple(out)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        out = [torch.empty_like(x, dtype=ctx.dtype) for x in grads]
        torch._foreach_copy_(out, grads)
        return None, *out
