"""`python benchmarks/bench_decode.py`: systems that do the same work on the same weights."""

import dataclasses
import json
import math
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from made_runs import in_this_process, untrained_run

from benchmarks import bench_decode, common
from benchmarks.bench_decode import (
    AT_LEAST,
    BOS,
    EOS,
    PEERS,
    Work,
    ctranslate2_search,
    hugging_face,
    in_batches,
    ours,
    random_work,
    systems_of,
    to_marian,
)
from configs.schema import Config, Sinusoidal
from configs.serialize import apply_overrides
from models.build import build_model
from translation.search import pad_sources

EVERYONE = [(name, "float32") for name in ("ours", *PEERS)]


@pytest.fixture(scope="module")
def work() -> Work:
    return random_work("tiny", 12, 9, 0)


@pytest.fixture(autouse=True)
def apart(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What would be made in processes of their own."""
    noted: list[Any] = []
    monkeypatch.setattr(common, "apart", partial(in_this_process, noted))
    return noted


@contextmanager
def systems(work: Work, *precisions: str) -> Iterator[Any]:
    with ExitStack() as stack:
        yield systems_of(work, PEERS, precisions, common.CPU, stack)


def test_marian_with_the_same_weights_gives_the_same_logits() -> None:
    work = random_work("tiny", 12, 9, 1)
    with torch.no_grad():
        for parameter in work.model.parameters():
            if parameter.dim() == 1:  # biases and norms that are not idle
                parameter.add_(0.1 * torch.randn_like(parameter))
    src = pad_sources(work.sources, work.tokenizer.pad_id)
    tgt_in = torch.tensor([[BOS, *ids[:7]] for ids in work.sources])
    marian = to_marian(work).eval()
    with torch.no_grad():
        mask = src != work.tokenizer.pad_id
        theirs = marian(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in).logits
        ours = work.model(src, tgt_in)
    torch.testing.assert_close(theirs, ours, atol=1e-4, rtol=1e-4)
    trained = sum(p.numel() for p in marian.parameters() if p.requires_grad)
    assert trained == sum(p.numel() for p in work.model.parameters())


@pytest.mark.parametrize("beam_size", [1, 3])
def test_all_systems_find_the_same_of_the_asked_length(beam_size: int, work: Work) -> None:
    with systems(work, "float32") as (made, left_out):
        found = {key: translate(work.sources, beam_size) for key, translate in made.items()}
    assert list(found) == EVERYONE
    assert left_out == {}
    ours, *others = found.values()
    assert others == [ours, ours]
    assert {len(ids) for ids in ours} == {9}
    assert len({tuple(ids) for ids in ours}) > 6


def test_an_early_end_is_cut_off_alike(work: Work) -> None:
    """Real models end their sentences: here one of the pieces that this model likes becomes EOS."""
    ended = random_work("tiny", 12, 9, 0)
    plain = ours(work, "float32", common.CPU)(work.sources, 1)
    candidates = {i for ids in plain for i in ids[2:5]}
    liked = max(candidates, key=lambda i: sum(i in ids for ids in plain))
    ended.tokenizer.eos_id = liked
    with_eos = [[*ids[:-1], liked] for ids in work.sources]
    with systems(ended, "float32") as (made, _):
        found = [translate(with_eos, 1) for translate in made.values()]
    assert found[0] == found[1] == found[2]
    assert min(map(len, found[0])) < 9
    assert all(liked not in ids for ids in found[0])


def test_bfloat16_and_int8_are_other_systems(work: Work) -> None:
    with systems(work, "bfloat16", "int8") as (made, left_out):
        assert next(iter(made)) == ("ours", "float32")
        rounded = {("ours", "bfloat16"), ("transformers", "bfloat16"), ("ctranslate2", "int8")}
        assert rounded < set(made) <= {*rounded, ("ours", "float32"), ("ctranslate2", "bfloat16")}
        assert set(left_out) <= {"ctranslate2, bfloat16"}
        found = {key: translate(work.sources, 1) for key, translate in made.items()}
    exact = found.pop(("ours", "float32"))
    for (_, precision), outputs in found.items():
        assert [len(ids) for ids in outputs] == [9] * len(work.sources)
        if precision == "bfloat16":  # what int8 gives depends on the processor
            assert sum(a[0] == b[0] for a, b in zip(exact, outputs)) > len(work.sources) / 2


def test_a_model_that_a_peer_cannot_have_leaves_it_out_with_the_reason(work: Work) -> None:
    fire = apply_overrides(Config(model=work.config), ["model.position=fire"]).model
    other = dataclasses.replace(work, config=fire, model=build_model(fire, work.tokenizer).eval())
    with systems(other, "float32") as (made, left_out):
        assert list(made) == [("ours", "float32")]
    assert "this model differs" in left_out["transformers, float32"]
    assert "'fire' cannot be exported" in left_out["ctranslate2, float32"]


def test_a_peer_that_fails_is_left_out_with_its_error(work: Work, monkeypatch: Any) -> None:
    def translate(*args: Any) -> None:
        raise RuntimeError("Library libcublas.so.12 is not found")

    monkeypatch.setattr(bench_decode, "ctranslate2", lambda *_: translate)
    with systems(work, "float32") as (made, left_out):
        assert list(made) == EVERYONE[:2]
    assert "libcublas.so.12 is not found" in left_out["ctranslate2, float32"]


def test_a_peer_that_is_not_installed_is_left_out_with_its_name(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in PEERS:
        monkeypatch.setitem(sys.modules, name, None)
    with systems(work, "float32") as (made, left_out):
        assert list(made) == [("ours", "float32")]
    for name in PEERS:
        assert name in left_out[f"{name}, float32"]


def test_a_round_has_the_first_sentences_longest_first() -> None:
    sources = random_work("tiny", 40, 1, 0).sources
    assert all(ids[-1] == EOS and EOS not in ids[:-1] and 20 <= len(ids) <= 40 for ids in sources)
    for batch_size, sizes in ((1, [1] * AT_LEAST), (3, [3, 3, 2]), (16, [16])):
        batches = in_batches(sources, batch_size)
        assert [len(batch) for batch in batches] == sizes
        flat = [ids for batch in batches for ids in batch]
        assert sorted(flat) == sorted(sources[: len(flat)])
        assert [len(ids) for ids in flat] == sorted(map(len, flat), reverse=True)


# --------------------------------------------------------------------------------------- the script


def test_both_kinds_of_work_are_measured_for_all_systems(
    apart: list[Any], trained_run: Path, tmp_path: Path, in_process: Any, monkeypatch: Any
) -> None:
    monkeypatch.setattr(common, "REST_S", 0)
    alike = {"norm": "post", "position": Sinusoidal(layout="half")}
    run = untrained_run(trained_run, tmp_path, **alike)
    done = in_process(bench_decode.main)(
        *"--size tiny --batch 4 8 --beam 1 2 --tokens 6 --device cpu".split(),
        *"--precision float32 int8 --rounds 2 --threads 1".split(),
        *("--model_path", run, "--output_dir", tmp_path / "out"),
    )
    assert done.code == 0, done.err
    searches = [ours, hugging_face, ctranslate2_search, ctranslate2_search]
    assert [make for make, *_ in apart] == searches * 2
    report = json.loads((tmp_path / "out" / "bench_decode.json").read_text("utf-8"))
    text = (tmp_path / "out" / "bench_decode.md").read_text("utf-8")
    assert text.strip() == done.out.strip().replace("\n\n\n", "\n\n")
    assert [section["heading"] for section in report["sections"]] == [
        "tiny, 6 tokens: greedy",
        "tiny, 6 tokens: beam 2",
        "real sentences, made_20200101_000000: greedy",
        "real sentences, made_20200101_000000: beam 2",
    ]
    for section in report["sections"]:
        assert set(section["versions"]) == {"transformers", "ctranslate2"}
        names = [*EVERYONE, ("ctranslate2", "int8")]
        rows = section["rows"]
        assert [(row["system"], row["precision"]) for row in rows] == names * 2
        assert [row["batch"] for row in rows] == [4] * 4 + [8] * 4
        for row in rows:
            check_row(row, section)
            assert f"| {row['system']} {row['precision']} | {row['batch']} |" in done.out


def check_row(row: dict[str, Any], section: dict[str, Any]) -> None:
    n_tokens = row["output_tokens"]
    assert row["sentences"] == AT_LEAST
    assert n_tokens <= section["max_tokens"] * AT_LEAST
    assert section["max_tokens"] != 6 or n_tokens == 6 * AT_LEAST
    assert len(row["seconds"]) == 2
    mean = sum(AT_LEAST / seconds for seconds in row["seconds"]) / 2  # of two, the median too
    assert 0 < mean < math.inf
    assert row["sentences_per_second"]["median"] == pytest.approx(mean)
    assert row["tokens_per_second"]["median"] == pytest.approx(mean * n_tokens / AT_LEAST)
    if row["system"] == "ours":
        assert row["ours_float32_over_it"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    if row["precision"] == "float32" and row["search"] == "greedy":
        assert row["same_tokens"] == 1.0
