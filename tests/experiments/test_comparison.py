"""What the comparisons of position schemes and of methods write, and which configs they train."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from made_runs import as_file
from stand_in import StandIn
from toy_runs import toy_command

from configs.schema import Config, InverseSqrt, RDrop, Subword
from configs.serialize import diff, from_dict
from experiments import (
    compare_methods,
    compare_positions,
    copy_task,
    find_recipe,
    length_extrapolation,
)
from translation.loading import load_run
from translation.metrics import human_agreement, paired_bootstrap
from utils.errors import UserError
from utils.tables import read_csv


def test_a_real_comparison_holds_what_was_measured(tmp_path: Path) -> None:
    output = tmp_path / "out"
    arguments = toy_command(tmp_path, "train.max_epochs=1", "decode.max_len=8")[1:]
    arguments += ["--positions", "rope", "--baseline", "rope", "--search", "greedy"]
    arguments += ["--threads", "1", "--output_dir", str(output)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = compare_positions.main(arguments)
    assert code == 0, err.getvalue()
    assert re.search(r"^\[1/1\] .* min \| rope, seed 0: done in", err.getvalue(), re.MULTILINE)
    assert out.getvalue() == (output / "comparison.md").read_text("utf-8")

    [row] = read_csv(output / "comparison.csv")
    assert list(row.values())[:4] == ["rope", "0", "test", "done"]
    run = output / row["run"]
    record = json.loads((run / "results" / "test_greedy_scores.json").read_text("utf-8"))
    scores = record["scores"]
    columns = "test_loss token_accuracy bleu4 sacrebleu interval_low interval_high".split()
    measured = [record["loss"], record["accuracy"], scores["bleu4"], scores["sacrebleu"]]
    assert [float(row[column]) for column in columns] == [*measured, *scores["interval"]]
    by_length = sum(int(row[name]) for name in row if name.startswith("n "))
    assert int(row["sentences"]) == scores["n"] == by_length
    loaded = load_run(run)
    assert int(row["parameters"]) == sum(p.numel() for p in loaded.model.parameters())
    log = (run / "logs" / "metrics.jsonl").read_text("utf-8").splitlines()
    [only] = [line for line in map(json.loads, log) if line["kind"] == "validation"]
    for key in ("loss", "accuracy"):
        assert float(row[f"validation_{key}"]) == only[key]
    assert 100 < float(row["tokens_per_second"]) < 1e7
    assert 100 < float(row["peak_memory_mb"]) < 10_000  # torch alone takes more than 100 MB
    assert 0.01 < float(row["train_minutes"]) < 10
    assert [path.name for path in (run / "checkpoints").iterdir()] == [record["checkpoint"]]


def test_two_schemes_make_a_table_a_csv_file_and_two_pictures(stand_in: StandIn) -> None:
    assert stand_in.compare("rope") == 0
    sinusoidal, rope = stand_in.table()  # the baseline first, although it was not named
    assert [row["scheme"] for row in (sinusoidal, rope)] == ["sinusoidal", "rope"]
    assert rope["tokens_per_second"] == "200.0"  # the median without the first update
    learned = ["training_loss", "validation_loss", "validation_accuracy", "parameters"]
    assert [rope[key] for key in learned] == ["1.0", "1.5", "0.5", "12345"]
    assert (sinusoidal["baseline"], sinusoidal["p_value"]) == ("", "")
    assert rope["baseline"] == "sinusoidal"
    lines = {}
    for name in ("sinusoidal", "rope"):
        [run] = stand_in.trial_folder(name).glob("toy_*")
        for what in ("hyp", "ref"):
            path = run / "results" / f"test_beam.{what}.txt"
            lines[name, what] = path.read_text("utf-8").splitlines()
    found = lines["sinusoidal", "hyp"], lines["rope", "hyp"], lines["rope", "ref"]
    paired = paired_bootstrap(*found, samples=1000, seed=0)
    people = f"{human_agreement(paired.difference):.0f}"
    assert paired.difference > 0
    columns = ("difference", "difference_low", "difference_high", "p_value")
    measured = [paired.difference, *paired.interval, paired.p_value]
    assert [float(rope[key]) for key in columns] == measured

    text = stand_in.text()
    names = [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")]
    assert names == ["| scheme", "| ---", "| rope", "| sinusoidal"] * 3  # the best first
    for line in (
        "| scheme | seeds | parameters | tokens/s | peak memory (MiB) | minutes |",
        "| rope | 1.000 | 1.500 | 0.5000 | 0.8900 | 89.00 |\n",
        "torch 2, trained in bf16, some, 1 thread",
        "| scheme | loss | token accuracy | BLEU-4 | sacreBLEU | 95% interval | difference | p "
        "| people | 1–10 words (n=2) |",
        "| rope | 1.500 | 0.5000 | 0.8900 | 89.00 | 87.00 to 90.00 "
        f"| {paired.difference:+.2f} | {paired.p_value:.3f} | {people} |",
    ):
        assert line in text
    assert str(stand_in.folder) not in text  # no place of this machine
    for name in ("comparison_bleu.png", "comparison_lengths.png"):
        assert (stand_in.output / name).read_bytes().startswith(b"\x89PNG")


def test_methods_are_changes_of_the_config_alone_and_together(stand_in: StandIn) -> None:
    names = ["plain_twice", "r_drop+bpe_dropout", "moving_average"]
    arguments = ["--methods", ",".join(names), "--set", "train.max_epochs=2", "--jobs", "2"]
    assert compare_methods.main(stand_in.arguments(*arguments)) == 0
    table = stand_in.table()
    assert [row["method"] for row in table] == ["plain", *names]
    assert {row["baseline"] for row in table} == {"", "plain"}
    assert {row["jobs"] for row in table} == {"2"}
    assert "up to 2 runs at once" in stand_in.text()
    plain = from_dict(stand_in.config("plain"))

    def changes(name: str) -> dict[str, object]:
        found = diff(plain, from_dict(stand_in.config(name)))
        return {key: new for key, _, new in found if key != "train.runs_dir"}

    assert plain.train.max_epochs == 2
    assert changes("plain_twice") == {"train.max_epochs": 4}
    assert changes("moving_average") == {"train.ema_decay": 0.999}
    both: Config = from_dict(stand_in.config("r_drop+bpe_dropout"))
    assert isinstance(both.tokenizer, Subword)
    assert (both.optim.objective, both.tokenizer.sampling) == (RDrop(alpha=5.0), 0.1)
    assert replace(both.optim, objective=plain.optim.objective) == plain.optim


def test_every_method_fits_the_default_config_and_changes_it() -> None:
    args = compare_methods.parse_args(["--set", "optim.schedule.lr=0.002"])
    configs = {n: compare_methods.method_config(args, n, []) for n in compare_methods.METHODS}
    assert [name for name, config in configs.items() if config == configs["plain"]] == ["plain"]
    # the peak and the warm-up of the config
    assert configs["inverse_sqrt"].optim.schedule == InverseSqrt(lr=0.002, warmup_steps=200)
    long = ["--config", "configs/multi30k_long.py"]  # a unigram tokenizer that samples already
    args = compare_methods.parse_args(long)
    bpe, plain = (
        compare_methods.method_config(args, name, []).tokenizer
        for name in ("bpe_dropout", "unigram")
    )
    assert (bpe.algorithm, bpe.sampling) == ("bpe", 0.1)
    assert (plain.algorithm, plain.sampling) == ("unigram", 0)
    args = compare_methods.parse_args(["--set", "train.max_steps=100"])
    assert compare_methods.method_config(args, "plain_twice", []).train.max_steps == 200


@pytest.mark.parametrize(
    ("script", "arguments", "words"),
    [
        (compare_positions, "--positions rope,rpoe", "no position scheme 'rpoe': there are none, "),
        (compare_methods, "--methods r_drop+", "'r_drop+': name something else on both sides of"),
        (compare_methods, "--methods ema+ema", "'ema+ema': name something else on both sides of"),
        (compare_positions, "--positions ,", "name at least one position scheme"),
        (compare_positions, "--baseline best", "no position scheme 'best'"),
        (compare_positions, "--baseline rope,t5", "--baseline 'rope,t5': give one scheme"),
        (compare_positions, "--curves wavy", "no position scheme 'wavy'"),
        (
            compare_positions,
            "--positions rope --curves t5",
            "comparison 't5': there are sinusoidal",
        ),
        (compare_positions, "--seeds 0,x", "--seeds '0,x'"),
        (copy_task, f"--seeds {10**18}", "at most 18 digits"),
        (compare_positions, "--seeds -1", "--seeds '-1'"),
        (compare_positions, "--set model.d_modell=4", "unknown key 'model.d_modell'"),
        (compare_positions, "--positions rope --report_only", "nothing of this is done yet"),
        (compare_positions, "--positions alibi,rope --set model.d_model=18", "rope: model.n_heads"),
        (compare_positions, "--jobs 0", "an integer >= 1"),
        (compare_positions, "--set train.seed=7", "decides it itself; see --seeds"),
        (compare_positions, "--set model.position=t5", "decides it itself; see --positions"),
        (compare_positions, "--set train.runs_dir=here", "decides it itself; see --output_dir"),
        (copy_task, "--report_only --store nowhere", "nothing of this is done yet; leave --report"),
        (compare_positions, "--set model.position.base=5", "model.position.base: the experiment"),
        (find_recipe, "--set train.max_tokens=3", "decides it itself; see --rounds"),
        (compare_positions, "--positions rope --set data.corpus.root=nowhere", "no such folder"),
        (compare_methods, "--methods plain,r_drop+luck", "no method 'luck': there are plain, "),
        (compare_methods, "--methods ,", "name at least one method"),
        (
            compare_methods,
            "--methods r_drop+sim_cut",
            "r_drop and sim_cut both set optim.objective",
        ),
        (find_recipe, "--choice rope,r_drop+luck", "no alternative 'luck': there are plain, "),
        (find_recipe, "--choice ,", "name at least one alternative"),
        (find_recipe, "--choice plain,model.dropout=2", "model.dropout=2: model.dropout = 2"),
        (find_recipe, "--choice rope --choice t5", "rope+t5: rope and t5 both set model.position"),
        (find_recipe, "--rounds 3,1", "--rounds '3,1': give increasing millions of tokens"),
        (find_recipe, "--rounds nan", "--rounds 'nan'"),
        (find_recipe, "--rounds 1,inf", "--rounds '1,inf'"),
        (find_recipe, "--choice rope --report_only", "nothing of this is done yet"),
        (length_extrapolation, "--corpus phrasebook", "has the files corpus"),
        (length_extrapolation, "--scaled_at_test alibi", "no scaling of RoPE 'alibi'"),
        (
            length_extrapolation,
            "--positions alibi --scaled_at_test rope_yarn",
            "add rope to --positions",
        ),
        (length_extrapolation, "--ssmax --corpus files --max_words 99", "both sides of it"),
        (length_extrapolation, "--corpus files --max_words 1", "no pair of train is so short"),
        (length_extrapolation, "--corpus files --positions ssmax --ssmax", "has SSMax already"),
        (copy_task, "--schemes ropee", "no scheme 'ropee': there are none, "),
        (copy_task, "--steps 0", "--steps '0': must be integers >= 1"),
        (copy_task, "--attention --report_only", "--attention trains models"),
        (copy_task, "--speed 9", "--speed"),
    ],
)
def test_a_mistake_gets_one_line_and_runs_nothing(
    stand_in: StandIn, script: ModuleType, arguments: str, words: str
) -> None:
    given = arguments.split()
    output = ["--output_dir", str(stand_in.output)]
    with pytest.raises(UserError) as caught:
        script.main([*given, *output] if script is copy_task else stand_in.arguments(*given))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert stand_in.calls() == []
    made = {path.relative_to(stand_in.output).parts[0][:8] for path in stand_in.output.rglob("*")}
    assert made <= {"text_max"}  # a corpus cut short


SCRIPTS = ("compare_positions", "compare_methods", "length_extrapolation", "copy_task")
SCRIPTS += ("find_recipe",)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_run_as_a_file_and_a_mistake_ends_with_exit_code_2(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = as_file(f"experiments/{name}.py", capsys, monkeypatch)("--seeds", "x")
    assert done.error() == "--seeds 'x': must be integers >= 0, separated by commas"
