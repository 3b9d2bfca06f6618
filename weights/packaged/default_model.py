"""The model of commands without ``--model``: the one inside the package, or a tiny one. Host only, no jax."""

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from jaxgen.text.named_templates import template_text
from jaxgen.weights.files.file_names import CONFIG
from jaxgen.weights.huggingface.chat_template import TEMPLATE_FILE
from jaxgen.weights.packaged.tiny import make_tiny_checkpoint

DEMO = Path(__file__).parents[1] / "demo"


@cache
def default_model() -> Path:
    """Return the directory of the embedded model or, if the package has none, of a tiny random model, which is deleted
    when the process ends."""
    if (DEMO / CONFIG).is_file():
        return DEMO
    directory = Path(tempfile.mkdtemp(prefix="jaxgen-tiny-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    make_tiny_checkpoint(directory)
    (directory / TEMPLATE_FILE).write_text(template_text("plain"), encoding="utf-8")
    return directory
