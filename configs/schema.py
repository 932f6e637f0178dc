"""The whole configuration as frozen dataclasses, validated when they are made.

A choice between alternatives (position, corpus, tokenizer, schedule, objective) is a union of
dataclasses, so that each alternative has its own fields and no others.
"""

import re
from typing import Literal
from unicodedata import normalize

# So that a config file needs one import.
from configs.positions import *  # noqa: F403
from configs.positions import Position, Side, Sinusoidal
from configs.section import HUGE, LARGEST, MOST, MOST_STEPS, TINY, Section, count, number, positive

# -------------------------------------------------------------------------------------------- model


class ModelConfig(Section, section="model"):
    """Shape of the Transformer, and what it drops in training. Sources: docs/methods.md."""

    position: Position = Sinusoidal()
    backend: Literal["scratch", "torch"] = "scratch"  # torch: torch.nn.Transformer
    d_model: int = count(512, ge=2, multiple_of=2)
    n_heads: int = count(8)
    n_encoder_layers: int = count(6, le=1000)
    n_decoder_layers: int = count(6, le=1000)
    d_ff: int = count(2048)
    dropout: float = number(0.1, ge=0, lt=1)  # embeddings and residual branches
    embedding_dropout: float | None = number(None, ge=0, lt=1)  # embeddings; None: as dropout
    word_dropout: float = number(0.0, ge=0, lt=1)  # whole tokens of both sides lose their embedding
    stochastic_depth: float = number(0.0, ge=0, lt=1)  # the last layer's branches; below: fewer
    attention_dropout: float = number(0.0, ge=0, lt=1)  # attention weights
    activation_dropout: float = number(0.0, ge=0, lt=1)  # inside the feed-forward
    activation: Literal["relu", "gelu", "silu"] = "relu"  # silu: also called swish
    gated: bool = False  # the activation times a second map of d_ff; with silu: SwiGLU
    layer_norm: Literal["standard", "rms"] = "standard"  # rms: not centred, without bias
    norm: Literal["pre", "post", "deepnorm"] = "pre"  # deepnorm: post, with a scaled residual
    init: Literal["xavier", "depth_scaled"] = "xavier"  # depth_scaled: smaller in higher layers
    bias: bool = True
    tie_embeddings: Literal["none", "target", "all"] = "none"  # target: to the output's weights
    output_bias: bool = False  # a trained number for each target token, added to its logit

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_heads

    def _check(self) -> None:
        if self.d_model % self.n_heads:
            self._fail("d_model", f"must be a multiple of model.n_heads = {self.n_heads}")
        n_layers = min(self.n_encoder_layers, self.n_decoder_layers)
        self.position.check_shape(self.d_model, self.n_heads, n_layers)
        if self.norm == "deepnorm" and self.init != "xavier":
            rule = 'model.norm = "deepnorm" has an initialisation of its own: leave init = "xavier"'
            self._fail("init", rule)
        if self.backend == "torch":
            self._check_torch()

    def _check_torch(self) -> None:
        torch = 'model.backend = "torch" has'
        if self.position.inside_attention:
            rule = "no place for positions inside attention"
            self._fail("position", f"{torch} {rule}; allowed: none, sinusoidal, learnable, shape")
        if not self.attention_dropout == self.activation_dropout == self.dropout:
            rule = "one dropout: set dropout, attention_dropout and activation_dropout alike"
            self._fail("attention_dropout", f"{torch} {rule}")
        only = {"stochastic_depth": (0,), "norm": ("pre", "post"), "init": ("xavier",)}
        only |= {"gated": (False,), "layer_norm": ("standard",)}
        for name, allowed in only.items():
            if getattr(self, name) not in allowed:
                self._fail(name, f"{torch} only {' or '.join(map(repr, allowed))}")


# ---------------------------------------------------------------------------------------- tokenizer


_NO_SYMBOL = re.compile(r"""^$|[\s▁|\\'"‘’‚ʼ“”„]|^<(?:pad|/?s|unk|unused|0x..)>$""")


