"""The study of attention: heads, alignment, accuracy by place, shifted positions; what is told."""

import gzip
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from made_runs import Scripts, best_of, copy_run, scripted, untrained_run
from tiny_models import BOS, LIMITS, model_with, sources, targets

import test as scoring
from checkpoints.content import read_checkpoint
from checkpoints.run import Run
from configs import schema
from experiments import attention_study
from experiments.attention_study import (
    Shifted,
    accuracy_rows,
    agreement_rows,
    head_rows,
    shift_rows,
)
from models.decoding.stepwise import greedy_search
from translation.alignment import WordAttention
from translation.evaluation import EvaluationSet
from translation.loading import LoadedRun, load_run
from translation.translator import Translator
from utils.errors import UserError
from utils.tables import read_csv, write_csv

CPU = torch.device("cpu")


def turned_run(run: Path, folder: Path) -> Path:
    """An untrained run like `run` that translates back."""
    made = untrained_run(run, folder)
    [best] = Run(made).checkpoints.iterdir()
    payload = read_checkpoint(best)
    payload["config"]["data"] |= {"src_lang": "en", "tgt_lang": "fr"}
    torch.save(payload, best)
    return made


def pairs_of(run: Path, limit: int = 12) -> EvaluationSet:
    """The first test pairs, for a model in float64."""
    loaded = load_run(run)
    loaded.model.double()
    return EvaluationSet(loaded, Translator.of(loaded, CPU), "test", True, limit)


@pytest.mark.parametrize("name", ["learnable", "sinusoidal", "rope", "t5", "xlnet", "cope", "none"])
def test_shifted_positions_change_a_model_where_it_knows_more_than_distances(name: str) -> None:
    model, batch = model_with(name).requires_grad_(False), (sources(6, 9), targets(2, 5))
    before, scheme = model(*batch), model.scheme
    model.scheme = Shifted(scheme, 7)
    apart = float((model(*batch) - before).abs().max())
    assert apart > 1e-2 if name in ("learnable", "sinusoidal") else apart < 1e-9
    model.scheme = Shifted(scheme, 0)
    assert torch.equal(model(*batch), before)


@pytest.mark.parametrize("shift", [1, 4])
def test_a_shift_reads_the_rows_of_a_table_that_far_down_in_a_search_too(shift: int) -> None:
    shifted, moved, src = model_with("learnable"), model_with("learnable"), sources(6, 9)
    shifted.scheme = Shifted(shifted.scheme, shift)
    plain = greedy_search(moved, src, LIMITS)
    with torch.no_grad():
        for side in ("source", "target"):
            table = moved.scheme.input(side).table.weight
            table.copy_(table.roll(-shift, dims=0))
    tgt_in = targets(2, 8)
    assert torch.equal(shifted(src, tgt_in), moved(src, tgt_in))
    found = [[best.ids for best, *_ in greedy_search(m, src, LIMITS)] for m in (shifted, moved)]
    assert found[0] == found[1] != [best.ids for best, *_ in plain]
    state = shifted.init_state(shifted.encode(src), beam_size=1, max_len=8)
    steps = [shifted.decode_step(ids[:, None], state)[:, 0] for ids in tgt_in.T]
    torch.testing.assert_close(torch.stack(steps, 1), shifted(src, tgt_in), rtol=0, atol=1e-12)
    assert int(tgt_in[0, 0]) == BOS


def test_bleu_stands_under_a_shift_with_rope_and_falls_with_sinusoids(
    trained_run: Path, tmp_path: Path
) -> None:
    def figures(run: Path, *shifts: int) -> dict[tuple[str, str], float]:
        pairs = pairs_of(run)
        for parameter in pairs.loaded.model.parameters():
            parameter.data.mul_(1.6)  # so that it is no repetition
        pairs.references = pairs.translate()[0]  # so that BLEU is 100 as it stands
        return {(row["measure"], row["of"]): row["value"] for row in shift_rows(pairs, shifts)}

    rope = figures(untrained_run(trained_run, tmp_path, tie_embeddings="none"), 1, 100)
    for shift in ("0", "1", "100"):
        assert rope["sacrebleu", shift] == pytest.approx(100.0)
    assert rope["unchanged", "1"] == rope["unchanged", "100"] == 1.0
    position = schema.Sinusoidal()
    run = untrained_run(trained_run, tmp_path, position=position, tie_embeddings="none")
    sinusoidal = figures(run, 100)
    assert sinusoidal["sacrebleu", "0"] == pytest.approx(100.0)
    assert sinusoidal["sacrebleu", "100"] < 99.0
    assert sinusoidal["unchanged", "100"] < 1.0


