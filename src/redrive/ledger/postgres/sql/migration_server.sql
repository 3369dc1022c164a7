-- What a migration must know of the server and of its own session.
SELECT current_setting('server_version_num')::int, current_setting('server_version'), pg_backend_pid(),
       current_setting('server_encoding'), pg_is_in_recovery(), current_database()::text, current_user::text