class Subword(Section, kind="subword", section="tokenizer"):
    """A subword vocabulary trained on both sides of the training split, or one for each side.

    sampling > 0 draws the segmentation of the training split anew in each epoch. For "bpe" it is
    the probability that a merge is left out (BPE-dropout, Provilkov et al. 2020). For "unigram" it
    is the exponent of the model's probabilities (Kudo 2018): the smaller, the more random.
    quotes="straight" reads curly quotes and apostrophes as straight ones, in training and after.
    joint=False trains two vocabularies of vocab_size pieces, each on its own language alone.
    symbols are never split, wherever they stand: language tags, placeholders.
    """

    algorithm: Literal["bpe", "unigram"] = "bpe"
    vocab_size: int = number(8000, ge=64, lt=2**20)
    sampling: float = number(0.0, ge=0, le=HUGE)
    quotes: Literal["keep", "straight"] = "keep"
    joint: bool = True
    max_pairs: int | None = count(None, le=LARGEST)  # to learn from, drawn at random; None: all
    symbols: tuple[str, ...] = ()

    def _check(self) -> None:
        if self.algorithm == "bpe" and self.sampling >= 1:
            self._fail("sampling", 'a probability below 1 for tokenizer.algorithm = "bpe"')
        for each in self.symbols:  # whatever stands before it, NFC must leave it as it is
            if _NO_SYMBOL.search(each) or normalize("NFC", f"e{each}") != f"e{each}":
                rule = "each in composed form (NFC), without white space, quotes, ▁, | and \\, and "
                self._fail("symbols", f"{rule}not one of the tokenizer's own, such as </s>")
        if len({*self.symbols}) < len(self.symbols) or 4 * len(self.symbols) > self.vocab_size:
            self._fail("symbols", "each once, and no more than a quarter of tokenizer.vocab_size")


class Marian(Section, kind="marian", section="tokenizer"):
    """A pretrained Marian tokenizer: a name on the Hugging Face hub or a local folder."""

    name_or_path: str = "Helsinki-NLP/opus-mt-fr-en"


class Saved(Section, kind="saved", section="tokenizer"):
    """The tokenizer of another run, so that models of different text have one vocabulary.

    The new run keeps a copy and does not need the other run again. sampling is as in Subword, by
    the algorithm with which the saved tokenizer was trained.
    """

    path: str = ""  # a run, an export, or the tokenizer/ of either
    sampling: float = number(0.0, ge=0, le=HUGE)


TokenizerConfig = Subword | Marian | Saved

# Fields of the model and tokenizer sections that decide neither the weights' shapes nor the output.
TRAINING_ONLY = {
    "model.dropout",
    "model.embedding_dropout",
    "model.word_dropout",
    "model.attention_dropout",
    "model.activation_dropout",
    "model.stochastic_depth",
    "model.init",
    "tokenizer.sampling",
}


def shapes_model(key: str, *values: object) -> bool:
    """Whether a field in which two configs differ matters for the weights or the output.

    The `form` of RoPE and xPos says how they are computed; KERPLE's says what is computed.
    """
    form = key.startswith("model.position.") and key.endswith(".form")
    computed = form and {*values} <= {"auto", "complex", "real"}
    return key not in TRAINING_ONLY and not computed


# --------------------------------------------------------------------------------------------- data


PHRASES = 30_000  # sentence pairs in the file


class Phrasebook(Section, kind="phrasebook", section="data.corpus"):
    """The embedded corpus: 30,000 sentence pairs made by a grammar of this project."""

    n_train: int = count(20000, le=PHRASES)
    n_validation: int = count(500, le=PHRASES)
    n_test: int = count(500, le=PHRASES)
    seed: Literal[0] = 0  # of the grammar, which is gone: the pairs are kept in a file
    # The most French words in training and validation; the test then has longer sentences alone.
    train_max_words: int | None = count(None, ge=4)


