"""One measurement by the low-level bindings of `llama-cpp-python`, in a process of its own.

bindings.py version
bindings.py quantise SOURCE TARGET Q4_0|Q8_0
bindings.py measure MODEL THREADS PROMPT NEW DEPTH REPEATS     prints a JSON list of tokens per second
"""

from __future__ import annotations

import ctypes
import json
import random
import sys
import time
from typing import Any

import llama_cpp

UBATCH, BATCH, WARM_UP = 512, 2048, 512
FILE_TYPES = {"Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0}


class Session:
    """A loaded model with one sequence of at most `context` tokens; it is fed random tokens."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        llama_cpp.llama_backend_init()
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
        parameters = llama_cpp.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = context, BATCH, UBATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        self._context = llama_cpp.llama_init_from_model(self._model, parameters)
        self._tokens = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))

    def clear(self) -> None:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), False)

    def save(self) -> Any:
        """The sequence's state, to return to."""
        state = (ctypes.c_uint8 * llama_cpp.llama_state_seq_get_size(self._context, 0))()
        llama_cpp.llama_state_seq_get_data(self._context, state, len(state), 0)
        return state

    def restore(self, state: Any) -> None:
        self.clear()
        llama_cpp.llama_state_seq_set_data(self._context, state, len(state), 0)

    def read(self, count: int) -> None:
        """Process a prompt of `count` tokens."""
        for begin in range(0, count, BATCH):
            self._decode(min(BATCH, count - begin))
        llama_cpp.llama_synchronize(self._context)

    def write(self, count: int) -> None:
        """Process `count` tokens one by one."""
        for _ in range(count):
            self._decode(1)
            llama_cpp.llama_synchronize(self._context)

    def _decode(self, count: int) -> None:
        tokens = (ctypes.c_int32 * count)(*random.choices(range(self._tokens), k=count))
        if llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, count)):
            raise SystemExit("llama_decode failed")


def measure(path: str, threads: int, prompt: int, new: int, depth: int, repeats: int) -> list[float]:
    """Tokens per second of reading `prompt` tokens, or else of writing `new` after `depth`, once per repetition."""
    session = Session(path, threads, prompt + new + depth + WARM_UP)
    session.read(min(prompt, WARM_UP) or 1)
    session.clear()
    session.read(depth)
    begin = session.save()
    return [_rate(session, begin, prompt, new) for _ in range(repeats)]


def _rate(session: Session, begin: Any, prompt: int, new: int) -> float:
    session.restore(begin)
    started = time.perf_counter()
    session.read(prompt)
    session.write(new)
    return (prompt + new) / (time.perf_counter() - started)


def quantise(source: str, target: str, kind: str) -> None:
    """A tied head, which is the embedding, becomes Q6_K in Q4_0 files, as llama.cpp has it by default."""
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.ftype = FILE_TYPES[kind]
    if llama_cpp.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(parameters)):
        raise SystemExit(f"{source}: llama_model_quantize failed")


def main(command: str, *arguments: str) -> Any:
    if command == "version":
        return print(f"llama-cpp-python {llama_cpp.__version__}")
    if command == "quantise":
        return quantise(*arguments)
    model, *numbers = arguments
    return print(json.dumps(measure(model, *map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
