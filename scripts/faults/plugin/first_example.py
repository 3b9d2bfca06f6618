"""A plugin of pytest: hypothesis takes the same examples every time, and the first that fails is enough."""

from hypothesis import Phase, settings

# To look for the smallest example, which nobody reads here, may take minutes.
settings.register_profile("faults", phases=(Phase.explicit, Phase.generate), derandomize=True, database=None)
settings.load_profile("faults")