class ParallelFiles(Section, kind="files", section="data.corpus"):
    """Line-parallel text: `{root}/{split}.{language}`, plain or .gz. Splits are file stems.

    A part of a mixture that serves training alone has no test splits: test=().
    """

    root: str = "data/parallel"
    train: str = "train"
    validation: str = "valid"
    test: tuple[str, ...] = ("test",)
    on_empty: Literal["skip", "error"] = "skip"  # a line that is empty on one or both sides
    on_bad_utf8: Literal["skip", "error"] = "error"  # a line that is not UTF-8


class Iwslt2017(Section, kind="iwslt2017", section="data.corpus"):
    """IWSLT2017 (TED talks): from the hub, or from a folder or archive of the official files."""

    path: str | None = None  # a folder, .zip or .tgz with the official files; None: the hub
    check_sizes: bool = True  # the official split sizes are asserted


SingleCorpus = Phrasebook | ParallelFiles | Iwslt2017


class Weighted(Section, section="data.corpus.parts"):
    """A corpus in a mixture; `name` (None: its number) stands for it in messages and splits."""

    corpus: SingleCorpus = ParallelFiles()
    weight: float = number(1.0, ge=TINY, le=1000)
    name: str | None = None

    def _check(self) -> None:
        self._check_name("name")


class Mixture(Section, kind="mixture", section="data.corpus"):
    """The training pairs of several corpora together, the same in every epoch.

    temperature None: every pair of a part `weight` times; a fraction of a part is drawn by seed.
    temperature T: as many pairs as all parts have together, with each part's share proportional to
    weight * pairs^(1/T) (Arivazhagan et al. 2019): T = 1 keeps the sizes, a high T levels them.
    """

    parts: tuple[Weighted, ...] = ()
    temperature: float | None = number(None, ge=0.1, le=HUGE)
    evaluate: str | None = None  # the part of the validation and bare test splits; None: the first
    seed: int = number(0, ge=0, le=LARGEST)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(part.name or str(i) for i, part in enumerate(self.parts))

    @property
    def evaluated(self) -> str:
        """The name of the part that has the validation and the bare test splits."""
        return self.names[0] if self.evaluate is None else self.evaluate

    def _check(self) -> None:
        if not self.parts:
            how = "name the corpora in a config file: Mixture(parts=(Weighted(corpus=...), ...))"
            self._fail("parts", how)
        if len(set(self.names)) < len(self.names):
            self._fail("parts", "each part needs a name of its own")
        if self.evaluate is not None and self.evaluate not in self.names:
            self._fail("evaluate", f"allowed: {', '.join(self.names)}")
        main = self.parts[self.names.index(self.evaluated)].corpus
        if isinstance(main, ParallelFiles) and not main.test:
            self._fail("evaluate", f"{self.evaluated} has no test split")


Corpus = SingleCorpus | Mixture


class NoCleaning(Section, kind="none", section="data.clean"):
    """The training pairs as the corpus has them."""


class Cleaning(Section, kind="rules", section="data.clean"):
    """Which training pairs are left out. Each part of a mixture is cleaned by itself."""

    max_ratio: float | None = number(3.0, gt=1, le=HUGE)  # of the longer side to the shorter one
    ratio_of: Literal["words", "chars"] = "chars"
    min_words: int = count(1)  # either side
    max_words: int | None = number(None, ge="min_words", le=MOST)  # either side
    duplicates: bool = True  # of two equal pairs the first stays
    identical: bool = True  # both sides are the same but for case: not translated
    damaged: bool = False  # a side was read in the wrong encoding ("mouillÃ©"), or has U+FFFD
    language: bool = True  # another script, or the other language's stop words (French, English)


Clean = NoCleaning | Cleaning


