"""A mistake gets one line that names it, from every script that uses a trained model."""

import argparse
import gzip
import importlib
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import run_script
from made_runs import Scripts, best_of, copy_run, scripted, untrained_run

import inference
from checkpoints.content import checkpoint_config, read_checkpoint
from configs.schema import Learnable, Subword
from configs.serialize import apply_overrides, to_dict
from tokenizer.subword import SubwordTokenizer
from utils.cli import integer, number, positive
from utils.errors import one_line

BACK = "back_translate --src_file MONO --output"
# A command (the trained run is meant where it names none), and words of the line that it gets.
MISTAKES = [
    ("inference --flag", "unrecognized arguments: --flag (see "),
    ("inference --src_text a --src_file b", "not allowed with"),
    ("inference --src_text ' \n'", "--src_text ' \\n': there is nothing to translate"),
    ("inference --src_text caf\udce9", "text that is not valid Unicode"),
    ("inference --src_file nowhere.fr", "nowhere.fr: cannot be read: No such file or directory"),
    ("inference --src_file .", ".: cannot be read: Is a directory"),
    ("inference --search both", "--search both finds two translations of a line"),
    ("inference --set model.d_model=64", "model.d_model was fixed by training; only decode.* can"),
    ("inference --set n_best=3", "unknown key 'n_best'"),
    ("inference --set evaluate.sacrebleu=3", "of no use; only decode.* can be set here"),
    ("test --set evaluate.bleu_sentences=3", "bleu_sentences is of training alone: leave it out"),
    ("test --set evaluate.also=train", "evaluate.also is of training alone: leave it out"),
    ("tune --set evaluate.batch_size=3", "is of no use; only data.* but the languages, decode.*"),
    (f"{BACK} {{tmp}}/x --set data.corpus=files", "no use; only data.max_len, decode.* can be set"),
    (f"{BACK} {{tmp}}/x --set data.max_len=2", "no sentence of at most 2 tokens"),
    ("inference --search sample --beam_size 2", "decode.beam_size: sampling has none; decode.n_"),
    ("inference --set decode.beam", "write SECTION.FIELD=VALUE"),
    ("inference --set decode=3", "decode = '3': decode is a section; set its fields: search, beam"),
    ("inference --set decode.bean=1", "unknown key 'decode.bean': decode has: beam_size"),
    ("inference --threads 0", "argument --threads: '0': must be an integer >= 1"),
    ("inference --config nowhere.py", "nowhere.py: no such config file"),
    ("inference --output LICENSE/out", "LICENSE/out: File exists"),
    ("inference --src_file MONO --max_len 3 --output /dev/full", "cannot write /dev/full: "),
    ("inference --src_file /proc/self/mem", "/proc/self/mem, line 1: cannot be read: "),
    ("inference --n_best 3", "decode.n_best = 3: one translation of each line is used; add --mbr"),
    ("inference --search greedy --src_text Oui. --n_best 2", "= 2: greedy search finds one"),
    (f"{BACK} {{tmp}}/x --set decode.search=sample", "decode.search: choose it by --search (now b"),
    ("inference --search greedy --src_text Oui. --beam_size 4", "decode.beam_size: greedy search"),
    ("inference --output .", "Is a directory; give another name"),
    ("inference --src_file MONO --output MONO", "mono.fr is the input itself"),
    ("inference --tgt_text Yes. --search beam", "--search beam is of no use with --tgt_text: le"),
    ("inference --tgt_file LICENSE --engine auto", "--engine auto is of no use with --tgt_file"),
    ("inference --tgt_file LICENSE --mbr chrf", "decode.mbr=chrf is of no use with --tgt_file"),
    ("inference --tgt_file nowhere.en", "nowhere.en: cannot be read: No such file or directory"),
    (
        "inference --src_file MONO --tgt_file {tmp}/blank.fr --output {tmp}/scores",
        "sources: 40, translations: 2; give as many",
    ),
    ("inference --src_file LICENSE --tgt_file MONO --output MONO", "mono.fr is the input itself"),
    ("inference --src_text Oui. --prefix A --prefix B", "sources: 1, prefixes: 2; give as many"),
    ("inference --src_file LICENSE --prefix_file nowhere.en", "nowhere.en: cannot be read: No su"),
    (
        "inference --src_file LICENSE --prefix_file MONO --output MONO",
        "mono.fr is the input itself",
    ),
    ("inference --device meta", "device 'meta' is not on this machine; allowed here: auto, cpu"),
    ("inference --compute_type int8", "--compute_type int8 is for --engine ctranslate2, not torch"),
    ("test --engine auto --precision bf16", "--precision bf16 is for --engine torch, not auto"),
    ("inference --precision fp16 --device cpu", "--precision 'fp16' needs a CUDA device; use auto"),
    (
        "inference --engine ctranslate2 --search diverse",
        "--engine ctranslate2: decode.search = 'di",
    ),
    ("inference --workers 0", "argument --workers: '0': must be an integer >= 1"),
    ("inference --workers 9999", "argument --workers: '9999': must be at most"),
    ("inference --model_path nowhere", "nowhere: no such checkpoint or run folder"),
    ("inference --model_path no/model.safetensors", "no/model.safetensors: no such checkpoint or"),
    ("inference --runs_dir configs", "no run with a checkpoint in configs/"),
    ("inference --beam_size x", "decode.beam_size = 'x': allowed: an integer >= 1"),
    ("inference --beam_size 2 --n_best 3", "decode.n_best = 3: at most decode.beam_size = 2"),
    ("inference --beam_size 100000", "decode.beam_size = 100000: allowed: an integer >= 1 and <="),
    ("inference --length_penalty 1e308", "decode.length_penalty = 1e+308: allowed: a number >= 0"),
    ("inference --top_p 0.9", "decode.search (beam) has no fields; top_p belongs to decode.search"),
    ("inference --search greedy --top_p 0.9", "decode.search.top_p: greedy search has none"),
    ("inference --search sample --top_p 1.5", "decode.search.top_p = 1.5"),
    ("inference --search sample --temperature 0", "decode.search.temperature = 0.0"),
    ("test --search sample --set decode.search.temperature=1e-320", "temperature = 1e-320: allow"),
    ("inference --search diverse --groups 2", "decode.search.groups = 2: must divide decode.beam"),
    ("test --align LICENSE --mbr chrf", "decode.mbr=chrf is of no use with --align: leave it out"),
    ("test --beam_size 3 --n_best 4", "decode.n_best = 4: at most decode.beam_size = 3: lower it"),
    ("test --split tset", "--split tset: the corpus has test, validation, train"),
    ("test --search wide", "invalid choice: 'wide'"),
    ("test --limit 0", "an integer >= 1"),
    ("test --set model.d_model=64", "was fixed by training; only data.* but the languages, eval"),
    ("test --config configs/demo.py", "model.d_model is 32 in the checkpoint and"),
    ("test --compare runs/none", "runs/none: no such checkpoint or run folder"),
    ("test --set data.src_lang=en", "data.src_lang was fixed by training; only data.* but the"),
    ("test --set data.directions=both", "data.directions was fixed by training; only data.* but"),
    ("inference --align_with 2", "--align_with 2 is for --align: add it"),
    ("inference --align --align_with 2:a", "'2:a': write [shift:]LAYER[:HEAD,HEAD,...]"),
    ("inference --src_text Oui. --align --align_with 3", "no layer 3: the decoder has 1 to 2"),
    ("inference --src_text Oui. --align --align_with 0", "no layer 0: the decoder has 1 to 2"),
    ("inference --src_text Oui. --align --align_with 2:0", "no head 0: the decoder has 1 to 2"),
    ("test --align_dev 9", "--align_dev 9 is for --align: add it"),
    ("test --align LICENSE --compare runs", "--compare runs is of no use with --align: leave it"),
    ("test --align LICENSE --workers 2", "--workers 2 is of no use with --align: leave it out"),
    ("test --align LICENSE --set decode.beam_size=2", "decode.beam_size=2 is of no use with --a"),
    ("test --align LICENSE --limit 3", "--limit 3 is of no use with --align: leave it out"),
    ("test --align none.talp", "--align none.talp: no such file"),
    ("test --align LICENSE --align_text {tmp}/nowhere", "nowhere.fr: cannot be read"),
    ("test --align LICENSE", "no such file as test.fr; give --align_text PREFIX"),
    ("tune --beam 0", "an integer >= 1"),
    ("tune --beam 100000", "'100000': must be at most 65535"),
    ("tune --beam 300 --set decode.batch_size=10000", "decode.batch_size = 10000: at most 218"),
    ("tune --length_penalty -1", "'-1': must be a number >= 0"),
    ("tune --length_penalty 400", "'400': must be a number >= 0 and <= 5"),
    ("tune --length_penalty nan", "'nan': must be a number >= 0"),
    ("tune --set decode.mbr=chrf", "--set decode.mbr=chrf: tune.py sets it itself: leave it"),
    ("tune --vary decode.beam_size=1,2", "--vary decode.beam_size=1,2: tune.py sets it itself"),
    ("tune --vary data.max_len=1,2", "--vary data.max_len=1,2: write decode.FIELD=A,B"),
    ("tune --vary decode", "--vary decode: write decode.FIELD=A,B"),
    ("tune --set decode.max_len=9 --vary decode.max_len=9", "decode.max_len is given twice"),
    ("tune --vary 'decode.beam_size =7'", "--vary decode.beam_size=7: tune.py sets it itself"),
    ("tune --markdown {tmp}", ": Is a directory; give another name"),
    ("datastore --set decode.batch_size=8", "decode.batch_size is of no use; only data.* but the"),
    ("tune --vary decode.max_len=9,no", "decode.max_len = 'no': allowed: an integer >= 1"),
    ("tune --set model.d_ff=4", "model.d_ff was fixed by training"),
    ("rerank --nbest_file MONO", "mono.fr, line 1: not as inference.py --json --n_best N"),
    ("rerank --nbest_file none.jsonl", "none.jsonl: cannot be read: No such file or directory"),
    ("rerank --nbest_file LICENSE --weight 0 1", "several weights are for --ref_file: give one"),
    ("rerank --weight 101", "'101': must be a number >= 0 and <= 100"),
    ("rerank --nbest_file LICENSE --ref_file LICENSE --json", "--json is of no use with --ref_f"),
    ("rerank --nbest_file LICENSE --ref_file LICENSE --output x", "--output x is of no use with"),
    ("rerank --nbest_file /dev/null --ref_file LICENSE", "references for 0 lines of /dev/null: gi"),
    ("rerank", "the following arguments are required: --nbest_file"),
    ("rerank --nbest_file {tmp}/blank.fr --output {tmp}/blank.fr", "blank.fr is the input itself"),
    (f"{BACK} {{tmp}}/bt --tag 'two words'", "--tag 'two words': one word"),
    (f"{BACK} {{tmp}}/bt --tag 'word '", "--tag 'word ': one word"),
    (f"{BACK} {{tmp}}/bt --reverse", " translates only fr to en; train one with --set data.s"),
    (f"{BACK} {{tmp}}/", "is a folder: name the files in it"),
    (f"{BACK} ''", "'' is a folder: name the files in it, as train"),
    (f"{BACK} {{tmp}}/mono --max_len 3", "mono.fr is the input itself"),
    (f"{BACK} MONO/bt", "mono.fr/bt.fr: File exists"),
    (f"{BACK} {{tmp}}/bt --search greedy --max_len 1", "mono.fr: no sentence could be translated"),
    ("back_translate --output {tmp}/bt", "one of the arguments --src_file --distill is required"),
    ("back_translate --distill --tag --output {tmp}/bt", "the sources of --distill are real"),
    ("back_translate --src_file none.fr --output {tmp}/bt", "none.fr: cannot be read"),
    ("back_translate --src_file {tmp}/blank.fr --output {tmp}/bt", "no sentence in it"),
    (f"{BACK} {{tmp}}/bt --tag caf\udce9", "text that is not valid Unicode"),
    ("serve --port 0 --n_best 2", "--n_best is for --mbr"),
    ("back_translate --src_file {tmp}/cut.gz --output {tmp}/bt --max_len 3", "cut.gz, line"),
]


