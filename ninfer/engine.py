"""The public Engine and Scorer: thin facades over the control plane and one model instance."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import torch

from ninfer.errors import ConfigError, RequestError, RequestErrorKind
from ninfer.kernels import placement
from ninfer.runtime.core.engine_core import CoreOptions, EngineCore
from ninfer.runtime.core.handle import GenerationHandle
from ninfer.runtime.core.stats import EngineStats
from ninfer.runtime.instance import ModelInstance, Progress
from ninfer.runtime.options import check_device, settle_threads
from ninfer.runtime.scoring import DEFAULT_CONTEXT, DEFAULT_STRIDE, CausalScoreCore, ScoreReport, TokenScore
from ninfer.types import (
    ChatPrompt,
    EngineOptions,
    GenerationRequest,
    Message,
    Prompt,
    TextPrompt,
    TokenPrompt,
)


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """Facts about a running Engine. `max_context` is in tokens, `weight_bytes` is the artifact's payload."""

    path: str
    name: str
    architecture: str
    parameters: int
    weight_bytes: int
    vocab_size: int
    max_context: int
    device: str
    threads: int
    kv_dtype: str
    load_seconds: float


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """A prompt as the model would see it; `text` is None for a prompt of ready token ids."""

    text: str | None
    token_ids: tuple[int, ...]


class Engine:
    """One resident model that serves up to `max_concurrency` generations at a time.

        with Engine("model.ninfer") as engine:
            for event in engine.generate("Once upon a time", max_new_tokens=64):
                ...

    `generate` may be called from any thread; a handle is iterated with `for` or `async for`.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: EngineOptions | None = None,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Open `model` (a `.ninfer` entry file) and start. `progress(phase, done, total)` is called while loading.

        Raises:
            ArtifactError: the file set is missing, malformed or inconsistent.
            ConfigError: an option or the model's config cannot be honoured.
            CudaError: a CUDA device was asked for and cannot be used; saying what to install.
        """
        asked = options or EngineOptions()
        self._instance = _open(model, asked, progress)
        self._options = self._instance.settle(asked)
        core = CoreOptions(
            self._options.max_pending_requests, self._options.concurrent_prefill, cache=self._options.cache
        )
        self._core = EngineCore(self._instance.program(self._options), core)
        self._core.start()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self, drain: bool = False) -> None:
        """End every request and release everything; `drain` lets accepted requests finish. Idempotent."""
        self._core.close(drain)

    def generate(
        self, request: GenerationRequest | Prompt | str | Sequence[Message], **fields: Any
    ) -> GenerationHandle:
        """Queue one generation and return its handle at once.

        A prompt, a conversation or plain text may be given instead of a GenerationRequest; a str is one user message.
        `fields` are fields of GenerationRequest.

        Raises:
            RequestError: the request is refused; `kind` says why. The Engine goes on.
            EngineFailure: the Engine has failed before.
        """
        asked = _request(request, fields)
        _check_top_logprobs(asked.top_logprobs, self._instance.config.text.vocab_size)
        frontend = self._instance.frontend
        prepared = frontend.prepare(asked.prompt)
        return self._core.submit(
            prepared,
            frontend.output_session(prepared, asked),
            asked.max_new_tokens,
            frontend.resolve_sampling(asked, prepared, _draw_seed),
            top_logprobs=asked.top_logprobs,
            deadline=asked.deadline,
            session_key=asked.session_key,
            cache=asked.cache,
        )

    def render(self, prompt: Prompt) -> RenderedPrompt:
        """The prompt as the model would see it. Raises RequestError like `generate`."""
        prepared = self._instance.frontend.prepare(prompt)
        return RenderedPrompt(prepared.text, prepared.token_ids)

    def stats(self) -> EngineStats:
        """Queue, lanes, occupancy and counters at the last boundary."""
        return self._core.stats()

    @property
    def info(self) -> EngineInfo:
        """Fixed facts about this Engine."""
        instance, limits = self._instance, self._options.limits
        return EngineInfo(
            path=str(instance.path),
            name=instance.name,
            architecture=instance.config.text.architecture.value,
            parameters=instance.parameters,
            weight_bytes=instance.weight_bytes,
            vocab_size=instance.config.text.vocab_size,
            max_context=limits.max_context,
            device=instance.placement.name,
            threads=self._options.threads,
            kv_dtype=self._options.kv_dtype.value,
            load_seconds=instance.load_seconds,
        )


class Scorer:
    """One resident model that scores texts. It accepts no generation requests and keeps nothing between texts."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: EngineOptions | None = None,
        context: int = DEFAULT_CONTEXT,
        stride: int = DEFAULT_STRIDE,
        *,
        progress: Progress | None = None,
    ) -> None:
        """Open `model`. `context` and `stride` are tokens per window and between windows.

        Raises:
            ArtifactError, ConfigError, CudaError: as for Engine; also a context above the model's limit.
        """
        asked = replace(options or EngineOptions(), max_context=None)
        self._instance = _open(model, asked, progress)
        settled = self._instance.settle(asked, planned=False)
        limit = self._instance.config.text.max_position_embeddings
        if context > limit:
            raise ConfigError(f"--context must be at most the model's {limit} tokens, got {context}")
        self._core = CausalScoreCore(self._instance.window_scorer(settled, context), context, stride)

    def __enter__(self) -> Scorer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Nothing outlives the object; kept so that Engine and Scorer are used alike."""

    def score(
        self,
        streams: Iterable[tuple[str, str]],
        on_token: Callable[[TokenScore], None] | None = None,
        progress: Progress | None = None,
    ) -> ScoreReport:
        """Score (name, text) streams; streams never share history. `on_token` sees every scored token in order.

        Raises:
            RequestError: no text has two tokens, or a text cannot be encoded.
        """
        encoded = ((name, self.encode(text)) for name, text in streams)
        return self._core.score(encoded, on_token, progress)

    def encode(self, text: str) -> tuple[int, ...]:
        """The tokens that `score` scores: ordinary text, whatever it spells."""
        return self._instance.frontend.tokenizer.encode_plain(text)


def _open(model: str | os.PathLike[str], options: EngineOptions, progress: Progress | None) -> ModelInstance:
    """Weights are prepared for the number of threads that will run them, so that comes first."""
    check_device(options.device)
    torch.set_num_threads(settle_threads(options.threads))
    return ModelInstance.open(model, progress, placement.choose(options.device))


def _check_top_logprobs(asked: int | None, vocab: int) -> None:
    if isinstance(asked, int) and asked > vocab:
        raise RequestError(RequestErrorKind.INVALID, f"top_logprobs is {asked}: the model has {vocab} tokens")


def _draw_seed() -> int:
    return secrets.randbits(64)


def _request(
    request: GenerationRequest | Prompt | str | Sequence[Message], fields: dict[str, Any]
) -> GenerationRequest:
    if isinstance(request, GenerationRequest):
        return replace(request, **fields)
    if isinstance(request, str):
        request = ChatPrompt((Message("user", request),))
    if not isinstance(request, (TextPrompt, TokenPrompt, ChatPrompt)):
        request = ChatPrompt(tuple(request))
    return GenerationRequest(request, **fields)