class DataConfig(Section, section="data"):
    """What is read, how long it may be, how it is batched.

    batch_size counts padded tokens of the longer side, or sentences, in one micro-step of all
    processes: each process takes its share of every batch.
    """

    corpus: Corpus = Phrasebook()
    clean: Clean = NoCleaning()
    directions: Literal["forward", "both"] = "forward"  # of training alone (Ding et al. 2021)
    src_lang: str = "fr"
    tgt_lang: str = "en"
    max_len: int = count(256, ge=2)  # tokens with EOS, either side: longer training pairs go
    eval_long: Literal["keep", "truncate"] = "keep"  # what becomes of longer pairs in evaluation
    batch_by: Literal["tokens", "sentences"] = "tokens"
    batch_size: int = number(4096, ge=1, lt=2**31)
    num_workers: int | None = number(None, ge=0, lt=65)  # None: 2 on CUDA, else 0
    cache_dir: str = "data/cache"

    @property
    def tokens_of_a_batch(self) -> int:
        """Padded tokens of the longer side; an estimate where batches count sentences."""
        return self.batch_size * (1 if self.batch_by == "tokens" else 20)

    def workers_on(self, device: str) -> int:
        return (2 if device == "cuda" else 0) if self.num_workers is None else self.num_workers

    def _check(self) -> None:
        self._check_name("src_lang")  # it ends the names of files
        self._check_name("tgt_lang")
        if self.src_lang == self.tgt_lang:
            self._fail("tgt_lang", "must differ from data.src_lang")
        if isinstance(self.corpus, ParallelFiles) and not self.corpus.test:
            self._fail("corpus.test", "name at least one split")
        if self.batch_by == "tokens" and self.batch_size < self.max_len:
            rule = f"a budget of tokens must hold one sentence of data.max_len = {self.max_len}"
            self._fail("batch_size", rule)
        if {self.src_lang, self.tgt_lang} == {"fr", "en"}:
            return
        for part in self.corpus.parts if isinstance(self.corpus, Mixture) else (self,):
            if isinstance(part.corpus, Phrasebook | Iwslt2017):
                rule = f"the {part.corpus.kind} corpus has only French (fr) and English (en)"
                self._fail("tgt_lang" if self.src_lang in ("fr", "en") else "src_lang", rule)
        if isinstance(self.clean, Cleaning) and self.clean.language:
            rule = "checks only French (fr) and English (en): set it to false"
            self._fail("clean.language", rule)


# -------------------------------------------------------------------------------------------- optim


class Constant(Section, kind="constant", section="optim.schedule"):
    """The same learning rate throughout."""

    lr: float = positive(3e-4)


class EpochDecay(Section, kind="epoch_decay", section="optim.schedule"):
    """Epoch e, from 0: lr (e+1)/(w+1) up to w = warmup_epochs, then lr exp(-decay (e-w-1))."""

    lr: float = positive(3e-4)
    warmup_epochs: int = count(6, ge=0)
    decay: float = number(0.35, ge=0, le=HUGE)


class Noam(Section, kind="noam", section="optim.schedule"):
    """Vaswani et al. 2017, equation 3, times noam_factor; there is no separate learning rate."""

    noam_factor: float = positive(1.0)
    warmup_steps: int = count(4000, le=MOST_STEPS)


class InverseSqrt(Section, kind="inverse_sqrt", section="optim.schedule"):
    """Linear warm-up to lr at warmup_steps, then lr (warmup_steps / s)^0.5."""

    lr: float = positive(5e-4)
    warmup_steps: int = count(4000, le=MOST_STEPS)


class Cosine(Section, kind="cosine", section="optim.schedule"):
    """Linear warm-up to lr, then half a cosine down to final_fraction * lr at the last step."""

    lr: float = positive(1e-3)
    warmup_steps: int = count(400, le=MOST_STEPS)
    final_fraction: float = number(0.0, ge=0, lt=1)


class Linear(Section, kind="linear", section="optim.schedule"):
    """Linear warm-up to lr, then a straight line down to final_fraction * lr at the last step."""

    lr: float = positive(5e-5)
    warmup_steps: int = count(400, le=MOST_STEPS)
    final_fraction: float = number(0.0, ge=0, lt=1)


