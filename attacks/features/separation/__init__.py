"""Features of single images separated in closed form. May import attacks/common/; imports no attack."""
