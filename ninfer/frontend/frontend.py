"""Frontend: the facade that owns what prompts and answers mean for one model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime

from ninfer.errors import ConfigError
from ninfer.frontend.channels import CLOSE_TEXT, OPEN_TEXT, ChannelRules, ThinkTags
from ninfer.frontend.messages import check_text, invalid
from ninfer.frontend.output import OutputRules, OutputSession, OutputState
from ninfer.frontend.prompt import PromptBuilder
from ninfer.frontend.resources import (
    CHAT_TEMPLATE,
    GENERATION_CONFIG,
    TOKENIZER_CONFIG,
    json_object,
    text_resource,
)
from ninfer.frontend.sampling import SamplingRules, draw_seed
from ninfer.frontend.stops import StopStrings
from ninfer.frontend.tokenizer import Tokenizer
from ninfer.types import (
    ChatPrompt,
    GenerationRequest,
    PreparedPrompt,
    Prompt,
    ResolvedSampling,
    StopConditions,
    TextPrompt,
)

MAX_STOP_STRINGS = 64
MAX_STOP_CHARACTERS = 1024


class Frontend:
    """Prompt and output semantics of one model; immutable but for a one-entry template cache, safe to share.

    `resources` maps roles to bytes: `tokenizer.json` (required), `tokenizer_config.json`, `chat_template.jinja` (else
    the template inside tokenizer_config), `generation_config.json`. `vocab_size` is the number of rows of the model's
    embedding. `clock` is what templates see as the present. Raises ConfigError naming the resource.
    """

    def __init__(
        self,
        resources: Mapping[str, bytes],
        vocab_size: int,
        is_moe: bool = False,
        clock: Callable[[], datetime] = datetime.now,
    ) -> None:
        self._tokenizer = Tokenizer(resources, vocab_size)
        self._tags = ThinkTags(self._tokenizer.id_of(OPEN_TEXT), self._tokenizer.id_of(CLOSE_TEXT))
        self._prompts = PromptBuilder(self._tokenizer, self._tags, _template_source(resources), clock)
        self._sampling = SamplingRules(json_object(resources, GENERATION_CONFIG), is_moe)

    @property
    def tokenizer(self) -> Tokenizer:
        """The vocabulary."""
        return self._tokenizer

    @property
    def eos_ids(self) -> frozenset[int]:
        """The tokens that end an answer by themselves."""
        return self._tokenizer.eos_ids

    @property
    def addressable_tokens(self) -> int:
        """Ids from here on have no token, whatever the model's matrices hold."""
        return self._tokenizer.addressable

    def unselectable_token_ids(self) -> tuple[int, ...]:
        """Ids in [0, vocab_size) that must never be sampled, ascending: rows without a token, and media tokens."""
        return self._tokenizer.unselectable

    def render(self, prompt: ChatPrompt | TextPrompt) -> str:
        """The text of a prompt. Raises RequestError with the template's own message when it refuses."""
        return self._prompts.render(prompt)

    def token_ids(self, prompt: ChatPrompt) -> tuple[int, ...]:
        """The token ids of a rendered conversation, images and videos as their single placeholders."""
        return self._prompts.encode(prompt).encoded.token_ids

    def encode_text(self, text: str) -> tuple[int, ...]:
        """The token ids of raw text (possibly none). Control tokens spelled in it are text.

        Raises RequestError (INVALID) for a lone surrogate.
        """
        check_text(text, "text")
        return self._tokenizer.encode_plain(text)

    def prepare(self, prompt: Prompt) -> PreparedPrompt:
        """An owning, tokenised prompt. Raises RequestError (INVALID) naming what cannot be represented."""
        return self._prompts.prepare(prompt)

    def resolve_sampling(
        self, request: GenerationRequest, prepared: PreparedPrompt, seed_source: Callable[[], int] = draw_seed
    ) -> ResolvedSampling:
        """Every sampling value settled; `seed_source` draws a seed when the request has none.

        Raises RequestError (INVALID) naming the field that is out of its domain.
        """
        return self._sampling.resolve(request.sampling, prepared.opens_thinking, seed_source)

    def output_session(self, prepared: PreparedPrompt, request: GenerationRequest) -> OutputSession:
        """The output semantics of one request. Raises RequestError (INVALID) for stop conditions it cannot honour."""
        stops = request.stops
        self._check_stops(stops)
        eos = self._tokenizer.eos_ids
        channels = ChannelRules(self._tags, StopStrings(stops.strings), stops.in_thinking)
        rules = OutputRules(
            tokenizer=self._tokenizer,
            channels=channels,
            open_id=None if self._tags.spelled else self._tags.open_id,
            close_id=None if self._tags.spelled else self._tags.close_id,
            stop_ids=frozenset(stops.token_ids) | (frozenset() if stops.ignore_eos else eos),
            hidden_ids=eos,
        )
        return OutputSession(rules, OutputState(channels.start(prepared.opens_thinking)))

    def _check_stops(self, stops: StopConditions) -> None:
        if isinstance(stops.strings, str):
            raise invalid(f"stops.strings: must be a tuple of strings, not the string {stops.strings!r}")
        if len(stops.strings) > MAX_STOP_STRINGS:
            raise invalid(f"stops.strings: {len(stops.strings)} strings; at most {MAX_STOP_STRINGS} are supported")
        for i, string in enumerate(stops.strings):
            check_text(string, f"stops.strings[{i}]")
            if not 0 < len(string) <= MAX_STOP_CHARACTERS:
                raise invalid(f"stops.strings[{i}]: must have 1 to {MAX_STOP_CHARACTERS} characters, not {len(string)}")
        for i, token_id in enumerate(stops.token_ids):
            if isinstance(token_id, bool) or not isinstance(token_id, int) or not self._tokenizer.has_text(token_id):
                limit = self._tokenizer.addressable - 1
                raise invalid(f"stops.token_ids[{i}]: {token_id!r} is no token; ids go from 0 to {limit}")


def _template_source(resources: Mapping[str, bytes]) -> str | None:
    """The artifact's template file, else the (default) template inside tokenizer_config."""
    own = text_resource(resources, CHAT_TEMPLATE)
    if own is not None:
        return own
    inner = json_object(resources, TOKENIZER_CONFIG).get("chat_template")
    if isinstance(inner, list):
        named = {entry.get("name"): entry.get("template") for entry in inner if isinstance(entry, dict)}
        inner = named.get("default")
    if inner is not None and not isinstance(inner, str):
        raise ConfigError(f"{TOKENIZER_CONFIG}: chat_template: must be a string or a list with a `default` entry")
    return inner