class Plateau(Section, kind="plateau", section="optim.schedule"):
    """Linear warm-up to lr, then times `factor` whenever the validation loss no longer falls."""

    lr: float = positive(5e-4)
    warmup_steps: int = count(400, le=MOST_STEPS)
    factor: float = number(0.5, gt=0, lt=1)
    patience: int = count(2)  # evaluations in a row without a new lowest loss
    min_lr: float = number(1e-6, ge=0, le="lr")


Schedule = Constant | EpochDecay | Noam | InverseSqrt | Cosine | Linear | Plateau


class CrossEntropy(Section, kind="cross_entropy", section="optim.objective"):
    """The cross-entropy of the target tokens, smoothed by optim.label_smoothing."""


class RDrop(Section, kind="r_drop", section="optim.objective"):
    """R-Drop (Liang et al. 2021, eq. 4): cross-entropy, and how far two dropout passes differ."""

    alpha: float = number(5.0, ge=0, le=HUGE)


class SimCut(Section, kind="sim_cut", section="optim.objective"):
    """SimCut (Gao et al. 2022): cross-entropy, and how far a pass with tokens cut out differs."""

    alpha: float = number(3.0, ge=0, le=HUGE)
    cut: float = number(0.05, ge=0, lt=1)  # probability that a token loses its embedding


Objective = CrossEntropy | RDrop | SimCut


class StopAtBadNumbers(Section, kind="stop", section="optim.bad_numbers"):
    """NaN or infinity in an update's loss or gradient ends the run; the weights are not touched."""


class SkipBadNumbers(Section, kind="skip", section="optim.bad_numbers"):
    """Updates with NaN or infinity are skipped and counted; `in_a_row` in a row end the run."""

    in_a_row: int = count(10)


BadNumbers = StopAtBadNumbers | SkipBadNumbers


class OptimConfig(Section, section="optim"):
    """The optimizer, its learning rate, and what it minimises."""

    # muon: for maps inside layers, and adamw for the rest; adamw is fairseq's adam
    optimizer: Literal["adam", "adamw", "muon"] = "adam"
    betas: tuple[float, float] = number((0.9, 0.98), ge=0, lt=1)
    eps: float = positive(1e-8)
    weight_decay: float = number(0.0, ge=0, le=HUGE)  # adam: of the gradient, an L2 penalty
    decay: Literal["all", "matrices"] = "all"  # matrices: maps and embeddings
    schedule: Schedule = InverseSqrt()
    objective: Objective = CrossEntropy()
    grad_clip: float | None = positive(1.0)  # maximum norm of the whole gradient
    accumulate: int = count(1)  # micro-batches of one update
    label_smoothing: float = number(0.1, ge=0, lt=1)
    bad_numbers: BadNumbers = StopAtBadNumbers()  # NaN or infinity in loss or gradient


# -------------------------------------------------------------------------- train, evaluate, decode


class TrainConfig(Section, section="train"):
    """How long, where, and what is kept."""

    max_epochs: int = count(20)
    max_steps: int | None = count(None, le=MOST_STEPS)  # stops earlier, within an epoch too
    max_tokens: int | None = count(None, le=LARGEST)  # likewise; target tokens, without sampling
    seed: int = number(0, ge=0, le=LARGEST)
    # A run, checkpoint or Marian model: training starts with its weights and tokenizer.
    init_from: str | None = None
    init_model: bool = False  # also take its model section, but for what drops in training
    freeze: tuple[str, ...] = ()  # weights that stay as they are, by name: "encoder.*", ...
    device: str = "auto"  # auto: CUDA where there is one
    # auto: bf16 where it is faster, else fp32; tf32: fp32, a GPU's products in TensorFloat-32
    precision: Literal["auto", "fp32", "tf32", "bf16", "fp16"] = "auto"
    compile: bool = False  # both stacks, and the softmax of the cross-entropy
    cuda_graphs: bool = False  # forward and backward as CUDA graphs, one for each shape of a batch
    deterministic: bool = False  # repeats to the last bit on a GPU too, but is slower there
    runs_dir: str = "runs"
    log_every: int = count(20, le=MOST_STEPS)  # steps
    checkpoint_every_epochs: int = count(1)
    checkpoint_every_steps: int | None = count(None, le=MOST_STEPS)
    keep_regular: int = count(2, ge=2)
    keep_steps: int = count(2, ge=2)
    keep_best: int = count(2, ge=2)
    # Of a moving average, which is then evaluated; 0.9999 is 1e-4 of Marian's smoothing.
    ema_decay: float | None = number(None, gt=0, lt=1)
    patience: int | None = count(None)  # validations without a better one before stopping
    log_attention: bool = True  # maps of one sentence in TensorBoard at each evaluation

    def _check(self) -> None:
        if not self.runs_dir:
            self._fail("runs_dir", "name a folder; this one is .")
        if self.init_model and self.init_from is None:
            self._fail("init_model", "takes the model of train.init_from, which is not set")


