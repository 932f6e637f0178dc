"""The machine: its devices and precisions, running out of memory, its description."""

import contextlib
import ctypes
import logging
import math
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from utils.errors import UserError

logger = logging.getLogger(__name__)

T = TypeVar("T")
CPU = torch.device("cpu")
DTYPES = {"fp32": torch.float32, "tf32": torch.float32}
DTYPES |= {"bf16": torch.bfloat16, "fp16": torch.float16}
_within = threading.Lock()  # of `torch_to_itself`
_types_lock, _types_before = threading.Lock(), list[torch.dtype]()  # of `in_float32`
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
IN_A_SEARCH = 1 << 25  # bytes of the largest block to keep: more is no faster, and takes memory
# Below this width bfloat16 costs a processor more around matrix products than it gains in them, as
# measured (benchmarks/README.md). A GPU gains at every size.
BF16_FROM_D_MODEL = 128
# With AMX also below this many numbers of a layer's output in a batch: there oneDNN takes longer to
# prepare a product of a new shape than to compute it.
AMX_FROM_NUMBERS = 500_000


def resolve_device(name: str) -> torch.device:
    """The device of a name: "auto" is CUDA, else the CPU. UserError: there is no such device.

    A GPU becomes the current one, without cuDNN's attention.
    """
    n_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        name = "cuda" if n_gpus else "cpu"
    device = torch.device("meta")
    with contextlib.suppress(RuntimeError):  # not a kind of device
        device = torch.device(name)
    if (device.index or 0) >= {"cpu": 1, "cuda": n_gpus}.get(device.type, 0):
        allowed = ", ".join(["auto", "cpu", *(f"cuda:{n}" for n in range(n_gpus))])
        why = "not on this machine" if device.type in ("cpu", "cuda", "meta") else "not supported"
        raise UserError(f"device {name!r} is {why}; allowed here: {allowed}")
    if device.type == "cuda":
        torch.cuda.set_device(device.index or 0)
        # cuDNN plans each new batch shape for a second (modelscope/FunASR#3704), and batches of
        # sentences have hundreds of shapes.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return device


@contextlib.contextmanager
def computing_with(threads: int | None) -> Iterator[None]:
    """A scope with this many CPU threads; None leaves the number as it is."""
    before = torch.get_num_threads()
    try:
        if threads is not None:
            torch.set_num_threads(threads)
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def own_modes() -> Iterator[None]:
    """A scope without the caller's default device, autocast and inference mode, in this thread."""
    with contextlib.ExitStack() as stack:
        if torch.get_default_device() != CPU:  # setting one slows each call of torch
            stack.enter_context(CPU)
        for kind in ("cpu", "cuda"):
            stack.enter_context(torch.autocast(kind, enabled=False))
        stack.enter_context(torch.inference_mode(False))
        yield


@contextlib.contextmanager
def in_float32() -> Iterator[None]:
    """`own_modes`, with float32 as the default type, which is a setting of the whole process.

    It is set back when the last of several scopes ends, in whichever thread.
    """
    with _types_lock:
        _types_before.append(torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        with own_modes():
            yield
    finally:
        with _types_lock:
            torch.set_default_dtype(_types_before.pop())


@contextlib.contextmanager
def torch_to_itself(device: torch.device, *, deterministic: bool) -> Iterator[None]:
    """A scope with torch's initial settings; the caller's are restored at its end.

    deterministic: only algorithms that repeat their results to the last bit; RuntimeError if one is
    needed and missing. Enter it before a GPU works. Raises UserError while another thread is in
    such a scope: settings and random numbers belong to the process.
    """
    if not _within.acquire(blocking=False):
        why = "another thread of this process is training, and two would share random numbers"
        raise UserError(f"{why}: wait for it, or train in another process")
    backends: Any = torch.backends
    products = backends.cuda.matmul, backends.mkldnn.matmul
    types = [each.fp32_precision for each in products]
    precision = "highest"
    with contextlib.suppress(RuntimeError):  # `products` were set one by one
        precision = torch.get_float32_matmul_precision()
    exact = torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    other = (exact, warns) != (deterministic, False)  # if not, no compiler need be imported
    try:
        with in_float32(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.set_float32_matmul_precision("highest")
            if deterministic:  # torch reads it at the first product
                os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
            if other:
                torch.use_deterministic_algorithms(deterministic)
            yield
    finally:
        if other:
            torch.use_deterministic_algorithms(exact, warn_only=warns)
        torch.set_float32_matmul_precision(precision)
        for each, before in zip(products, types):
            each.fp32_precision = before
        _within.release()


def keep_freed_memory(largest: int = 1 << 30) -> None:
    """Keep the memory of freed CPU tensors in the process, for later ones; with glibc alone.

    Otherwise it goes back to the kernel, which clears each page before its next use: up to 28% of
    an update's time (benchmarks/README.md). Blocks larger than `largest` bytes go back.
    """
    if sys.platform != "linux":
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    # Older releases take no more than 32 MiB.
    if mallopt and (mallopt(_MMAP_THRESHOLD, largest) or mallopt(_MMAP_THRESHOLD, IN_A_SEARCH)):
        mallopt(_TRIM_THRESHOLD, -1)  # the end of the heap is never given back


def give_back_memory() -> None:
    """Give freed memory back to the kernel, also what `keep_freed_memory` keeps; glibc alone."""
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)):
        trim(0)