def test_a_table_without_such_positions_gives_a_reason(trained_run: Path, tmp_path: Path) -> None:
    run = untrained_run(trained_run, tmp_path, position=schema.Learnable(max_positions=96))
    pairs = pairs_of(run, 4)
    scheme = pairs.loaded.model.scheme
    far = shift_rows(pairs, [92])[-1]
    assert (far["of"], far["value"]) == ("92", None)
    words = r"a source of \d+ tokens is too long: model\.position\.max_positions allows for 4;"
    assert re.match(words, far["reason"])
    assert pairs.loaded.model.scheme is scheme


def test_where_all_keys_are_alike_entropy_is_the_logarithm_of_their_number(
    trained_run: Path, tmp_path: Path
) -> None:
    pairs = pairs_of(untrained_run(trained_run, tmp_path, position=schema.NoPosition()))
    model, ids = pairs.loaded.model, pairs.ids
    for name, parameter in model.named_parameters():
        if "qkv_proj" in name or "q_proj" in name:
            torch.nn.init.zeros_(parameter)
    expected = {
        "encoder": np.log2(ids.src_lengths).mean(),
        "cross": np.log2(ids.src_lengths).mean(),
        "decoder": np.mean([np.log2(np.arange(1, n + 1)).mean() for n in ids.tgt_lengths]),
    }
    rows = [row for row in head_rows(pairs) if row["measure"] == "entropy"]
    assert {(row["of"], row["layer"], row["head"]) for row in rows} == {
        (kind, layer, head) for kind in expected for layer in (1, 2) for head in (1, 2)
    }
    for row in rows:
        assert row["value"] == pytest.approx(expected[row["of"]], abs=1e-6)
        assert row["n"] == 12


def test_accuracy_by_place_is_that_of_sentences_alone_and_adds_up(
    trained_run: Path, tmp_path: Path
) -> None:
    pairs = pairs_of(untrained_run(trained_run, tmp_path))
    # Every second reference is what the model says itself.
    own = pairs.translator.searcher.search_ids(
        [pairs.ids.src(i).tolist() for i in range(12)], pairs.translator.decode, greedy=True
    )
    eos = pairs.loaded.tokenizer.eos_id
    tgt = [pairs.ids.tgt(i) if i % 2 else [*best.ids, eos] for i, [best] in enumerate(own)]
    offsets = np.cumsum([0, *map(len, tgt)])
    pairs.ids = replace(pairs.ids, tgt_ids=np.concatenate(tgt), tgt_offsets=offsets)
    model, bos, hits = pairs.loaded.model, pairs.loaded.tokenizer.bos_id, dict[str, list[bool]]()
    for i in range(len(pairs.ids)):
        src, tgt = pairs.ids.src(i).tolist(), pairs.ids.tgt(i).tolist()
        [logits] = model(torch.tensor([src]), torch.tensor([[bos, *tgt[:-1]]]))
        for place, (row, wanted) in enumerate(zip(logits, tgt), start=1):
            name = "1–5" if place <= 5 else "6–10" if place <= 10 else "later"
            hits.setdefault(name, []).append(int(row.argmax()) == wanted)
    rows = {row["of"]: row for row in accuracy_rows(pairs)}
    for name in ("1–5", "6–10"):
        assert rows[name]["value"] == pytest.approx(np.mean(hits[name]), abs=1e-12)
        assert rows[name]["n"] == len(hits[name])
    n = sum(row["n"] for row in rows.values())
    whole = sum(row["value"] * row["n"] for row in rows.values() if row["n"]) / n
    assert whole == pytest.approx(pairs.loss_and_accuracy()[1], abs=1e-9)
    assert 0.2 < whole < 1


