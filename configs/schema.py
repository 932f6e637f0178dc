"""The whole configuration as frozen dataclasses, validated when they are made. Standard library
only.

A choice between alternatives (position, corpus, tokenizer, schedule, objective) is a union of
dataclasses, so that each alternative has its own fields and no others. `configs/serialize.py` turns
a Config into JSON and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

# A config file needs one import: the positions are at hand here too.
from configs.positions import *  # noqa: F403
from configs.positions import Position, Sinusoidal
from configs.section import Section, number
from utils.errors import ConfigError

# -------------------------------------------------------------------------------------------- model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig(Section, section="model"):
    """Shape of the Transformer, and what it drops in training.

    backend="torch" runs torch.nn.Transformer under the same protocol. word_dropout takes its
    embedding from a token of the source or of the target input, each for itself (Sennrich et al.
    2016, section 2.4, after Gal & Ghahramani 2016, who drop all tokens of a word at once).
    stochastic_depth is 1 - p_L of Huang et al. 2016, equation 4. norm="deepnorm" is post-norm with
    a scaled residual and an initialisation of its own (Wang et al. 2022, DeepNet).
    init="depth_scaled" begins with smaller weights in higher layers (Zhang et al. 2019).
    """

    position: Position = Sinusoidal()
    backend: Literal["scratch", "torch"] = "scratch"
    d_model: int = number(512, ge=2)
    n_heads: int = number(8, ge=1)
    n_encoder_layers: int = number(6, ge=1)
    n_decoder_layers: int = number(6, ge=1)
    d_ff: int = number(2048, ge=1)
    dropout: float = number(0.1, ge=0, lt=1)  # embeddings and residual branches
    embedding_dropout: float | None = number(None, ge=0, lt=1)  # embeddings; None: as dropout
    word_dropout: float = number(0.0, ge=0, lt=1)  # whole tokens of both sides lose their embedding
    stochastic_depth: float = number(
        0.0, ge=0, lt=1
    )  # whole branches: so often in the last layer, less in the first
    attention_dropout: float = number(0.0, ge=0, lt=1)  # attention weights
    activation_dropout: float = number(0.0, ge=0, lt=1)  # inside the feed-forward
    activation: Literal["relu", "gelu"] = "relu"
    norm: Literal["pre", "post", "deepnorm"] = "pre"
    init: Literal["xavier", "depth_scaled"] = "xavier"
    bias: bool = True
    tie_embeddings: Literal["none", "target", "all"] = (
        "none"  # target: with the output; all: source, target, output
    )

    def _check(self) -> None:
        if self.d_model % self.n_heads:
            self._fail("d_model", f"must be a multiple of model.n_heads = {self.n_heads}")
        if self.d_model % 2:
            self._fail("d_model", "must be even")
        self.position.check_shape(self.d_model, self.n_heads)
        if self.norm == "deepnorm" and self.init != "xavier":
            self._fail(
                "init",
                'model.norm = "deepnorm" has an initialisation of its own: leave init = "xavier"',
            )
        if self.backend == "torch":
            if self.position.inside_attention:
                self._fail(
                    "position",
                    'model.backend = "torch" has no place for positions inside attention; '
                    "allowed: none, sinusoidal, learnable",
                )
            if not self.attention_dropout == self.activation_dropout == self.dropout:
                self._fail(
                    "attention_dropout",
                    'model.backend = "torch" has one dropout: set dropout, attention_dropout '
                    "and activation_dropout alike",
                )
            for name, plain in (
                ("stochastic_depth", (0,)),
                ("norm", ("pre", "post")),
                ("init", ("xavier",)),
            ):
                if getattr(self, name) not in plain:
                    self._fail(
                        name, f'model.backend = "torch" has {" or ".join(map(repr, plain))} alone'
                    )


# ---------------------------------------------------------------------------------------- tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Subword(Section, kind="subword", section="tokenizer"):
    """A joint subword vocabulary trained on both sides of the training split.

    sampling > 0 draws the segmentation of both sides of the training split anew in each epoch, and
    changes nothing else: for "bpe" it is the probability with which a merge is left out
    (BPE-dropout, Provilkov et al. 2020), for "unigram" the exponent alpha of the model's
    probabilities (Kudo 2018), where smaller is wilder.
    """

    algorithm: Literal["bpe", "unigram"] = "bpe"
    vocab_size: int = number(8000, ge=64, lt=2**20)
    sampling: float = number(0.0, ge=0)

    def _check(self) -> None:
        if self.algorithm == "bpe" and self.sampling >= 1:
            self._fail("sampling", 'a probability below 1 for tokenizer.algorithm = "bpe"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Marian(Section, kind="marian", section="tokenizer"):
    """A pretrained Marian tokenizer: a name on the Hugging Face hub or a local folder."""

    name_or_path: str = "Helsinki-NLP/opus-mt-fr-en"


TokenizerConfig = Subword | Marian


# --------------------------------------------------------------------------------------------- data


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasebook(Section, kind="phrasebook", section="data.corpus"):
    """The embedded corpus: 30,000 sentence pairs that a grammar of the project's own made.

    train_max_words bounds the French length (in words) of the training and validation splits and
    puts longer sentences alone into the test split; None draws all splits from the same lengths.
    """

    n_train: int = number(20000, ge=1)
    n_validation: int = number(500, ge=1)
    n_test: int = number(500, ge=1)
    seed: Literal[0] = 0  # of the grammar, which is gone: the pairs are kept in a file
    train_max_words: int | None = number(None, ge=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelFiles(Section, kind="files", section="data.corpus"):
    """Line-parallel text: `{root}/{split}.{language}`, plain or .gz. Splits are file stems."""

    root: str = "data/parallel"
    train: str = "train"
    validation: str = "valid"
    test: tuple[str, ...] = ("test",)
    on_empty: Literal["skip", "error"] = "skip"  # a line that is empty on one or both sides
    on_bad_utf8: Literal["skip", "error"] = "error"  # a line that is not UTF-8

    def _check(self) -> None:
        if not self.test:
            self._fail("test", "name at least one split")


@dataclass(frozen=True, slots=True, kw_only=True)
class Iwslt2017(Section, kind="iwslt2017", section="data.corpus"):
    """IWSLT2017 (TED talks): from the hub, or from a folder or zip of the official files."""

    path: str | None = None  # a folder, .zip or .tgz with the official files; None: the hub
    check_sizes: bool = True  # the official split sizes are asserted


SingleCorpus = Phrasebook | ParallelFiles | Iwslt2017


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighted(Section, section="data.corpus.parts"):
    """A corpus in a mixture. `name` stands for it in messages and before the names of its splits;
    None: its number.
    """

    corpus: SingleCorpus = ParallelFiles()
    weight: float = number(1.0, gt=0)
    name: str | None = None

    def _check(self) -> None:
        if self.name is not None and not (
            self.name and all(c.isalnum() or c in "_-" for c in self.name)
        ):
            self._fail("name", "letters, digits, '_' and '-' alone")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture(Section, kind="mixture", section="data.corpus"):
    """The training pairs of several corpora together, each pair as often as its part's weight says.

    temperature None: an epoch has every pair of a part `weight` times, and of a fraction a draw by
    seed. temperature T: an epoch has as many pairs as all parts together, a part's share is
    proportional to weight * pairs^(1/T) (Arivazhagan et al. 2019): 1 leaves the sizes, a high T
    levels them. The list of pairs is the same in every epoch. Validation and bare test splits are
    those of the part `evaluate` (None: the first); `NAME.SPLIT` is another part's.
    """

    parts: tuple[Weighted, ...] = ()
    temperature: float | None = number(None, gt=0)
    evaluate: str | None = None
    seed: int = number(0, ge=0)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parts, in their order."""
        return tuple(part.name or str(i) for i, part in enumerate(self.parts))

    def _check(self) -> None:
        if not self.parts:
            self._fail(
                "parts",
                "name the corpora in a config file: Mixture(parts=(Weighted(corpus=...), ...))",
            )
        if len(set(self.names)) < len(self.names):
            self._fail("parts", "each part needs a name of its own")
        if self.evaluate is not None and self.evaluate not in self.names:
            self._fail("evaluate", f"allowed: {', '.join(self.names)}")


