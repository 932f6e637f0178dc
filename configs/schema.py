"""The whole configuration as frozen dataclasses, validated when they are made.

A choice between alternatives (position, corpus, tokenizer, schedule, objective) is a union of
dataclasses, so that each alternative has its own fields and no others. `configs/serialize.py` turns
a Config into JSON and back. The standard library is enough for all of it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Literal

# A config file needs one import: the positions are at hand here too.
from configs.positions import *  # noqa: F403
from configs.positions import Position, Side, Sinusoidal
from configs.section import Section, number
from utils.errors import ConfigError

# -------------------------------------------------------------------------------------------- model


class ModelConfig(Section, section="model"):
    """Shape of the Transformer, and what it drops in training.

    backend="torch" runs torch.nn.Transformer under the same protocol. word_dropout takes its
    embedding from a token of the source or of the target input, each for itself (Sennrich et al.
    2016, section 2.4, after Gal & Ghahramani 2016, who drop all tokens of a word at once).
    stochastic_depth, 1 - p_L of Huang et al. 2016, equation 4, drops whole branches: so often in
    the last layer, less in the first. norm="deepnorm" is post-norm with a scaled residual and an
    initialisation of its own (Wang et al. 2022, DeepNet). init="depth_scaled" begins with smaller
    weights in higher layers (Zhang et al. 2019). tie_embeddings="target" shares the target's with
    the output, "all" the source's too.
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
    stochastic_depth: float = number(0.0, ge=0, lt=1)
    attention_dropout: float = number(0.0, ge=0, lt=1)  # attention weights
    activation_dropout: float = number(0.0, ge=0, lt=1)  # inside the feed-forward
    activation: Literal["relu", "gelu"] = "relu"
    norm: Literal["pre", "post", "deepnorm"] = "pre"
    init: Literal["xavier", "depth_scaled"] = "xavier"
    bias: bool = True
    tie_embeddings: Literal["none", "target", "all"] = "none"

    def _check(self) -> None:
        divides = self.d_model % self.n_heads == 0
        self._require(divides, "d_model", f"must be a multiple of model.n_heads = {self.n_heads}")
        self._require(self.d_model % 2 == 0, "d_model", "must be even")
        self.position.check_shape(self.d_model, self.n_heads)
        own = 'model.norm = "deepnorm" has an initialisation of its own: leave init = "xavier"'
        self._require(self.norm != "deepnorm" or self.init == "xavier", "init", own)
        if self.backend == "torch":
            self._check_torch()

    def _check_torch(self) -> None:
        torch = 'model.backend = "torch" has'
        outside = (
            f"{torch} no place for positions inside attention; allowed: none, sinusoidal, learnable"
        )
        self._require(not self.position.inside_attention, "position", outside)
        alike = self.attention_dropout == self.activation_dropout == self.dropout
        one = f"{torch} one dropout: set dropout, attention_dropout and activation_dropout alike"
        self._require(alike, "attention_dropout", one)
        self._require(self.stochastic_depth == 0, "stochastic_depth", f"{torch} 0 alone")
        self._require(self.norm != "deepnorm", "norm", f"{torch} 'pre' or 'post' alone")
        self._require(self.init == "xavier", "init", f"{torch} 'xavier' alone")


# ---------------------------------------------------------------------------------------- tokenizer


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
        rule = 'a probability below 1 for tokenizer.algorithm = "bpe"'
        self._require(self.algorithm != "bpe" or self.sampling < 1, "sampling", rule)


class Marian(Section, kind="marian", section="tokenizer"):
    """A pretrained Marian tokenizer: a name on the Hugging Face hub or a local folder."""

    name_or_path: str = "Helsinki-NLP/opus-mt-fr-en"


TokenizerConfig = Subword | Marian

# --------------------------------------------------------------------------------------------- data


def _is_name(text: str, signs: str = "_-") -> bool:
    """Whether text can be part of a file's name."""
    return bool(text) and all(c.isalnum() or c in signs for c in text)


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


class ParallelFiles(Section, kind="files", section="data.corpus"):
    """Line-parallel text: `{root}/{split}.{language}`, plain or .gz. Splits are file stems."""

    root: str = "data/parallel"
    train: str = "train"
    validation: str = "valid"
    test: tuple[str, ...] = ("test",)
    on_empty: Literal["skip", "error"] = "skip"  # a line that is empty on one or both sides
    on_bad_utf8: Literal["skip", "error"] = "error"  # a line that is not UTF-8

    def _check(self) -> None:
        self._require(bool(self.test), "test", "name at least one split")


class Iwslt2017(Section, kind="iwslt2017", section="data.corpus"):
    """IWSLT2017 (TED talks): from the hub, or from a folder or archive of the official files."""

    path: str | None = None  # a folder, .zip or .tgz with the official files; None: the hub
    check_sizes: bool = True  # the official split sizes are asserted