infer = scripted(inference.main)


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_gets_one_line_and_leaves_no_file(
    command: str, words: str, infer: Scripts, trained_run: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    lines = b"".join(b"Le chat %d dort.\n" % i for i in range(40))
    (tmp_path / "mono.fr").write_bytes(lines)
    (tmp_path / "blank.fr").write_bytes(b"\n\n")
    (tmp_path / "cut.gz").write_bytes(gzip.compress(lines)[:-20])
    named = command.replace("MONO", f"{tmp_path}/mono.fr").replace("{tmp}", str(tmp_path))
    name, *args = shlex.split(named)
    script = importlib.import_module(name)
    # Some pairs are written before the end of the damaged file is missed.
    monkeypatch.setattr(script, "CHUNK", 2, raising=False)
    if "--model_path" not in args and "--runs_dir" not in args:
        args += ["--model_path", str(trained_run)]
    infer.main = script.main
    assert words in infer(*args).error()
    assert {path.name for path in tmp_path.iterdir()} == {"mono.fr", "blank.fr", "cut.gz"}
    assert (tmp_path / "mono.fr").read_bytes() == lines


def test_help_and_a_wrong_command_line_answer_before_torch_is_imported() -> None:
    probe = (
        "import importlib, sys\n"
        "def probe(name, *args):\n"
        "    try: importlib.import_module(name).main(list(args))\n"
        "    except (SystemExit, Exception) as error: print(type(error).__name__)\n"
        "names = ('inference', 'test', 'tune', 'back_translate', 'average', 'export', 'rerank')\n"
        "for name in names: probe(name, '--help'), probe(name, '--flag')\n"
        "run, new = ('--model_path', 'nowhere'), ('--output_dir', 'nowhere')\n"
        "attention = ('visualize', 'attention', '--src_text')\n"
        "probe(*attention, 'Oui.', *run), probe(*attention, 'Oui. ' * 3000)\n"
        "probe('visualize', 'encoding', '--positions', '1000000000')\n"
        "probe('train', '--resume', 'nowhere'), probe('train', '--init_from', 'nowhere')\n"
        "probe('train', '--nproc_per_node', '9999'), probe('train', '--set', 'decode=3')\n"
        "probe('test', *run), probe('tune', *run), probe('average', 'nowhere', 'there')\n"
        "probe('export', *run, *new, '--format', 'safetensors')\n"
        "probe('back_translate', *run, '--src_file', 'LICENSE', '--output', 'nowhere')\n"
        "probe('rerank', *run, '--nbest_file', 'LICENSE')\n"
        "probe('inference', '--runs_dir', 'nowhere')\n"
        "probe('inference', '--src_file', 'nowhere')\n"
        "probe('inference', '--set', 'model.d_ff=4')\n"
        "print(sorted({'torch', 'tokenizers', 'tqdm'} & sys.modules.keys()))"
    )
    done = run_script("-c", probe)
    assert done.stdout.count("UserError\n") == 22, done.stderr
    assert done.stdout.count("ConfigError\n") == 1
    assert done.stdout.count("SystemExit\n") == 7
    assert done.stdout.endswith("\n[]\n")


# ---------------------------------------------------------------------- what does not fit together


def test_a_run_whose_parts_do_not_fit_each_other_is_refused(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = copy_run(trained_run, tmp_path)
    best = best_of(run)
    lone = best.rename(tmp_path / best.name)
    payload = read_checkpoint(lone)

    def said(model: Path) -> str:
        return infer("--model_path", model, "--src_text", "Oui.").error()

    assert "no tokenizer folder" in said(lone)
    best.write_bytes(b"{}")
    assert "(it is another kind of file, or holds more than tensors" in said(best)
    weights = {**payload["model"], "output.weight": torch.zeros(2, 2)}
    torch.save({**payload, "model": weights}, best)
    assert "the weights do not fit the configured model: size mismatch for output" in said(run)
    text = ["Un autre texte que celui du modèle."]
    SubwordTokenizer.train(text, Subword(vocab_size=600)).save(run / "tokenizer")
    words = f"the tokenizer in {run / 'tokenizer'} is not the one this checkpoint was trained with"
    assert said(run).startswith(words)


def test_a_config_must_describe_the_same_model_and_its_decode_settings_count(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    trained = checkpoint_config(read_checkpoint(best_of(trained_run)))
    file = tmp_path / "mine.py"
    args = ("--model_path", trained_run, "--src_text", "Oui.", "--config", file)

    def write(*overrides: str) -> None:
        data = to_dict(apply_overrides(trained, overrides))
        code = f"from configs.serialize import from_dict\nconfig = from_dict({data!r})\n"
        file.write_text(code, "utf-8")

    training = ("train.max_epochs=9", "data.corpus.n_train=7", "model.dropout=0.3")
    write("decode.beam_size=2", "decode.n_best=2", *training)
    assert infer(*args).out.count("\n-") == 2
    assert infer(*args, "--n_best", "1").out.count("\n-") == 1

    write("model.d_ff=96", "model.position=sinusoidal", "tokenizer.vocab_size=700")
    assert infer(*args).error() == (
        f"--config {file} does not fit the checkpoint: model.position is 'rope' in the checkpoint "
        "and 'sinusoidal' in the file; model.d_ff is 64 in the checkpoint and 96 in the file; "
        "tokenizer.vocab_size is 600 in the checkpoint and 700 in the file. Leave --config out: "
        "the checkpoint brings its own"
    )
    write("data.src_lang=en", "data.tgt_lang=fr")
    assert "data.src_lang is 'fr' in the checkpoint and 'en' in the file" in infer(*args).error()


def test_runs_of_other_languages_are_neither_compared_nor_put_together(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    other = copy_run(trained_run, tmp_path)
    payload = read_checkpoint(best_of(other))
    payload["config"]["data"].update(src_lang="en", tgt_lang="fr")
    torch.save(payload, best_of(other))
    words = f"{other} translates en to fr, not fr to en: give runs of the same languages"
    for command in ("test", "visualize attention --src_text Oui."):
        name, *args = command.split()
        infer.main = importlib.import_module(name).main
        assert infer(*args, "--model_path", trained_run, "--compare", other).error() == words
    infer.main = importlib.import_module("inference").main
    said = infer("--model_path", trained_run, best_of(other), "--src_text", "Oui.").error()
    assert said == words.replace(str(other), str(best_of(other)))


def test_a_sentence_that_is_too_long_is_named_by_its_line(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    short = untrained_run(trained_run, tmp_path, position=Learnable(max_positions=96))
    for run, times, most in ((trained_run, 7200, "8,192"), (short, 60, "96")):
        said = infer("--model_path", run, stdin=b"Oui.\n" + b"Le chat dort. " * times).error()
        assert said.startswith("standard input, line 2: ")
        assert said.endswith(f" tokens, and the model takes {most} at most; split it")
    pair = ("--src_text", "Oui.", "--tgt_text", "The cat sleeps. " * 60)
    assert infer("--model_path", short, *pair).error().startswith("pair 1: ")


def test_results_that_cannot_be_written_are_named(
    infer: Scripts, trained_run: Path, tmp_path: Path
) -> None:
    run = copy_run(trained_run, tmp_path)
    shutil.rmtree(run / "results", ignore_errors=True)
    (run / "results").write_text("a file where the folder should be", "utf-8")
    infer.main = importlib.import_module("test").main
    ended = infer("--model_path", run, "--limit", "2", "--set", "evaluate.bootstrap_samples=2")
    assert ended.code == 2
    assert ended.err.startswith(f"error: cannot write {run / 'results'}")
    assert ended.err.count("\n") == 1


def test_a_limit_itself_is_allowed() -> None:
    read_8 = integer(1, 8)
    assert [read_8(text) for text in ("1", "8")] == [1, 8]
    assert [number(2.0)(text) for text in ("0", "2")] == [0, 2]
    for read, text in ((read_8, "9"), (read_8, "0"), (positive, "9" * 20), (number(2.0), "2.1")):
        with pytest.raises(argparse.ArgumentTypeError, match=f"'{text}': "):
            read(text)


def test_what_another_library_says_is_one_line_and_cut_where_it_is_long() -> None:
    assert one_line(ValueError("two\nlines")) == "ValueError: two lines"
    assert one_line(ValueError("x" * 160)) == f"ValueError: {'x' * 160}"
    assert one_line(ValueError("x" * 161)) == f"ValueError: {'x' * 160}..."
