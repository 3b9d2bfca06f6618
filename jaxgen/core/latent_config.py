"""Describe multi-head latent attention. Host only, no jax."""

from dataclasses import dataclass

LATENT_EPS = 1e-6
"""Epsilon of the norms of latents. transformers takes no other, whatever ``rms_norm_eps`` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentConfig:
    """Attention whose keys and values are products of one latent of each token (DeepSeek-V2, arXiv 2405.04434).

    ``rank``: numbers of the latent. ``rotated``: numbers of a key that depend on its position, which all heads share.
    ``plain``: numbers of a head's key that do not; ``values``: of its value. ``query_rank``: numbers of the latent of
    the queries; None: they are a product of the layer's input.

    The cache has the latent and the rotated numbers of a token. A query is brought into the space of latents, where all
    heads have the same keys, and what it reads there is a latent, of which a product makes the head's value.
    """

    rank: int
    rotated: int
    plain: int
    values: int
    query_rank: int | None = None

    @property
    def row(self) -> int:
        """Numbers that the cache has of a token in a layer."""
        return self.rank + self.rotated

    @property
    def query(self) -> int:
        """Numbers of a head's query before it is brought into the space of latents."""
        return self.rotated + self.plain
