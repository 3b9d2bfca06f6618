"""A module for each family, whose ``FAMILY`` the registry finds. See docs/adding-a-model.md."""
