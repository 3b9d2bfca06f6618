"""Tools of a checkout. They end with one line where a module of an extra is missing."""

from jaxgen.terminal.extras import name_extras_at_the_end

name_extras_at_the_end()
