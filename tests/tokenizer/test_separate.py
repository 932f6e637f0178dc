"""A vocabulary for each language: each is learned from, drawn for and saved with its own side."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from marian_files import ENGLISH, FRENCH

from configs.schema import Subword
from data.cache import tokenize_split
from data.corpora.base import ParallelText
from data.resampling import Resampler
from tokenizer.build import build_samplers, build_tokenizer, load_tokenizer
from tokenizer.separate import SeparateTokenizer
from tokenizer.subword import SPECIALS, SubwordTokenizer
from utils.errors import UserError

SOURCE, TARGET = FRENCH[::40], ENGLISH[::40]
SEPARATE = Subword(vocab_size=300, joint=False, sampling=0.3)


@pytest.fixture(scope="module")
def tokenizer() -> SeparateTokenizer:
    made = build_tokenizer(SEPARATE, lambda: (SOURCE, TARGET), src_lang="fr", tgt_lang="en")
    assert isinstance(made, SeparateTokenizer)
    return made


def test_each_vocabulary_is_learned_from_its_own_side(tokenizer: SeparateTokenizer) -> None:
    sizes = tokenizer.src_vocab_size, tokenizer.tgt_vocab_size
    source, target = tokenizer.src_pieces(range(sizes[0])), tokenizer.tgt_pieces(range(sizes[1]))
    assert ("▁maison" in source, "▁maison" in target) == (True, False)
    assert ("▁house" in source, "▁house" in target) == (False, True)
    alone = [SubwordTokenizer.train(side, SEPARATE).fingerprint() for side in (SOURCE, TARGET)]
    assert [tokenizer.source.fingerprint(), tokenizer.target.fingerprint()] == alone
    assert not tokenizer.shared_vocab
    ids = [tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.unk_id]
    assert tuple(tokenizer.src_pieces(ids)) == tuple(tokenizer.tgt_pieces(ids)) == SPECIALS


@pytest.mark.parametrize(
    ("direction", "serves"),
    [
        *(("fr_CA en-GB", True), ("fra eng", True), ("roa en", True), ("nowhere en", True)),
        *(("zh_CN en", None), ("oc en", None), ("deu eng", None)),  # they may be related
        *(("en fr-CA", False), ("eng fra", False)),
    ],
)
def test_it_serves_its_own_direction_alone(
    tokenizer: SeparateTokenizer,
    direction: str,
    serves: bool | None,
    caplog: pytest.LogCaptureFixture,
) -> None:
    said = "it is for fr -> en, the data is {} -> {}".format(*direction.split())
    with pytest.raises(UserError, match=said) if serves is False else nullcontext():
        tokenizer.require_direction(*direction.split(), name="it")
    related = f"{said}: right for a related language alone"
    assert caplog.messages == [related] * (serves is None)


def test_a_saved_one_has_the_same_ids_and_fingerprint_and_decodes_the_target(
    tokenizer: SeparateTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    names = ["languages.json", "source_tokenizer.json", "target_tokenizer.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [*names, "tokenizer_kind.json"]
    loaded = load_tokenizer(tmp_path)
    assert loaded.fingerprint() == tokenizer.fingerprint()
    assert loaded.encode_src_batch(SOURCE) == tokenizer.source.encode_src_batch(SOURCE)
    assert loaded.encode_tgt_batch(TARGET) == tokenizer.target.encode_src_batch(TARGET)
    assert loaded.decode_batch(loaded.encode_tgt_batch(TARGET)) == TARGET
    pieces = loaded.src_pieces(loaded.encode_src(SOURCE[0])[:-1])
    assert "".join(pieces).replace("▁", " ").strip() == SOURCE[0]
    assert (loaded.src_lang, loaded.tgt_lang) == ("fr", "en")
    others = {
        "fr": (tokenizer.target, tokenizer.source),
        "de": (tokenizer.source, tokenizer.target),
    }
    for language, sides in others.items():
        other = SeparateTokenizer(*sides, src_lang=language, tgt_lang="en")
        assert other.fingerprint() != tokenizer.fingerprint()


def swapped(text: str) -> str:
    """Start and padding have each other's ids."""
    return text.replace('"<s>"', '"<x>"').replace('"<pad>"', '"<s>"').replace('"<x>"', '"<pad>"')


@pytest.mark.parametrize("side", ["source", "target"])
@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (None, r"cannot read the tokenizer '.*/SIDE_tokenizer\.json'"),
        (lambda text: text[:1000], r"cannot read the tokenizer '.*/SIDE_tokenizer\.json'"),
        (swapped, r"have the ids \([01], [01], 2, 3\) in the source and \([01], [01], 2, 3\) in"),
        (lambda text: text.replace("NFC", "NFD"), "were changed after it was saved"),
    ],
    ids=["missing", "cut", "swapped", "changed"],
)
def test_a_damaged_side_is_told(
    side: str, edit: Any, words: str, tokenizer: SeparateTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    path = tmp_path / f"{side}_tokenizer.json"
    text = path.read_text("utf-8")
    path.unlink()
    if edit:
        path.write_text(edit(text), "utf-8")
    with pytest.raises(UserError, match=words.replace("SIDE", side)):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("text", [None, "[", "fr", '["fr"]'])
def test_lost_languages_are_told(
    text: str | None, tokenizer: SeparateTokenizer, tmp_path: Path
) -> None:
    tokenizer.save(tmp_path)
    (tmp_path / "languages.json").unlink()
    if text is not None:
        (tmp_path / "languages.json").write_text(text)
    with pytest.raises(UserError, match=r"^languages\.json in .* is missing or damaged; save it"):
        load_tokenizer(tmp_path)


def test_segmentations_are_drawn_from_the_vocabulary_of_the_side(
    tokenizer: SeparateTokenizer, tmp_path: Path
) -> None:
    text = ParallelText(SOURCE, TARGET)
    ids = tokenize_split(text, tokenizer, max_len=99, too_long="drop", cache_dir=tmp_path)
    samplers = build_samplers(SEPARATE, tokenizer)
    assert samplers is not None
    rows = range(len(ids))
    drawn = Resampler(text, ids, samplers, seed=1, max_len=999).draw(rows, epoch=0)
    assert tokenizer.source.decode_batch([drawn.src(i) for i in rows]) == SOURCE
    assert tokenizer.target.decode_batch([drawn.tgt(i) for i in rows]) == TARGET
    for one, other in ((drawn.src, ids.src), (drawn.tgt, ids.tgt)):
        assert sum(not np.array_equal(one(i), other(i)) for i in rows) > len(rows) / 2
