"""Networks that an active server trains together with a secret decoder, and what it reads through that."""
