SELECT seq, at, kind, generation, fence FROM transition ORDER BY transition
