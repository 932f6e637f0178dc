"""The README's own code, carried out: the encoding that it adds, the corpus that it reads, the
targets it names.
"""

from __future__ import annotations

import ast
import importlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, tiny_args

NEW_SCHEME = ("positional_encodings/distance_decay", "schemes")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippet(title: str) -> str:
    """The body of the README's Python block whose first line is `# {title}`."""
    match = re.search(rf"```python\n# {re.escape(title)}[^\n]*\n(.*?)```", README, re.DOTALL)
    assert match, f"the README has no block {title!r}"
    return match[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the project's code that a test may change."""
    root = tmp_path / "project"
    for house in (path.parent for path in ROOT.glob("*/__init__.py")):
        ignore = shutil.ignore_patterns("__pycache__", "cache")
        shutil.copytree(house, root / house.name, ignore=ignore)
    for script in ("train.py", "inference.py"):
        shutil.copy(ROOT / script, root)
    return root


def run(root: Path, *args: str) -> str:
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    done = subprocess.run(
        [sys.executable, *args], cwd=root, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_readmes_encoding_trains_and_translates(copy: Path, tmp_path: Path) -> None:
    positions = copy / "configs/positions.py"
    before = positions.read_text()
    after = re.sub(
        r"^Position = .*$",
        lambda _: snippet("configs/positions.py").strip(),
        before,
        count=1,
        flags=re.MULTILINE,
    )
    assert after != before
    positions.write_text(after)
    (copy / "models/positional_encodings/distance_decay.py").write_text(
        snippet("models/positional_encodings/distance_decay.py")
    )
    schemes = copy / "models/schemes.py"
    text = schemes.read_text()
    text = text.replace(
        "    config.NoPosition:", snippet("models/schemes.py") + "    config.NoPosition:", 1
    )
    new = "from models.positional_encodings.distance_decay import DistanceDecay\n"
    next_import = "from models.positional_encodings.fire "
    schemes.write_text(text.replace(next_import, new + next_import, 1))

    files = ("configs/positions.py", *(f"models/{name}.py" for name in NEW_SCHEME))
    assert sum(len(snippet(file).strip().splitlines()) for file in files) + 1 <= 40

    arguments = [
        "--config",
        "configs/demo.py",
        "--position",
        "distance_decay",
        *tiny_args(tmp_path),
    ]
    folder = run(copy, "train.py", *arguments, "--set", "model.position.slowest=0.05").strip()
    assert '"kind": "distance_decay"' in (Path(folder) / "config.json").read_text()
    out = run(copy, "inference.py", "--model_path", folder, "--src_text", "Le chat dort.")
    assert "=== beam search ===" in out


@pytest.mark.slow
def test_the_readmes_corpus_config_reads_parallel_files(copy: Path, tmp_path: Path) -> None:
    (copy / "configs/my_pair.py").write_text(snippet("configs/my_pair.py"))
    files = copy / "data/parallel"
    files.mkdir(parents=True)
    numbers = ["een", "twee", "drie", "vier", "vijf"]
    for split, n in (("train", 60), ("valid", 8), ("test", 8)):
        pairs = [(f"die Zahl {i}", f"het getal {i} {numbers[i % 5]}") for i in range(n)]
        (files / f"{split}.de").write_text("".join(f"{de}\n" for de, _ in pairs))
        (files / f"{split}.nl").write_text("".join(f"{nl}\n" for _, nl in pairs))
    arguments = tiny_args(tmp_path)
    kept = [
        part
        for flag, value in zip(arguments[::2], arguments[1::2])
        if not value.startswith("data.corpus")
        for part in (flag, value)
    ]
    folder = run(copy, "train.py", "--config", "configs/my_pair.py", *kept).strip()
    assert Path(folder).name.startswith("my_pair_")


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
    commands = ["attention", "encoding", "embedding_map"] if script == "visualize" else [""]
    for command in commands:
        with pytest.raises(SystemExit):
            importlib.import_module(script).main([*filter(None, [command]), "--help"])
        for flag in set(re.findall(r"--[a-z_]+", capsys.readouterr().out)) - {"--help"}:
            assert re.search(rf"{flag}\b", usage), flag


def test_no_line_of_a_document_is_beyond_100_columns() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]
    assert len(files) > 10
    long = [
        f"{path.name}:{number}"
        for path in files
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1)
        if len(line) > 100 and not line.startswith("|")
    ]
    assert long == []


def test_every_link_between_documents_leads_somewhere() -> None:
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks/README.md"]:
        text = path.read_text("utf-8")
        for target, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", text):
            other = path.parent / target if target else path
            assert other.exists(), (path.name, target)
            if anchor and other.suffix == ".md":
                heads = re.findall(r"^#+ (.*)$", other.read_text("utf-8"), re.MULTILINE)
                slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in heads}
                assert anchor in slugs, (path.name, target, anchor)


def test_the_reading_tour_names_what_there_is_and_is_an_hours_reading() -> None:
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