def test_agreement_is_the_share_of_the_links_that_both_directions_have() -> None:
    def made(*of_layers: list[list[int]]) -> SimpleNamespace:
        produced = np.array(of_layers, float)[:, None]  # one head
        each = WordAttention(["a", "b", "c"], ["x", "y", "z"], produced, produced)
        return SimpleNamespace(word_attention=lambda src, tgt: [each])

    one, other = [[1, 0, 0], [0, 1, 0], [0, 1, 0]], [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    there = SimpleNamespace(translator=made(one, one), sources=["a b c"], references=["x y z"])
    # Links a-x, b-y, b-z; from there x-a, y-b, z-c, and in the second layer x-a, y-b, z-b.
    rows = agreement_rows(cast(Any, there), cast(Any, made(other, one)))
    assert [row["of"] for row in rows] == ["layer 1", "layer 2"]
    assert [row["value"] for row in rows] == pytest.approx([4 / 6, 4 / 6])
    there.translator = made(other, other)
    assert agreement_rows(cast(Any, there), cast(Any, made(other)))[0]["value"] == 1


script = scripted(attention_study.main)


def test_finished_trainings_are_studied_and_told(
    script: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    table = untrained_run(trained_run, tmp_path, position=schema.Learnable(max_positions=96))
    trials = tmp_path / "compared" / "runs"
    for name, run in (("rope_seed0_a", trained_run), ("learnable_seed0_b", table)):
        (trials / name).mkdir(parents=True)
        (trials / name / run.name).symlink_to(run)
        (trials / name / "train.out").write_text(f"{run}\n")
    (trials / "alibi_seed0_c").mkdir()  # not finished
    gold = tmp_path / "gold"
    gold.mkdir()
    (gold / "test.fr").write_text("Le chat dort.\nOui.\nNon.\n")
    (gold / "test.en").write_text("The cat sleeps now.\nYes.\nNo.\n")
    (gold / "gold.talp").write_text("1-1 2-2 3-3 4p3\n1-1\n1-1\n")
    out = tmp_path / "out"
    back = turned_run(trained_run, tmp_path)
    args = ["--compared", tmp_path / "compared", "--gold", gold, "--shifts", "1,95"]
    args += ["--threads", "1", "--reversed", back, "--store", tmp_path / "kept.csv"]
    args += ["--sentences", "5", "--output_dir", out]
    ended = script(*args)
    assert ended.code == 0, ended.err
    assert ended.out == (out / "attention.md").read_text("utf-8")
    for name in ("layers", "accuracy", "shifts"):
        assert (out / f"attention_{name}.png").read_bytes().startswith(b"\x89PNG")
    rows = read_csv(out / "attention.csv")
    assert {row["scheme"] for row in rows} == {"rope", "learnable"}
    assert "| rope |" in ended.out
    assert re.search(r"- learnable, seed 0, shift 95: a source of \d+ tokens", ended.out)
    assert re.search(
        r"^\| learnable \| 1 \| \d+\.\d\d \| \d+\.\d\d \| – \|$", ended.out, re.MULTILINE
    )
    assert "test, 5 pairs; seeds 0" in ended.out
    found = [(row["scheme"], row["of"]) for row in rows if row["measure"] == "agreement"]
    assert found == [("rope", "layer 1"), ("rope", "layer 2")]

    # The same again from the store alone, and nothing is measured twice.
    packed = write_csv(tmp_path / "kept.csv.gz", read_csv(tmp_path / "kept.csv"))
    assert packed.read_bytes()[:2] == b"\x1f\x8b"
    again = script("--store", packed, "--report_only", "--output_dir", tmp_path)
    assert (again.out, read_csv(tmp_path / "attention.csv")) == (ended.out, rows)
    # Pictures take long, and are no matter below.
    script.monkeypatch.setattr(attention_study, "draw", lambda *_: None)
    for models in ((), ("--model_path", best_of(trained_run), best_of(table), trained_run)):
        again = script(*args, *models, "--output_dir", tmp_path)
        assert again.out == ended.out
        assert again.err.count("measured before\n") == len(models[1:] or "ab")
        assert "warning" not in again.err

    # Texts of different sizes are not compared.
    uneven = [
        row | ({"n": 4} if (row["scheme"], row["measure"]) == ("rope", "sacrebleu") else {})
        for row in read_csv(packed)
    ]
    write_csv(tmp_path / "uneven.csv", uneven)
    for more in ((), ("--report_only",)):
        ended = script(*args, "--store", tmp_path / "uneven.csv", *more)
        assert ended.code == 2
        assert "measured on different sentences (" in ended.err

    # With other flags it is not what was measured.
    for flags in (("--shifts", "1"), ("--search", "beam")):
        assert f"was measured with another {flags[0]}" in script(*args, *flags).error()
    # Nor may a model be added to those that were measured otherwise.
    words = script(*args, "--sentences", "4", "--model_path", copy_run(trained_run, gold)).error()
    assert "was measured with another --sentences" in words
    links = shutil.copytree(gold, tmp_path / "links")
    (links / "gold.talp").write_text("1-2 2-2 3-3 4p3\n1-1\n1-1\n")
    assert "was measured with another --gold" in script(*args, "--gold", links).error()
    other = copy_run(back, gold)
    assert "are both rope, seed 0; give one" in script(*args, "--reversed", other).error()
    payload = read_checkpoint(best_of(other))
    payload["progress"]["epoch"] += 1
    torch.save(payload, best_of(other))
    replaced = [other if each == back else each for each in args]
    assert "was measured with another --reversed" in script(*replaced).err

    # Another checkpoint of a run takes the place of the first: it is no second seed.
    other = copy_run(trained_run, tmp_path)
    payload = read_checkpoint(best_of(other))
    payload["progress"]["epoch"] += 1
    torch.save(payload, best_of(other))
    again = script(*args, "--model_path", other, "--output_dir", tmp_path)
    assert "measured before" not in again.err
    assert re.search(r"^\| rope \| 1 \|", again.out, re.MULTILINE)

    # Nor is another training of the same seed.
    retrained = other.rename(other.with_name("retrained"))
    payload["progress"]["epoch"] += 1
    torch.save(payload, best_of(retrained))
    words = f"rope, seed 0 is both {trained_run.name} and retrained"
    for models in ((retrained,), (trained_run, retrained, "--store", tmp_path / "new.csv")):
        assert words in script(*args, "--model_path", *models).error()  # before any is measured
    assert script(*args, "--report_only").code == 0  # and it is not in the store

    # What `test.py --align` says of the same pairs, in the column "AER produced".
    script.main = scoring.main
    model = ("--model_path", trained_run, "--device", "cpu")
    said = script("--align", gold / "gold.talp", *model).out
    found = [row for row in rows if (row["scheme"], row["measure"]) == ("rope", "aer")]
    errors = {row["layer"]: f"{100 * float(row['value']):.1f}" for row in found}
    told = re.findall(r"^\| (\d) \| \S+ \| \S+ \| (\S+) \|", said, re.MULTILINE)
    assert errors == dict(told)
    assert len(errors) == 2


def test_a_beam_is_searched_whatever_the_config_of_the_run_says(
    script: Scripts, trained_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = copy_run(trained_run, tmp_path)
    payload = read_checkpoint(best_of(drawn))
    payload["config"]["decode"] |= {"search": {"kind": "sample"}, "n_best": 4, "mbr": "chrf"}
    torch.save(payload, best_of(drawn))

    def study(args: Any, loaded: LoadedRun, turned: Any) -> None:
        decode = loaded.config.decode
        raise UserError(f"{decode.search.kind}, {decode.mbr}")

    monkeypatch.setattr(attention_study, "study", study)
    assert script("--model_path", drawn, "--search", "beam").error() == "beam, None"


def test_mistakes_get_one_line(script: Scripts, trained_run: Path, tmp_path: Path) -> None:
    assert "no finished training" in script("--compared", tmp_path).error()
    for shifts in ("0", "1,x", ""):
        assert "--shifts" in script("--shifts", shifts).error()
    assert "give the measured rows" in script("--report_only").error()
    broken = tmp_path / "broken.csv"
    assert "nothing to report" in script("--report_only", "--store", broken).error()
    packed = tmp_path / "broken.csv.gz"
    header = "scheme,seed,run,measure,of,value\n"  # cut off behind a row: no BLEU as trained
    one_line = '{"run": "another experiment\'s"}\n'
    texts = [one_line, "run,value\nmine,much\n", f"{header}rope,0,mine,entropy,encoder,1.5\n"]
    contents = [(broken, text.encode()) for text in texts]
    contents.append((packed, gzip.compress(b"run,value\n")[:10] + bytes([255] * 9)))
    for path, content in contents:
        path.write_bytes(content)
        assert "no rows of this study" in script("--report_only", "--store", path).error()
    models = ["--model_path", trained_run, "--sentences", "2", "--shifts", "1"]
    models += ["--output_dir", tmp_path]
    assert "give a model that translates back" in script(*models, "--reversed", trained_run).error()
    other = untrained_run(trained_run, tmp_path, position=schema.NoPosition())
    assert "no model of none, seed 0" in script(*models, "--reversed", other).err
