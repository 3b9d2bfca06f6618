"""``python -m tests.support.hung_engine serve ...`` is jaxgen with an engine whose steps hang once it has a request.

It says so in the log when that happens.
"""

import logging
import sys
import time

from jaxgen.core.request import TokenEvent
from jaxgen.engine.engine import Engine
from jaxgen.server.cli import main

logger = logging.getLogger(__name__)


def hang(self: Engine) -> list[TokenEvent]:
    logger.warning("the step hangs")
    time.sleep(10**6)
    return []


if __name__ == "__main__":
    Engine.step = hang  # type: ignore[method-assign]
    sys.exit(main())
