"""A subword vocabulary (BPE or Unigram), by default of both languages, trained by `tokenizers`."""

import hashlib
import json
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from configs.schema import Subword
from tokenizer.base import BaseTokenizer, require_unicode
from tokenizer.sampling import LONGEST_WORD, BpeDropout, Sampler, UnigramSampling
from utils.errors import ConfigError, UserError

logger = logging.getLogger(__name__)

PAD, BOS, EOS, UNK = SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
BYTE_PIECES = tuple(f"<0x{byte:02X}>" for byte in range(256))

# In a vocabulary of at least this size, characters without a piece are spelled in bytes, and
# nothing is unknown. In a smaller one they become <unk>: 256 byte pieces would take too many slots.
MIN_VOCAB_FOR_BYTES = 600

# A character gets a piece of its own if it is at least one in so many of the text's characters.
RARE_CHARACTER = 1_000_000

# Punctuation, symbols, digits and odd spaces are words of their own, with the space before them if
# there is one, so that "fenêtre." shares "fenêtre". An apostrophe ends a word instead: l' + homme,
# qu' + il, don' + t.
_ALONE = r"(?:\p{N}|[\p{Z}\s]|[[\p{P}\p{S}]&&[^'’▁]])"
_APOSTROPHE = Regex("['’]")
_NFC = normalizers.NFC()
_STRAIGHT = {"'": "‘’‚ʼ", '"': "“”„"}

# Longer texts are not learned from: they are no sentences, and a word of this length takes seconds.
LONGEST_TEXT = 10_000

FILE, CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"

_MARK = "\ue000"  # a private character, for the training of Unigram alone

# The most words that are remembered, and the longest such word: some hundred bytes each.
REMEMBERED = 2**18


class _ByWord(dict[str, list[Any]]):
    """A function of text that works word by word, with its results remembered."""

    def __init__(self, function: Callable[[str], list[Any]]) -> None:
        self.function = function

    def __missing__(self, word: str) -> list[Any]:
        found = self.function(word)
        if len(self) < REMEMBERED and len(word) <= LONGEST_WORD:
            self[word] = found
        return found

    def of(self, text: str) -> list[Any]:
        """The function's result for the text."""
        words = text.split(" ")
        if "▁" in text or "" in words:  # a word alone does not show where it begins
            return self.function(text)
        return list(chain.from_iterable(map(self.__getitem__, words)))


