"""The ways of asking that OpenAI clients know, one file each: how each is read and written."""
