"""Text to token ids and back, with the model's chat template."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from recguide.errors import RecGuideError

END_THINK = "</think>"


class Tokenizer(Protocol):
    """What the engine and the tools need of a tokenizer."""

    def encode(self, text: str) -> list[int]: ...
    def decode(self, ids: list[int]) -> str: ...
    def chat(
        self, messages: list[dict[str, str]], *, generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]: ...

    @property
    def end_think_id(self) -> int | None: ...


class HFTokenizer:
    """A Hugging Face fast tokenizer; special tokens are dropped from decoded text."""

    def __init__(self, folder: Path):
        from transformers import PreTrainedTokenizerFast

        if not (folder / "tokenizer.json").exists():
            raise RecGuideError(f"{folder}: tokenizer.json not found; a model folder holds its tokenizer")
        try:
            self._tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        except Exception as fault:  # the Rust tokenizer raises bare Exception for a damaged file
            raise RecGuideError(f"{folder / 'tokenizer.json'}: damaged ({fault}); fetch the model again") from None

    def encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)

    def decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=True)

    def chat(
        self, messages: list[dict[str, str]], *, generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        """Token ids of a conversation, ready for the assistant's turn.

        ``thinking`` goes to the template as ``enable_thinking``; None leaves the template's own default.
        """
        if not self._tokenizer.chat_template:
            raise RecGuideError("the tokenizer has no chat template; give raw text prompts, or add a chat_template")
        options = {} if thinking is None else {"enable_thinking": thinking}
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=generation_prompt, **options
        )
        return self.encode(text)

    @property
    def end_think_id(self) -> int | None:
        """The token that ends a model's thinking, if it has one."""
        return self._tokenizer.get_vocab().get(END_THINK)


class ByteTokenizer:
    """UTF-8 bytes as tokens, for tiny test models (vocabulary of 256 or more)."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(i for i in ids if i < 256).decode(errors="replace")

    end_think_id = None

    def chat(
        self, messages: list[dict[str, str]], *, generation_prompt: bool = True, thinking: bool | None = None
    ) -> list[int]:
        text = "".join(f"{m['role']}: {m['content']}\n" for m in messages)
        return self.encode(text + "assistant: " if generation_prompt else text)
