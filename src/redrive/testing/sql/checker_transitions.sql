SELECT seq, at, kind, generation, fence FROM {schema}.transition ORDER BY transition
