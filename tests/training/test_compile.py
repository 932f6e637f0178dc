"""torch.compile changes the speed of a run and nothing else; its time goes to the C++ compiler."""

import shutil
from collections.abc import Callable
from functools import partialmethod
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tiny_models import POSITIONS, model_with, sources, targets, tiny_model
from toy_runs import content, log_of, run_here, toy_config

from configs.serialize import apply_overrides
from models.attention.tap import AttentionTap
from models.dropout import Dropout
from models.transformer_backend import Decoder

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)
def test_a_compiled_run_has_the_losses_and_the_names_of_an_eager_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The decoder is only traced, and its C++ not tested: compiling it takes twice as long again.
    traced = partialmethod(torch.nn.Module.compile, backend="aot_eager")
    monkeypatch.setattr(Decoder, "compile", traced)
    # A graph for training and one for validation: no batch is as wide as the model, which would be
    # taken for the same size, and none is longer than what eager attention is for.
    sizes = "model.d_model=40 model.d_ff=48 tokenizer.vocab_size=90 data.max_len=16"
    plain = "model.dropout=0.0 model.position=none train.max_steps=3"
    config = toy_config(tmp_path, sizes, plain)
    eager = run_here(config).run
    torch._dynamo.utils.counters.clear()
    try:
        compiled = run_here(apply_overrides(config, ["train.compile=true"])).run
        # Two of each stack, for training and for validation, and that of the softmax.
        assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 5
    finally:
        torch._dynamo.reset()
    for step, line in log_of(eager).items():
        assert log_of(compiled)[step]["loss"] == pytest.approx(line["loss"], abs=1e-4)
    weights = [
        content(run.checkpoints / "step_checkpoint_3.pt")["model"] for run in (eager, compiled)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert not any("_orig_mod" in name for name in weights[1])


# Batch size, source and target tokens, which torch.compile takes for other shapes.
SHAPES = [(2, 6, 5), (3, 9, 7), (2, 8, 8), (4, 5, 9), (5, 11, 4)]
SHAPES += [(2, 7, 3), (3, 12, 10), (6, 10, 11), (2, 4, 6), (3, 3, 12)]


def draw_as_compiled(dropout: Dropout, x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, dropout.p, dropout.training)


@pytest.mark.parametrize("name", ["rope", "xlnet", "t5", "kerple_log", "sandwich", "deberta_log"])
def test_a_stack_is_one_graph_for_batches_of_any_shape(name: str) -> None:
    """With dropout and gradients; a tap passes it by, and it gives what eager code gives."""
    model = model_with(name, n_encoder_layers=1, n_decoder_layers=1)
    stacks = ["encoder", "decoder"] if name == "rope" else ["encoder"]  # it takes seconds
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    def outputs(shape: tuple[int, int, int], **options: Any) -> torch.Tensor:
        n, source, target = shape
        src = sources(*[source] * (n - 1), source - 1, pad_to=source)
        torch.manual_seed(0)
        return model(src, targets(n, target), **options)

    def agree(eager: torch.Tensor) -> None:
        torch.testing.assert_close(outputs(SHAPES[-1]), eager, rtol=1e-10, atol=1e-10)

    evaluated = outputs(SHAPES[-1])
    model.train()
    for stack in stacks:
        for part in model.get_submodule(stack).modules():
            if isinstance(part, Dropout):
                part.p = 0.1
    with mock.patch.object(Dropout, "forward", draw_as_compiled):
        trained = outputs(SHAPES[-1])
    assert not torch.allclose(trained, evaluated)
    try:
        for stack in stacks:  # a break of the graph is an error
            model.get_submodule(stack).compile(dynamic=True, fullgraph=True, backend=backend)
        for shape in SHAPES:
            outputs(shape).sum().backward()
        outputs(SHAPES[0], tap=AttentionTap())
        agree(trained)
        assert len(graphs) == len(stacks)
        model.eval()
        agree(evaluated)
        assert len(graphs) == 2 * len(stacks)  # without dropout it is another
    finally:
        torch._dynamo.reset()


def test_what_a_stack_makes_once_can_be_compiled() -> None:
    """A table that the layers of a stack share: traced with its gradient, as without a compiler."""
    model, src = tiny_model(POSITIONS["t5"]), sources(6, 4)
    eager = model.encode(src).states
    try:
        compiled = torch.compile(
            lambda ids: model.encode(ids).states, backend="aot_eager", fullgraph=False
        )(src)
        torch.testing.assert_close(compiled, eager, rtol=1e-10, atol=1e-10)
        compiled.square().sum().backward()
    finally:
        torch._dynamo.reset()
    [gradient] = [p.grad for key, p in model.scheme.named_parameters() if "encoder" in key]
    assert gradient is not None
    assert gradient.abs().max() > 0
