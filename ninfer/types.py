"""Owning host values that cross the public border: requests in, events and results out.

Everything here is plain data (stdlib only, frozen, slotted). Token ids are ints of the model's tokenizer, times are
seconds, log-probabilities are natural logarithms.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

JsonValue = None | bool | int | float | str | list["JsonValue"] | dict[str, "JsonValue"]


# --- Requests ---------------------------------------------------------------------------------------------


class ContentKind(enum.Enum):
    """What one part of a message's content is."""

    TEXT = "text"
    IMAGE = "image"
    VIDEO = "video"


@dataclass(frozen=True, slots=True)
class ContentPart:
    """One part of a message: `text` for TEXT, owned encoded `media` bytes for IMAGE and VIDEO."""

    kind: ContentKind
    text: str = ""
    media: bytes = b""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A function call made by the assistant; `arguments` are already parsed JSON values."""

    name: str
    arguments: Mapping[str, JsonValue]
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, as the chat template sees it."""

    role: str
    content: str | tuple[ContentPart, ...] | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call; `parameters` is its JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TextPrompt:
    """Raw text: no chat template. Control tokens spelled in the text are encoded as text."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Ready token ids, used exactly as given."""

    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A conversation, rendered by the artifact's chat template (or by `template`, if given).

    `thinking=None` leaves the template's own default. `template_args` go to the template as they are and win over
    what ninfer derives. `cache_markers` are indices into `messages` after which the caller expects to branch.
    """

    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    thinking: bool | None = None
    reasoning_effort: str | None = None
    template: str | None = None
    template_args: Mapping[str, JsonValue] = field(default_factory=dict)
    cache_markers: tuple[int, ...] = ()


Prompt = TextPrompt | TokenPrompt | ChatPrompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. A `None` takes the preset of the model and mode.

    Order of application: grammar mask, penalties, temperature, top-k, top-p, min-p. Temperature 0 is greedy.
    `seed=None` draws one, so that each answer differs; with a seed, the same request has the same answer.
    """

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None

    @staticmethod
    def greedy() -> Sampling:
        """The most probable token every time, with no penalties."""
        return Sampling(
            temperature=0.0,
            top_p=1.0,
            top_k=0,
            min_p=0.0,
            presence_penalty=0.0,
            frequency_penalty=0.0,
            repetition_penalty=1.0,
            seed=0,
        )


@dataclass(frozen=True, slots=True)
class StopConditions:
    """What ends an answer besides the end-of-sequence token and the token budget.

    Stop strings are matched on the text of the content channel; `in_thinking` matches them in the reasoning too.
    """

    strings: tuple[str, ...] = ()
    token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    in_thinking: bool = False


class CacheUse(enum.Enum):
    """Whether a request may use and feed the prefix cache."""

    READ_WRITE = "read_write"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One generation. `max_new_tokens=None` means up to the context limit; `deadline` is seconds from submission."""

    prompt: Prompt
    max_new_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stops: StopConditions = field(default_factory=StopConditions)
    top_logprobs: int | None = None
    session_key: str | None = None
    deadline: float | None = None
    cache: CacheUse = CacheUse.READ_WRITE


# --- Events and results -----------------------------------------------------------------------------------


class Channel(enum.Enum):
    """Which stream of an answer a piece of text belongs to."""

    REASONING = "reasoning"
    CONTENT = "content"


class FinishReason(enum.Enum):
    """Why an answer ended."""

    STOP = "stop"
    LENGTH = "length"
    TOOL_CALLS = "tool_calls"
    CANCELLED = "cancelled"
    DEADLINE = "deadline"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of a produced token and of the likeliest alternatives (descending)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class CheckpointKind(enum.Enum):
    """Why a reusable checkpoint was made."""

    SESSION_ENDPOINT = "session_endpoint"
    TURN_CLOSURE = "turn_closure"
    RESPONSE_REPLAY = "response_replay"
    LONG_ANCHOR = "long_anchor"
    SHARED_PREFIX = "shared_prefix"


class ReuseReason(enum.Enum):
    """Why a request reused what it did.

    NO_CHECKPOINT: no checkpoint lies at or below the token where the prompt leaves every known history.
    IDENTITY_DIFFERS: known histories differ from the very first token, or in what else shaped them (mode, media).
    EVICTED: a checkpoint would have served, but had been given up for room. NOT_WORTH_IT: one would have served, but
    there was no room for it now, or computing anew was cheaper. DISABLED: the request takes no part in the cache.
    """

    HIT = "hit"
    NO_CHECKPOINT = "no_checkpoint"
    IDENTITY_DIFFERS = "identity_differs"
    EVICTED = "evicted"
    NOT_WORTH_IT = "not_worth_it"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Reuse:
    """How much of a prompt was reused, and why no more.

    A HIT started from a checkpoint of `kind` at `frontier` tokens. The prompt is known to share `common_tokens` leading
    tokens with an earlier history: what lies between that and `frontier` was computed again.
    """

    reason: ReuseReason
    frontier: int = 0
    common_tokens: int = 0
    kind: CheckpointKind | None = None


@dataclass(frozen=True, slots=True)
class GenerationStart:
    """The request was admitted: committed facts about its prompt, sent before any output."""

    prompt_tokens: int
    reused_tokens: int
    reuse: Reuse | None = None


@dataclass(frozen=True, slots=True)
class Delta:
    """New text on one channel and the tokens it came with. `text` is always valid, complete Unicode."""

    channel: Channel
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """A piece of a tool call: `name` comes with the first piece of call `index`, `arguments` is JSON text."""

    index: int
    name: str | None
    arguments: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one finished request. `completion_tokens` counts every accepted token, stop token included."""

    prompt_tokens: int
    reused_tokens: int
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Timings:
    """Seconds: in the queue, from admission to the first token, from the first to the last token, and overall."""

    queue: float
    prefill: float
    decode: float
    total: float


