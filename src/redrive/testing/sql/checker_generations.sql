SELECT seq, generation, parent, max_attempts, deadline_at, policy_version, opened_at
FROM {schema}.generation ORDER BY seq, generation
