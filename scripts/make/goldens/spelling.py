"""Spell config.json as transformers 5 saves it, or as the hub's older checkpoints have it. Needs no torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spelling:
    """How a configuration is written; of a multimodal one, its ``text_config``.

    ``old``: ``torch_dtype``; ``rope_theta``, ``rope_scaling`` and ``partial_rotary_factor`` for ``rope_parameters``; no
    ``layer_types``. ``kind`` is the key of the rope's kind in ``rope_scaling``. ``names`` are other names of keys.
    ``drop`` are keys that are left out, ``add`` keys that are set, last.
    """

    old: bool = False
    kind: str = "rope_type"
    names: Mapping[str, str] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    add: Mapping[str, Any] = field(default_factory=dict)

    def apply(self, config: Config) -> Config:
        """Return what config.json should say instead of what transformers saved."""
        config = {key: value for key, value in config.items() if key != "transformers_version"}
        if self.old:
            config["torch_dtype"] = config.pop("dtype")
        if "text_config" in config:
            return config | {"text_config": self._text(config["text_config"])}
        return self._text(config)

    def _text(self, config: Config) -> Config:
        if self.old:
            config = self._old(config)
        config = {self.names.get(key, key): value for key, value in config.items() if key not in self.drop}
        return {**config, **self.add}

    def _old(self, config: Config) -> Config:
        config = {key: value for key, value in config.items() if key not in ("layer_types", "dtype")}
        rope = config.pop("rope_parameters", None)
        if not rope:
            return config
        if "full_attention" in rope:  # only full attention is scaled, only windows may have a base of their own
            local = rope["sliding_attention"]["rope_theta"]
            rope = rope["full_attention"]
            if local != rope["rope_theta"]:
                config["rope_local_base_freq"] = local
        rope = dict(rope)
        config["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            config["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        kind = rope.pop("rope_type")
        if "original_max_position_embeddings" in config:  # phi3 has it outside
            rope.pop("original_max_position_embeddings", None)
        config["rope_scaling"] = None if kind == "default" else {self.kind: kind} | rope
        return config


AS_SAVED = Spelling()
