"""Dynamic programs over the decomposition of a problem into series, parallel and prime modules."""
