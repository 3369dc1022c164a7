SELECT seq, generation, state, cause, category, attempts FROM dead_letter ORDER BY dead_letter
