"""Runs of a second: a toy corpus, a model of a few thousand weights, and what a run wrote down."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from conftest import ROOT
from ignite.engine import Engine, Events

from checkpoints.run import Run
from configs.schema import Config, TrainConfig
from configs.serialize import apply_overrides
from data.cache import load_split
from data.corpora.build import build_corpus
from training.engine import create_trainer
from training.prepare import Learner, validation_loader
from training.run import Result, train
from translation.evaluator import create_evaluator
from translation.loading import load_run

NOUNS = "chat/the cat,chien/the dog,livre/the book,train/the train,jardin/the garden"
NOUNS += ",pain/the bread,roi/the king,vent/the wind,lit/the bed"
VERBS = "voit/sees,prend/takes,veut/wants,cherche/seeks"
# 19 batches an epoch: with optim.accumulate=2, 10 updates, the last of one batch.
TOY = """
    data.corpus=files data.max_len=40 data.batch_size=140 tokenizer.vocab_size=100
    model.d_model=16 model.n_heads=2 model.n_encoder_layers=1 model.n_decoder_layers=1
    model.d_ff=32 model.dropout=0.2 optim.schedule=constant optim.schedule.lr=0.003
    train.max_epochs=3 train.device=cpu train.precision=fp32 train.log_every=1
    train.log_attention=false evaluate.bleu_every_epochs=0 decode.max_len=24
""".split()


@cache
def toy_corpus(folder: Path) -> Path:
    draw, nouns = random.Random(0), [f"le {noun}" for noun in NOUNS.split(",")]
    root = folder / "corpus"
    root.mkdir(exist_ok=True)
    for split, n in (("train", 200), ("valid", 21), ("test", 12)):
        sentences = []
        for _ in range(n):
            words = [draw.choice(nouns)]
            for _ in range(draw.randint(1, 4)):
                words += [draw.choice(VERBS.split(",")), draw.choice(nouns)]
            sentences.append([word.split("/") for word in words])
        for side, language in enumerate(("fr", "en")):
            lines = "".join(f"{' '.join(w[side] for w in words)}\n" for words in sentences)
            (root / f"{split}.{language}").write_text(lines, "utf-8")
    return root


def toy_settings(folder: Path, *overrides: str) -> list[str]:
    """`section.field=value` texts of a toy run under `folder`; `overrides`, texts of one or more
    settings, come last and win."""
    places = [f"data.corpus.root={toy_corpus(folder)}", f"data.cache_dir={folder / 'cache'}"]
    return [*TOY, *places, *" ".join(overrides).split()]


def toy_config(folder: Path, *overrides: str) -> Config:
    config = Config(name="toy", train=TrainConfig(runs_dir=str(folder / "runs")))
    return apply_overrides(config, toy_settings(folder, *overrides))


def toy_command(folder: Path, *overrides: str) -> list[str]:
    """Arguments of `python` for the same run as `toy_config`."""
    file = folder / "toy.py"
    config = f"Config(name='toy', train=TrainConfig(runs_dir={str(folder / 'runs')!r}))"
    file.write_text(f"from configs.schema import *\n\nconfig = {config}\n", "utf-8")
    settings = [part for text in toy_settings(folder, *overrides) for part in ("--set", text)]
    return ["train.py", "--config", str(file), *settings]


def started(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    """`python ARGUMENTS` from the repository root, under way."""
    env, pipe = {**os.environ, "OMP_NUM_THREADS": "1", **environment}, subprocess.PIPE
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True)


Hook = Callable[[Engine, Learner], object]


def run_here(
    config: Config, resume: str | Path | None = None, *, hook: Hook | None = None
) -> Result:
    """A training in this process; `hook` gets its engine before the run's own handlers do."""

    def create(learner: Learner, *args: Any, **options: Any) -> Engine:
        trainer = create_trainer(learner, *args, **options)
        if hook is not None:
            hook(trainer, learner)
        return trainer

    with mock.patch("training.run.create_trainer", create):
        return train(config, resume=resume)


def at_update(step: int, do: Callable[[Engine, Learner], object]) -> Hook:
    """A hook: something happens after an update, before what the run itself does after it."""

    def attach(trainer: Engine, learner: Learner) -> None:
        trainer.add_event_handler(
            Events.ITERATION_COMPLETED(event_filter=lambda engine, n: n == step),
            lambda: do(trainer, learner),
        )

    return attach


def log_of(run: Run | Path, kind: str = "train") -> dict[int, dict[str, Any]]:
    """metrics.jsonl by step, each once: what must repeat exactly, so without the speed."""
    path = (run.path if isinstance(run, Run) else run) / "logs" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    lines = [line for line in lines if line.pop("kind") == kind]
    by_step = {line["step"]: line for line in lines}
    assert len(by_step) == len(lines), path
    for line in lines:
        line.pop("tokens_per_second", None)
    return by_step


def content(path: Path) -> dict[str, Any]:
    return torch.load(path, weights_only=True)


def same(a: Any, b: Any) -> bool:
    """Equal to the last bit, tensors and all that holds them."""
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def assert_same_logs(one: Run | Path, other: Run | Path) -> None:
    for kind in ("train", "validation"):
        assert log_of(one, kind) == log_of(other, kind), kind


def assert_same(one: Run | Path, other: Run | Path, name: str) -> None:
    """The checkpoints of that name hold the same state of two runs, to the last bit."""
    files = [(run if isinstance(run, Run) else Run(run)).checkpoints / name for run in (one, other)]
    assert_same_state(*files)


def assert_same_state(one: Path, other: Path) -> None:
    ours, theirs = content(one), content(other)
    assert ours.keys() == theirs.keys()
    for part in ours.keys() - {"format", "config"}:
        assert same(ours[part], theirs[part]), (one, other, part)


def copied(run: Run, folder: Path) -> Run:
    return Run(Path(shutil.copytree(run.path, folder / run.path.name)))


def validation_loss(checkpoint: Path, batch_size: int, split: str | None = None) -> float:
    """Of the weights in a file, evaluated as one that only translates would."""
    loaded = load_run(checkpoint)
    config, tokenizer = loaded.config, loaded.tokenizer
    corpus = build_corpus(config.data)
    split = split or corpus.validation
    _, ids = load_split(config.data, corpus, split, tokenizer, training=False)
    evaluator = create_evaluator(
        loaded.model, pad_id=tokenizer.pad_id, device=torch.device("cpu"), dtype=torch.float32
    )
    return evaluator.run(validation_loader(ids, tokenizer, batch_size)).metrics["loss"]
