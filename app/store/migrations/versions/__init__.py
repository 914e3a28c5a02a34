"""The versions, in order; what was released is never changed again."""