class SubwordTokenizer(BaseTokenizer):
    """One vocabulary for both sides; "▁" in a piece stands for the space before a word.

    Text is normalised only to NFC (NFKC would change "½", "…" and no-break spaces), and by
    `quotes="straight"`. So decoding gives back the encoded text, except for outer spaces, such
    quotes, and "▁", which becomes a space. No text can produce a special id but `<unk>`, which
    stands for characters without a piece, where there are no byte pieces (MIN_VOCAB_FOR_BYTES). A
    symbol of the config is one piece wherever it stands. The same training texts give the same
    vocabulary.
    """

    kind = Subword.kind
    shared_vocab = True

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        backend.encode_special_tokens = True  # special tokens written in the text are not special
        ids: list[Any] = [backend.token_to_id(piece) for piece in SPECIALS]
        if None in ids:
            lacking = SPECIALS[ids.index(None)]
            raise UserError(f"the tokenizer has no {lacking} piece: this project did not make it")
        self.pad_id, self.bos_id, self.eos_id, self.unk_id = ids
        self.src_vocab_size = self.tgt_vocab_size = backend.get_vocab_size()
        self._ids, self._pieces = _ByWord(self._encode), _ByWord(self._cut)

    def __reduce__(self) -> Any:  # a copy of the backend lacks the setting that __init__ makes
        return type(self), (self._backend,)

    @classmethod
    def train(cls, texts: Iterable[str], config: Subword) -> Self:
        """Train on texts of one language or both, which may give fewer pieces than vocab_size.

        Raises UserError if there is no text, and for text that is not Unicode.
        """
        texts = [text for text in texts if len(text) <= LONGEST_TEXT]
        require_unicode(texts)
        in_bytes = BYTE_PIECES if config.vocab_size >= MIN_VOCAB_FOR_BYTES else ()
        reserved = [*SPECIALS, *in_bytes, *config.symbols]
        room = config.vocab_size - len(reserved)
        normalizer: Any = _NFC
        if config.quotes == "straight":
            curly = [(c, straight) for straight, each in _STRAIGHT.items() for c in each]
            parts = [_NFC, *(normalizers.Replace(*pair) for pair in curly)]
            normalizer = normalizers.Sequence(parts)
        # Python's own NFC is quadratic in the length of a run of combining marks.
        texts = [text if text.isascii() else normalizer.normalize_str(text) for text in texts]
        if config.symbols:
            texts = [re.sub(_any_of(config.symbols), " ", text) for text in texts]
        corpus = _frequent_characters(texts, room // 2)
        if not any(text.strip() for text in corpus):
            raise UserError(
                "no text to train the tokenizer on: the training split has no line of 1 to "
                f"{LONGEST_TEXT:,} characters; give a sentence a line"
            )
        learn = {"bpe": _learn_bpe, "unigram": _learn_unigram}[config.algorithm]
        tokenizer = cls(_pipeline(learn(corpus, room, reserved), normalizer, config.symbols))
        wanted, found = config.vocab_size, tokenizer.src_vocab_size
        if found < wanted:
            words = "tokenizer.vocab_size = %s, but the text gives no more than %s pieces"
            logger.info(words, f"{wanted:,}", f"{found:,}")
        return tokenizer

    @classmethod
    def load(cls, folder: Path, prefix: str = "") -> Self:
        """Read what `save` wrote. Raises UserError where it is missing or damaged."""
        path = folder / f"{prefix}{FILE}"
        try:
            backend = Tokenizer.from_str(path.read_text("utf-8"))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"cannot read the tokenizer {str(path)!r}: {error}") from None
        return cls(backend)

    def encode_src_batch(self, texts: Sequence[str]) -> list[list[int]]:
        require_unicode(texts)
        return [[*self._ids.of(text), self.eos_id] for text in texts]

    encode_tgt_batch = encode_src_batch

    def _encode(self, text: str) -> list[int]:
        return self._backend.encode(text, add_special_tokens=False).ids

    def cut(self, text: str) -> list[str]:
        """The words of a text, which are segmented one by one; joined they are its normal form."""
        return self._pieces.of(text)

    def _cut(self, text: str) -> list[str]:
        normal = self._backend.normalizer.normalize_str(text)
        return [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(normal)]

    def sampler(self, strength: float) -> Sampler:
        """Random segmentations for training; `encode_*` is not affected.

        strength > 0 is BPE's probability to leave a merge out, or Unigram's alpha. Raises
        ConfigError for a probability of 1 or more.
        """
        model = json.loads(self._backend.to_str())["model"]
        if model["type"] == "BPE":
            if strength >= 1:
                rule = "a probability below 1, for the tokenizer is one of BPE"
                raise ConfigError(f"tokenizer.sampling = {strength}: {rule}")
            ids, merges = model["vocab"], enumerate(model["merges"])
            table = {(ids[a], ids[b]): (rank, ids[a + b]) for rank, (a, b) in merges}
            bpe = BpeDropout(self._spell, table, unk_id=self.unk_id, probability=strength)
            return partial(self._sample, bpe)
        # Including the reserved ones, which no word spells.
        pieces = {piece: (i, score) for i, (piece, score) in enumerate(model["vocab"])}
        unigram = UnigramSampling(self._spell, pieces, unk_id=self.unk_id, alpha=strength)
        return partial(self._sample, unigram)

    def _sample(
        self, by: BpeDropout | UnigramSampling, text: str, rng: np.random.Generator
    ) -> list[int]:
        words = self.cut(text)
        draws: Iterator[Any] = iter(by.draws(sum(map(len, words)), rng))
        known = self._symbols
        ids: Iterator[Any] = ([known[w]] if w in known else by.segment(w, draws) for w in words)
        return [*chain.from_iterable(ids), self.eos_id]

    def _spell(self, char: str) -> tuple[int, ...]:
        """A character's id, else those of its bytes, else the unknown id."""
        for pieces in ([char], [BYTE_PIECES[byte] for byte in char.encode()]):
            ids: list[Any] = [self._backend.token_to_id(piece) for piece in pieces]
            if None not in ids:
                return tuple(ids)
        return (self.unk_id,)

    def decode_batch(self, sequences: Sequence[Sequence[int]]) -> list[str]:
        cut = [self._up_to_eos(sequence) for sequence in sequences]
        return [text.strip() for text in self._backend.decode_batch(cut, skip_special_tokens=True)]

    def src_pieces(self, ids: Sequence[int]) -> list[str]:
        return [str(self._backend.id_to_token(i)) for i in ids]

    def files(self) -> Mapping[str, bytes]:
        """The Hugging Face format: AutoTokenizer reads it, with these ids for normalised spaces."""
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": PAD,
            "bos_token": BOS,
            "eos_token": EOS,
            "unk_token": UNK,
            "split_special_tokens": True,
            "clean_up_tokenization_spaces": False,
        }
        return {
            FILE: self._backend.to_str(pretty=True).encode(),
            CONFIG_FILE: (json.dumps(config, indent=2) + "\n").encode(),
        }

    def fingerprint(self) -> str:
        return self._fingerprint

    @cached_property
    def _symbols(self) -> dict[str, Any]:
        """The symbols of the config and their ids, by the pattern of `_pipeline`."""
        cutters = json.loads(self._backend.to_str())["pre_tokenizer"]["pretokenizers"]
        patterns = (each.get("pattern", {}).get("Regex", "") for each in cutters)
        found = (re.fullmatch(r"\(\?:(.*)\)\|▁\?\(\?!\1\)(.*)", each) for each in patterns)
        escaped = next((each[1] for each in found if each and each[2] == _ALONE), "")
        symbols = [re.sub(r"\\(.)", r"\1", each) for each in escaped.split("|") if each]
        return {each: self._backend.token_to_id(each) for each in symbols}

    @cached_property
    def _fingerprint(self) -> str:
        backend = json.loads(self._backend.to_str())
        canonical = json.dumps(backend, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()


def _frequent_characters(texts: list[str], most: int) -> list[str]:
    """The texts with spaces for all characters that are rare or not among the `most` frequent."""
    counts = Counter(chain.from_iterable(texts))
    total = counts.total()
    ranked = sorted(counts, key=lambda char: (-counts[char], char))
    rare = [char for char in ranked[:most] if counts[char] * RARE_CHARACTER < total]
    if not (gone := re.escape("".join(ranked[most:] + rare))):
        return texts
    return [re.sub(f"[{gone}]", " ", text) for text in texts]


def _any_of(symbols: Sequence[str]) -> str:
    """A pattern of these, the longest that fits first."""
    return "|".join(map(re.escape, sorted(symbols, key=len, reverse=True)))


def _pipeline(model: Any, normalizer: Any = _NFC, symbols: Sequence[str] = ()) -> Tokenizer:
    """A model with the text handling around it: the same in training and in use."""
    alone = f"▁?{_ALONE}"
    if symbols:  # a word each, without the space before it
        alone = f"(?:{_any_of(symbols)})|▁?(?!{_any_of(symbols)}){_ALONE}"
    backend = Tokenizer(model)
    backend.normalizer = normalizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always"),
            pre_tokenizers.Split(Regex(alone), "isolated"),
            pre_tokenizers.Split(_APOSTROPHE, "merged_with_previous"),
        ]
    )
    backend.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    eos_id = backend.token_to_id(EOS)
    if eos_id is not None:  # None before the model is trained
        backend.add_special_tokens(
            [AddedToken(piece, special=True, normalized=False) for piece in SPECIALS]
        )
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", special_tokens=[(EOS, eos_id)]
        )
    return backend


