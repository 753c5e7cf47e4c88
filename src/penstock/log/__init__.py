"""The message log: what a message is, the commit log that holds them, the offset log that says who has them."""
