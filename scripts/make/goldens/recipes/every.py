"""Every golden by the name of its folder."""

from scripts.make.goldens.recipes import dense, first, gemma, moe, others

VARIANTS = first.VARIANTS | dense.VARIANTS | gemma.VARIANTS | moe.VARIANTS | others.VARIANTS
