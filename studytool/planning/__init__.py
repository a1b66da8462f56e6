"""The plan lists of a GPU that is not here: real cuDNN heuristics and the real FROST planner, for a described board."""