@dataclass(frozen=True, slots=True)
class Finish:
    """The one terminal event of a request; `error` is set exactly when `reason` is ERROR."""

    reason: FinishReason
    usage: Usage
    timings: Timings
    error: str | None = None


Event = GenerationStart | Delta | ToolCallDelta | Finish


@dataclass(frozen=True, slots=True)
class GenerationResult:
    """A whole answer, aggregated from its events."""

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...]
    finish_reason: FinishReason
    usage: Usage
    timings: Timings


# --- What Frontend hands to Engine ------------------------------------------------------------------------


class BoundaryKind(enum.Enum):
    """A prompt frontier where a checkpoint is likely to be useful to a later request."""

    MARKER = "marker"
    TOOLS = "tools"
    SYSTEM = "system"
    TURN_CLOSURE = "turn_closure"
    RESPONSE_REPLAY = "response_replay"


@dataclass(frozen=True, slots=True)
class Boundary:
    """`frontier` tokens of the prompt lie before this boundary."""

    kind: BoundaryKind
    frontier: int


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """An owning, tokenised prompt: what the model will consume, with what identifies it.

    `opens_thinking` is read off the rendered prompt: the answer begins on the reasoning channel. `identity` digests
    everything besides the token ids that shapes the model's state (template runtime mode, media); equal identity and
    equal token prefix mean equal state.
    """

    token_ids: tuple[int, ...]
    text: str | None
    opens_thinking: bool
    identity: bytes = b""
    boundaries: tuple[Boundary, ...] = ()


@dataclass(frozen=True, slots=True)
class ResolvedSampling:
    """Sampling with every value settled. Temperature 0 is greedy; `top_k` 0, `top_p` 1 and `min_p` 0 are off."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    seed: int


# --- Engine options ---------------------------------------------------------------------------------------


class KvDtype(enum.Enum):
    """How keys and values are stored in the paged cache."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
    FP8 = "fp8"
    NVFP4 = "nvfp4"
    K8V4 = "k8v4"


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What is fixed when an Engine starts.

    `device`: `auto` (a CUDA device if one can be used), `cpu` or `cuda[:i]`. `threads`: CPU threads, None = physical
    cores. `max_context`: tokens per request, None = the model's limit, capped at 32768. `kv_capacity`: pages of 64
    tokens shared by all requests, None = on the CPU room for one full context and a quarter more, on CUDA what fits
    into free memory. `prefill_chunk`: a multiple of 128. `cuda_graph`: run decode rounds as CUDA graphs; without, their
    kernels are launched one by one.

    Prefix reuse keeps checkpoints of earlier prompts and answers. `device_state_slots`: state images kept ready, 0
    turns reuse off, None = up to 32 in 1 GiB. `host_state_slots` and `host_kv_mib`: how many images and how much of
    their keys and values may wait in host memory. Three more bound what is kept: continuations, prefixes shared
    between sessions (None = lanes, at least 4), and anchors inside long prompts; None = as many as the slots allow.
    """

    device: str = "auto"
    threads: int | None = None
    max_context: int | None = None
    kv_capacity: int | None = None
    kv_dtype: KvDtype = KvDtype.BF16
    prefill_chunk: int = 1024
    max_concurrency: int = 1
    max_pending_requests: int = 64
    concurrent_prefill: bool = False
    device_state_slots: int | None = None
    host_state_slots: int = 32
    host_kv_mib: int = 1024
    max_private_continuations: int | None = None
    max_shared_prefixes: int | None = None
    max_long_anchors: int | None = None
    cuda_graph: bool = True
