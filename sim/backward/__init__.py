"""From a network that is trained to the program of one step."""