Corpus = SingleCorpus | Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCleaning(Section, kind="none", section="data.clean"):
    """The training pairs as the corpus has them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cleaning(Section, kind="rules", section="data.clean"):
    """Training pairs that are left out: by length, as duplicates, as untranslated, in the wrong
    language.

    Evaluation splits are never cleaned. A part of a mixture is cleaned by itself.
    """

    max_ratio: float | None = number(3.0, gt=1)  # of the longer side to the shorter one
    ratio_of: Literal["words", "chars"] = "chars"
    min_words: int = number(1, ge=1)  # either side
    max_words: int | None = number(None, ge=1)  # either side
    duplicates: bool = True  # of two equal pairs the first stays
    identical: bool = True  # both sides are the same but for case: not translated
    # letters of another script, or the other language's stop words (French and English alone)
    language: bool = True

    def _check(self) -> None:
        if self.max_words is not None and self.max_words < self.min_words:
            self._fail("max_words", f"at least data.clean.min_words = {self.min_words}")


Clean = NoCleaning | Cleaning


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig(Section, section="data"):
    """What is read, how long it may be, how it is batched.

    batch_size counts padded tokens of the longer side (batch_by="tokens") or sentences. It is the
    batch of one micro-step over all processes: with several processes each takes its share of every
    batch. directions="both" trains on every pair in both directions (Ding et al. 2021), for a model
    to be fine-tuned forward; validation and tests stay forward.
    """

    corpus: Corpus = Phrasebook()
    clean: Clean = NoCleaning()
    directions: Literal["forward", "both"] = "forward"
    src_lang: str = "fr"
    tgt_lang: str = "en"
    max_len: int = number(
        256, ge=2
    )  # tokens with EOS, either side; longer training pairs are dropped
    eval_long: Literal["keep", "truncate"] = "keep"  # what becomes of longer pairs in evaluation
    batch_by: Literal["tokens", "sentences"] = "tokens"
    batch_size: int = number(4096, ge=1, lt=2**31)
    num_workers: int = number(0, ge=0, lt=65)
    cache_dir: str = "data/cache"

    def _check(self) -> None:
        for name in ("src_lang", "tgt_lang"):
            lang = getattr(self, name)
            if not lang or not all(c.isalnum() or c in "_-" for c in lang):
                self._fail(name, "letters, digits, '_' and '-' alone (it ends the names of files)")
        if self.src_lang == self.tgt_lang:
            self._fail("tgt_lang", "must differ from data.src_lang")
        if self.batch_by == "tokens" and self.batch_size < self.max_len:
            self._fail(
                "batch_size",
                f"a budget of tokens must hold one sentence of data.max_len = {self.max_len}",
            )
        corpora = (
            [part.corpus for part in self.corpus.parts]
            if isinstance(self.corpus, Mixture)
            else [self.corpus]
        )
        if {self.src_lang, self.tgt_lang} == {"fr", "en"}:
            return
        for corpus in corpora:
            if not isinstance(corpus, ParallelFiles):
                self._fail("src_lang", f"the {corpus.kind} corpus has French (fr) and English (en)")
        if isinstance(self.clean, Cleaning) and self.clean.language:
            self._fail("clean.language", "the check knows French (fr) and English (en)")


# -------------------------------------------------------------------------------------------- optim


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant(Section, kind="constant", section="optim.schedule"):
    """The same learning rate throughout."""

    lr: float = number(3e-4, gt=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochDecay(Section, kind="epoch_decay", section="optim.schedule"):
    """The original's LambdaLR by epoch e from 0: lr (e+1)/(w+1) for e < w, lr for e = w, lr
    exp(-decay (e-w-1)) after.

    With warmup_epochs w = 6 and decay 0.35 these are the original's figures.
    """

    lr: float = number(3e-4, gt=0)
    warmup_epochs: int = number(6, ge=0)
    decay: float = number(0.35, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Noam(Section, kind="noam", section="optim.schedule"):
    """noam_factor d_model^-0.5 min(s^-0.5, s warmup_steps^-1.5) at step s from 1 (Vaswani et al.
    2017, equation 3).

    There is no learning rate beside it: noam_factor is a factor, and says so.
    """

    noam_factor: float = number(1.0, gt=0)
    warmup_steps: int = number(4000, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class InverseSqrt(Section, kind="inverse_sqrt", section="optim.schedule"):
    """Linear warm-up to lr at warmup_steps, then lr (warmup_steps / s)^0.5."""

    lr: float = number(5e-4, gt=0)
    warmup_steps: int = number(4000, ge=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(Section, kind="cosine", section="optim.schedule"):
    """Linear warm-up to lr at warmup_steps, then half a cosine down to final_fraction * lr at the
    last step.
    """

    lr: float = number(1e-3, gt=0)
    warmup_steps: int = number(400, ge=1)
    final_fraction: float = number(0.0, ge=0, lt=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plateau(Section, kind="plateau", section="optim.schedule"):
    """Linear warm-up to lr at warmup_steps, then times `factor` whenever the validation loss no
    longer falls.

    That is: at every `patience`th evaluation in a row without a new lowest loss. It never falls
    below min_lr.
    """

    lr: float = number(5e-4, gt=0)
    warmup_steps: int = number(400, ge=1)
    factor: float = number(0.5, gt=0, lt=1)
    patience: int = number(2, ge=1)
    min_lr: float = number(1e-6, ge=0)

    def _check(self) -> None:
        if self.min_lr > self.lr:
            self._fail("min_lr", f"at most optim.schedule.lr = {self.lr}")


Schedule = Constant | EpochDecay | Noam | InverseSqrt | Cosine | Plateau


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossEntropy(Section, kind="cross_entropy", section="optim.objective"):
    """The cross-entropy of the target tokens, smoothed by optim.label_smoothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RDrop(Section, kind="r_drop", section="optim.objective"):
    """R-Drop (Liang et al. 2021): two passes with different dropout, and what their predictions
    differ by.

    alpha is that of the paper's equation 4. It needs dropout in the model, and twice the time and
    memory of a batch.
    """

    alpha: float = number(5.0, ge=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimCut(Section, kind="sim_cut", section="optim.objective"):
    """SimCut (Gao et al. 2022): a pass, and how far a second one, with tokens cut out on both
    sides, departs from it.

    Each token loses its embedding with probability `cut`. It needs twice the time and memory of a
    batch.
    """

    alpha: float = number(3.0, ge=0)
    cut: float = number(0.05, ge=0, lt=1)


Objective = CrossEntropy | RDrop | SimCut


@dataclass(frozen=True, slots=True, kw_only=True)
class StopAtBadNumbers(Section, kind="stop", section="optim.bad_numbers"):
    """An update whose loss or gradient is no number ends the run, before it touches the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkipBadNumbers(Section, kind="skip", section="optim.bad_numbers"):
    """An update whose loss or gradient is no number is left out and counted; the `in_a_row`th in a
    row ends the run.
    """

    in_a_row: int = number(10, ge=1)


BadNumbers = StopAtBadNumbers | SkipBadNumbers


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimConfig(Section, section="optim"):
    optimizer: Literal["adam", "adamw", "muon"] = (
        "adam"  # muon: for the maps inside layers; the rest has adamw
    )
    betas: tuple[float, float] = number((0.9, 0.98), ge=0, lt=1)
    eps: float = number(1e-8, gt=0)
    weight_decay: float = number(0.0, ge=0)
    decay: Literal["all", "matrices"] = (
        "all"  # what decays; matrices: maps and embeddings, no bias, norm or scalar
    )
    schedule: Schedule = InverseSqrt()
    objective: Objective = CrossEntropy()
    grad_clip: float | None = number(1.0, gt=0)  # maximum norm of the whole gradient
    accumulate: int = number(1, ge=1)  # micro-batches in one optimizer update
    label_smoothing: float = number(0.1, ge=0, lt=1)
    bad_numbers: BadNumbers = StopAtBadNumbers()  # NaN or infinity in loss or gradient


# -------------------------------------------------------------------------- train, evaluate, decode


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainConfig(Section, section="train"):
    max_epochs: int = number(20, ge=1)
    max_steps: int | None = number(None, ge=1)  # stops earlier, in the middle of an epoch too
    seed: int = number(0, ge=0)
    init_from: str | None = (
        None  # a run or checkpoint whose weights and tokenizer this run begins with
    )
    device: str = "auto"  # auto: CUDA where there is one
    precision: Literal["auto", "fp32", "bf16", "fp16"] = (
        "auto"  # auto: bf16 where the device computes in it
    )
    compile: bool = False
    runs_dir: str = "runs"
    log_every: int = number(20, ge=1)  # steps
    checkpoint_every_epochs: int = number(1, ge=1)
    checkpoint_every_steps: int | None = number(None, ge=1)
    keep_regular: int = number(2, ge=2)
    keep_best: int = number(2, ge=2)
    ema_decay: float | None = number(
        None, gt=0, lt=1
    )  # of the weights' moving average, 0.999 say: it is evaluated
    patience: int | None = number(
        None, ge=1
    )  # evaluations without a better validation loss before stopping
    log_attention: bool = True  # attention maps of one sentence in TensorBoard at each evaluation


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateConfig(Section, section="evaluate"):
    every_epochs: int = number(1, ge=1)
    bleu_every_epochs: int = number(1, ge=0)  # greedy BLEU on the validation split; 0: never
    bleu_sentences: int | None = number(500, ge=1)  # the first so many of the split; None: all
    batch_size: int = number(64, ge=1)  # sentences
    bootstrap_samples: int = number(1000, ge=2, lt=10**6)
    length_buckets: tuple[int, ...] = number(
        (10, 15, 20, 30), ge=1
    )  # source words; the last bucket is open

    def _check(self) -> None:
        if list(self.length_buckets) != sorted(set(self.length_buckets)):
            self._fail("length_buckets", "must increase")


@dataclass(frozen=True, slots=True, kw_only=True)
class Beam(Section, kind="beam", section="decode.search"):
    """Beam search: the beam_size hypotheses that are most probable so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiverseBeam(Section, kind="diverse", section="decode.search"):
    """Diverse beam search (Vijayakumar et al. 2016): groups that avoid each other's tokens, for
    n-best lists.
    """

    groups: int | None = number(
        None, ge=1
    )  # share out beam_size; None: every hypothesis is a group
    strength: float = number(
        0.5, ge=0
    )  # taken off a log-probability for each earlier group's use of the token


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling(Section, kind="sample", section="decode.search"):
    """n_best translations drawn from the model: with temperature, from the top_k tokens, from the
    nucleus top_p.
    """

    temperature: float = number(1.0, gt=0)  # divides the log-probabilities
    top_k: int | None = number(
        None, ge=1
    )  # the most probable tokens of a step (Fan et al. 2018); None: all
    top_p: float | None = number(
        None, gt=0
    )  # the fewest of these that have this probability (Holtzman et al. 2020)
    seed: int = number(0, ge=0)

    def _check(self) -> None:
        if self.top_p is not None and self.top_p > 1:
            self._fail("top_p", "allowed: None, a number > 0 and <= 1")


Search = Beam | DiverseBeam | Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig(Section, section="decode"):
    """Search. A hypothesis has at most min(max_len, max_len_ratio * source tokens + 10) tokens with
    EOS.
    """

    search: Search = Beam()
    beam_size: int = number(5, ge=1)
    length_penalty: float = number(
        0.6, ge=0
    )  # alpha of ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14)
    max_len: int = number(256, ge=1)
    max_len_ratio: float = number(2.0, gt=0, lt=1000)
    n_best: int = number(5, ge=1)
    mbr: Literal["chrf", "bleu"] | None = (
        None  # minimum Bayes risk among the n_best (Kumar and Byrne 2004)
    )
    batch_size: int = number(32, ge=1)  # sentences

    def _check(self) -> None:
        if self.n_best > self.beam_size and not isinstance(self.search, Sampling):
            self._fail("n_best", f"at most decode.beam_size = {self.beam_size}")
        if isinstance(self.search, DiverseBeam) and self.beam_size % (self.search.groups or 1):
            self._fail("search.groups", f"must divide decode.beam_size = {self.beam_size}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config(Section):
    """Everything that a run is made of. `name` begins the run folder's name."""

    name: str = "transformer"
    model: ModelConfig = ModelConfig()
    tokenizer: TokenizerConfig = Subword()
    data: DataConfig = DataConfig()
    optim: OptimConfig = OptimConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    decode: DecodeConfig = DecodeConfig()

    def _check(self) -> None:
        if not self.name or not all(c.isalnum() or c in "_-." for c in self.name):
            self._fail("name", "letters, digits, '_', '-' and '.' alone (it becomes a folder)")
        if self.data.directions == "both" and not isinstance(self.tokenizer, Subword):
            self._fail(
                "data.directions",
                'one vocabulary must segment both languages: use tokenizer = "subword"',
            )
        lengths: tuple[tuple[str, int, Literal["source", "target"]], ...] = (
            ("data.max_len", self.data.max_len, "source"),
            ("data.max_len", self.data.max_len, "target"),
            ("decode.max_len", self.decode.max_len, "target"),
        )
        for path, length, side in lengths:
            bound = self.model.position.bound(side)
            if bound is not None and bound.length < length:
                raise ConfigError(
                    f"model.position.{bound.field} = {attrgetter(bound.field)(self.model.position)}: "
                    f"allows for {bound.length} tokens on the {side} side; {path} = {length} asks for more"
                )
