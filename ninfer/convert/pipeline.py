"""Streams a planned conversion into the artifact writer: several threads, bounded memory.

NumPy and file reads release the interpreter lock, so threads keep all cores busy without copying blocks between
processes. Each thread holds one block of source values and its encoded form at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from itertools import islice

from ninfer.artifact.writer import ArtifactWriter
from ninfer.convert.data import Block, blocks, encode_block
from ninfer.convert.packing import PlannedTensor
from ninfer.convert.plan import ConversionPlan
from ninfer.convert.sources.tensor_file import TensorReader

BLOCK_BYTES = 4 << 20
"""Source bytes of one block: large enough to amortise a task, small enough to stay near the caches."""

BytesDone = Callable[[int], None]


def run_conversion(
    plan: ConversionPlan,
    writer: ArtifactWriter,
    reader: TensorReader,
    *,
    workers: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    progress: BytesDone = lambda done: None,
) -> None:
    """Write every object of `plan`. The caller commits the writer, or leaves it to remove every trace.

    Args:
        workers: threads; None takes one per core.
        block_bytes: source bytes that one thread holds at a time.
        progress: called in the calling thread with the source bytes done so far.

    Raises:
        ConfigError, ArtifactError: the first failure of any block. No thread runs any more when this returns.
    """
    for identifier, data in plan.resources.items():
        writer.write_object(identifier, data)
    tasks = ((tensor, block) for tensor in plan.tensors for block in blocks(tensor.parts, block_bytes))
    count = workers or os.cpu_count() or 1
    pool = ThreadPoolExecutor(count, thread_name_prefix="convert")
    try:
        _drain(tasks, pool, 2 * count, writer, reader, progress)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _drain(
    tasks: Iterator[tuple[PlannedTensor, Block]],
    pool: ThreadPoolExecutor,
    depth: int,
    writer: ArtifactWriter,
    reader: TensorReader,
    progress: BytesDone,
) -> None:
    """Keep at most `depth` blocks in flight until all are written."""
    done = 0
    pending: set[Future[int]] = set()
    while True:
        for tensor, block in islice(tasks, depth - len(pending)):
            pending.add(pool.submit(_convert, tensor, block, writer, reader))
        if not pending:
            return
        finished, pending = wait(pending, return_when=FIRST_COMPLETED)
        done += sum(future.result() for future in finished)
        progress(done)


def _convert(tensor: PlannedTensor, block: Block, writer: ArtifactWriter, reader: TensorReader) -> int:
    for offset, data in encode_block(block, tensor.method, tensor.geometry, reader):
        writer.write(tensor.id, offset, data)
    return block.source_bytes
