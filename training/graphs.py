"""The passes of an update as CUDA graphs: all that a batch launches, launched at once.

A GPU computes a small batch faster than Python can ask for it, operation by operation.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from configs.schema import Config
from data.batching import TENSORS, Batch
from models.loss import TokenSums
from models.positional_encodings.randomized import RandomizedScheme
from models.transformer import TranslationTransformer
from utils.errors import UserError
from utils.machine import if_it_fits

# Of a batch, on any device, and a factor, 0-dimensional: forward, and backward of the objective
# times the factor.
Pass = Callable[[Batch, torch.Tensor], TokenSums]
LEAST_FREE = 0.1  # share of the GPU's memory: below it no more graphs are made

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
        self.captured: dict[Shape, Captured | None] = {}  # None: there was no room

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
        if shape in self.seen and shape not in self.captured:
            self.captured[shape] = if_it_fits(self._capture, batch)
        self.seen.add(shape)
        captured = self.captured.get(shape)
        if captured is None:
            return self.compute(batch, self.factor)
        graph, place, sums = captured
        for name in TENSORS:
            getattr(place, name).copy_(getattr(batch, name), non_blocking=True)
        graph.replay()
        return sums

    def _capture(self, batch: Batch) -> Captured | None:
        free, total = torch.cuda.mem_get_info(self.device)
        if free < torch.cuda.memory_reserved(self.device):
            torch.cuda.empty_cache()  # of what passes without a graph took: graphs have their own
            free, total = torch.cuda.mem_get_info(self.device)
        if free < LEAST_FREE * total:
            return None
        place, graph = batch.to(self.device), torch.cuda.CUDAGraph()
        # Threads of the loader go on meanwhile, and may ask the device for anything.
        graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
        try:
            sums = self.compute(place, self.factor)
        finally:
            graph.capture_end()
        return graph, place, replace(sums, objective=sums.objective.detach())


def graphs_wanted(config: Config, model: TranslationTransformer, device: torch.device) -> bool:
    """Whether passes are to be captured. Raises UserError where they are, and cannot be."""
    if not config.train.cuda_graphs:
        return False
    use = "use --set train.cuda_graphs=false"
    if device.type != "cuda":
        raise UserError(f"train.cuda_graphs = True needs a CUDA device; {use}")
    if torch.distributed.is_initialized():
        raise UserError(f"train.cuda_graphs = True is for one process; {use}")
    if any(isinstance(module, RandomizedScheme) for module in model.modules()):
        kind = type(config.model.position).__name__
        raise UserError(f"train.cuda_graphs = True: {kind} draws positions on the host; {use}")
    return True
