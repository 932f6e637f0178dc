"""Which device, which precision: what the config asks for against what the machine can do."""

from __future__ import annotations

import torch

from configs.errors import UserError


def resolve_device(name: str) -> torch.device:
    """ "auto" is CUDA where there is a device, else the CPU. Raises UserError for one that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"train.device = {name!r}: no such device; allowed: auto, cpu, cuda, cuda:N") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"train.device = {name!r}: no CUDA device here; use --set train.device=cpu")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"train.device = {name!r}: this machine has cuda:0 to cuda:{torch.cuda.device_count() - 1}")
    if device.type not in ("cpu", "cuda"):
        raise UserError(f"train.device = {name!r}: allowed: auto, cpu, cuda, cuda:N")
    return device


def computes_bf16(device: torch.device) -> bool:
    """Whether the hardware computes in bfloat16: a CPU without it emulates, hundreds of times slower than float32."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()


def resolve_precision(name: str, device: torch.device) -> torch.dtype:
    """The compute type: "auto" is bfloat16 where the hardware computes in it, else float32."""
    if name == "auto":
        return torch.bfloat16 if computes_bf16(device) else torch.float32
    if name == "fp16" and device.type != "cuda":
        raise UserError("train.precision = 'fp16' needs a CUDA device; allowed here: auto, fp32, bf16")
    if name == "bf16" and not computes_bf16(device):
        raise UserError(f"train.precision = 'bf16': this {device.type} does not compute in bfloat16; use auto or fp32")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[name]
