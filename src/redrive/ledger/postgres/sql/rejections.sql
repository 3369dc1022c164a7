SELECT code, sum(count)::bigint FROM {schema}.rejection GROUP BY code ORDER BY code COLLATE "C"
