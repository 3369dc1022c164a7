-- The order is fold.Transition's. ?1 after ?2 to
SELECT seq, transition, at, kind, generation, fence, category FROM transition WHERE seq > ?1 AND seq <= ?2
ORDER BY seq, transition
