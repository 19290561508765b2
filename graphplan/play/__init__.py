"""Playing: tasks, messages and groups as flat arrays, and the one loop that runs them in time."""
