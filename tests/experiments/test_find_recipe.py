"""The search for a recipe: who goes on, what a budget changes, and when the tests are read."""

import fcntl
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from stand_in import StandIn, both
from toy_runs import content, run_here, toy_config

from checkpoints.run import REGULAR
from configs.schema import RDrop, Subword, TransformerXl
from experiments import find_recipe, trials
from experiments.find_recipe import CHOICES, chosen_alternatives, recipe_config, sample
from experiments.trials import averaged
from utils.errors import ConfigError, UserError

SIX = ("--choice", "rope,alibi", "--choice", "plain,dropout_03,model.dropout=0.4")
FOUR = ["alibi", "alibi+model.dropout=0.4", "rope+model.dropout=0.4", "alibi+dropout_03"]  # drawn
ROUNDS = ("--variants", "4", "--rounds", "0.001,0.004")


@pytest.fixture
def stand_in(stand_in: StandIn, tmp_path: Path) -> StandIn:
    losses = {FOUR[0]: 0.3, FOUR[1]: 0.1, FOUR[2]: 0.2, FOUR[3]: 0.4, f"{FOUR[2]} 4000": 0.05}
    (tmp_path / "losses.json").write_text(json.dumps(losses))
    return stand_in


def find(stand_in: StandIn, *more: str) -> int:
    return find_recipe.main(stand_in.arguments(*SIX, *ROUNDS, *more))


WINNER = FOUR[2]
ROUND_1, ROUND_2 = both(*FOUR), both(FOUR[1], WINNER)
LAST = [f"test {WINNER}"] * 2  # the tests, and validation once more with them


def test_the_best_third_goes_on_and_the_tests_are_read_once_for_the_winner(
    stand_in: StandIn,
) -> None:
    assert find(stand_in, "--seeds", "0,1") == 0
    assert stand_in.calls() == [*ROUND_1, *ROUND_2, *LAST, f"train {WINNER}", *LAST]
    tested = stand_in.output.glob("runs/*/toy_*/results/test_beam_scores.json")
    seeds = {path.parents[2].name.rpartition("_")[0] for path in tested}
    assert seeds == {f"{WINNER}_seed0", f"{WINNER}_seed1"}

    rows = stand_in.table("recipe.csv")
    assert [row["round"] for row in rows] == ["1"] * 4 + ["2"] * 2 + ["winner"] * 2
    assert [row["recipe"] for row in rows] == [*FOUR, FOUR[1], *[WINNER] * 3]
    assert [float(row["character_loss"]) for row in rows[:6]] == [0.3, 0.1, 0.2, 0.4, 0.1, 0.05]
    assert {row["sacrebleu test"] for row in rows[:6]} == {""}
    text = stand_in.text("recipe.md")
    order = [line.split(" | ")[0][2:] for line in text.splitlines() if line.startswith("| ")]
    heads = ["recipe", "---"]
    first = [FOUR[1], WINNER, FOUR[0], FOUR[3]]
    assert order == [*heads, *first, *heads, WINNER, FOUR[1], "seed", "---", "0", "1", "mean"]
    assert text.count("| yes |") == 3
    assert "| mean | 0.0500 ± 0.0000 | 89.00 ± 0.00 | 89.00 ± 0.00 |" in text
    said = "The recipe, the last 10 checkpoints averaged, all if there are fewer: "
    assert f"{said}`--position rope --set" in text
    assert "--set model.dropout=0.4 " in text
    limits = "--set train.max_steps=None --set train.max_tokens=4000 --set train.max_epochs=1000000"
    assert f"{limits} --set train.keep_regular=10 --set train.checkpoint_every_epochs=1`" in text
    assert str(stand_in.folder) not in text

    # All of it comes from the store, also where the runs are gone.
    shutil.rmtree(stand_in.output / "runs")
    for more in ((), ("--report_only",)):
        assert find(stand_in, "--seeds", "0,1", *more) == 0
        assert stand_in.text("recipe.md") == text
    assert stand_in.calls() == []
    assert find(stand_in, "--variants", "6") == 0  # more of the same sample, and none of it anew
    new = [call for call in stand_in.calls() if call.startswith("train")]
    assert len(new) == 2
    assert not {call.removeprefix("train ") for call in new} & set(FOUR)

    # The winner's seeds have one test text.
    store = stand_in.output / "recipe.jsonl"
    records = [json.loads(line) for line in store.read_text("utf-8").splitlines()]
    [second] = [each for each in records if each["config"]["train"]["seed"] == 1]
    second["scores"]["test"]["data_fingerprint"] = "another"
    store.write_text("".join(f"{json.dumps(each)}\n" for each in records), "utf-8")
    with pytest.raises(UserError, match=f"{re.escape(WINNER)}, seed 1 were scored on other sent"):
        find(stand_in, "--seeds", "0,1", "--report_only")


