"""Validation: loss of all pairs, BLEU and chrF of greedy translations, attention of one pair."""

import logging
import math
from dataclasses import dataclass, field

import ignite.distributed as idist
from ignite.engine import Engine

from configs.schema import Config
from pictures.attention import attention_grid, attention_maps
from pictures.text import MOST_TOKENS
from training.faults import NonFiniteError
from training.log import RunLog
from training.prepare import TrainingData
from translation.metrics import chrf_score, sacrebleu_score
from translation.translator import Translator

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Validation:
    """Evaluates and translates the validation split, and logs the results."""

    config: Config
    data: TrainingData
    evaluator: Engine
    translator: Translator
    log: RunLog
    step: int | None = None  # the last update that was followed by a validation
    # (source, reference, translation) of the pairs of this validation; empty where not due.
    rows: list[tuple[str, str, str]] = field(default_factory=list)
    also: dict[str, float] = field(default_factory=dict)  # the losses of further splits

    def loss(self) -> float:
        """The loss of all pairs. Raises NonFiniteError where it is no number."""
        for name, (_, loader) in self.data.also.items():
            self.also[name] = self.evaluator.run(loader).metrics["loss"]
        # Last, for its figures stay the evaluator's.
        loss = self.evaluator.run(self.data.validation).metrics["loss"]
        if not math.isfinite(loss):
            raise NonFiniteError(
                f"validation loss {loss}: the weights have broken down; the earlier checkpoints "
                "are kept"
            )
        return loss

    def translate(self, epoch: int, *, last: bool) -> None:
        """Make the translations that are due; their BLEU and chrF join the evaluator's figures.

        They are always due after the `last` update, unless none are wanted.
        """
        every = self.config.evaluate.bleu_every_epochs
        due = every and (epoch % every == 0 or last or self.config.evaluate.every_steps is not None)
        self.rows = self._translate() if due else []
        if self.rows:
            _, references, texts = map(list, zip(*self.rows))
            language = self.config.data.tgt_lang
            metrics = self.evaluator.state.metrics
            metrics["bleu"] = sacrebleu_score(texts, references, language)
            metrics["chrf"] = chrf_score(texts, references)

    def report(self, trainer: Engine) -> None:
        """Log the results."""
        step, epoch = trainer.state.iteration, trainer.state.epoch
        metrics = self.evaluator.state.metrics
        figures = {name: metrics[name] for name in ("loss", "accuracy", "perplexity")}
        when = f", step {step}" if self.config.evaluate.every_steps else ""
        said = f"epoch {epoch}{when}: validation loss {figures['loss']:.4f}"
        said += f", accuracy {figures['accuracy']:.4f}"
        said += "".join(f", loss of {name} {loss:.4f}" for name, loss in self.also.items())
        figures |= {f"loss_{name}": loss for name, loss in self.also.items()}
        if self.rows:
            figures |= {name: metrics[name] for name in ("bleu", "chrf")}
            said += f", BLEU {figures['bleu']:.2f}, chrF {figures['chrf']:.2f}"
            said += f" (greedy, {len(self.rows)} sentences)"
            self.log.translations(self.rows, step)
        drawn = self.config.train.log_attention and self.config.model.backend == "scratch"
        source = self.data.validation_ids.src(0).tolist()
        if drawn and idist.get_rank() == 0 and len(source) <= MOST_TOKENS:
            maps = attention_maps(self.translator.attention(source), layers=[-1])
            for kind, of_kind in maps.items():
                self.log.figure(f"attention/{kind}", attention_grid(of_kind), step)
        # Last: it says that all of this is logged.
        self.log.scalars("validation", figures, step=step, epoch=epoch)
        self.step = step
        logger.info(said)

    def _translate(self) -> list[tuple[str, str, str]]:
        """(source, reference, translation) of the first pairs; the processes share the work."""
        text, ids = self.data.validation_text, self.data.validation_ids
        n = len(range(len(ids))[: self.config.evaluate.bleu_sentences])
        rank, world_size = idist.get_rank(), idist.get_world_size()
        mine = [ids.src(i).tolist() for i in range(rank, n, world_size)]
        found = self.translator.searcher.search_ids(mine, self.translator.decode, greedy=True)
        decode = self.translator.tokenizer.decode
        shares = idist.all_gather([decode(hypotheses[0].ids) for hypotheses in found])
        texts = [shares[i % world_size][i // world_size] for i in range(n)]
        places = [int(ids.kept[i]) for i in range(n)]
        return [(text.src[k], text.tgt[k], texts[i]) for i, k in enumerate(places)]
