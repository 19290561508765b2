"""The shape of a DAG: orders, down-sets, folding and decomposition, whatever the costs."""