def test_a_round_that_was_cut_short_goes_on_and_nobody_is_chosen_before(stand_in: StandIn) -> None:
    stand_in.fates(**{FOUR[1]: "killed"})
    assert find(stand_in) == 1
    assert stand_in.calls() == [call for call in ROUND_1 if call != f"test {FOUR[1]}"]
    status = [(row["round"], row["status"]) for row in stand_in.table("recipe.csv")]
    assert status == [("1", "done"), ("1", "failed"), ("1", "done"), ("1", "done")]
    assert f"| {FOUR[1]} | failed: ended by SIGKILL" in stand_in.text("recipe.md")
    assert find(stand_in, "--report_only", "--skip_failed") == 0
    assert " | goes on so far |" in stand_in.text("recipe.md")
    stand_in.fates()
    assert find(stand_in) == 0
    assert stand_in.calls() == [f"resume {FOUR[1]}", f"test {FOUR[1]}", *ROUND_2, *LAST]
    shutil.rmtree(stand_in.output / "runs")
    store = stand_in.output / "recipe.jsonl"
    lines = store.read_text("utf-8").splitlines(keepends=True)
    store.write_text("".join(line for line in lines if f"runs/{FOUR[1]}_seed" not in line), "utf-8")
    assert find(stand_in, "--report_only", "--skip_failed") == 0
    text = stand_in.text("recipe.md")
    assert f"\n## The winner so far: {WINNER}\n" in text
    assert text.count(" | goes on so far |") == 2


def test_what_failed_may_be_left_behind(stand_in: StandIn) -> None:
    stand_in.fates(**{FOUR[1]: "error"})
    assert find(stand_in, "--skip_failed", "--set", "evaluate.length_buckets=[2, 3]") == 1
    text = stand_in.text("recipe.md")
    assert f"## The winner: {WINNER}\n" in text
    assert text.count(" | goes on |") == 2
    assert " --set 'evaluate.length_buckets=[2, 3]' --set " in text
    rows = stand_in.table("recipe.csv")
    assert [row["recipe"] for row in rows if row["round"] == "2"] == [WINNER, FOUR[0]]
    assert [row["recipe"] for row in rows if row["round"] == "winner"] == [WINNER]
    assert stand_in.calls().count(f"train {FOUR[1]}") == 1


