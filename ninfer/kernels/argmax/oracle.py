"""Oracle of argmax: the definition, one logit at a time."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def argmax(logits: NDArray[np.float32], mask: NDArray[np.int32] | None) -> NDArray[np.int64]:
    """Lowest id of the greatest allowed logit of each row of [B, V]; mask as in the contract, or None."""
    answers = []
    for row, values in enumerate(logits.tolist()):
        words = None if mask is None else mask[row if len(mask) > 1 else 0].tolist()
        ids = [i for i in range(len(values)) if words is None or words[i // 32] >> (i % 32) & 1]
        answers.append(max(ids, key=lambda i: (values[i], -i)))
    return np.array(answers, dtype=np.int64)
