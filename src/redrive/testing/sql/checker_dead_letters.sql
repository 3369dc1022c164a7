SELECT seq, generation, state, cause, category, attempts FROM {schema}.dead_letter ORDER BY dead_letter
