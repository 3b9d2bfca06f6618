"""Find the token with which the assistant's turns end, where the model's configuration does not name it. Host only.

Those who fine-tune a model often change its template and its tokenizer, and leave the configuration of the model as it
was. The model then ends its turns with a token that the configuration does not know as an end.
"""

from collections.abc import Collection
from dataclasses import asdict
from pathlib import Path

from jaxgen.core.model_info import ChatFormat
from jaxgen.text.rendered_aside import AsideTemplate
from jaxgen.text.template_cache import cached_answer
from jaxgen.text.tokenizer import Tokenizer

_SEVERAL_MESSAGES = "<|channel|>"
"""A mark of templates in which an answer has several messages: the end of one is not that of the answer."""


def turn_end(chat: ChatFormat, tokenizer: Tokenizer, ends: Collection[int], cache: Path | None = None) -> int | None:
    """Return the added token that the template writes after an answer; None: there is none, or none is looked for.

    ``ends``: the tokens that end answers anyway. A template that names one of them is not rendered, which would import
    transformers. ``cache``: the folder of what earlier starts found out of templates, if any.
    """
    template = chat.template
    names = [tokenizer.token_text(token) for token in ends]
    if _SEVERAL_MESSAGES in template or "eos_token" in template or any(name and name in template for name in names):
        return None
    after = cached_answer(cache, {"after_answer": asdict(chat)}, lambda: AsideTemplate(chat).after_answer()) or ""
    first = tokenizer.encode(after.lstrip(), special=False)[:1]
    return next((token for token in first if tokenizer.added_token(tokenizer.token_text(token)) == token), None)
