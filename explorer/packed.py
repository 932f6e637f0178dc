"""Arrays in a page: 16 bits a number, in base64."""

import base64
from typing import Any

import numpy as np

LEVELS = 65534  # above 0; one more code is for values that are not numbers


def pack(values: np.ndarray) -> dict[str, Any]:
    """A number is lo + step * code, at most half a step off; NaN and infinities are null."""
    finite = np.isfinite(values)
    lo, hi = (float(f(values[finite])) for f in (np.min, np.max)) if finite.any() else (0.0, 0.0)
    step = (hi - lo) / LEVELS or 1.0
    codes = np.full(values.shape, LEVELS + 1, dtype="<u2")
    codes[finite] = np.rint((values[finite] - lo) / step)
    coded = base64.b64encode(codes.tobytes()).decode()
    return {"shape": list(values.shape), "lo": lo, "step": step, "codes": coded}
