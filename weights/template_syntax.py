"""Check the syntax of a chat template before the first conversation."""

from collections.abc import Sequence

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser

from jaxgen.core.errors import ConfigError


class _Generation(Extension):
    """The block {% generation %} of transformers, which marks what a model wrote, for training."""

    tags = {"generation"}  # noqa: RUF012 - as Jinja declares it

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        body: Sequence[Node] = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return list(body)


def check_template(text: str, source: str) -> None:
    """Raise ConfigError, which names ``source`` and the line, for a template that Jinja cannot compile."""
    environment = jinja2.Environment(extensions=[_Generation, "jinja2.ext.loopcontrols"])
    try:
        environment.compile(text)
    except jinja2.TemplateSyntaxError as error:
        raise ConfigError(
            f"{source}: the chat template has an error in line {error.lineno}: {error.message}"
        ) from error