def seed_all(seed: int, device: torch.device) -> None:
    """As torch.manual_seed, which formats Python's stack for each kind of device not in use."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def computes_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16, and does not emulate it hundreds of times slower.

    For a CPU, COMPUTES_BF16=yes or no in the environment overrides this, to repeat another's work.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if (said := os.environ.get("COMPUTES_BF16")) in ("yes", "no"):
        return said == "yes"
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def resolve_precision(
    name: str,
    device: torch.device,
    d_model: float,
    n_tokens: float = math.inf,
    *,
    setting: str = "train.precision =",
) -> str:
    """A key of DTYPES: "auto" is bf16 where the hardware trains a model faster in it, else fp32.

    "auto" depends on the width of the model and the tokens of a batch. Raises UserError, which
    begins with `setting`, for a type in which the hardware does not compute.
    """
    if name == "auto":
        gains = d_model >= BF16_FROM_D_MODEL
        if torch.cpu._is_amx_tile_supported():
            gains &= d_model * n_tokens >= AMX_FROM_NUMBERS
        gains |= device.type == "cuda"
        name = "bf16" if gains and computes_bf16(device) else "fp32"
        if name == "fp32" and device.type == "cuda":
            why = "this GPU does not compute in bfloat16; give fp16 to use its tensor cores"
            logger.info("%s 'auto' means fp32: %s", setting, why)
        return name
    if name in ("fp16", "tf32") and device.type != "cuda":
        raise UserError(f"{setting} {name!r} needs a CUDA device; use auto, fp32 or bf16")
    exact = {"bf16": "bfloat16", "tf32": "TensorFloat-32"}.get(name)
    if exact and not computes_bf16(device):  # GPUs have both or neither
        here = f"this {device.type} does not compute in {exact}; use auto or fp32"
        raise UserError(f"{setting} {name!r}: {here}")
    return name


@contextlib.contextmanager
def autocast(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Mixed precision in dtype; nothing for float32 and float64.

    Torch keeps cast weights until the outermost autocast ends, be it the caller's. After an update
    they are the old ones, so they are dropped here at the end.
    """
    if dtype not in (torch.bfloat16, torch.float16):
        yield
        return
    try:
        with torch.autocast(device.type, dtype=dtype):
            yield
    finally:
        torch.clear_autocast_cache()


# Not every allocator has an exception class of its own. These words are torch's on CPUs (the third
# for a size that overflows), cuBLAS', CUDA's, NCCL's and CTranslate2's.
_WORDS = (
    "you tried to allocate",
    "allocate memory",
    "calculation overflowed",
    "ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",  # no room for its handle
    "CUDA error: out of memory",
    "'out of memory'",
    "failed with error out of memory",
)


def is_out_of_memory(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
    )


def if_it_fits(compute: Callable[..., T], *args: Any) -> T | None:
    """compute(*args), or None if memory runs out, which is then freed again."""
    try:
        return compute(*args)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    torch.cuda.empty_cache()  # after the error is gone, which holds what was computed
    return None


@cache
def commit() -> str:
    """The commit of this checkout when first asked for; "-dirty" follows if there are changes."""
    root = Path(__file__).resolve().parents[1]
    if not (root / ".git").exists():  # installed; a repository around it is another's
        return "unknown"
    how: dict[str, Any] = {"cwd": root, "text": True, "timeout": 10, "stderr": subprocess.DEVNULL}
    # A checkout may be another user's, whose Python runs here already.
    git = ["git", "-c", f"safe.directory={root}"]
    try:
        found = subprocess.check_output([*git, "describe", "--always", "--dirty"], **how).strip()
        # What describe misses: a config or a module that is in no commit.
        command = [*git, "ls-files", "--others", "--exclude-standard", "*.py"]
        if "dirty" not in found and subprocess.check_output(command, **how):
            found += "-dirty"
    except (OSError, subprocess.SubprocessError):
        found = "unknown"
    return found


def provenance(device: torch.device = CPU) -> dict[str, str]:
    """Commit, versions, device, hardware and threads of this process, as strings."""
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
    return {
        "commit": commit(),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "device": device.type,
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
    }


def cpu_name() -> str:
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def amd_family() -> int:
    """AMD's number of the processor: 25 for Zen 3 and 4, 26 for Zen 5; 0 for another maker's."""
    family = _cpuinfo("cpu family") if _cpuinfo("vendor_id") == "AuthenticAMD" else ""
    return int(family) if family.isdecimal() else 0


def is_intel() -> bool:
    return _cpuinfo("vendor_id") == "GenuineIntel"


@cache
def _cpuinfo(field: str) -> str:
    """A field of the first processor from Linux, or ""."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            name, _, value = line.partition(":")
            if name.strip() == field:
                return value.strip()
    return ""
