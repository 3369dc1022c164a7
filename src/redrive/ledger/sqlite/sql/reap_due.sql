-- Whether any lease or age has run out. ?1 now
SELECT EXISTS (SELECT 1 FROM delivery_state WHERE disposition = 1 AND leased_until <= ?1)
    OR EXISTS (SELECT 1 FROM delivery_state WHERE disposition <= 1 AND deadline_at <= ?1 AND disposition = 0)
