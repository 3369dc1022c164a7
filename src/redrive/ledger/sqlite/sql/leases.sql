-- Open leases: how many, the oldest one's start, and how many have run out. ?1 now
SELECT count(*), min(started_at), coalesce(sum(leased_until <= ?1), 0)
FROM delivery_state INDEXED BY delivery_state_leased WHERE disposition = 1
