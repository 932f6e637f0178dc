"""Corpus scores of translations: text in, numbers out."""

import logging
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from utils.errors import UserError
from utils.languages import language_code

logger = logging.getLogger(__name__)

TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"}  # as `sacrebleu -l` chooses
ORDER = 4  # the 4 of BLEU-4
_RESAMPLED_PER_CHUNK = 4_000_000  # drawn sentences held at once: bounds memory at about 100 MB


@dataclass(frozen=True, slots=True)
class LengthBucket:
    """Sentences with low..high source words, both included."""

    low: int
    high: int | None  # None: no upper end
    n: int
    bleu: float | None  # sacreBLEU (0..100) of these sentences alone; None where there are none


@dataclass(frozen=True, slots=True)
class CorpusScores:
    """Every score of one set of translations; signatures make a score reproducible."""

    bleu4: float  # nltk's corpus_bleu on lists of the tokens of `signature`, 0..1, not smoothed
    sacrebleu: float  # 0..100
    signature: str
    chrf: float  # 0..100
    chrf_signature: str
    chrf_interval: tuple[float, float]  # as `interval`
    brevity_penalty: float
    length_ratio: float  # tokens of `signature`, hypotheses / references
    interval: tuple[float, float]  # 2.5% and 97.5% quantiles of resampled sacreBLEU
    buckets: tuple[LengthBucket, ...]
    char_bleu: float | None  # nltk's corpus_bleu of plain strings, hence of characters, 0..1
    multi30k_bleu: float | None  # 0..100, see `multi30k_bleu`
    n: int  # sentences


@dataclass(frozen=True, slots=True)
class PairedResult:
    """sacreBLEU, or chrF, of systems a and b on the same `n` sentences."""

    score_a: float
    score_b: float
    difference: float  # b - a
    p_value: float
    interval: tuple[float, float]  # of the difference, 95%
    n: int


def sentence_statistics(
    hypotheses: Sequence[str], references: Sequence[str], language: str = ""
) -> np.ndarray:
    """The statistics of BLEU for each sentence, [n, 10]: both lengths, 4 matches, 4 totals.

    Their sum over any set of sentences gives the corpus BLEU of that set.
    """
    from sacrebleu.metrics import BLEU

    # effective_order avoids a warning; it changes sentence scores, which are unused, and no count.
    bleu = BLEU(force=True, effective_order=True, tokenize=bleu_tokenizer(language))
    rows = np.empty((len(hypotheses), 2 + 2 * ORDER))
    for row, hypothesis, reference in zip(rows, hypotheses, references, strict=True):
        score = bleu.sentence_score(hypothesis, [reference])
        row[:] = (score.sys_len, score.ref_len, *score.counts, *score.totals)
    return rows


def summed_bleu(statistics: np.ndarray) -> np.ndarray:
    """sacreBLEU, 0..100, of summed statistics [..., 10] -> [...].

    Papineni et al. 2002, section 2.3, with NIST's smoothing, sacreBLEU's default: the k-th order
    without a match counts as 2^-k matches. No match at all, or no n-gram of some order, gives 0.
    """
    hypothesis_length, reference_length = statistics[..., 0], statistics[..., 1]
    matches, totals = statistics[..., 2 : 2 + ORDER], statistics[..., 2 + ORDER :]
    unmatched = matches == 0
    smoothed = np.where(unmatched, 0.5 ** np.cumsum(unmatched, axis=-1), matches)
    log_precision = np.log(smoothed / np.maximum(totals, 1)).mean(-1)
    log_brevity = np.minimum(0.0, 1 - reference_length / np.maximum(hypothesis_length, 1))
    defined = (matches[..., 0] > 0) & (totals > 0).all(-1)
    return np.where(defined, 100 * np.exp(log_brevity + log_precision), 0.0)


def chrf_statistics(hypotheses: Sequence[str], references: Sequence[str]) -> np.ndarray:
    """The statistics of sacreBLEU's chrF for each sentence, [n, 18].

    For n-grams of 1 to 6 characters: how many the hypothesis, the reference and both have.
    """
    from sacrebleu.metrics import CHRF

    return np.array(CHRF()._extract_corpus_statistics(hypotheses, [references]), dtype=np.float64)


