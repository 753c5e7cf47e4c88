"""The console: a web page over the operations that the commands have, and nothing beside them."""
