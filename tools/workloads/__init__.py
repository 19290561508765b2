"""Published graphs with costs: the files, their readers, and the problems that they pose."""
