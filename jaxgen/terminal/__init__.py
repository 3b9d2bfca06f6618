"""Common parts of the commands' user interface: flags with errors of one line, and the progress of long work."""
