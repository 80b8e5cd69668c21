"""Text to token ids and back, over the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Sequence

import tokenizers

from ..conversation import Message, Tool
from ..errors import RequestError, is_fault
from .chat_template import ChatTemplate
from .sentencepiece_bpe import SPACE

REPLACEMENT = "\ufffd"
MAX_HELD_TOKENS = 16
MAX_CHARACTER_BYTES = 4
MAX_CHARACTERS = 2**25
"""Of a text: the library takes some 100 bytes for each and ends the process if there are none."""


class Tokenizer:
    """A tokenizer with its special ids and chat template.

    There is one rule for the beginning-of-sequence token, for raw prompts and chats alike: the
    tokenizer adds the one it is configured to add, unless the text begins with one already.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        *,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        chat_template: ChatTemplate | None = None,
    ) -> None:
        """Wrap ``backend``; the ids are None where the model has no such token."""
        self.bos_token_id = bos_token_id
        self.eos_token_id = eos_token_id
        self.chat_template = chat_template
        # A tokenizer.json may tell how training cut and padded texts; a prompt is kept whole.
        backend.no_truncation()
        backend.no_padding()
        self._backend = backend
        byte_ids = (backend.token_to_id(f"<0x{value:02X}>") for value in range(256))
        self._byte_ids = frozenset(index for index in byte_ids if index is not None)
        added = backend.get_added_tokens_decoder()
        self._special_ids = frozenset(index for index, token in added.items() if token.special)
        self._token_texts: dict[int, str | None] = {}

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included; the model's own may be larger."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def drops_first_space(self) -> bool:
        """Whether ``decode`` leaves out a space that begins a text (Llama 2, Mistral, Phi-3)."""
        space = self._backend.token_to_id(SPACE)
        if space is None:
            return False
        return (self.decode([space]), self.decode([space, space])) == ("", " ")

    def encode(self, text: str) -> list[int]:
        """Return the ids of ``text``; never a second beginning-of-sequence token.

        Text that spells a special token becomes that token.

        Raises:
            RequestError: the vocabulary lacks a part of the text and has no unknown token, or the
                text is not Unicode (a lone surrogate).
        """
        ids = self._encode(text, adds_special=True)
        bos = self.bos_token_id
        return ids[1:] if bos is not None and ids[:2] == [bos, bos] else ids

    def encode_part(self, text: str) -> list[int]:
        """Return the ids of ``text`` alone: what stands before and after a prompt is not added.

        Raises:
            RequestError: as for ``encode``.
        """
        return self._encode(text, adds_special=False)

    def _encode(self, text: str, *, adds_special: bool) -> list[int]:
        if len(text) > MAX_CHARACTERS:
            raise RequestError(
                f"the text has {len(text):,} characters; at most {MAX_CHARACTERS:,} are tokenized"
            )
        try:
            ids: list[int] = self._backend.encode(text, add_special_tokens=adds_special).ids
        except BaseException as error:
            if not is_fault(error):
                raise
            reason = " ".join(str(error).split())
            raise RequestError(f"the tokenizer refuses the text: {reason}") from None
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of ``ids``; ids beyond the vocabulary have none, nor have special tokens.

        With ``skip_special_tokens`` False, special tokens have the text that they are written in.
        """
        return self._backend.decode(list(ids), skip_special_tokens=skip_special_tokens)

    def to_json(self) -> str:
        """Return the content of a ``tokenizer.json``."""
        return self._backend.to_str()

    def render_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> str:
        """Return the prompt text of ``messages``, with the ``tools`` that the model may call.

        Raises:
            RequestError: there is no chat template, or it refuses the messages or tools.
        """
        if self.chat_template is None:
            raise RequestError("chat template: the model has none; send a raw prompt instead")
        return self.chat_template.render(messages, tools)

    def encode_chat(self, messages: Sequence[Message], tools: Sequence[Tool] = ()) -> list[int]:
        """Return ``encode(render_chat(messages, tools))``."""
        return self.encode(self.render_chat(messages, tools))

    def is_byte(self, token_id: int) -> bool:
        """Tell whether a token stands for one raw byte (``<0x0A>``)."""
        return token_id in self._byte_ids

    def is_special(self, token_id: int) -> bool:
        """Tell whether ``decode`` leaves a token out, if it skips any."""
        return token_id in self._special_ids

    def token_text(self, token_id: int) -> str | None:
        """Return the text of a token that is the only one, None where there is no such token.

        A model may have more ids than its tokenizer has tokens.
        """
        if token_id not in self._token_texts:  # the library is asked once for each token
            is_token = self._backend.id_to_token(token_id) is not None
            text = self.decode([token_id], skip_special_tokens=False) if is_token else None
            self._token_texts[token_id] = text
        return self._token_texts[token_id]


class StreamDecoder:
    """Decodes one request's tokens as they come.

    Only whole characters are given out, and what ``push`` and ``flush`` return joins to exactly
    what ``decode`` returns for all ids at once. That decides against the library's own stream: it
    has no end to release what it held, and fails where bytes are no characters.
    """

    def __init__(self, tokenizer: Tokenizer, *, skip_special_tokens: bool = True) -> None:
        """Start before the first token."""
        self._tokenizer = tokenizer
        self._skips_special = skip_special_tokens
        # The window holds the tokens of the last increment, whose text was given out and which
        # later tokens are decoded beside (some decoders treat a first token differently), then
        # the tokens whose text is held back.
        self._window: list[int] = []
        self._num_given = 0
        self._given = ""

    def push(self, token_id: int) -> str:
        """Take the next token; return the text that is now certain, often of several tokens.

        Text is held back while it ends inside a character.
        """
        tokenizer = self._tokenizer
        is_token = tokenizer.token_text(token_id) is not None
        if not is_token or (self._skips_special and tokenizer.is_special(token_id)):
            return ""
        self._window.append(token_id)
        if tokenizer.is_byte(token_id):
            return ""
        text = self._decode(self._window)
        if not text.endswith(REPLACEMENT):
            return self._give(text)
        is_long = len(self._window) - self._num_given > MAX_HELD_TOKENS
        return self._give_invalid(text) if is_long else ""

    def flush(self) -> str:
        """Return what was held back, to be called after the last token."""
        return self._give(self._decode(self._window))

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skips_special)

    def _window_text(self) -> str:
        """Return the text of the window, which is mostly one token, without asking the library."""
        only = self._tokenizer.token_text(self._window[0]) if len(self._window) == 1 else None
        return self._decode(self._window) if only is None else only

    def _give(self, text: str) -> str:
        """Give out all text of the window; its new tokens become the context of the next."""
        increment = text[len(self._given) :]
        if increment:
            self._window = self._window[self._num_given :]
            self._num_given = len(self._window)
            self._given = self._window_text()
        return increment

    def _give_invalid(self, text: str) -> str:
        """Cut a long run of invalid bytes, so that the window stays short.

        Where the texts of both sides join to the text of the whole, no character spans the cut.
        """
        for cut in range(len(self._window) - 1, len(self._window) - MAX_CHARACTER_BYTES, -1):
            head, tail = self._window[:cut], self._window[cut:]
            if self._decode(head) + self._decode(tail) == text:
                increment = self._decode(head)[len(self._given) :]
                self._window, self._num_given, self._given = tail, 0, ""
                return increment
        return ""