SingleCorpus = Phrasebook | ParallelFiles | Iwslt2017


class Weighted(Section, section="data.corpus.parts"):
    """A corpus in a mixture; `name` (None: its number) stands for it in messages and splits."""

    corpus: SingleCorpus = ParallelFiles()
    weight: float = number(1.0, gt=0)
    name: str | None = None

    def _check(self) -> None:
        named = self.name is None or _is_name(self.name)
        self._require(named, "name", "letters, digits, '_' and '-' alone")


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
        how = "name the corpora in a config file: Mixture(parts=(Weighted(corpus=...), ...))"
        self._require(bool(self.parts), "parts", how)
        different = len(set(self.names)) == len(self.names)
        self._require(different, "parts", "each part needs a name of its own")
        known = self.evaluate is None or self.evaluate in self.names
        self._require(known, "evaluate", f"allowed: {', '.join(self.names)}")


Corpus = SingleCorpus | Mixture


class NoCleaning(Section, kind="none", section="data.clean"):
    """The training pairs as the corpus has them."""


class Cleaning(Section, kind="rules", section="data.clean"):
    """What training pairs are left out: by length, as duplicates, as untranslated, by language.

    Evaluation splits are never cleaned. A part of a mixture is cleaned by itself. `language` looks
    for letters of another script, or the other language's stop words (French and English alone).
    """

    max_ratio: float | None = number(3.0, gt=1)  # of the longer side to the shorter one
    ratio_of: Literal["words", "chars"] = "chars"
    min_words: int = number(1, ge=1)  # either side
    max_words: int | None = number(None, ge=1)  # either side
    duplicates: bool = True  # of two equal pairs the first stays
    identical: bool = True  # both sides are the same but for case: not translated
    language: bool = True

    def _check(self) -> None:
        some = self.max_words is None or self.max_words >= self.min_words
        self._require(some, "max_words", f"at least data.clean.min_words = {self.min_words}")


Clean = NoCleaning | Cleaning


class DataConfig(Section, section="data"):
    """What is read, how long it may be, how it is batched.

    max_len counts tokens with EOS of either side: longer training pairs are dropped. batch_size
    counts padded tokens of the longer side (batch_by="tokens") or sentences, of one micro-step over
    all processes: each takes its share of every batch. directions="both" trains on every pair in
    both directions (Ding et al. 2021), for a model to be fine-tuned forward; validation and tests
    stay forward.
    """

    corpus: Corpus = Phrasebook()
    clean: Clean = NoCleaning()
    directions: Literal["forward", "both"] = "forward"
    src_lang: str = "fr"
    tgt_lang: str = "en"
    max_len: int = number(256, ge=2)
    eval_long: Literal["keep", "truncate"] = "keep"  # what becomes of longer pairs in evaluation
    batch_by: Literal["tokens", "sentences"] = "tokens"
    batch_size: int = number(4096, ge=1, lt=2**31)
    num_workers: int = number(0, ge=0, lt=65)
    cache_dir: str = "data/cache"

    def _check(self) -> None:
        for name in ("src_lang", "tgt_lang"):
            rule = "letters, digits, '_' and '-' alone (it ends the names of files)"
            self._require(_is_name(getattr(self, name)), name, rule)
        self._require(self.src_lang != self.tgt_lang, "tgt_lang", "must differ from data.src_lang")
        holds = self.batch_by == "sentences" or self.batch_size >= self.max_len
        rule = f"a budget of tokens must hold one sentence of data.max_len = {self.max_len}"
        self._require(holds, "batch_size", rule)
        if {self.src_lang, self.tgt_lang} != {"fr", "en"}:
            self._check_other_languages()

    def _check_other_languages(self) -> None:
        parts = self.corpus.parts if isinstance(self.corpus, Mixture) else (self,)
        for part in parts:
            rule = f"the {part.corpus.kind} corpus has French (fr) and English (en)"
            self._require(isinstance(part.corpus, ParallelFiles), "src_lang", rule)
        if isinstance(self.clean, Cleaning):
            rule = "the check knows French (fr) and English (en)"
            self._require(not self.clean.language, "clean.language", rule)


# -------------------------------------------------------------------------------------------- optim


class Constant(Section, kind="constant", section="optim.schedule"):
    """The same learning rate throughout."""

    lr: float = number(3e-4, gt=0)


class EpochDecay(Section, kind="epoch_decay", section="optim.schedule"):
    """The original's LambdaLR by epoch e from 0, with w = warmup_epochs.

    lr (e+1)/(w+1) for e < w, lr for e = w, lr exp(-decay (e-w-1)) after.
    """

    lr: float = number(3e-4, gt=0)
    warmup_epochs: int = number(6, ge=0)
    decay: float = number(0.35, ge=0)


