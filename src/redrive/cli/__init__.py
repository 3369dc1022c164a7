"""The command ``redrive``: a thin face over :class:`redrive.app.Redrive` and its use-cases."""