def summed_chrf(statistics: np.ndarray) -> np.ndarray:
    """sacreBLEU's chrF2, 0..100, of summed statistics [..., 18] -> [...]. Popović 2015, section 2.

    Precision and recall are means over the orders of which both sides have n-grams.
    """
    n_hyp, n_ref, n_both = (statistics[..., i::3] for i in range(3))
    orders = (n_hyp > 0) & (n_ref > 0)
    n_orders = np.maximum(orders.sum(-1), 1)
    precision, recall = (
        np.where(orders, n_both / np.maximum(n, 1), 0).sum(-1) / n_orders for n in (n_hyp, n_ref)
    )
    return 100 * 5 * precision * recall / np.maximum(4 * precision + recall, 1e-16)


Score = Callable[[np.ndarray], np.ndarray]  # of summed statistics


def resampled_scores(
    systems: Sequence[np.ndarray], samples: int, seed: int, score: Score = summed_bleu
) -> list[np.ndarray]:
    """The score of each system (statistics [n, 10]; chrF: [n, 18]) on resamples, [samples] each.

    A resample is the same draw of sentences for every system.
    """
    n = len(systems[0])
    rng = np.random.default_rng(seed)
    found = [np.empty(samples) for _ in systems]
    chunk = max(1, _RESAMPLED_PER_CHUNK // n)
    for start in range(0, samples, chunk):
        size = min(chunk, samples - start)
        drawn = rng.integers(n, size=(size, n)) + n * np.arange(size)[:, None]
        # How often each sentence was drawn: one product sums the statistics, exactly (integers).
        times = np.bincount(drawn.ravel(), minlength=size * n).reshape(size, n).astype(np.float64)
        for values, statistics in zip(found, systems):
            values[start : start + size] = score(times @ statistics)
    return found


def score_corpus(
    hypotheses: Sequence[str],
    references: Sequence[str],
    sources: Sequence[str],
    *,
    length_buckets: Sequence[int],
    bootstrap_samples: int,
    language: str = "",
    char_bleu: bool = False,
    multi30k: str | None = None,
) -> CorpusScores:
    """Score detokenised translations against one reference each.

    `length_buckets` are increasing upper ends, in source words (split at white space); a last, open
    bucket follows. `language` is the target's; `multi30k` is the one for `multi30k_bleu`. Raises
    UserError where the numbers of sentences differ or are 0.
    """
    from sacrebleu.metrics import BLEU, CHRF

    _check_aligned(hypotheses=hypotheses, references=references, sources=sources)
    statistics = sentence_statistics(hypotheses, references, language)
    bleu, chrf = BLEU(tokenize=bleu_tokenizer(language)), CHRF()
    score = bleu.corpus_score(hypotheses, [references])
    chrf_score = chrf.corpus_score(hypotheses, [references])
    drawn = partial(resampled_scores, samples=bootstrap_samples, seed=0)
    (resampled,) = drawn([statistics])
    (resampled_chrf,) = drawn([chrf_statistics(hypotheses, references)], score=summed_chrf)
    sides = (hypotheses, references)
    tokens = ([bleu.tokenizer(line.rstrip()).split() for line in lines] for lines in sides)
    return CorpusScores(
        bleu4=_nltk_corpus_bleu(*tokens),
        sacrebleu=score.score,
        signature=str(bleu.get_signature()),
        chrf=chrf_score.score,
        chrf_signature=str(chrf.get_signature()),
        chrf_interval=quantile_interval(resampled_chrf),
        brevity_penalty=score.bp,
        length_ratio=float(score.ratio),
        interval=quantile_interval(resampled),
        buckets=_bucket_scores(statistics, sources, length_buckets),
        char_bleu=_nltk_corpus_bleu(hypotheses, references) if char_bleu else None,
        multi30k_bleu=multi30k_bleu(*sides, multi30k) if multi30k else None,
        n=len(hypotheses),
    )


def paired_bootstrap(
    hypotheses_a: Sequence[str],
    hypotheses_b: Sequence[str],
    references: Sequence[str],
    *,
    samples: int,
    seed: int,
    language: str = "",
) -> PairedResult:
    """Is system b better than system a? Paired bootstrap over sentences (Koehn 2004, section 4).

    Each of S resamples draws n sentences with replacement, the same ones for both systems, and
    gives a difference d = BLEU(b) - BLEU(a). With m = min(#{d <= 0}, #{d >= 0}), the two-sided p
    value is

        p = min(1, 2 (m + 1) / (S + 1))

    so it is never 0, does not depend on which system is called a, and is 1 for identical systems.
    The interval is the 2.5% and 97.5% quantiles of d. Raises UserError as score_corpus.
    """
    _check_aligned(hypotheses_a=hypotheses_a, hypotheses_b=hypotheses_b, references=references)
    sides = hypotheses_a, hypotheses_b
    a, b = (sentence_statistics(side, references, language) for side in sides)
    return compare_statistics(a, b, samples=samples, seed=seed)


def compare_statistics(
    a: np.ndarray, b: np.ndarray, *, samples: int, seed: int, score: Score = summed_bleu
) -> PairedResult:
    """As paired_bootstrap, from the statistics of two systems: those that `score` takes."""
    score_a, score_b = (float(score(statistics.sum(0))) for statistics in (a, b))
    resampled_a, resampled_b = resampled_scores([a, b], samples, seed, score)
    differences = resampled_b - resampled_a
    rarer_sign = min(int((differences <= 0).sum()), int((differences >= 0).sum()))
    return PairedResult(
        score_a=score_a,
        score_b=score_b,
        difference=score_b - score_a,
        p_value=min(1.0, 2 * (rarer_sign + 1) / (samples + 1)),
        interval=quantile_interval(differences),
        n=len(a),
    )


def human_agreement(difference: float) -> float:
    """In how many of 100 pairs of systems so far apart in sacreBLEU people prefer the better one.

    From a curve fitted to human judgements (Kocmi et al. 2024, "Navigating the metrics maze"). It
    falls below chance for the smallest differences; the result is then 50.
    """
    with warnings.catch_warnings():  # of an escape in its text, on Python 3.12 and later
        warnings.simplefilter("ignore", SyntaxWarning)
        import mt_thresholds

    return max(50.0, mt_thresholds.accuracy(abs(difference), "bleu"))


def multi30k_bleu(hypotheses: Sequence[str], references: Sequence[str], language: str) -> float:
    """BLEU (0..100) as papers on Multi30k report it, not comparable with sacreBLEU.

    Both sides are normalised in punctuation and tokenised as by Moses, and lower-cased; there is no
    further tokenisation and no smoothing. `language` is the target's.
    """
    from sacrebleu.metrics import BLEU
    from sacremoses import MosesPunctNormalizer, MosesTokenizer

    code = language_code(language) or language
    normalizer, tokenizer = MosesPunctNormalizer(code), MosesTokenizer(code)

    def prepared(lines: Sequence[str]) -> list[str]:
        normal = map(normalizer.normalize, lines)
        return [tokenizer.tokenize(line, return_str=True).lower() for line in normal]

    bleu = BLEU(tokenize="none", smooth_method="none", force=True)
    return bleu.corpus_score(prepared(hypotheses), [prepared(references)]).score


def sacrebleu_score(
    hypotheses: Sequence[str], references: Sequence[str], language: str = ""
) -> float:
    """sacreBLEU (0..100) alone, for validation. Raises UserError as score_corpus."""
    from sacrebleu.metrics import BLEU

    _check_aligned(hypotheses=hypotheses, references=references)
    # force: no warning about tokenised text at every validation; the final scoring still gives it.
    bleu = BLEU(force=True, tokenize=bleu_tokenizer(language))
    return bleu.corpus_score(hypotheses, [references]).score


def chrf_score(hypotheses: Sequence[str], references: Sequence[str]) -> float:
    """sacreBLEU's chrF (0..100) alone, for validation. Raises UserError as score_corpus."""
    from sacrebleu.metrics import CHRF

    _check_aligned(hypotheses=hypotheses, references=references)
    return CHRF().corpus_score(hypotheses, [references]).score


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str]) -> list[float]:
    """sacreBLEU's chrF (0..100) of each sentence."""
    from sacrebleu.metrics import CHRF

    score = CHRF().sentence_score
    return [score(hypothesis, [of]).score for hypothesis, of in zip(hypotheses, references)]


