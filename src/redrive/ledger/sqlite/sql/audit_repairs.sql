-- How often the clock was set back, by hand: from, to. ?1 the action
SELECT CAST(before AS INTEGER), CAST(after AS INTEGER) FROM audit WHERE action = ?1 ORDER BY audit