class Noam(Section, kind="noam", section="optim.schedule"):
    """noam_factor d_model^-0.5 min(s^-0.5, s warmup_steps^-1.5) at step s from 1.

    Vaswani et al. 2017, equation 3. There is no learning rate beside the factor.
    """

    noam_factor: float = number(1.0, gt=0)
    warmup_steps: int = number(4000, ge=1)


class InverseSqrt(Section, kind="inverse_sqrt", section="optim.schedule"):
    """Linear warm-up to lr at warmup_steps, then lr (warmup_steps / s)^0.5."""

    lr: float = number(5e-4, gt=0)
    warmup_steps: int = number(4000, ge=1)


class Cosine(Section, kind="cosine", section="optim.schedule"):
    """Linear warm-up to lr, then half a cosine down to final_fraction * lr at the last step."""

    lr: float = number(1e-3, gt=0)
    warmup_steps: int = number(400, ge=1)
    final_fraction: float = number(0.0, ge=0, lt=1)


class Plateau(Section, kind="plateau", section="optim.schedule"):
    """Linear warm-up to lr, then times `factor` whenever the validation loss no longer falls.

    That is: at every `patience`th evaluation in a row without a new lowest loss. It never falls
    below min_lr.
    """

    lr: float = number(5e-4, gt=0)
    warmup_steps: int = number(400, ge=1)
    factor: float = number(0.5, gt=0, lt=1)
    patience: int = number(2, ge=1)
    min_lr: float = number(1e-6, ge=0)

    def _check(self) -> None:
        rule = f"at most optim.schedule.lr = {self.lr}"
        self._require(self.min_lr <= self.lr, "min_lr", rule)


Schedule = Constant | EpochDecay | Noam | InverseSqrt | Cosine | Plateau


class CrossEntropy(Section, kind="cross_entropy", section="optim.objective"):
    """The cross-entropy of the target tokens, smoothed by optim.label_smoothing."""


class RDrop(Section, kind="r_drop", section="optim.objective"):
    """R-Drop: two passes with different dropout, and what their predictions differ by.

    alpha is that of Liang et al. 2021, equation 4. It needs dropout in the model, and twice the
    time and memory of a batch.
    """

    alpha: float = number(5.0, ge=0)


class SimCut(Section, kind="sim_cut", section="optim.objective"):
    """SimCut (Gao et al. 2022): how far a second pass, with tokens cut out, departs from the first.

    Each token of both sides loses its embedding with probability `cut`. It needs twice the time and
    memory of a batch.
    """

    alpha: float = number(3.0, ge=0)
    cut: float = number(0.05, ge=0, lt=1)


Objective = CrossEntropy | RDrop | SimCut


class StopAtBadNumbers(Section, kind="stop", section="optim.bad_numbers"):
    """An update whose loss or gradient is no number ends the run, before it touches the weights."""


class SkipBadNumbers(Section, kind="skip", section="optim.bad_numbers"):
    """Such an update is left out and counted; the `in_a_row`th in a row ends the run."""

    in_a_row: int = number(10, ge=1)


BadNumbers = StopAtBadNumbers | SkipBadNumbers


class OptimConfig(Section, section="optim"):
    """The optimizer, its learning rate, and what it minimises.

    optimizer="muon" is for the maps inside layers; the rest has AdamW. decay="matrices" lets maps
    and embeddings decay, but no bias, norm or scalar. accumulate: micro-batches of one update.
    """

    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    betas: tuple[float, float] = number((0.9, 0.98), ge=0, lt=1)
    eps: float = number(1e-8, gt=0)
    weight_decay: float = number(0.0, ge=0)
    decay: Literal["all", "matrices"] = "all"
    schedule: Schedule = InverseSqrt()
    objective: Objective = CrossEntropy()
    grad_clip: float | None = number(1.0, gt=0)  # maximum norm of the whole gradient
    accumulate: int = number(1, ge=1)
    label_smoothing: float = number(0.1, ge=0, lt=1)
    bad_numbers: BadNumbers = StopAtBadNumbers()  # NaN or infinity in loss or gradient


# -------------------------------------------------------------------------- train, evaluate, decode