def format_scores(scores: CorpusScores) -> str:
    """The scores as a block of aligned rows for the terminal, without a final newline."""
    (low, high), (chrf_low, chrf_high) = scores.interval, scores.chrf_interval
    rows = [
        ("sentences", f"{scores.n:,}", ""),
        ("BLEU-4 (nltk, tokens)", f"{scores.bleu4:.4f}", ""),
        ("sacreBLEU", f"{scores.sacrebleu:.2f}", f"95% interval {low:.2f} to {high:.2f}"),
        ("", "", scores.signature),
        ("chrF", f"{scores.chrf:.2f}", f"95% interval {chrf_low:.2f} to {chrf_high:.2f}"),
        ("", "", scores.chrf_signature),
        ("brevity penalty", f"{scores.brevity_penalty:.4f}", ""),
        ("length ratio", f"{scores.length_ratio:.4f}", "hypothesis / reference tokens"),
    ]
    if scores.char_bleu is not None:
        note = "of strings, as the original report"
        rows.append(("character BLEU (nltk)", f"{scores.char_bleu:.4f}", note))
    if scores.multi30k_bleu is not None:
        note = "lower-cased, tokenised as by Moses"
        rows.append(("BLEU as in papers on Multi30k", f"{scores.multi30k_bleu:.2f}", note))
    for bucket in scores.buckets:
        span, last = f"{bucket.low} or more", bucket.high
        if last is not None:
            span = " to ".join(map(str, sorted({bucket.low, last})))
        words = "word" if last == 1 else "words"
        value = "-" if bucket.bleu is None else f"{bucket.bleu:.2f}"
        rows.append((f"sacreBLEU, {span} {words}", value, f"sentences: {bucket.n:,}"))
    wide, narrow, _ = (max(map(len, column)) for column in zip(*rows))
    return "\n".join(f"{a:<{wide}}  {b:>{narrow}}  {c}".rstrip() for a, b, c in rows)


