"""Back-translation: pairs that training reads, each with its own line, whole or not at all."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from conftest import run_script
from toy_runs import run_here, toy_config, toy_corpus

import back_translate as script
from configs.schema import DataConfig, Mixture, ParallelFiles, Subword, Weighted
from data.corpora.build import build_corpus
from tokenizer.subword import SubwordTokenizer
from translation.loading import load_run
from utils.errors import UserError

REVERSE = ("data.src_lang=en", "data.tgt_lang=fr", "optim.accumulate=1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("back")


@pytest.fixture(scope="module")
def reverse(folder: Path) -> Path:
    """A model from English to French: not good, but it ends its sentences."""
    return run_here(
        toy_config(folder, *REVERSE, "optim.schedule.lr=0.01", "train.max_epochs=5")
    ).run.path


@pytest.fixture(scope="module")
def mono(folder: Path) -> Path:
    lines = (toy_corpus(folder) / "valid.en").read_text("utf-8").splitlines()
    path = folder / "mono.en"
    path.write_text(
        "\n".join([*lines[:10], "", f"the {'cat ' * 60}", f"  {lines[10]}\u00a0", *lines[11:]])
        + "\n",
        "utf-8",
    )
    return path


def arguments(model: Path, source: Path, output: Path) -> list[str]:
    return [
        "--model_path",
        str(model),
        "--src_file",
        str(source),
        "--output",
        str(output),
        "--device",
        "cpu",
    ]


def test_the_pairs_are_the_models_translations_line_by_line(
    folder: Path, reverse: Path, mono: Path, tmp_path: Path
) -> None:
    output = tmp_path / "a new" / "folder" / "bt"
    done = run_script("back_translate.py", *arguments(reverse, mono, output), "--search", "greedy")
    assert done.returncode == 0, done.stderr
    english = output.with_suffix(".en").read_text("utf-8").splitlines()
    french = output.with_suffix(".fr").read_text("utf-8").splitlines()
    expected = (toy_corpus(folder) / "valid.en").read_text("utf-8").splitlines()
    loaded = load_run(reverse, runs_dir="runs")
    found = loaded.translator(next(loaded.model.parameters()).device).translate(
        expected, greedy=True
    )
    pairs = [
        (text, best.text) for text, [best] in zip(expected, found) if best.finished and best.text
    ]
    assert len(pairs) > 10
    assert list(zip(english, french)) == pairs
    n_lost = len(expected) - len(pairs)
    lost = f", unfinished_or_empty {n_lost}" if n_lost else ""
    assert done.stdout == (
        f"{len(pairs)} pairs in {output}.fr and {output}.en (dropped: blank 1, too_long 1{lost})\n"
    )


def test_tagged_pairs_are_a_part_of_a_mixture_and_the_tag_is_one_token(
    folder: Path, reverse: Path, mono: Path, tmp_path: Path
) -> None:
    packed = tmp_path / "mono.en.gz"
    packed.write_bytes(gzip.compress(mono.read_bytes()))
    script.main([*arguments(reverse, packed, tmp_path / "bt"), "--tag", "--beam_size", "2"])
    real = Weighted(corpus=ParallelFiles(root=str(toy_corpus(folder))))
    made = Weighted(corpus=ParallelFiles(root=str(tmp_path), train="bt"), weight=2.0, name="bt")
    text = build_corpus(DataConfig(corpus=Mixture(parts=(real, made)))).load("train")
    tagged = [src for src in text.src if src.startswith(f"{script.TAG} ")]
    assert len(text) == 200 + len(tagged)
    assert len(tagged) > 20
    assert not any(script.TAG in tgt for tgt in text.tgt)
    tokenizer = SubwordTokenizer.train([*text.src, *text.tgt], Subword(vocab_size=200))
    assert tokenizer.src_pieces(tokenizer.encode_src(tagged[0]))[0] == f"▁{script.TAG}"


def test_a_model_of_both_directions_translates_from_its_target_language(
    folder: Path, mono: Path, tmp_path: Path
) -> None:
    both = toy_config(
        folder, "data.directions=both", "train.max_epochs=2", "optim.schedule.lr=0.01"
    )
    script.main(
        [
            *arguments(run_here(both).run.path, mono, tmp_path / "bt"),
            "--reverse",
            "--search",
            "greedy",
        ]
    )
    written = (tmp_path / "bt.en").read_text("utf-8").splitlines()
    assert set(written) <= {" ".join(line.split()) for line in mono.read_text("utf-8").splitlines()}
    assert len((tmp_path / "bt.fr").read_text("utf-8").splitlines()) == len(written) > 0


def test_mistakes_are_told_and_leave_no_file(
    reverse: Path, mono: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match=r"--tag 'two words': one word"):
        script.main([*arguments(reverse, mono, tmp_path / "bt"), "--tag", "two words"])
    with pytest.raises(UserError, match="--reverse: this model translates en to fr alone"):
        script.main([*arguments(reverse, mono, tmp_path / "bt"), "--reverse"])
    with pytest.raises(UserError, match="is the input itself"):
        script.main(arguments(reverse, mono, mono.with_suffix("")))
    with pytest.raises(FileExistsError, match=r"mono\.en"):
        script.main(arguments(reverse, mono, mono / "bt"))
    with pytest.raises(UserError, match="cannot be read"):
        script.main(arguments(reverse, tmp_path / "none.en", tmp_path / "bt"))
    blank = tmp_path / "blank.en"
    blank.write_text("\n\n", "utf-8")
    with pytest.raises(UserError, match="no sentence of it could be translated"):
        script.main(arguments(reverse, blank, tmp_path / "bt"))
    cut = tmp_path / "cut.en.gz"
    cut.write_bytes(gzip.compress(mono.read_bytes())[:-20])
    monkeypatch.setattr(script, "CHUNK", 2)  # some pairs are written before the end is missed
    with pytest.raises(UserError, match="a damaged or truncated gzip file"):
        script.main(arguments(reverse, cut, tmp_path / "bt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blank.en", "cut.en.gz"]
