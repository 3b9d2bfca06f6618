"""Keep transformers from advising to install what jaxgen does not use. Host only, no jax."""

import logging


class _NoAdvice(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        message = record.getMessage()
        return "PyTorch was not found" not in message and "None of PyTorch" not in message


_NO_ADVICE = _NoAdvice()


def quiet_transformers() -> None:
    """Drop the advice of its import. Call it before each import: some take a second and are made on first use."""
    logging.getLogger("transformers").addFilter(_NO_ADVICE)
