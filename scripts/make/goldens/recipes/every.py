"""Every golden by the name of its folder: the ``VARIANTS`` of each module of this package, which is found by name."""

from importlib import import_module
from pkgutil import iter_modules

from scripts.make.goldens import recipes
from scripts.make.goldens.variant import Variant

VARIANTS: dict[str, Variant] = {}
for _module in sorted(module.name for module in iter_modules(recipes.__path__)):
    if _module != "every":
        VARIANTS |= getattr(import_module(f"{recipes.__name__}.{_module}"), "VARIANTS", {})
