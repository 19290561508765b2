"""Reports: everything that shows a plan to people; nothing here decides anything."""
