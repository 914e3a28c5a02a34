"""Steps of `racer bootstrap`; knows the words of each command, and not how a command works."""
