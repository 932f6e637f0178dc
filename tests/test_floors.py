"""A file imports only from the floors below its own, and starting a script stays cheap."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ("train", "inference", "test", "visualize", "export", "average", "tune", "back_translate")
# From the ground up. Names on one floor do not import each other; inside a name everything may.
FLOORS = [
    ("configs", "utils.files"),
    ("tokenizer", "models.masks"),
    ("models.dropout", "models.linear", "models.positional_encodings", "data"),
    ("models.attention", "models.schemes"),
    ("models.transformer_backend",),
    ("models.transformer", "models.transformer_ori", "models.initialisation"),
    ("models.build", "models.decoding"),
    ("utils",),
    ("experiments",),
    SCRIPTS,
]
FLOOR_OF = {unit: floor for floor, units in enumerate(FLOORS) for unit in units}
PACKAGES = {"configs", "data", "models", "tokenizer", "utils", "experiments"}


def unit_of(module: str) -> str | None:
    parts = module.split(".")
    prefixes = (".".join(parts[:n]) for n in range(len(parts), 0, -1))
    return next((prefix for prefix in prefixes if prefix in FLOOR_OF), None)


def imported_modules(source: str, module: str) -> set[str]:
    """Dotted names that a file imports, wherever the statement stands; `from a import b` gives a.b."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def broken_floors(module: str, source: str) -> list[str]:
    unit = unit_of(module)
    broken = []
    for name in imported_modules(source, module):
        if name.split(".")[0] not in PACKAGES | set(SCRIPTS):
            continue
        other = unit_of(name)
        upward = unit is None or other is None or (other != unit and FLOOR_OF[other] >= FLOOR_OF[unit])
        if upward or (module.startswith("models.") and other == "data"):  # a model knows ids, not where they come from
            broken.append(f"{module} imports {name}")
    return broken


def project_files() -> dict[str, Path]:
    paths = [path for package in sorted(PACKAGES) for path in sorted((ROOT / package).rglob("*.py"))]
    paths += [ROOT / f"{script}.py" for script in SCRIPTS if (ROOT / f"{script}.py").exists()]
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    return {".".join(parts[:-1] if parts[-1] == "__init__" else parts): path for path, parts in names.items()}


def test_every_file_imports_from_lower_floors_alone() -> None:
    files = project_files()
    assert len(files) > 40
    assert [line for module, path in files.items() for line in broken_floors(module, path.read_text("utf-8"))] == []


def test_every_module_has_a_floor() -> None:
    assert [module for module in project_files() if unit_of(module) is None and module != "models"] == []


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("configs.schema", "import tokenizer.build"),
        ("models.masks", "from models.attention import kernels"),
        ("models.positional_encodings.rope", "from models.attention.kernels import attend"),
        ("data.batching", "import models.attention.kernels"),
        ("models.transformer", "from data.batching import Batch"),
        ("models.transformer_backend", "from models.transformer import TranslationTransformer"),
        ("models.transformer_ori", "from models.transformer import TranslationTransformer"),
        ("models.decoding.beam", "from models import build"),
        ("models.decoding.beam", "def f():\n    from utils.translation import Translator"),
        ("models", "from models.build import build_model"),
    ],
)
def test_an_upward_or_sideward_import_is_seen(module: str, line: str) -> None:
    assert broken_floors(module, line)


@pytest.mark.parametrize("name", ["schema", "section", "positions", "serialize", "errors"])
def test_the_ground_floor_needs_the_standard_library_alone(name: str) -> None:
    names = imported_modules((ROOT / "configs" / f"{name}.py").read_text("utf-8"), name)
    assert {n.split(".")[0] for n in names} <= set(sys.stdlib_module_names) | {"configs"}


def test_translating_loads_no_heavy_package() -> None:
    heavy = [
        "datasets",
        "transformers",
        "matplotlib",
        "nltk",
        "sacrebleu",
        "tensorboard",
        "pyarrow",
        "sklearn",
        "torch._dynamo",
    ]
    code = f"import sys, utils.translation; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
