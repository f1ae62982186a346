"""What prompts and answers mean for one model: tokenizer, chat template, prompt preparation, output sessions.

`Frontend` is the way in. It owns no queue, no cache and no model state. Text reaches the model through
`Frontend.prepare`, tokens become text through an `OutputSession`.
"""

from __future__ import annotations

from ninfer.frontend.frontend import Frontend
from ninfer.frontend.output import OutputSession, Preview

__all__ = ["Frontend", "OutputSession", "Preview"]