def _learn_bpe(corpus: list[str], room: int, reserved: list[str]) -> models.BPE:
    """Byte-pair merges (Sennrich et al. 2016) for `room` pieces, after the reserved ones."""
    backend = _pipeline(models.BPE())
    backend.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=room, show_progress=False))
    learned = json.loads(backend.to_str())["model"]
    pieces = sorted(learned["vocab"], key=learned["vocab"].__getitem__)
    return models.BPE(
        vocab={piece: i for i, piece in enumerate(reserved + pieces)},
        merges=[tuple(merge) for merge in learned["merges"]],
        unk_token=UNK,
        fuse_unk=True,
        byte_fallback=BYTE_PIECES[0] in reserved,
        ignore_merges=reserved[-1] not in SPECIALS + BYTE_PIECES,  # a symbol has none
    )


def _learn_unigram(corpus: list[str], room: int, reserved: list[str]) -> models.Unigram:
    """A unigram language model (Kudo 2018) for `room` pieces, after the reserved ones.

    Two habits of the library are corrected. Its candidates are strings that occur twice among the
    different words; "n'", a word of its own, never does. So each word is given once more with a
    mark behind it. And the order of its hash maps differs between processes. This shows in the last
    bits of the scores, and in characters without a score of their own, which get the lowest plus
    0.0001 times their rank in that order. Both are evened out, so that training is repeatable.
    """
    backend = _pipeline(models.Unigram())
    cut = backend.pre_tokenizer.pre_tokenize_str
    words_of = _ByWord(lambda text: [word for word, _ in cut(text)]).of
    lines = ["\n".join(words_of(text)) for text in corpus]
    words = sorted({word for line in lines for word in line.split("\n")})
    lines.append("\n".join(word + _MARK for word in words))
    backend.pre_tokenizer = pre_tokenizers.CharDelimiterSplit("\n")  # the texts are cut already
    trainer = trainers.UnigramTrainer(
        vocab_size=room + 2,  # with <unk> and the mark, which are removed
        special_tokens=[UNK],
        unk_token=UNK,
        show_progress=False,
    )
    backend.train_from_iterator(lines, trainer)
    scores = {
        piece: score
        for piece, score in json.loads(backend.to_str())["model"]["vocab"]
        if piece != UNK and _MARK not in piece
    }
    lowest = min(scores.values())
    unscored = lowest + 0.0001 * (1 + sum(len(piece) == 1 for piece in scores))
    level = {
        piece: round(lowest if len(piece) == 1 and score <= unscored else score, 6)
        for piece, score in scores.items()
    }
    learned = sorted(level.items(), key=lambda item: (-item[1], item[0]))
    # A reserved piece never competes: "<" is always cut off, so that no word spells one; a symbol
    # is a word, and the most probable segmentation of it.
    vocab = [(piece, 0.0) for piece in reserved] + learned
    return models.Unigram(
        vocab, unk_id=reserved.index(UNK), byte_fallback=BYTE_PIECES[0] in reserved
    )
