"""From a request to its answer: the set is called, answers are compared and voted on."""