MOST_ROWS = 65_535  # of a batch in attention: CUDA's kernels take no more
MOST_PENALTY = 5  # beyond it the scores of long hypotheses are all but 0, whatever they say


class EvaluateConfig(Section, section="evaluate"):
    """The validation split during training, and what test.py reports."""

    every_epochs: int = count(1)
    every_steps: int | None = count(None, le=MOST_STEPS)  # updates, in place of epochs
    choose_by: Literal["loss", "bleu", "chrf"] = "loss"  # the best checkpoint, and patience
    also: tuple[str, ...] = ()  # more splits whose loss is logged
    bleu_every_epochs: int = count(1, ge=0)  # greedy; 0: never; by steps: at each validation
    bleu_sentences: int | None = count(500)  # the first of the split; None: all
    batch_size: int | None = number(None, ge=1, le=MOST_ROWS)  # None: 256 on CUDA, else 64
    bootstrap_samples: int = number(1000, ge=2, lt=10**6)
    length_buckets: tuple[int, ...] = count((10, 15, 20, 30))  # source words; one more is open

    def batch_on(self, device: str) -> int:
        return self.batch_size or (256 if device == "cuda" else 64)

    def _check(self) -> None:
        if list(self.length_buckets) != sorted(set(self.length_buckets)):
            self._fail("length_buckets", "must increase")
        every = "every_steps" if self.every_steps else "every_epochs"
        each = self.every_steps or self.every_epochs % max(1, self.bleu_every_epochs) == 0
        if self.choose_by != "loss" and not (self.bleu_every_epochs and each):
            rule = f'evaluate.choose_by = "{self.choose_by}" needs translations of every validation'
            rule += f" (evaluate.{every} = {getattr(self, every)})"
            self._fail("bleu_every_epochs", f"{rule}: set evaluate.bleu_every_epochs=1")


# What scores of validation depend on beside the model: part of training where they choose.
OF_BLEU = (
    "evaluate.bleu_sentences",
    *("decode.max_len", "decode.max_len_ratio", "decode.no_repeat_ngram_size"),
)


class Beam(Section, kind="beam", section="decode.search"):
    """Beam search: the beam_size hypotheses that are most probable so far."""


class DiverseBeam(Section, kind="diverse", section="decode.search"):
    """Diverse beam search (Vijayakumar et al. 2016), for n-best lists that differ."""

    groups: int | None = count(None)  # they share out beam_size; None: groups of one
    # Subtracted from a log-probability for each earlier use of the token, see `beam_search`.
    strength: float = number(0.5, ge=0, le=HUGE)


class Sampling(Section, kind="sample", section="decode.search"):
    """n_best translations drawn from the model."""

    temperature: float = number(1.0, ge=1e-3, le=HUGE)  # divides the log-probabilities
    top_k: int | None = count(None)  # the most probable tokens of a step
    top_p: float | None = number(None, ge=TINY, le=1)  # of these the fewest that reach it together
    seed: int = number(0, ge=0, le=LARGEST)


Search = Beam | DiverseBeam | Sampling


