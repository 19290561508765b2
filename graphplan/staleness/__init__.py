"""The staleness laboratory: weight versions, delays and trajectories of a schedule on paper.

`replay_schedule` runs a schedule under a weight policy with any model whose numbers can be added
and multiplied; `measure_delays` counts the block updates between reads and writes; `bounds`,
`stability` and `localsgd` hold what theory says of them.
"""
