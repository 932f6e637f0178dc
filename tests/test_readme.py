"""The documents' own code, carried out; and what the documents name is there."""

import ast
import importlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import ROOT, run_script, tiny_args

from configs.load import load_config
from training.run import train

DISTANCE_DECAY = "models/positional_encodings/distance_decay.py"
README = (ROOT / "README.md").read_text(encoding="utf-8")
DESIGNING = (ROOT / "docs/designing_an_encoding.md").read_text(encoding="utf-8")


def snippet(title: str) -> str:
    """The body of the documents' Python block whose first line is `# {title}`."""
    block = rf"```python\n# {re.escape(title)}[^\n]*\n(.*?)```"
    match = re.search(block, README + DESIGNING, re.DOTALL)
    assert match, f"no document has a block {title!r}"
    return match[1]


@pytest.mark.slow
def test_the_encoding_in_three_steps_trains_and_translates(tmp_path: Path) -> None:
    copy = tmp_path / "project"
    for house in (path.parent for path in ROOT.glob("*/__init__.py")):
        ignore = shutil.ignore_patterns("cache")  # what Python compiled serves again
        shutil.copytree(house, copy / house.name, ignore=ignore)
    for script in ("train.py", "inference.py"):
        shutil.copy(ROOT / script, copy)

    def change(name: str, old: str, new: str) -> None:
        before = (copy / name).read_text()
        assert re.search(old, before, re.MULTILINE), name
        (copy / name).write_text(re.sub(old, lambda _: new, before, count=1, flags=re.MULTILINE))

    change("configs/positions.py", "^Position = .*$", snippet("configs/positions.py").strip())
    (copy / DISTANCE_DECAY).write_text(snippet(DISTANCE_DECAY))
    entry = "    config.NoPosition:"
    change("models/schemes.py", entry, snippet("models/schemes.py") + entry)
    after = "from models.positional_encodings.fire "
    new = "from models.positional_encodings.distance_decay import DistanceDecay\n"
    change("models/schemes.py", after, new + after)

    files = ("configs/positions.py", DISTANCE_DECAY, "models/schemes.py")
    assert sum(len(snippet(file).strip().splitlines()) for file in files) + 1 <= 40

    chosen = ["--position", "distance_decay", "--set", "model.position.slowest=0.05"]
    tiny = tiny_args(tmp_path, "train.max_steps=2")
    arguments = ["--config", "configs/demo.py", *tiny, *chosen]
    words = ["--runs_dir", str(tmp_path / "runs"), "--src_text", "Le chat dort."]
    probe = f"import train, inference; train.main({arguments}); inference.main({words})\n"
    probe += "from experiments import copier, common; copier.VARIANTS['distance_decay']\n"
    probe += "common.POSITIONS['distance_decay']\n"
    contract = "tests/models/positional_encodings/test_contract.py"
    shutil.copytree(ROOT / "tests", copy / "tests", ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", copy)
    with (copy / contract).open("a") as file:
        file.write(snippet(contract))
    assert f"{contract} -k distance_decay" in DESIGNING
    probe += f"import pytest, sys; sys.exit(pytest.main(['{contract}', '-k', 'distance_decay']))"
    done = run_script("-c", probe, cwd=copy)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "=== beam search ===" in done.stdout
    [saved] = tmp_path.glob("runs/*/config.json")
    assert '"kind": "distance_decay"' in saved.read_text()


def test_the_readmes_corpus_config_reads_parallel_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my_pair.py").write_text(snippet("configs/my_pair.py"))
    files = Path("data/parallel")
    files.mkdir(parents=True)
    numbers = ["een", "twee", "drie", "vier", "vijf"]
    for split, n in (("train", 60), ("valid", 8), ("test", 8)):
        pairs = [(f"die Zahl {i}", f"het getal {i} {numbers[i % 5]}") for i in range(n)]
        (files / f"{split}.de").write_text("".join(f"{de}\n" for de, _ in pairs))
        (files / f"{split}.nl").write_text("".join(f"{nl}\n" for _, nl in pairs))
    kept = [text for text in tiny_args(tmp_path)[1::2] if not text.startswith("data.corpus")]
    result = train(load_config("my_pair.py", [*kept, "train.max_steps=2"]))
    assert result.run.path.name.startswith("my_pair_")


def test_the_readme_names_targets_and_configs_that_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([a-z]+)", README)):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    for path in set(re.findall(r"configs/[a-z0-9_]+\.py", README)) - {"configs/my_pair.py"}:
        assert (ROOT / path).is_file(), path


def test_make_without_a_target_prints_the_targets() -> None:
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for target in ("demo", "test", "lint", "tensorboard", "clean"):
        assert re.search(rf"^{target}\s", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize("script", sorted(path.stem for path in ROOT.glob("*.py")))
def test_the_usage_page_names_every_flag(script: str, capsys: pytest.CaptureFixture) -> None:
    usage = (ROOT / "docs/usage.md").read_text("utf-8")
    commands = [""]
    if script == "visualize":
        commands = ["attention", "explore", "encoding", "embedding_map"]
    for command in commands:
        with pytest.raises(SystemExit):
            importlib.import_module(script).main([*filter(None, [command]), "--help"])
        for flag in set(re.findall(r"--[a-z_]+", capsys.readouterr().out)) - {"--help"}:
            assert re.search(rf"{flag}\b", usage), flag


DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]


def test_every_link_between_documents_leads_somewhere_and_no_line_is_too_long() -> None:
    assert len(DOCUMENTS) > 10
    for path in DOCUMENTS:
        text = path.read_text("utf-8")
        lines = [line for line in text.splitlines() if not line.startswith("|")]
        assert max(map(len, lines)) <= 100, (path.name, max(lines, key=len))
        for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", text):
            other = path.parent / target if target else path
            assert other.exists(), (path.name, target)
            if anchor and other.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", other.read_text("utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
                assert anchor in slugs, (path.name, target, anchor)


def test_the_reading_tour_names_what_there_is_in_an_afternoons_lines() -> None:
    tour = " ".join((ROOT / "docs/reading_tour.md").read_text("utf-8").split())
    n_lines = 0
    stops = re.findall(r"\d+\. `([^`]+\.py)`(?: \((.*?)\))?:", tour)
    assert len(stops) > 15
    for path, names in stops:
        source = (ROOT / path).read_text("utf-8")
        sizes = {
            node.name: node.end_lineno - node.lineno + 1 + len(node.decorator_list)
            for node in ast.parse(source).body
            if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        }
        wanted = re.findall(r"`(\w+)`", names)
        assert set(wanted) <= set(sizes), path
        n_lines += sum(sizes[name] for name in wanted) if wanted else len(source.splitlines())
    assert 1000 < n_lines <= 2000, n_lines
