"""The checker of annotations in the test run: an int is a float, as every type checker has it."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
