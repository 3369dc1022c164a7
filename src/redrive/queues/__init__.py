"""Mechanisms: what decides who is handed due work, and when. This release has the database itself."""
