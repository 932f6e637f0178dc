"""The passes of an update as CUDA graphs: all kernels of a batch, launched at once.

A GPU computes a small batch faster than Python can launch its operations one by one.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch

from configs.schema import Config
from data.batching import TENSORS, Batch
from models.loss import TokenSums
from models.positional_encodings.randomized import RandomizedScheme
from models.schemes import build_scheme
from utils.errors import UserError
from utils.machine import if_it_fits

logger = logging.getLogger(__name__)

# Takes a batch on any device and a 0-dimensional factor: forward, and backward of the objective
# times the factor.
Pass = Callable[[Batch, torch.Tensor], TokenSums]

Shape = tuple[int, ...]
Captured = tuple[torch.cuda.CUDAGraph, Batch, TokenSums]  # a graph, its input and its output


class GraphedPasses:
    """`compute` of batches, captured by shape: batch size, both lengths, number of targets.

    The batches of a run are the same in every epoch. The first of a shape is computed without a
    graph, which allocates what later ones use. The second is captured. From then on a batch of that
    shape is copied to the graph's input, and the graph is replayed. The results are those of
    `compute`, dropout included, as long as gradients keep their memory: zero them, do not set them
    to None. All graphs share their memory, since one runs at a time.
    """

    def __init__(self, compute: Pass, device: torch.device) -> None:
        self.compute, self.device = compute, device
        self.stream = torch.cuda.Stream(device)  # for graphs and for all other gradients
        self.pool = torch.cuda.graph_pool_handle()
        self.factor = torch.ones((), device=device)
        self.seen: set[Shape] = set()
        self.captured: dict[Shape, Captured] = {}
        self.full = False

    def __call__(self, batch: Batch, factor: float) -> TokenSums:
        """The sums stay valid until the next call."""
        here = torch.cuda.current_stream(self.device)
        self.stream.wait_stream(here)
        with torch.cuda.stream(self.stream):
            self.factor.fill_(factor)
            sums = self._pass(batch)
        here.wait_stream(self.stream)
        return sums

    def _pass(self, batch: Batch) -> TokenSums:
        shape = (*batch.src.shape, batch.tgt_in.shape[1], batch.n_tokens)
        if shape in self.seen and shape not in self.captured and not self.full:
            captured = if_it_fits(self._capture, batch) if self._has_room() else None
            if captured is None:  # no other is tried: a capture that fails may leave traces
                self.full = True
                said = "train.cuda_graphs: memory for only %d graphs; other batches run without one"
                logger.warning(said, len(self.captured))
            else:
                self.captured[shape] = captured
        if not self.full:
            self.seen.add(shape)
        if shape not in self.captured:
            return self.compute(batch, self.factor)
        graph, place, sums = self.captured[shape]
        for name in TENSORS:
            getattr(place, name).copy_(getattr(batch, name), non_blocking=True)
        graph.replay()
        return sums

    def _has_room(self) -> bool:
        """Whether memory is free for the largest pass, and at first for what graphs share too."""
        held = torch.cuda.memory_allocated(self.device)
        most = torch.cuda.max_memory_allocated(self.device) - held
        needed = most if self.captured else 2 * most
        if torch.cuda.mem_get_info(self.device)[0] < needed:
            torch.cuda.empty_cache()  # of passes without a graph, on any stream
        return torch.cuda.mem_get_info(self.device)[0] >= needed

    def _capture(self, batch: Batch) -> Captured:
        tensors = {name: getattr(batch, name).to(self.device, copy=True) for name in TENSORS}
        place, graph = replace(batch, **tensors), torch.cuda.CUDAGraph()
        # The loader's threads go on meanwhile, and may use the device.
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            sums = self.compute(place, self.factor)
        except BaseException:
            with suppress(RuntimeError):  # it would only say that there was an error
                graph.capture_end()
            raise
        graph.capture_end()
        return graph, place, replace(sums, objective=sums.objective.detach())


def graphs_wanted(config: Config, device: torch.device) -> bool:
    """Whether to capture passes. Raises UserError where that is wanted and impossible."""
    if not config.train.cuda_graphs:
        return False
    use = "use --set train.cuda_graphs=false"
    if device.type != "cuda":
        raise UserError(f"train.cuda_graphs = True needs a CUDA device; {use}")
    if torch.distributed.is_initialized():
        alone = "one process, without torchrun or --nproc_per_node"
        raise UserError(f"train.cuda_graphs = True is for {alone}; {use}")
    if any(isinstance(each, RandomizedScheme) for each in build_scheme(config.model).modules()):
        kind = type(config.model.position).__name__
        raise UserError(f"train.cuda_graphs = True: {kind} draws positions on the host; {use}")
    return True