class TrainConfig(Section, section="train"):
    """How long, where, and what is kept.

    init_from: a run or checkpoint whose weights and tokenizer this run begins with. ema_decay,
    0.999 say, is that of the weights' moving average, which then is evaluated. patience:
    evaluations without a better validation loss before stopping. log_attention: maps of one
    sentence in TensorBoard at each evaluation.
    """

    max_epochs: int = number(20, ge=1)
    max_steps: int | None = number(None, ge=1)  # stops earlier, in the middle of an epoch too
    seed: int = number(0, ge=0)
    init_from: str | None = None
    device: str = "auto"  # auto: CUDA where there is one
    # auto: bf16 where the device computes in it
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    compile: bool = False
    runs_dir: str = "runs"
    log_every: int = number(20, ge=1)  # steps
    checkpoint_every_epochs: int = number(1, ge=1)
    checkpoint_every_steps: int | None = number(None, ge=1)
    keep_regular: int = number(2, ge=2)
    keep_best: int = number(2, ge=2)
    ema_decay: float | None = number(None, gt=0, lt=1)
    patience: int | None = number(None, ge=1)
    log_attention: bool = True


class EvaluateConfig(Section, section="evaluate"):
    """The validation split during training, and what test.py reports.

    bleu_every_epochs: greedy BLEU on the first bleu_sentences (None: all) of the split; 0: never.
    length_buckets are source words; the last bucket is open.
    """

    every_epochs: int = number(1, ge=1)
    bleu_every_epochs: int = number(1, ge=0)
    bleu_sentences: int | None = number(500, ge=1)
    batch_size: int = number(64, ge=1)  # sentences
    bootstrap_samples: int = number(1000, ge=2, lt=10**6)
    length_buckets: tuple[int, ...] = number((10, 15, 20, 30), ge=1)

    def _check(self) -> None:
        increasing = list(self.length_buckets) == sorted(set(self.length_buckets))
        self._require(increasing, "length_buckets", "must increase")


class Beam(Section, kind="beam", section="decode.search"):
    """Beam search: the beam_size hypotheses that are most probable so far."""


class DiverseBeam(Section, kind="diverse", section="decode.search"):
    """Diverse beam search (Vijayakumar et al. 2016), for n-best lists that differ.

    The groups (None: every hypothesis is one) share out beam_size. strength is taken off a
    log-probability for each earlier group's use of the token.
    """

    groups: int | None = number(None, ge=1)
    strength: float = number(0.5, ge=0)


class Sampling(Section, kind="sample", section="decode.search"):
    """n_best translations drawn from the model.

    temperature divides the log-probabilities. top_k keeps the most probable tokens of a step (Fan
    et al. 2018), top_p the fewest of these that have this probability (Holtzman et al. 2020).
    """

    temperature: float = number(1.0, gt=0)
    top_k: int | None = number(None, ge=1)
    top_p: float | None = number(None, gt=0)
    seed: int = number(0, ge=0)

    def _check(self) -> None:
        within = self.top_p is None or self.top_p <= 1
        self._require(within, "top_p", "allowed: None, a number > 0 and <= 1")


Search = Beam | DiverseBeam | Sampling


class DecodeConfig(Section, section="decode"):
    """Search, for hypotheses of at most min(max_len, max_len_ratio * source tokens + 10) tokens.

    EOS counts. length_penalty is alpha of ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    mbr: minimum Bayes risk among the n_best (Kumar and Byrne 2004).
    """

    search: Search = Beam()
    beam_size: int = number(5, ge=1)
    length_penalty: float = number(0.6, ge=0)
    max_len: int = number(256, ge=1)
    max_len_ratio: float = number(2.0, gt=0, lt=1000)
    n_best: int = number(5, ge=1)
    mbr: Literal["chrf", "bleu"] | None = None
    batch_size: int = number(32, ge=1)  # sentences

    def _check(self) -> None:
        found = isinstance(self.search, Sampling) or self.n_best <= self.beam_size
        self._require(found, "n_best", f"at most decode.beam_size = {self.beam_size}")
        if isinstance(self.search, DiverseBeam):
            divides = self.beam_size % (self.search.groups or 1) == 0
            rule = f"must divide decode.beam_size = {self.beam_size}"
            self._require(divides, "search.groups", rule)


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
        rule = "letters, digits, '_', '-' and '.' alone (it becomes a folder)"
        self._require(_is_name(self.name, "_-."), "name", rule)
        one = self.data.directions == "forward" or isinstance(self.tokenizer, Subword)
        rule = 'one vocabulary must segment both languages: use tokenizer = "subword"'
        self._require(one, "data.directions", rule)
        self._check_length("data.max_len", self.data.max_len, "source")
        self._check_length("data.max_len", self.data.max_len, "target")
        self._check_length("decode.max_len", self.decode.max_len, "target")

    def _check_length(self, key: str, length: int, side: Side) -> None:
        bound = self.model.position.bound(side)
        if bound is not None and bound.length < length:
            value = attrgetter(bound.field)(self.model.position)
            raise ConfigError(
                f"model.position.{bound.field} = {value}: allows for {bound.length} tokens on the "
                f"{side} side; {key} = {length} asks for more"
            )
