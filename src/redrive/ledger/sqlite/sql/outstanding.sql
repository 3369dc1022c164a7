-- Whether a route has anything leased, or waiting and not held. ?1 route
SELECT EXISTS (
         SELECT 1 FROM delivery_state INDEXED BY delivery_state_ready
         WHERE disposition = 0 AND hold = 0 AND route = ?1 AND priority IN (0, 1, 2, 3)
       )
    OR EXISTS (SELECT 1 FROM delivery_state INDEXED BY delivery_state_leased WHERE disposition = 1 AND route = ?1)
