"""The nouns: frozen values that the passes exchange, their validation and their JSON.

They import neither torch nor a solver.
"""
