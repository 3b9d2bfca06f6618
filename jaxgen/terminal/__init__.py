"""What the commands share in talking to a user: flags with errors of one line, and the progress of long work."""
