"""torch.compile changes the speed of a run and nothing else; its time goes to the C++ compiler."""

import shutil
from pathlib import Path

import pytest
import torch
from tiny_models import POSITIONS, sources, tiny_model
from toy_runs import content, log_of, run_here, toy_config

from configs.serialize import apply_overrides

pytestmark = pytest.mark.slow


@pytest.mark.skipif(
    shutil.which("g++") is None and shutil.which("clang++") is None, reason="no C++ compiler"
)
def test_a_compiled_run_has_the_losses_and_the_names_of_an_eager_one(tmp_path: Path) -> None:
    config = toy_config(
        tmp_path,
        "train.max_steps=3",
        "model.dropout=0.0",
        "model.position=none",
        "tokenizer.vocab_size=90",
    )
    eager = run_here(config).run
    try:
        compiled = run_here(apply_overrides(config, ["train.compile=true"])).run
    finally:
        torch._dynamo.reset()
    for step, line in log_of(eager).items():
        assert log_of(compiled)[step]["loss"] == pytest.approx(line["loss"], abs=1e-4)
    weights = [
        content(run.checkpoints / "step_checkpoint_3.pt")["model"] for run in (eager, compiled)
    ]
    assert weights[0].keys() == weights[1].keys()
    assert not any("_orig_mod" in name for name in weights[1])


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