def test_what_another_process_trains_is_waited_for(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    def taken(file: Any, *, wait: bool) -> None:
        if f"{FOUR[1]}_seed" in file.name:
            raise BlockingIOError

    monkeypatch.setattr(trials, "lock", taken)
    assert find(stand_in, "--skip_failed") == 1
    assert f"{FOUR[1]} | failed: another process is at work" in stand_in.text("recipe.md")
    assert {row["round"] for row in stand_in.table("recipe.csv")} == {"1"}


def test_a_mean_of_more_checkpoints_than_were_kept_is_refused(stand_in: StandIn) -> None:
    (stand_in.folder / "test.py").write_text("raise SystemExit('error: no such luck')")
    arguments = stand_in.arguments("--choice", "rope", "--rounds", "0.001", "--average")
    assert find_recipe.main([*arguments, "2"]) == 1
    [run] = stand_in.trial_folder("rope").glob("toy_*")
    shutil.copy(run.parent / "config.json", run)  # as train.py writes it
    assert find_recipe.main([*arguments, "9"]) == 1
    words = "kept 2 checkpoints, too few for a mean of 9: delete it to train it again"
    assert words in stand_in.text("recipe.md")


def test_what_another_process_has_done_meanwhile_is_no_failure_and_goes_on(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = trials.Runner._do

    def beside_another(runner: trials.Runner, trial: trials.Trial) -> None:
        trial.folder.mkdir(parents=True, exist_ok=True)
        with (trial.folder / "lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            do(runner, trial)
        do(runner, trial)  # as the other one, after which this one looks

    monkeypatch.setattr(trials.Runner, "_do", beside_another)
    arguments = stand_in.arguments("--choice", "rope", "--rounds", "0.001")
    assert find_recipe.main(arguments) == 0
    assert [row["status"] for row in stand_in.table("recipe.csv")] == ["done", "done"]
    assert "failed" not in stand_in.text("recipe.md")
    assert "recipes: 1 of 1, of each round" in stand_in.text("recipe.md")


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ("--set model.position=alibi --choice plain,rope", "--set model.position: .*see --choice"),
        ("--set model.dropout=0", "--set model.dropout: .*see --choice"),
        ("--choice train.seed=1,train.seed=2", "--choice train.seed: .*see --seeds"),
        ("--set train.max_steps=3", "--set train.max_steps: .*see --rounds"),
        ("--set train.max_epochs=3", "--set train.max_epochs: .*see --rounds"),
        ("--choice rope+,alibi", r"'rope\+': name something else on both sides of \+"),
    ],
)
def test_what_would_do_nothing_is_refused(given: str, why: str) -> None:
    with pytest.raises(UserError, match=why):
        find_recipe.parse_args(given.split())


def test_bleu_may_choose(stand_in: StandIn) -> None:
    (stand_in.folder / "losses.json").write_text(json.dumps({"sinusoidal": 0.1}))
    two = stand_in.arguments("--choice", "rope,sinusoidal", "--rounds", "0.001")
    for by, winner in (("loss", "sinusoidal"), ("bleu", "rope")):
        assert find_recipe.main([*two, "--choose_by", by]) == 0  # the fake's BLEU prefers rope
        assert stand_in.table("recipe.csv")[-1]["recipe"] == winner


def test_every_recipe_fits_the_default_config_and_what_counts_updates_shrinks() -> None:
    cut = find_recipe.parse_args(["--set", "data.eval_long=truncate"])
    with pytest.raises(ConfigError, match=r"rope: data.eval_long = 'truncate': .* 'keep'"):
        recipe_config(cut, "rope", 65, 1)
    args = find_recipe.parse_args([])
    names = sample(args.choice)
    assert len(names) == 288
    assert sample([*map(chosen_alternatives, CHOICES)]) == names
    assert names[0] == "width_128+dropout_03+r_drop+rope"
    configs = {name: recipe_config(args, name, 65, 1) for name in names[:27]}
    assert len({repr(config) for config in configs.values()}) == 27
    name = "width_192+dropout_04+r_drop+unigram_sampling+xlnet+moving_average+muon"
    assert name in names
    long, short = (recipe_config(args, name, millions, 1) for millions in (65, 6.5))
    assert (long.model.d_model, long.model.d_ff, long.model.dropout) == (192, 384, 0.4)
    assert long.model.position == TransformerXl(reading="xlnet")
    assert long.optim.objective == RDrop(alpha=5.0)
    assert long.tokenizer == Subword(algorithm="unigram", vocab_size=10_000, sampling=0.5)
    assert (long.optim.optimizer, long.train.seed) == ("muon", 1)
    warmups = [getattr(each.optim.schedule, "warmup_steps", None) for each in (long, short)]
    assert warmups == [2000, 200]
    assert [config.train.ema_decay for config in (long, short)] == [0.999, 0.99]
    assert [config.train.max_tokens for config in (long, short)] == [65_000_000, 6_500_000]


def test_averages_shrink_with_the_budget_and_a_moving_average_has_none(stand_in: StandIn) -> None:
    given = stand_in.arguments("--choice", "plain,moving_average", "--average", "12", *ROUNDS)
    [of_round] = find_recipe.Halving(find_recipe.parse_args(given), [], "recipe").stages
    assert {trial.variant: trial.average for trial in of_round} == {"plain": 3, "moving_average": 0}
    assert {trial.config.train.keep_regular for trial in of_round} == {12}
    assert {trial.config.train.checkpoint_every_epochs for trial in of_round} == {1}
    assert [trial.tests for trial in of_round] == [(), ()]


def test_the_average_is_made_once(tmp_path: Path) -> None:
    run = run_here(toy_config(tmp_path, "train.keep_regular=3")).run
    assert averaged(run, 0) == run.path
    path = averaged(run, 2)
    assert [entry["epoch"] for entry in content(path)["averaged"]] == [2, 3]
    for file in run.files(REGULAR):
        file.unlink()
    assert averaged(run, 2) == path


def test_what_was_scored_by_another_average_is_not_scored_by_this_one(stand_in: StandIn) -> None:
    one = stand_in.arguments("--choice", "rope", "--rounds", "0.001", "--average")
    assert find_recipe.main([*one, "2"]) == 0
    assert find_recipe.main([*one, "3"]) == 1
    why = "was scored by the mean of 2 checkpoints, and other checkpoints are gone: delete it"
    assert why in stand_in.table("recipe.csv")[0]["reason"]
