"""The passes of an update as CUDA graphs: all that a batch launches, launched at once.

A GPU computes a small batch faster than Python can ask for it, operation by operation.
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

# Of a batch, on any device, and a factor, 0-dimensional: forward, and backward of the objective
# times the factor.
Pass = Callable[[Batch, torch.Tensor], TokenSums]

Shape = tuple[int, ...]
Captured = tuple[torch.cuda.CUDAGraph, Batch, TokenSums]  # and where it reads and leaves them


class GraphedPasses:
    """`compute` of batches, captured by shape: batch size, both lengths, number of targets.

    The batches of a run are the same in every epoch. The first of a shape is computed as ever,
    which makes what all later ones use, and the second is captured; from then on a batch of that
    shape is copied to where the graph reads, and the graph replayed. The results are those of
    `compute`, dropout included, as long as gradients stay where they are: they are to be zeroed,
    not set to None. All graphs share their memory, since one runs at a time.
    """

    def __init__(self, compute: Pass, device: torch.device) -> None:
        self.compute, self.device = compute, device
        self.stream = torch.cuda.Stream(device)  # of graphs and of all else that makes gradients
        self.pool = torch.cuda.graph_pool_handle()
        self.factor = torch.ones((), device=device)
        self.seen: set[Shape] = set()
        self.captured: dict[Shape, Captured] = {}
        self.full = False

    def __call__(self, batch: Batch, factor: float) -> TokenSums:
        """The sums stay as they are until the next call."""
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
            if captured is None:  # nor shall another be tried: one that fails may leave traces
                self.full = True
                said = "train.cuda_graphs: memory for only %d graphs; other batches run without one"
                logger.warning(said, len(self.captured))
            else:
                self.captured[shape] = captured
        self.seen.add(shape)
        if shape not in self.captured:
            return self.compute(batch, self.factor)
        graph, place, sums = self.captured[shape]
        for name in TENSORS:
            getattr(place, name).copy_(getattr(batch, name), non_blocking=True)
        graph.replay()
        return sums

    def _has_room(self) -> bool:
        """Whether memory is free for a pass as large as any, and once for what graphs share."""
        held = torch.cuda.memory_allocated(self.device)
        most = torch.cuda.max_memory_allocated(self.device) - held
        needed = most if self.captured else 2 * most
        if torch.cuda.mem_get_info(self.device)[0] < needed:
            torch.cuda.empty_cache()  # of what passes without a graph took, on this stream or not
        return torch.cuda.mem_get_info(self.device)[0] >= needed

    def _capture(self, batch: Batch) -> Captured:
        tensors = {name: getattr(batch, name).to(self.device, copy=True) for name in TENSORS}
        place, graph = replace(batch, **tensors), torch.cuda.CUDAGraph()
        # Threads of the loader go on meanwhile, and may ask the device for anything.
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
    """Whether passes are to be captured. Raises UserError where they are, and cannot be."""
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