class Neighbours(Section, section="decode.neighbours"):
    """Nearest neighbours of each hidden state in datastores, see `models.decoding.neighbours`."""

    datastore: tuple[str, ...] = ()  # files of datastore.py, one for each model; (): none
    k: int = count(16)
    temperature: float = number(10.0, ge=TINY, le=HUGE)  # divides squared distances
    weight: float = number(0.5, ge=TINY, lt=1)  # of the neighbours in the probabilities


NO_NEIGHBOURS = Neighbours()


class DecodeConfig(Section, section="decode"):
    """Search, for hypotheses of at most min(max_len, max_len_ratio * source tokens + 10) tokens."""

    search: Search = Beam()
    beam_size: int = number(5, ge=1, le=MOST_ROWS)
    # alpha of Wu et al. 2016, equation 14
    length_penalty: float = number(0.6, ge=0, le=MOST_PENALTY)
    max_len: int = count(256)
    max_len_ratio: float = number(2.0, ge=TINY, lt=1000)
    n_best: int = number(5, ge=1, le=MOST_ROWS)
    no_repeat_ngram_size: int = number(0, ge=0, le=MOST_ROWS)  # no n-gram twice; 0: any
    mbr: Literal["chrf", "bleu"] | None = None  # minimum Bayes risk among the n_best
    neighbours: Neighbours = NO_NEIGHBOURS
    batch_size: int | None = count(None)  # sentences; None: 256 on CUDA, else 32

    def batch_on(self, device: str) -> int:
        most = MOST_ROWS // max(self.beam_size, self.n_best)
        return self.batch_size or min(256 if device == "cuda" else 32, most)

    def chunk_on(self, device: str, chunk: int) -> int:
        """Lines to sort by length together: `chunk` for each 32 of a batch."""
        return chunk * max(1, self.batch_on(device) // 32)

    def _check(self) -> None:
        if self.n_best > self.beam_size and not isinstance(self.search, Sampling):
            rule = f"at most decode.beam_size = {self.beam_size}: lower it, or raise that too"
            self._fail("n_best", rule)
        if not self.neighbours.datastore and self.neighbours != NO_NEIGHBOURS:
            self._fail(
                "neighbours.datastore", "other settings of neighbours need one (datastore.py)"
            )
        if isinstance(self.search, DiverseBeam) and self.beam_size % (self.search.groups or 1):
            self._fail("search.groups", f"must divide decode.beam_size = {self.beam_size}")
        width = "n_best" if isinstance(self.search, Sampling) else "beam_size"
        if (self.batch_size or 1) * (n_rows := getattr(self, width)) > MOST_ROWS:
            rule = f"at most {MOST_ROWS // n_rows:,} with decode.{width} = {n_rows}"
            self._fail("batch_size", rule)


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
        self._check_name("name", "_-.")  # it begins the name of a folder
        if not self.name.strip("."):
            self._fail("name", "letters, digits, _ or - besides the dots")
        apart = isinstance(self.tokenizer, Subword) and not self.tokenizer.joint
        if self.data.directions == "both" and (apart or isinstance(self.tokenizer, Marian)):
            remedy = "set tokenizer.joint=true" if apart else 'use tokenizer = "subword"'
            self._fail("data.directions", f"one vocabulary must segment both languages: {remedy}")
        if self.model.tie_embeddings == "all" and apart:
            rule = "tokenizer.joint = False gives each language a vocabulary of its own"
            self._fail("model.tie_embeddings", f"{rule}: set model.tie_embeddings=target")
        sides: list[tuple[str, Side]] = [
            ("data", "source"),
            ("data", "target"),
            ("decode", "target"),
        ]
        for section, side in sides:
            bound, length = self.model.position.bound(side), getattr(self, section).max_len
            if bound is not None and bound.length < length:
                rule = f"allows for {bound.length} tokens on the {side} side"
                rule += f"; {section}.max_len = {length} asks for more"
                rule += ": lower the other"
                rule += "" if self.train.init_model else ", or raise the one in a new training"
                self._fail(f"model.position.{bound.field}", rule)
