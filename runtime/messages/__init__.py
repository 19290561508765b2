"""Messages: what goes from which device to which, in which memory and in which order."""