def _check_aligned(**columns: Sequence[str]) -> None:
    """Raises UserError unless all columns have the same number of lines, at least one."""
    if len({0, *map(len, columns.values())}) != 2:
        counts = ", ".join(f"{len(lines)} {name}" for name, lines in columns.items())
        raise UserError(f"nothing to score: {counts}; give one line of each for every sentence")


@cache
def bleu_tokenizer(language: str) -> str:
    """sacreBLEU's tokenizer for a language, as its `-l` takes it; `char` where MeCab is missing."""
    from sacrebleu.metrics import BLEU

    code = language_code(language) or ""
    name = TOKENIZERS.get(code, BLEU.TOKENIZER_DEFAULT)
    try:
        BLEU(tokenize=name)
    except RuntimeError:
        remedy = f"pip install 'sacrebleu[{code}]'"
        logger.warning("sacreBLEU for %s counts characters; to count words: %s", language, remedy)
        return "char"
    return name


def quantile_interval(values: np.ndarray) -> tuple[float, float]:
    """The 2.5% and 97.5% quantiles."""
    low, high = np.quantile(values, (0.025, 0.975))
    return float(low), float(high)


def _bucket_scores(
    statistics: np.ndarray, sources: Sequence[str], length_buckets: Sequence[int]
) -> tuple[LengthBucket, ...]:
    lows = [1, *(end + 1 for end in length_buckets)]
    place = np.searchsorted(length_buckets, [len(source.split()) for source in sources])
    buckets = []
    for i, (low, high) in enumerate(zip(lows, [*length_buckets, None])):
        inside = statistics[place == i]
        bleu = float(summed_bleu(inside.sum(0))) if len(inside) else None
        buckets.append(LengthBucket(low=low, high=high, n=len(inside), bleu=bleu))
    return tuple(buckets)


def _nltk_corpus_bleu(
    hypotheses: Sequence[Sequence[str]], references: Sequence[Sequence[str]]
) -> float:
    """nltk's corpus BLEU-4 (0..1) of lists of tokens, not smoothed; of characters, for strings.

    An order without any match gives a value near 0 (below 1e-70); nltk's warning is suppressed.
    """
    from nltk.translate.bleu_score import corpus_bleu

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\s*The hypothesis contains 0 counts")
        return float(corpus_bleu([[reference] for reference in references], hypotheses))
