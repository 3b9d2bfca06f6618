"""Chat templates that treat messages as those of known models do: what they take, leave out and refuse.

They are our own, written from what is documented of a model's format, and shorter than the model's.
"""

from pathlib import Path

from jaxgen.core.model_info import ChatFormat

_FOLDER = Path(__file__).parents[1] / "data" / "templates"

KNOWN = {
    path.stem: ChatFormat(path.read_text(encoding="utf-8"), {"bos_token": "<s>", "eos_token": "</s>"})
    for path in sorted(_FOLDER.glob("*.jinja"))
}
