"""The moving average of the weights: its formula, what is evaluated and saved, and resuming it."""

from typing import Any
from unittest import mock

import pytest
import torch
from tiny_models import tiny_model
from toy_runs import content, log_of, run_here, same, toy_config, validation_loss

from checkpoints.run import Run
from configs.schema import Config, TrainConfig
from configs.serialize import apply_overrides
from data.corpora.build import build_corpus
from training.ema import WeightAverage
from translation.metrics import chrf_score, sacrebleu_score
from translation.search import BatchSearch
from translation.translator import Translator
from utils.errors import ConfigError

SETTINGS = """
    optim.accumulate=2 train.checkpoint_every_steps=14 train.keep_regular=3 train.patience=5
    train.ema_decay=0.7 model.tie_embeddings=all train.max_epochs=2 evaluate.bleu_every_epochs=1
"""


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    return toy_config(tmp_path_factory.mktemp("ema"), SETTINGS)


@pytest.fixture(scope="module")
def run(config: Config) -> Run:
    """2 epochs of 10 updates, with checkpoints after update 14 and at the ends of epochs."""
    return run_here(config).run


def test_the_average_is_the_recursion_number_by_number() -> None:
    model = tiny_model(tie_embeddings="all")
    average = WeightAverage(model, 0.5)
    expected = {name: value.flatten().tolist() for name, value in model.state_dict().items()}
    for step in range(1, 13):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for name, value in model.state_dict().items():
            pairs = zip(expected[name], value.flatten().tolist())
            expected[name] = [decay * before + (1 - decay) * now for before, now in pairs]
    # The warm-up and the decay itself were both met.
    assert (1 + 7) / (10 + 7) < 0.5 < (1 + 12) / (10 + 12)
    for name, value in average.model.state_dict().items():
        by_hand = torch.tensor(expected[name], dtype=value.dtype)
        torch.testing.assert_close(value.flatten(), by_hand, atol=1e-12, rtol=0)
    assert average.model.output.weight is average.model.src_embedding.weight
    assert not any(parameter.requires_grad for parameter in average.model.parameters())


def test_training_is_not_changed_and_the_average_of_its_updates_saved(config: Config) -> None:
    every = ["train.checkpoint_every_steps=1", "train.keep_steps=3", "train.max_steps=3"]
    short = apply_overrides(config, every)
    plain = apply_overrides(short, ["train.ema_decay=none"])
    runs = [run_here(each).run for each in (short, plain)]
    updates, averages = [], []
    for n in (1, 2, 3):
        payload, without = (content(r.checkpoints / f"step_checkpoint_{n}.pt") for r in runs)
        assert same(payload["last_weights"], without["model"])
        assert "last_weights" not in without
        updates.append(payload["last_weights"])
        averages.append(payload["model"])
    for n in (2, 3):
        decay = min(0.7, (1 + n) / (10 + n))
        for name, now in updates[n - 1].items():
            expected = decay * averages[n - 2][name].double() + (1 - decay) * now.double()
            torch.testing.assert_close(averages[n - 1][name].double(), expected, atol=1e-6, rtol=0)
            assert not torch.equal(averages[n - 1][name], now)


def test_the_loss_in_a_name_and_the_bleu_are_those_of_the_average(run: Run, config: Config) -> None:
    best = run.best()
    assert f"_loss=-{validation_loss(best, 21):.4f}.pt" in best.name
    last = {**content(best), "model": content(best)["last_weights"]}
    torch.save(last, run.checkpoints / "last.pt")
    assert f"_loss=-{validation_loss(run.checkpoints / 'last.pt', 21):.4f}.pt" not in best.name
    corpus = build_corpus(config.data)
    text = corpus.load(corpus.validation)
    translator = Translator.load(run.newest(), device="cpu")
    found = [each.text for each in translator.translate(list(text.src), search="greedy")]
    logged = log_of(run, "validation")[20]
    assert logged["bleu"] == sacrebleu_score(found, text.tgt) > 0
    assert logged["chrf"] == chrf_score(found, text.tgt) > 0
    for name, lines in (("_20.hyp", found), (".src", text.src), (".ref", text.tgt)):
        written = (run.logs / f"validation{name}").read_text("utf-8")
        assert written.splitlines() == list(lines)
    seen: list[Any] = []
    search = mock.Mock(side_effect=BatchSearch)
    with mock.patch("training.run.BatchSearch", search):  # the two models hardly differ in BLEU
        short = apply_overrides(config, ["train.max_steps=1"])
        run_here(short, hook=lambda trainer, learner: seen.append((learner.average, learner.model)))
    [(average, model)] = seen
    assert search.call_args.args[0] is average.model is not model


def test_the_decay_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"ema_decay = 1\.0: allowed: a number > 0 and < 1, None"):
        TrainConfig(ema_decay=1.0)
